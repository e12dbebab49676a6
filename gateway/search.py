"""The index over the tools of a catalog: which tools fit a few words or a sentence, best first.

The order of the answers: tools whose name starts with what was typed, then tools that have its words, then tools with
words near to them. Tools with the words are ranked by BM25 over name, title, server, description and arguments.
What is equal otherwise is ordered by last use.
"""

from __future__ import annotations

import asyncio
import difflib
import heapq
import math
import re
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from gateway.catalog import Catalog, CatalogEntry

# How much a word counts by where it stands. Of a long description the beginning says what the tool is for.
_NAME, _TITLE, _SERVER, _DESCRIPTION, _REST, _ARGUMENTS = 3.0, 2.0, 1.5, 1.0, 0.3, 0.5
_BEGINNING = 120
_DESCRIPTION_LIMIT = 2000

# The constants of BM25: how soon a repeated word counts no more, and how much long texts are discounted.
_SATURATION, _LENGTH = 3.0, 0.55

# What a synonym or a near word counts, against the word itself.
_SYNONYM, _NEAR = 0.7, 0.4
# How much of the query a synonym covers, and how much more a tool counts that the query names in full.
_PARTIAL, _NAMED = 0.85, 0.5
# A synonym that more tools have says too little for its cost.
_COMMON = 450

_QUERY_WORDS = 24
_QUERY_LENGTH = 500
# For a word that no tool has: the words with which it is compared letter by letter, and how many it may mean.
_COMPARED, _NEAR_WORDS = 50, 4
_LEAST_LIKENESS = 0.7
# Values of an argument that are indexed.
_VALUES = 20

# Seconds for which the last use of tools is remembered.
_USAGE_SECONDS = 10.0

