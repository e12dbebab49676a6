"""Searching the web, by whichever provider the settings name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from gateway.sources.builtin.decorator import Shape, builtin
from gateway.sources.web.context import WebContext
from gateway.tools import Access, Permission

MOST = 20


class Result(Shape):
    title: str
    url: str
    snippet: str


class Results(Shape):
    results: list[Result]


@builtin(
    title="Search the web",
    category="web",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
)
async def web_search(
    context: WebContext,
    query: Annotated[str, Field(min_length=1, max_length=400, pattern=r"\S", description="What to look for")],
    num_results: Annotated[int, Field(ge=1, le=MOST, description="How many results at most")] = 5,
) -> tuple[Results, str]:
    """Search the web: titles, URLs and snippets of the best results, best first. What a snippet says may be old or
    wrong; read a page with web_fetch where its host is allowed."""
    # Loaded with the HTTP client, by the first who needs it.
    providers = importlib.import_module("gateway.sources.web.search_providers")
    found = await providers.search(context, " ".join(query.split()), num_results)
    answer = Results(results=[Result(**vars(each)) for each in found])
    return answer, _told(answer.results)


def _told(results: Sequence[Result]) -> str:
    entries = [f"{number}. {each.title}\n   {each.url}\n   {each.snippet}" for number, each in enumerate(results, 1)]
    return "\n".join(entries) or "Nothing found; try other words."
