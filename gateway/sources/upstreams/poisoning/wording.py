"""Words that are meant for the model rather than for whoever reads the description."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from gateway.sources.upstreams.poisoning.finding import HIGH, MEDIUM, Remark, excerpt
from gateway.sources.upstreams.poisoning.phrases import PHRASES

_NEAR = 160


class Foreign:
    """The tools of other servers, of which a description has no business to speak.

    Only names count that are no ordinary words: with `_`, `-`, a digit or a capital inside.
    """

    def __init__(self, own: Collection[str] = (), others: Collection[str] = ()) -> None:
        mine = set(own)
        self._names = {name for name in others if name not in mine and _TELLING_NAME.search(name)}

    def named_in(self, text: str) -> Iterator[re.Match[str]]:
        if self._names:
            yield from (match for match in _TOKEN.finditer(text) if match[0] in self._names)


def aimed_at_the_model(text: str, foreign: Foreign) -> Iterator[Remark]:
    """What a text, folded to how it reads, tells the model to do."""
    lower = text.lower()
    for phrase in PHRASES:
        if match := phrase.search(text, lower):
            yield Remark(phrase.what, excerpt(text, match.start(), match.end()), phrase.severity)
    yield from _secrets(text)
    yield from _shadowing(text, foreign)


def _secrets(text: str) -> Iterator[Remark]:
    """A place where secrets are kept is worth a look; telling the model to fetch them is no longer a mention."""
    for number, match in enumerate(_SECRET_PLACE.finditer(text)):
        before = text[max(0, match.start() - 80) : match.start()]
        around = text[max(0, match.start() - _NEAR) : match.end() + _NEAR]
        if _FETCH.search(before) and _TO_THE_MODEL.search(around):
            yield Remark("tells the model to fetch secrets", excerpt(text, match.start() - 30, match.end()), HIGH)
            return
        if number == 0:
            yield Remark("speaks of a place where secrets are kept", excerpt(text, match.start(), match.end()), MEDIUM)


def _shadowing(text: str, foreign: Foreign) -> Iterator[Remark]:
    for number, match in enumerate(foreign.named_in(text)):
        around = text[max(0, match.start() - _NEAR) : match.end() + _NEAR]
        if _DIRECTIVE.search(around):
            yield Remark("gives orders about another server's tool", excerpt(text, match.start(), match.end()), HIGH)
            return
        if number == 0:
            yield Remark("names another server's tool", excerpt(text, match.start(), match.end()), MEDIUM)


_TELLING_NAME = re.compile(r"[A-Za-z0-9][_-][A-Za-z0-9]|[a-z][A-Z]|[A-Za-z][0-9]")
_TOKEN = re.compile(r"(?<![\w-])[A-Za-z][\w-]{3,127}")

_SECRET_PLACE = re.compile(
    r"(?<![\w.])\.(?:ssh|aws|gnupg|kube|azure|netrc|npmrc|pypirc|git-credentials|(?:bash|zsh)_history)\b"
    r"|(?<![\w.\])}])\.env(?:\.[a-z]{1,12})?(?![\w(-])|\.cursor/mcp|\bmcp\.json\b|claude_desktop_config"
    r"|\bid_(?:rsa|ed25519|ecdsa)\b|\bauthorized_keys\b|/etc/(?:passwd|shadow|sudoers)|\bwallet\.dat\b"
    r"|\bcredentials\.json\b|\bssh (?:private )?keys?\b|\bseed phrase|\bkeychain\b|\bsaved passwords\b",
    re.IGNORECASE,
)
_FETCH = re.compile(
    r"\b(?:read|open|cat|load|get|fetch|include|send|copy|attach|upload|pass|access|retrieve|provide|extract|print|dump"
    r"|list|find|collect|grab|append|check|look (?:at|in|into|up|for)|contents? of|exfiltrate|steal)\b",
    re.IGNORECASE,
)
_TO_THE_MODEL = re.compile(
    r"\b(?:you|must|always|first|please|important|before|sidenote|otherwise|include (?:its|their|the content)|append"
    r"|send|upload|exfiltrate|pass (?:its|the|their|it|them)|so that"
    r"|as (?:the|a|an) .{0,30}(?:parameter|argument|field|value|note|context))\b",
    re.IGNORECASE,
)
_DIRECTIVE = re.compile(
    r"\b(?:instead|must|always|never|do not|don't|before|after|first|replaces?|replaced|deprecated|broken|rather than"
    r"|redirect|bcc|recipients?|when|whenever|every time|modify|change|unsafe|insecure|compromised)\b",
    re.IGNORECASE,
)
