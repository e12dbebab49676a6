"""The words of tools and of requests: how texts are split, which endings do not matter, which words stand for others.

The general list of English and of the field is `thesaurus.txt`, beside this module. It knows nothing of single tools.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

_WORD = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+(?:[0-9]+[a-z]*)?|[0-9]+|[^\W0-9A-Za-z_]+")
# A run of letters and digits, with at most one hyphen: `JavaScript` and `e-mail` are also found as one word.
_RUN = re.compile(r"[A-Za-z0-9]+(?:-[A-Za-z0-9]+(?![A-Za-z0-9-]))?|[^\W0-9A-Za-z_]+")
# A word of a script that does not separate words is indexed by pairs of characters.
_UNSEPARATED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")

# Values in a request are arguments of the tool: their kind says more than they do.
_VALUES = (
    (re.compile(r"[^\s@]+@[^\s@]+\.\w+"), " email address "),
    (re.compile(r"https?://\S+"), " url page "),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), " ip address "),
    (re.compile(r"\b\d{1,2}:\d\d\b|\b\d{4}-\d\d-\d\d\b"), " "),
    (re.compile(r"\b[A-Z]{1,3}\d+:[A-Z]{1,3}\d+\b"), " cell range "),
    (re.compile(r"(?<!\w)#\d+\b"), " issue "),
    (re.compile(r"(?<!\w)#[a-z][\w-]*"), " channel "),
    (re.compile(r"(?<![\w.])@[a-z][\w-]*"), " user "),
    (re.compile(r"\b\d{4}\.\d{4,5}\b"), " paper "),  # of arXiv
    (re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b"), " commit "),
    (re.compile(r"\b([A-Z]{2})s\b"), r"\1"),  # PRs
)
# A word of capitals that no tool has is the symbol of a stock: NVDA.
_SYMBOL = re.compile(r"[A-Z]{3,5}")
# A particle stands up to so many words behind its verb: "take the old card off".
_PARTICLE_WITHIN = 3
# Letters of the shortest part of a word that is written as one, and of what a family of words has in common.
_LEAST_PART, _LEAST_ROOT = 3, 4
# Tools that must have each part of a word that is split.
_LEAST_TOOLS = 5
# British endings of stems: `optimis` is `optimiz`, `colour` is `color`.
_BRITISH = ("is", "ys", "our")
# Endings that make another word of the same family.
_DERIVED = ("ation", "ition", "ion", "ment", "ance", "ence", "ness", "ity")


class Thesaurus(NamedTuple):
    """Words that say nothing; for each stem those that stand for it; for each stem of a verb what it asks for; verbs
    of several words and the word that stands for each."""

    fillers: frozenset[str]
    synonyms: Mapping[str, Sequence[str]]
    actions: Mapping[str, str]
    phrases: Sequence[tuple[re.Pattern[str], str]]


@cache
def read_thesaurus() -> Thesaurus:
    sections: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("thesaurus.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = sections[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    fillers = frozenset(" ".join(sections.pop("fillers")).split())
    synonyms: dict[str, dict[str, None]] = defaultdict(dict)
    for group in sections.pop("synonyms"):
        asked, _, meant = (list(map(stem, part.split())) for part in group.partition(">"))
        for each in asked:
            synonyms[each] |= dict.fromkeys(other for other in meant or asked if other != each)
    phrases = [_read_phrase(line) for line in sections.pop("phrases")]
    verbs = reversed([(action, " ".join(lines).split()) for action, lines in sections.items()])
    actions = {stem(verb): action for action, each in verbs for verb in each}
    return Thesaurus(fillers, {each: tuple(others) for each, others in synonyms.items()}, actions, phrases)


def _read_phrase(line: str) -> tuple[re.Pattern[str], str]:
    """Read a phrase and the words for it; `...` stands for a few words between, which are kept."""
    phrase, _, words = (part.strip() for part in line.partition(":"))
    between = rf"((?:\s+[\w'-]+){{0,{_PARTICLE_WITHIN}}}?)\s+"
    verb = between.join(part.replace(" ", r"\s+") for part in phrase.split(" ... "))
    return re.compile(rf"\b{verb}\b"), f"{words} \\1" if "..." in phrase else words


def split_words(text: str) -> list[str]:
    """The words of a text or of a name in any style, in lower case."""
    if text.isascii():
        return [word.lower() for word in _WORD.findall(text)]
    return [part for word in _WORD.findall(text) for part in _split_script(word.lower())]


def _split_script(word: str) -> list[str]:
    if not _UNSEPARATED.match(word):
        return [word]
    return [word[at : at + 2] for at in range(max(1, len(word) - 1))]


def stem(word: str) -> str:
    """Return a word in lower case without the endings of English: `files` and `file` are one word."""
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif is_plural(word):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            word = word[: -len(ending)]
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    word = word[:-1] if len(word) > 4 and word.endswith("e") else word
    if len(word) > 5 and word.endswith(_BRITISH):
        word = word[:-1] + "z" if word[-1] == "s" else word[:-2] + "r"
    return word


def is_plural(word: str) -> bool:
    """Return whether the ending of a word in lower case is that of a plural."""
    return len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))


def find_root(word: str) -> str:
    """Return what the stems of a family have in common: `install` and `installation`."""
    for ending in _DERIVED:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_ROOT:
            return word[: -len(ending)]
    return word


def stem_text(text: str) -> list[str]:
    """The stems of a text of a tool. Of a word like `JavaScript`, its parts and the whole; words that say nothing are
    left out."""
    return [each for run in _RUN.findall(text) for each in _stems[run]]


def resolve_phrases(request: str) -> list[str]:
    """The words of a request as they are written, with one word for verbs of several ("get rid of") and the kinds of
    values in it."""
    for pattern, kind in _VALUES:
        request = pattern.sub(kind, request)
    lower = request.lower()
    for pattern, words in read_thesaurus().phrases:
        if pattern.search(lower):
            request = lower = pattern.sub(words, lower)
    return _RUN.findall(request)


def stem_request(request: Sequence[str], count_tools: Callable[[str], int]) -> list[str]:
    """The stems of the words of a request, each once. A word that no tool has is split into two that several have, if
    it can be."""
    fillers, synonyms = read_thesaurus()[:2]
    stems = dict[str, None]()
    for run in request:
        joined = run.replace("-", "").lower()
        if joined in fillers:
            continue
        parts = [part for part in split_words(run) if part not in fillers]
        if count_tools(stem(joined)):
            parts = [joined]
        elif _SYMBOL.fullmatch(run) and stem(joined) not in synonyms:
            parts = ["symbol"]
        elif len(parts) == 1 and stem(joined) not in synonyms:
            parts = _split_compound(joined, count_tools) or parts
        stems |= dict.fromkeys(map(stem, parts))
    if len(stems) > 1:  # numbers are values, too, unless a tool has one in its name
        stems = {each: None for each in stems if not each.isdigit()} or stems
    return list(stems)


def _split_compound(word: str, count_tools: Callable[[str], int]) -> list[str]:
    for at in range(_LEAST_PART, len(word) - _LEAST_PART + 1):
        parts = [word[:at], word[at:]]
        if min(count_tools(stem(part)) for part in parts) >= _LEAST_TOOLS:
            return parts
    return []


class _StemCache(dict[str, tuple[str, ...]]):
    """The stems of each run of letters as it is written."""

    def __missing__(self, run: str) -> tuple[str, ...]:
        if len(self) > _CACHED_RUNS:
            self.clear()
        found = self[run] = tuple(_stem_run(run))
        return found


_CACHED_RUNS = 50_000
_stems = _StemCache()


def _stem_run(run: str) -> Iterator[str]:
    fillers = read_thesaurus().fillers
    parts = split_words(run)
    for part in parts:
        if part not in fillers:
            yield stem(part)
    if len(parts) > 1 and run.isascii():
        yield stem(run.replace("-", "").lower())
