"""What should make a person look at a definition: it flags, and never changes anything."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.sources.upstreams.poisoning.characters import (
    encoded_text,
    fold,
    hidden_characters,
    hidden_text,
    look_alikes,
)
from gateway.sources.upstreams.poisoning.finding import HIGH, LOW, MEDIUM, Finding, Remark, Severity, excerpt
from gateway.sources.upstreams.poisoning.phrases import Foreign, aimed_at_the_model

__all__ = ["Finding", "Severity", "look", "worst"]

# Characters of one definition that are read; what is longer is itself grave, since nobody reads it.
TEXT_LIMIT = 64 * 1024
NODES_LIMIT = 20_000
FINDINGS_LIMIT = 50
LONG, VERY_LONG = 8_000, 20_000
PROSE_KEY = 40
_TOO_LONG = "more text than anyone reads"


class _Text(NamedTuple):
    where: str
    text: str
    identifier: bool = False
    pattern: bool = False


def find_suspicions(value: Any, *, own: Collection[str] = (), others: Collection[str] = ()) -> list[Finding]:
    """Every reason to look at a definition, the gravest first.

    `own` are the names of the server's own tools, `others` those of other servers, of which it has no
    business to speak. It takes time linear in the definition; what is beyond the limits is itself a finding.
    """
    foreign = Foreign(own, others)
    found: dict[tuple[str, str], Finding] = {}
    left = TEXT_LIMIT
    for text in _texts(value):
        left -= len(text.text)
        if left < 0:
            found["", _TOO_LONG] = Finding("", _TOO_LONG, excerpt(text.text, 0, 0), HIGH)
            break
        for what, quoted, severity in _remarks(text, foreign):
            found.setdefault((text.where, what), Finding(text.where, what, quoted, severity))
        if len(found) >= FINDINGS_LIMIT:
            break
    return sorted(found.values(), key=lambda finding: -finding.severity.rank)[:FINDINGS_LIMIT]


def worst(findings: Collection[Finding]) -> Severity | None:
    """How grave the gravest is."""
    return max((finding.severity for finding in findings), key=lambda severity: severity.rank, default=None)


def _texts(value: Any) -> Iterator[_Text]:
    """Every text and every key of a schema's properties, walked without recursion, and only so far."""
    waiting: list[tuple[str, str, Any]] = [("", "", value)]
    for _ in range(NODES_LIMIT):
        if not waiting:
            return
        where, key, node = waiting.pop()
        if isinstance(node, str):
            yield _Text(where, node, key == "name" or (key == "enum" and " " not in node), key == "pattern")
        elif isinstance(node, Mapping):
            for name, item in node.items():
                place = f"{where}/{name.replace('~', '~0').replace('/', '~1')}"
                if key == "properties" or len(name) > PROSE_KEY or not name.isascii():
                    yield _Text(place, name, identifier=True)
                waiting.append((place, "" if key == "properties" else name, item))
        elif isinstance(node, list | tuple):
            waiting.extend((f"{where}/{index}", key, item) for index, item in enumerate(node))
    yield _Text("", " " * (TEXT_LIMIT + 1))  # too many parts are as good as too long


def _remarks(text: _Text, foreign: Foreign) -> Iterator[Remark]:
    if len(text.text) > LONG:
        severity = MEDIUM if len(text.text) > VERY_LONG else LOW
        yield Remark(f"a text of {len(text.text):,} characters", excerpt(text.text, 0, 0), severity)
    said = text.text
    yield from hidden_characters(said, text.identifier, text.pattern)
    yield from look_alikes(said, text.identifier)
    if text.identifier and len(said) > PROSE_KEY and said.count(" ") > 2:
        yield Remark("a sentence where a name belongs", excerpt(said, 0, len(said)), MEDIUM)
    yield from hidden_text(said)
    if not text.pattern:
        yield from encoded_text(said)
    yield from aimed_at_the_model(fold(said)[:TEXT_LIMIT], foreign)
