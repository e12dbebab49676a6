"""Search over everything that has a name: tools, toolsets, upstream servers and categories."""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gateway.access import AccessPolicy
from gateway.admin import upstreams

if TYPE_CHECKING:
    from gateway.gateway import Gateway

_WORD = re.compile(r"[^\W_]+")
# Similarity from which a word counts as misspelt.
_NEAR = 0.75


@dataclass(frozen=True, order=True)
class Found:
    """Something with a name."""

    kind: Literal["tool", "toolset", "upstream", "category"]
    id: str
    name: str
    description: str


async def search(gateway: Gateway, query: str, access: AccessPolicy | None, admin: bool, limit: int) -> list[Found]:
    """Return what matches, best first: the tools that somebody may call as the catalog ranks them, for administrators
    between the other things of exactly that name and the rest of them."""
    entries = await gateway.search(query, limit, gateway.catalog.for_principal(access))
    tools = [Found("tool", entry.tool.id, entry.name, entry.tool.description) for entry in entries]
    if not admin:
        return tools
    wanted = query.lower()
    others = [subject async for subject in _list_others(gateway)]
    exact = [subject for subject in others if wanted in (subject.name.lower(), subject.id.lower())]
    ranks = {
        each: rank_match((each.name, each.id), (), each.description, wanted, find_words(wanted)) for each in others
    }
    ranked = sorted((rank, each.name, each) for each, rank in ranks.items() if rank is not None)
    return [*exact, *tools, *(each for *_, each in ranked if each not in exact)][:limit]


async def _list_others(gateway: Gateway) -> AsyncIterator[Found]:
    for toolset in await gateway.installed_toolsets():
        yield Found("toolset", toolset.id, toolset.spec.name, toolset.spec.description or "")
    for server in await upstreams.list_upstreams(gateway):
        yield Found("upstream", server.name, server.name, server.origin)
    for category in gateway.categories.values():
        yield Found("category", category.name, category.title, category.description)


def rank_match(
    titles: Iterable[str], tags: Iterable[str], description: str, query: str, wanted: Sequence[str]
) -> int | None:
    """Return how well something matches, 0 best, None if not at all. The query and its words are in lower case."""
    names, tags = [title.lower() for title in titles], [tag.lower() for tag in tags]
    if any(name.startswith(query) for name in names):
        return 0
    own = list(_words([*names, *tags]))
    if not wanted:
        return None
    if {*own}.issuperset(wanted):
        return 1
    described = {*own, *_words([description.lower()])}
    if described.issuperset(wanted):
        return 2
    text = " ".join(own)
    near = all((len(word) > 2 and word in text) or difflib.get_close_matches(word, own, 1, _NEAR) for word in wanted)
    return 3 if near else None


def find_words(text: str) -> list[str]:
    return _WORD.findall(text)


def _words(texts: Iterable[str]) -> Iterator[str]:
    return (word for text in texts for word in _WORD.findall(text))
