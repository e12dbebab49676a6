"""What keeps a plan small: long texts lose their end and large values their place, and the plan says so."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.calls import to_json

_CUTS_LIMIT = 8  # beyond this many a section is all pieces, and a list of them would itself be long
_KEY_LIMIT = 60


@dataclass(frozen=True)
class Cut:
    """Something that was too large: where it stood, and how many bytes of JSON it was with its key."""

    at: str
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {"at": self.at, "bytes": self.bytes}


def fit(section: Mapping[str, Any], limit: int, at: str) -> tuple[dict[str, Any], tuple[Cut, ...]]:
    """A copy of `section` that is at most `limit` bytes of JSON, and what was cut to make it so.

    The largest values give way first: a text keeps its beginning, anything else becomes null. A
    section of too many large values is left empty. Refused when it is no JSON.
    """
    sizes = {key: len(to_json({key: value})) for key, value in section.items()}
    excess = sum(sizes.values()) - limit
    kept, cuts = dict(section), list[Cut]()
    for key in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if excess <= 0:
            break
        kept[key] = _shortened(section[key], sizes[key] - excess - len(to_json({key: None})))
        cuts.append(Cut(f"{at}.{key[:_KEY_LIMIT]}", sizes[key]))
        excess -= sizes[key] - len(to_json({key: kept[key]}))
        if len(cuts) > _CUTS_LIMIT:
            break
    if excess > 0:
        return {}, (Cut(at, len(to_json(section))),)
    # By way of JSON, so that the plan is exactly what will be read, and stays so whatever becomes of
    # the original. `json` and not orjson, which turns integers beyond 64 bits into floats.
    return json.loads(to_json(kept)), tuple(cuts)


def _shortened(value: Any, room: int) -> str | None:
    """The longest beginning of a text whose JSON takes `room` bytes; null for what is no text."""
    if not isinstance(value, str):
        return None
    beginning = value[: max(room, 0)]
    return beginning[: bisect_right(range(1, len(beginning) + 1), room, key=lambda end: len(to_json(beginning[:end])))]
