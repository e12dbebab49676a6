"""How large a result is, found out without writing it once more than it is written anyway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.calls import Outcome, RawResult, to_json

_MEASURED_APART = frozenset({"content", "structuredContent"})


def result_size(outcome: Outcome) -> int:
    """Bytes of all that the caller gets; of an upstream's result, of everything in it. Texts that are measured
    and not written count as UTF-8, without what JSON escapes in them."""
    wire = outcome.wire
    if wire is None:
        return len(outcome.value_json)
    if isinstance(wire, RawResult):
        return len(wire.message)
    size = len(to_json({key: value for key, value in wire.items() if key not in _MEASURED_APART}))
    if outcome.error is None:
        size += len(outcome.value_json)  # which is recorded too, so it is written in any case
        return size + content_size(outcome.content or ()) if "structuredContent" in wire else size
    return size + content_size(outcome.content or ()) + value_size(wire.get("structuredContent"))


def content_size(blocks: Iterable[Any]) -> int:
    return sum(map(value_size, blocks))


def value_size(value: Any) -> int:
    """Bytes of a value whose bulk is in few long texts, as that of MCP content is."""
    if isinstance(value, str):
        return 2 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, Mapping):
        return max(2, 1 + sum(len(key) + 4 + value_size(each) for key, each in value.items()))
    return len(to_json(value))
