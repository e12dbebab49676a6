"""The index over tools: which of them fit a few words or a sentence, best first.

The order of the answers, on every surface: tools whose name starts with what was typed, then tools that have its words,
then tools with words near to them. Within each of these the most relevant come first, by BM25 over name, title, server,
description and arguments; what is equal otherwise is ordered by its last change, then by its last use. A synonym counts
as the word, but for a single word: tools that have just this one come before those that have a synonym.
"""

from __future__ import annotations

import asyncio
import difflib
import heapq
import math
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.catalog import Catalog, CatalogEntry
from gateway.semantic import SemanticRanker, describe_meaning
from gateway.tools import Tool
from gateway.vocabulary import (
    find_root,
    is_plural,
    read_thesaurus,
    resolve_phrases,
    split_words,
    stem,
    stem_request,
    stem_text,
)

# Field weights. Of a long description, the beginning says what the tool is for.
_NAME, _TITLE, _SERVER, _DESCRIPTION, _REST, _ARGUMENTS = 4.0, 2.0, 1.5, 1.0, 0.2, 0.5
_BEGINNING = 90
_DESCRIPTION_LIMIT = 700

# BM25 parameters; the length of a tool is the sum of its field weights.
_K1, _B, _AVERAGE_LENGTH = 3.0, 0.55, 45.0

# Weights of a match by synonym, prefix or edit distance; an exact match is 1.
_SYNONYM, _PREFIX, _FUZZY = 0.75, 0.6, 0.2
# Share of a query word that a synonym covers.
_COVERED = 0.9
# Bonus of a tool whose whole name is in the query, and the share of it for a synonym.
_NAMED, _NAMED_BY_SYNONYM = 0.5, 0.65
# Bonus of a tool whose server is named.
_SERVED = 0.5
# Penalties: the verb of the tool contradicts the query's; it writes, and the query names no action.
_OTHER_ACTION, _NO_ACTION = 0.3, 0.1
# Penalty: the name has the words of the query in the other number, `get_card` for "cards".
_OTHER_NUMBER = 0.15
# Bounds of the product of these factors.
_LEAST_FACTOR = (1 - max(_OTHER_ACTION, _NO_ACTION)) * (1 - _OTHER_NUMBER)
_MOST_FACTOR = (1 + _NAMED) * (1 + _SERVED)
# A tool with such a verb in its name answers with several, whatever the number of its nouns.
_COLLECTIVE = frozenset(("list", "search", "find", "query"))
# Leading words of a query in which its verb is looked for.
_VERB_WITHIN = 3
# A word before one of these is a verb. What an unknown one asks for may well change something.
_DETERMINERS = frozenset(
    ("a", "all", "an", "it", "my", "our", "some", "someone", "that", "the", "these", "this", "your")
)
_UNKNOWN = "unknown"
# Synonyms in more tools than this are skipped: their IDF is too low.
_COMMON = 700

_QUERY_WORDS = 24
_QUERY_LENGTH = 500
# A query of so few words also finds tools with words near to them if others have the words themselves.
_SHORT = 2
# For such a word: the words with which it is compared letter by letter, how many it may mean, and how many
# words that begin with it.
_COMPARED, _FUZZY_WORDS, _PREFIX_WORDS = 50, 4, 20
_LEAST_LIKENESS = 0.7
# Values of an argument that are indexed.
_VALUES = 20

# Tools that are ordered by meaning.
_REORDERED = 50
# Seconds for which the last change and use of tools are remembered.
_RECENCY_SECONDS = 10.0


class SearchableTool(NamedTuple):
    """A tool as the index knows it. `server` names the server or toolset that it comes from."""

    name: str
    title: str = ""
    server: str = ""
    description: str = ""
    arguments: Sequence[str] = ()


class ToolMatch(NamedTuple):
    """A found tool. `tier` is 0 where its name starts with what was typed, 1 where it has the only word, 2 where it has
    words or synonyms, 3 where it has near words. Each tool of a tier comes before all of the next."""

    key: str
    tier: int
    score: float


# When a tool was changed and when it was used last, as texts that sort by time.
Recency = tuple[str, str]
_NEVER: Recency = ("", "")