_WORD = re.compile(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+(?:[0-9]+[a-z]*)?|[0-9]+|[^\W0-9A-Za-z_]+")
# A word of a script that does not separate words is indexed by pairs of characters.
_UNSEPARATED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


class SearchableTool(NamedTuple):
    """A tool as the index knows it. `server` names the server or toolset that it comes from."""

    name: str
    title: str = ""
    server: str = ""
    description: str = ""
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: SearchableTool
    # The stems of the name.
    name: frozenset[str]


# Returns how often each tool was called, by its id, and when the last call began.
LoadUsage = Callable[[], Awaitable[Mapping[str, tuple[int, str]]]]


class CatalogSearch:
    """Searches the catalog. The index is built at the first search, outside the event loop, and follows changes. The
    last use of tools is read at most every few seconds."""

    def __init__(self, load_usage: LoadUsage | None = None) -> None:
        self._load_usage = load_usage
        self._last_used: Mapping[str, float] = {}
        self._usage_read = -math.inf
        self._index = ToolIndex()
        self._catalog = Catalog()
        self._lock = asyncio.Lock()

    async def find(
        self, catalog: Catalog, query: str, limit: int = 10, part: Catalog | None = None
    ) -> list[CatalogEntry]:
        """The tools of a catalog, or of a part of it, that fit best, best first."""
        async with self._lock:
            if catalog is not self._catalog:
                await asyncio.to_thread(self._follow, catalog)
                self._catalog = catalog
            if self._load_usage is not None and time.monotonic() - self._usage_read > _USAGE_SECONDS:
                self._usage_read = time.monotonic()
                usage = await self._load_usage()
                moments = {entry.name: usage[entry.tool.id][1] for entry in catalog if entry.tool.id in usage}
                self._last_used = {name: datetime.fromisoformat(at).timestamp() for name, at in moments.items()}
        among = None if part is None or part is catalog else part.names
        found = self._index.search(query, limit, among=among, last_used=self._last_used)
        return [entry for name in found if (entry := catalog.get(name)) is not None]

    def _follow(self, catalog: Catalog) -> None:
        known = {entry.name: entry.tool for entry in self._catalog.for_models}
        offered = {entry.name: entry for entry in catalog.for_models}
        for name in known.keys() - offered.keys():
            self._index.remove(name)
        for name, entry in offered.items():
            if known.get(name) != entry.tool:
                self._index.put(name, _searchable(entry))
        self._index.prepare()


def _searchable(entry: CatalogEntry) -> SearchableTool:
    tool = entry.tool
    own_name = tool.id.partition(":")[2] or tool.id
    words = argument_words(tool.input_schema)
    return SearchableTool(own_name, tool.title or "", tool.owner or "", tool.description, words)


def argument_words(schema: Mapping[str, Any]) -> list[str]:
    """The names of a tool's arguments and the values that they can have: often these say what a tool does."""
    properties = schema.get("properties")
    words: list[str] = []
    for name, argument in properties.items() if isinstance(properties, Mapping) else ():
        values = argument.get("enum") if isinstance(argument, Mapping) else None
        words += [name, *(str(value) for value in (values if isinstance(values, list) else ())[:_VALUES])]
    return words


class ToolIndex:
    """An index over tools, each under its key. Tools can be put in and taken out."""

    def __init__(self, tools: Mapping[str, SearchableTool] | None = None) -> None:
        self._entries: dict[str, _Entry] = {}
        # For each stem: the keys of the tools with it, and how much it counts there.
        self._postings: dict[str, dict[str, float]] = defaultdict(dict)
        # What follows from the rest, made when it is needed: for each pair of letters the stems with it, and
        # the names in order, each with its key.
        self._pairs: dict[str, list[str]] = {}
        self._names: list[tuple[str, str]] = []
        self._prepared = False
        for key, tool in (tools or {}).items():
            self.put(key, tool)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: str, tool: SearchableTool) -> None:
        """Add a tool, or replace the one with this key."""
        self.remove(key)
        stems = frozenset(map(_stem, split_words(tool.name)))
        self._entries[key] = _Entry(tool, stems)
        for stem, weight in _weigh(tool).items():
            self._postings[stem][key] = weight
        self._prepared = False

    def remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        for stem in _weigh(entry.tool):
            found = self._postings[stem]
            del found[key]
            if not found:
                del self._postings[stem]
        self._prepared = False

    def search(
        self,
        query: str,
        limit: int = 10,
        *,
        among: Collection[str] | None = None,
        last_used: Mapping[str, float] | None = None,
    ) -> list[str]:
        """The keys of the tools that fit best, best first, of those `among` which to look. `last_used` has the times
        of the tools that were used."""
        words = split_words(query[:_QUERY_LENGTH])[:_QUERY_WORDS]
        if not words:
            return []
        self.prepare()
        scores, near = self._score(words)
        tiers = [{key: scores.get(key, 0.0) for key in self._starting_with(" ".join(words))}, scores, near]
        found: dict[str, None] = {}
        for tier in tiers:
            left = {key: score for key, score in tier.items() if key not in found and (among is None or key in among)}
            found |= dict.fromkeys(_best(left, limit - len(found), last_used or {}))
            if len(found) == limit:
                break
        return list(found)

    def _starting_with(self, prefix: str) -> set[str]:
        """The keys of tools whose name, with or without the server, or title starts so."""
        start = bisect_left(self._names, (prefix,))
        end = bisect_left(self._names, (prefix + "\U0010ffff",))
        return {key for _, key in self._names[start:end]}

    def _score(self, words: Sequence[str]) -> tuple[dict[str, float], dict[str, float]]:
        """The scores of tools that have words of the query, and of those that have only words near to one."""
        asked = [word for word in words if word not in _FILLERS] or words
        stems = dict.fromkeys(map(_stem, asked))
        totals: dict[str, float] = defaultdict(float)
        covered: dict[str, float] = defaultdict(float)
        near: dict[str, float] = {}
        whole = 0.0
        for stem in stems:
            meanings = [stem, *_SYNONYMS.get(stem, ())]
            counts = [(each, len(self._postings[each])) for each in meanings if each in self._postings]
            if not counts:
                for other in self._near_words(stem):
                    self._collect(near, other, _NEAR)
                continue
            best: dict[str, float] = {}
            for each, count in counts:
                if each == stem or count <= _COMMON:
                    self._collect(best, each, 1.0 if each == stem else _SYNONYM)
            rarity = _rarity(len(self._entries), max(count for _, count in counts))
            whole += rarity
            exact = self._postings.get(stem, ())
            for key, score in best.items():
                totals[key] += score
                covered[key] += rarity if key in exact else rarity * _PARTIAL
        named = stems.keys()
        for key, score in totals.items():
            entry = self._entries[key]
            if entry.name & named:
                score *= 1 + _NAMED * len(entry.name & named) / len(entry.name)
            totals[key] = score * (covered[key] / whole) + near.pop(key, 0.0)
        return totals, near

    def _collect(self, best: dict[str, float], stem: str, factor: float) -> None:
        """Add what a stem counts, where it counts more than what was found before."""
        found = self._postings[stem]
        factor *= _rarity(len(self._entries), len(found))
        for key, weight in found.items():
            score = weight * factor
            if score > best.get(key, 0.0):
                best[key] = score

    def prepare(self) -> None:
        """Make what the next search would have to make first."""
        if self._prepared:
            return
        named = ((spelling, key) for key, entry in self._entries.items() for spelling in _spellings(entry.tool))
        self._names = sorted(named)
        self._pairs = defaultdict(list)
        for stem in self._postings:
            for pair in _pairs(stem):
                self._pairs[pair].append(stem)
        self._prepared = True

    def _near_words(self, word: str) -> list[str]:
        """The words of the index that look most like one that it does not have."""
        wanted = _pairs(word)
        shared = Counter(stem for pair in wanted for stem in self._pairs.get(pair, ()))
        likeness = {stem: 2 * count / (len(wanted) + len(stem) + 1) for stem, count in shared.items()}
        nearest = heapq.nlargest(_COMPARED, likeness, key=lambda stem: (likeness[stem], stem))
        return difflib.get_close_matches(word, nearest, _NEAR_WORDS, _LEAST_LIKENESS)


def split_words(text: str) -> list[str]:
    """The words of a text or of a name in any style, in lower case."""
    if text.isascii():
        return [word.lower() for word in _WORD.findall(text)]
    words: list[str] = []
    for word in _WORD.findall(text):
        lower = word.lower()
        if _UNSEPARATED.match(lower):
            words += [lower[at : at + 2] for at in range(max(1, len(lower) - 1))]
        else:
            words.append(lower)
    return words


