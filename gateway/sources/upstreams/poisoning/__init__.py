"""Detection of tool poisoning: findings in a definition that a person should review. Nothing is changed here."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from gateway.sources.upstreams.poisoning.characters import (
    find_encoded_text,
    find_hidden_characters,
    find_hidden_text,
    find_lookalikes,
    fold,
)
from gateway.sources.upstreams.poisoning.finding import HIGH, LOW, MEDIUM, Finding, Remark, Severity, excerpt
from gateway.sources.upstreams.poisoning.phrases import OtherTools, find_instructions

__all__ = ["Finding", "Severity", "find_suspicions", "worst"]

# Characters of one definition that are scanned; a longer one is itself a severe finding, since nobody reads it.
TEXT_LIMIT = 64 * 1024
NODES_LIMIT = 20_000
FINDINGS_LIMIT = 50
LONG, VERY_LONG = 8_000, 20_000
PROSE_KEY = 40
_TOO_LONG = "too much text to review"


class _Text(NamedTuple):
    where: str
    text: str
    identifier: bool = False
    pattern: bool = False


def find_suspicions(value: Any, *, own: Collection[str] = (), others: Collection[str] = ()) -> list[Finding]:
    """The findings in a definition, most severe first.

    `own` are the names of the server's own tools, `others` those of other servers, which it should not mention. Takes
    time linear in the definition; exceeding a limit is itself a finding.
    """
    other_tools = OtherTools(own, others)
    findings: dict[tuple[str, str], Finding] = {}
    left = TEXT_LIMIT
    for text in _texts(value):
        left -= len(text.text)
        if left < 0:
            findings["", _TOO_LONG] = Finding("", _TOO_LONG, excerpt(text.text, 0, 0), HIGH)
            break
        for what, quoted, severity in _scan_text(text, other_tools):
            findings.setdefault((text.where, what), Finding(text.where, what, quoted, severity))
        if len(findings) >= FINDINGS_LIMIT:
            break
    return sorted(findings.values(), key=lambda finding: -finding.severity.rank)[:FINDINGS_LIMIT]


def worst(findings: Collection[Finding]) -> Severity | None:
    """The highest severity among findings."""
    return max((finding.severity for finding in findings), key=lambda severity: severity.rank, default=None)


def _texts(value: Any) -> Iterator[_Text]:
    """All texts and property names of a definition, without recursion and up to a limit."""
    pending: list[tuple[str, str, Any]] = [("", "", value)]
    for _ in range(NODES_LIMIT):
        if not pending:
            return
        where, key, node = pending.pop()
        if isinstance(node, str):
            yield _Text(where, node, key == "name" or (key == "enum" and " " not in node), key == "pattern")
        elif isinstance(node, Mapping):
            for name, item in node.items():
                place = f"{where}/{name.replace('~', '~0').replace('/', '~1')}"
                if key == "properties" or len(name) > PROSE_KEY or not name.isascii():
                    yield _Text(place, name, identifier=True)
                pending.append((place, "" if key == "properties" else name, item))
        elif isinstance(node, list | tuple):
            pending.extend((f"{where}/{index}", key, item) for index, item in enumerate(node))
    yield _Text("", " " * (TEXT_LIMIT + 1))  # too many nodes count as too long


def _scan_text(part: _Text, other_tools: OtherTools) -> Iterator[Remark]:
    text = part.text
    if len(text) > LONG:
        severity = MEDIUM if len(text) > VERY_LONG else LOW
        yield Remark(f"a text of {len(text):,} characters", excerpt(text, 0, 0), severity)
    yield from find_hidden_characters(text, part.identifier, part.pattern)
    yield from find_lookalikes(text, part.identifier)
    if part.identifier and len(text) > PROSE_KEY and text.count(" ") > 2:
        yield Remark("a sentence where a name belongs", excerpt(text, 0, len(text)), MEDIUM)
    yield from find_hidden_text(text)
    if not part.pattern:
        yield from find_encoded_text(text)
    yield from find_instructions(fold(text)[:TEXT_LIMIT], other_tools)