class ToolSearch:
    """Searches a set of tools. The index is built at the first search, outside the event loop, and follows changes.
    `meaning` reorders what is found."""

    def __init__(self, meaning: SemanticRanker | None = None) -> None:
        self._meaning = meaning
        self._index = ToolIndex()
        self._tools: Mapping[str, Tool] = {}
        self._lock = asyncio.Lock()

    async def find(
        self,
        tools: Mapping[str, Tool],
        query: str,
        limit: int,
        *,
        among: Collection[str] | None = None,
        recency: Mapping[str, Recency] | None = None,
    ) -> list[ToolMatch]:
        """The tools that fit best, by their keys, best first, of those `among` which to look."""
        wanted = limit if self._meaning is None else max(limit, _REORDERED)
        async with self._lock:
            if tools is not self._tools:
                await asyncio.to_thread(self._follow, tools)
                self._tools = tools
            found = self._index.rank(query, wanted, among=among, recency=recency)
        return found if self._meaning is None else (await self._reorder(self._meaning, query, found))[:limit]

    async def _reorder(self, meaning: SemanticRanker, query: str, found: Sequence[ToolMatch]) -> list[ToolMatch]:
        """Order each tier but the first by meaning, too."""
        tools, kept = self._tools, [match for match in found if match.tier == 0]
        best, rest = found[len(kept) : _REORDERED], found[max(len(kept), _REORDERED) :]
        described = [_searchable(tools[match.key]) for match in best if match.key in tools]
        if len(described) < len(best) or not best:  # the tools have just changed
            return list(found)
        texts = [describe_meaning(tool.name, tool.server, tool.description) for tool in described]
        matches = {match.key: match for match in best}
        order = await meaning.reorder(query[:_QUERY_LENGTH], [*matches], texts, [match.score for match in best])
        return [*kept, *sorted(map(matches.__getitem__, order), key=lambda match: match.tier), *rest]

    def _follow(self, tools: Mapping[str, Tool]) -> None:
        known = self._tools
        for key in known.keys() - tools.keys():
            self._index.remove(key)
        for key, tool in tools.items():
            if known.get(key) != tool:
                self._index.put(key, _searchable(tool))
        self._index.prepare()


class CatalogSearch:
    """Searches the catalog. When tools were changed and used, by their id, is read at most every few seconds."""

    def __init__(
        self,
        load_recency: Callable[[], Awaitable[Mapping[str, Recency]]] | None = None,
        meaning: SemanticRanker | None = None,
    ) -> None:
        self._load_recency = load_recency
        self._recency: Mapping[str, Recency] = {}
        self._recency_read = -math.inf
        self._search = ToolSearch(meaning)
        self._catalog = Catalog()
        self._tools: Mapping[str, Tool] = {}

    async def find(
        self, catalog: Catalog, query: str, limit: int = 10, part: Catalog | None = None
    ) -> list[tuple[int, CatalogEntry]]:
        """The tools of a catalog, or of a part of it, that fit best, best first, each with its tier."""
        if catalog is not self._catalog:
            self._catalog, self._tools = catalog, {entry.name: entry.tool for entry in catalog.for_models}
        tools = self._tools
        if self._load_recency is not None and time.monotonic() - self._recency_read > _RECENCY_SECONDS:
            self._recency_read = time.monotonic()
            by_id = await self._load_recency()
            self._recency = {name: by_id[tool.id] for name, tool in tools.items() if tool.id in by_id}
        among = None if part is None or part is catalog else part.names
        found = await self._search.find(tools, query, limit, among=among, recency=self._recency)
        return [(match.tier, entry) for match in found if (entry := catalog.get(match.key)) is not None]


@dataclass(frozen=True)
class Searches:
    """The searches of a gateway: the catalog, also with the tools that are off, and the tools of bundles."""

    catalog: CatalogSearch
    everything: ToolSearch
    bundles: ToolSearch


def _searchable(tool: Tool) -> SearchableTool:
    own_name = tool.id.partition(":")[2] or tool.id
    words = [*argument_words(tool.input_schema), *tool.tags]
    return SearchableTool(own_name, tool.title or "", tool.owner or "", tool.description, words)


def argument_words(schema: Mapping[str, Any]) -> list[str]:
    """The names of a tool's arguments and the values that they can have: often these say what a tool does."""
    properties = schema.get("properties")
    words: list[str] = []
    for name, argument in properties.items() if isinstance(properties, Mapping) else ():
        values = argument.get("enum") if isinstance(argument, Mapping) else None
        words += [name, *(str(value) for value in (values if isinstance(values, list) else ())[:_VALUES])]
    return words