def _best(scores: Mapping[str, float], limit: int, last_used: Mapping[str, float]) -> list[str]:
    """The keys with the highest scores; of equal ones those used last."""
    if len(scores) > limit:
        least = heapq.nlargest(limit, scores.values())[-1]
        scores = {key: score for key, score in scores.items() if score >= least}
    return sorted(scores, key=lambda key: (-scores[key], -last_used.get(key, 0.0), key))[:limit]


def _spellings(tool: SearchableTool) -> set[str]:
    server, name = split_words(tool.server), split_words(tool.name)
    if name[: len(server)] == server:
        name = name[len(server) :]
    return {" ".join(name), " ".join((*server, *name)), " ".join(split_words(tool.title))} - {""}


def _rarity(tools: int, with_it: int) -> float:
    """Return how much it says that a tool has a word, if so many of the tools have it."""
    return math.log(1 + (tools - with_it + 0.5) / (with_it + 0.5))


def _weigh(tool: SearchableTool) -> dict[str, float]:
    """Return what each stem of a tool counts, without how rare it is among all tools."""
    weights: dict[str, float] = defaultdict(float)
    description = tool.description[:_DESCRIPTION_LIMIT]
    parts = (
        (_NAME, tool.name),
        (_TITLE, tool.title),
        (_SERVER, tool.server),
        (_DESCRIPTION, description[:_BEGINNING]),
        (_REST, description[_BEGINNING:]),
        (_ARGUMENTS, " ".join(tool.arguments)),
    )
    length = 0.0
    for weight, text in parts:
        for word in split_words(text):
            if word not in _FILLERS:
                weights[_stem(word)] += weight
                length += weight
    discount = _SATURATION * (1 - _LENGTH + _LENGTH * length / _USUAL)
    return {stem: weight * (_SATURATION + 1) / (weight + discount) for stem, weight in weights.items()}


def _pairs(word: str) -> set[str]:
    padded = f" {word} "
    return {padded[at : at + 2] for at in range(len(padded) - 1)}


@lru_cache(20_000)
def _stem(word: str) -> str:
    """The word without the endings of English: `files` and `file` are one word."""
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            word = word[: -len(ending)]
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 4 and word.endswith("e") else word


# The weighted length of a usual tool, to which others are compared.
_USUAL = 45.0

# Words that say nothing about what a tool does.
_FILLERS = frozenset(
    [
        "a",
        "about",
        "across",
        "all",
        "am",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "can",
        "could",
        "did",
        "do",
        "does",
        "for",
        "from",
        "had",
        "has",
        "have",
        "he",
        "her",
        "his",
        "how",
        "i",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "just",
        "like",
        "me",
        "mine",
        "my",
        "need",
        "of",
        "on",
        "or",
        "our",
        "out",
        "please",
        "s",
        "she",
        "should",
        "so",
        "some",
        "someone",
        "something",
        "t",
        "than",
        "that",
        "the",
        "their",
        "them",
        "then",
        "there",
        "these",
        "they",
        "this",
        "those",
        "to",
        "too",
        "us",
        "want",
        "was",
        "we",
        "were",
        "what",
        "when",
        "where",
        "which",
        "while",
        "who",
        "whose",
        "why",
        "will",
        "with",
        "would",
        "you",
        "your",
    ]
)

# Words that people use for each other in requests to tools, one group a line.
_THESAURUS = """
create add make new insert generate
delete remove drop erase destroy clear
list show get view see read retrieve display fetch
find search look lookup query
update edit modify change set alter patch
send post
run execute start trigger launch invoke
stop cancel end abort halt kill terminate
copy duplicate clone
upload put push store save
download export save
open navigate visit browse
email mail
message chat
folder directory dir
document doc file
image picture photo
repository repo
issue ticket bug
meeting event appointment booking schedule calendar
invoice bill
customer client contact
price quote cost
error failure exception fail
log history
page website site web
user person member people employee
group team
secret key token password credential
server machine vm instance
database db
kubernetes k8s kubectl
javascript js script
pull pr
merge mr
speech voice audio aloud
snapshot backup
restart reboot
weather rain temperature
forecast tomorrow
alert warning alarm
comment note
task card todo
reply answer respond
approve accept
location address place coordinate
distance far
route direction
spreadsheet sheet workbook gsheet
row line record
chart graph plot diagram
article paper publication
stock share equity
order purchase buy
screencast record film video
click press tap
environment env
variable var
nearby near around local
permission right access
mailbox inbox
job build pipeline
deploy release publish
convert transform turn
translate translation
assign give
manager boss supervisor
"""


def _read_thesaurus(text: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for line in text.strip().splitlines():
        stems = [_stem(word) for word in line.split()]
        for stem in stems:
            found[stem] |= dict.fromkeys(other for other in stems if other != stem)
    return {stem: tuple(others) for stem, others in found.items()}


_SYNONYMS = _read_thesaurus(_THESAURUS)