@dataclass(slots=True)
class _Entry:
    tool: SearchableTool
    # Term frequencies by stem, weighted by field, before IDF.
    weights: dict[str, float]
    # The stems of the name, without those of the server if others are left, and those of the server.
    name: frozenset[str]
    server: frozenset[str]
    # The action of its verb; None without one.
    action: str | None
    # The stems of the name that do not fit several, and those that do not fit one.
    singular: frozenset[str]
    plural: frozenset[str]
    # Summed IDF of the stems of the name.
    idf: float = 0.0


class ToolIndex:
    """An index over tools, each under its key. Tools can be put in and taken out."""

    def __init__(self, tools: Mapping[str, SearchableTool] | None = None) -> None:
        self._entries: dict[str, _Entry] = {}
        # For each stem: the keys of the tools with it, and how much it counts there.
        self._postings: dict[str, dict[str, float]] = defaultdict(dict)
        # Derived, built by prepare(): IDF by stem, sorted stems, stems by pair of letters, sorted names with their
        # keys, stems of servers, and stems by root.
        self._idf: dict[str, float] = {}
        self._stems: list[str] = []
        self._pairs: dict[str, list[str]] = {}
        self._names: list[tuple[str, str]] = []
        self._servers: set[str] = set()
        self._families: dict[str, list[str]] = {}
        self._prepared = False
        for key, tool in (tools or {}).items():
            self.put(key, tool)

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, key: str, tool: SearchableTool) -> None:
        """Add a tool, or replace the one with this key."""
        self.remove(key)
        entry = self._entries[key] = _read_tool(tool)
        for each, weight in entry.weights.items():
            self._postings[each][key] = weight
        self._prepared = False

    def remove(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        for each in entry.weights:
            found = self._postings[each]
            del found[key]
            if not found:
                del self._postings[each]
        self._prepared = False

    def prepare(self) -> None:
        """Build the derived tables, so that the next search need not."""
        if self._prepared:
            return
        count = len(self._entries)
        self._idf = {
            each: math.log(1 + (count - len(found) + 0.5) / (len(found) + 0.5))
            for each, found in self._postings.items()
        }
        for entry in self._entries.values():
            entry.idf = sum(map(self._idf.__getitem__, entry.name))
        self._servers = {each for entry in self._entries.values() for each in entry.server}
        self._names = sorted(
            (spelling, key) for key, entry in self._entries.items() for spelling in _spellings(entry.tool)
        )
        self._stems, self._pairs = sorted(self._postings), defaultdict(list)
        for each in self._stems:
            for pair in _pairs(each):
                self._pairs[pair].append(each)
        families: dict[str, list[str]] = defaultdict(list)
        for each in self._stems:
            families[find_root(each)].append(each)
        self._families = {root: words for root, words in families.items() if len(words) > 1}
        self._prepared = True

    def search(self, query: str, limit: int = 10, *, among: Collection[str] | None = None) -> list[str]:
        """The keys of the tools that fit best, best first."""
        return [match.key for match in self.rank(query, limit, among=among)]

    def rank(
        self,
        query: str,
        limit: int,
        *,
        among: Collection[str] | None = None,
        recency: Mapping[str, Recency] | None = None,
    ) -> list[ToolMatch]:
        """The tools that fit best, best first, of those `among` which to look."""
        query = query[:_QUERY_LENGTH]
        words = split_words(query)[:_QUERY_WORDS]
        if not words:
            return []
        self.prepare()
        found: dict[str, ToolMatch] = {}
        for number, tier in enumerate(self._tiers(query, words, limit, among)):
            left = {key: score for key, score in tier.items() if key not in found and (among is None or key in among)}
            best = _best(left, limit - len(found), recency or {})
            found |= {key: ToolMatch(key, number, left[key]) for key in best}
            if len(found) >= limit:
                break
        return [*found.values()]

    def _tiers(
        self, query: str, words: Sequence[str], limit: int, among: Collection[str] | None
    ) -> Iterator[Mapping[str, float]]:
        """Groups of tools with their scores: each of a group comes before all of the next."""
        actions = read_thesaurus().actions
        written = self._join_servers(resolve_phrases(query))
        stems = stem_request(written, self._count_tools)[:_QUERY_WORDS]
        first = [word.lower() for word in written[:_VERB_WITHIN]]
        action = next((actions[verb] for verb in map(stem, first) if verb in actions), None)
        nouns = [word for run in written for word in split_words(run) if stem(word) not in actions]
        plural = {stem(word) for word in nouns if is_plural(word)}
        if action is None and not _DETERMINERS.isdisjoint(first[1:2]):
            action = _UNKNOWN
        elif action is None and plural and actions.keys().isdisjoint(stems):
            action = "read"  # "cards on my board"
        scores = self._score(stems)
        unknown = [each for each in stems if not self._meanings(each)]
        near = self._score_near(unknown)
        for key in near.keys() & scores.keys():
            scores[key] += near[key]
        if among is not None:
            scores = {key: score for key, score in scores.items() if key in among}
        starting = self._find_by_prefix(" ".join(words))
        if len(stems) > 1 and len(scores) > limit:  # only those that can be among the best
            least = heapq.nlargest(limit, scores.values())[-1] * _LEAST_FACTOR / _MOST_FACTOR
            scores = {key: score for key, score in scores.items() if score >= least or key in starting}
        self._weigh_entries(scores, stems, action, plural)
        yield {key: scores.get(key, 0.0) for key in starting}
        exact = self._postings.get(stems[0], ()) if len(stems) == 1 else ()
        yield {key: scores[key] for key in exact if key in scores}
        yield scores
        yield near if unknown or len(stems) > _SHORT else self._score_near(stems)

    def _join_servers(self, words: Sequence[str]) -> list[str]:
        """Join two words that are the name of a server, `digital ocean`."""
        joined: list[str] = []
        for word in words:
            pair = [stem(each.lower()) for each in (*joined[-1:], word)]
            if len(pair) > 1 and self._servers.isdisjoint(pair) and stem((joined[-1] + word).lower()) in self._servers:
                joined[-1] += word
            else:
                joined.append(word)
        return joined

    def _score_near(self, stems: Sequence[str]) -> dict[str, float]:
        """The scores of tools that have words near to these."""
        near: dict[str, float] = {}
        for each in stems:
            for other, factor in self._near_words(each):
                self._collect(near, other, factor)
        return near

    def _find_by_prefix(self, prefix: str) -> set[str]:
        """The keys of tools whose name, with or without the server, or title starts so."""
        start = bisect_left(self._names, (prefix,))
        end = bisect_left(self._names, (prefix + "\U0010ffff",))
        return {key for _, key in self._names[start:end]}

    def _score(self, stems: Sequence[str]) -> dict[str, float]:
        """The scores of tools that have words of the query or synonyms of them, by these words alone."""
        scores: dict[str, float] = defaultdict(float)
        covered: dict[str, float] = defaultdict(float)
        whole = 0.0
        for each in stems:
            meanings = self._meanings(each)
            if not meanings:
                continue
            best: dict[str, float] = {}
            for one in meanings:
                if one == each or len(self._postings[one]) <= _COMMON:
                    self._collect(best, one, 1.0 if one == each else _SYNONYM)
            idf = min(map(self._idf.__getitem__, meanings))
            whole += idf
            exact, partly = self._postings.get(each, ()), idf * _COVERED
            for key, score in best.items():
                scores[key] += score
                covered[key] += idf if key in exact else partly
        return {key: score * covered[key] / whole for key, score in scores.items()}

    def _count_tools(self, word: str) -> int:
        return len(self._postings.get(word, ()))

    def _meanings(self, word: str) -> list[str]:
        """The stem and its synonyms, as far as tools have them."""
        meanings = (word, *self._families.get(find_root(word), ()), *read_thesaurus().synonyms.get(word, ()))
        return [each for each in dict.fromkeys(meanings) if each in self._postings]

    def _weigh_entries(
        self, scores: dict[str, float], stems: Sequence[str], action: str | None, plural: Collection[str]
    ) -> None:
        """Change scores by how well each tool as a whole fits: its name, its number, its verb and its server."""
        meanings = {each: self._meanings(each) for each in stems}
        meant = {one: _NAMED_BY_SYNONYM for each in stems for one in meanings[each]} | dict.fromkeys(stems, 1.0)
        nouns = [each for each in stems if each not in read_thesaurus().actions]
        several = {one: each in plural for each in nouns for one in meanings[each]}
        several |= {each: each in plural for each in nouns}
        servers = self._servers.intersection(stems)
        for key, score in scores.items():
            entry = self._entries[key]
            known = {each: meant[each] * self._idf[each] for each in entry.name if each in meant}
            if known:
                score *= 1 + _NAMED * sum(known.values()) / entry.idf
                counted = [each for each in known if each in several]
                other = [each for each in counted if each in (entry.singular if several[each] else entry.plural)]
                if other:
                    score *= 1 - _OTHER_NUMBER * sum([known[each] for each in other]) / sum(
                        [known[each] for each in counted]
                    )
            if action is None:
                if entry.action is not None and entry.action != "read":
                    score *= 1 - _NO_ACTION
            elif action != _UNKNOWN and entry.action is not None and entry.action != action:
                score *= 1 - _OTHER_ACTION
            scores[key] = score if entry.server.isdisjoint(servers) else score * (1 + _SERVED)

    def _collect(self, best: dict[str, float], each: str, factor: float) -> None:
        """Add what a stem counts, where it counts more than what was found before."""
        factor *= self._idf[each]
        for key, weight in self._postings[each].items():
            score = weight * factor
            if score > best.get(key, 0.0):
                best[key] = score

    def _near_words(self, word: str) -> list[tuple[str, float]]:
        """The words of the index that begin with one that it does not have, or look most like it."""
        at = bisect_left(self._stems, word)
        begun = [each for each in self._stems[at : at + _PREFIX_WORDS] if len(word) > 1 and each.startswith(word)]
        wanted = _pairs(word)
        shared = Counter(each for pair in wanted for each in self._pairs.get(pair, ()))
        likeness = {each: 2 * count / (len(wanted) + len(each) + 1) for each, count in shared.items()}
        nearest = heapq.nlargest(_COMPARED, likeness, key=lambda each: (likeness[each], each))
        like = difflib.get_close_matches(word, nearest, _FUZZY_WORDS, _LEAST_LIKENESS)
        return [*((each, _PREFIX) for each in begun), *((each, _FUZZY) for each in like if each not in begun)]


def _best(scores: Mapping[str, float], limit: int, recency: Mapping[str, Recency]) -> list[str]:
    """The keys with the highest scores; of equal ones those changed, then those used last."""
    if len(scores) > limit:
        least = heapq.nlargest(limit, scores.values())[-1]
        scores = {key: score for key, score in scores.items() if score >= least}
    keys = sorted(sorted(scores), key=lambda key: recency.get(key, _NEVER), reverse=True)
    return sorted(keys, key=scores.__getitem__, reverse=True)[:limit]


def _spellings(tool: SearchableTool) -> set[str]:
    server, name = split_words(tool.server), split_words(tool.name)
    if name[: len(server)] == server:
        name = name[len(server) :]
    return {" ".join(name), " ".join((*server, *name)), " ".join(split_words(tool.title))} - {""}


def _read_tool(tool: SearchableTool) -> _Entry:
    description = tool.description[:_DESCRIPTION_LIMIT]
    name, server = stem_text(tool.name), stem_text(tool.server)
    beginning = stem_text(description[:_BEGINNING])
    parts = (
        (_NAME, name),
        (_TITLE, stem_text(tool.title)),
        (_SERVER, server),
        (_DESCRIPTION, beginning),
        (_REST, stem_text(description[_BEGINNING:])),
        (_ARGUMENTS, stem_text(" ".join(tool.arguments))),
    )
    weights: dict[str, float] = defaultdict(float)
    length = 0.0
    for weight, words in parts:
        length += weight * len(words)
        for each in words:
            weights[each] += weight
    discount = _K1 * (1 - _B + _B * length / _AVERAGE_LENGTH)
    weights = {each: weight * (_K1 + 1) / (weight + discount) for each, weight in weights.items()}
    own = [each for each in name if each not in server] or name
    actions = read_thesaurus().actions
    action = next((actions[each] for each in (*own, *beginning[:1]) if each in actions), None)
    in_name = split_words(tool.name)
    plural = frozenset(stem(word) for word in in_name if is_plural(word))
    singular = frozenset(own) - plural if _COLLECTIVE.isdisjoint(in_name) else frozenset()
    return _Entry(tool, weights, frozenset(own), frozenset(server), action, singular, plural)


def _pairs(word: str) -> set[str]:
    padded = f" {word} "
    return {padded[at : at + 2] for at in range(len(padded) - 1)}
