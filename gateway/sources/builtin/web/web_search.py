"""Searching the web, by whichever provider the settings name."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Protocol
from urllib.parse import urlencode

import orjson
from pydantic import Field

from gateway.config import resolve_variables
from gateway.config.settings import SearchSettings
from gateway.errors import GatewayError, Invalid, RateLimited, Unavailable
from gateway.net.policy import NetworkPolicy, RequestLimits, canonical_host
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.sources.builtin.web.context import WebAccess, WebContext
from gateway.tools import Access, Permission

if TYPE_CHECKING:
    from gateway.net.client import GuardedClient, HttpResponse

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
    open_world=True,
    requires=("search",),
)
async def web_search(
    context: WebContext,
    query: Annotated[str, Field(min_length=1, max_length=400, pattern=r"\S", description="What to look for")],
    num_results: Annotated[int, Field(ge=1, le=MOST, description="How many results at most")] = 5,
) -> tuple[Results, str]:
    """Search the web: titles, URLs and snippets of the best results, best first. What a snippet says may be old or
    wrong; read a page with web_fetch where its host is allowed."""
    found = await search(context, " ".join(query.split()), num_results)
    answer = Results(results=[Result(**vars(each)) for each in found])
    return answer, _told(answer.results)


def _told(results: Sequence[Result]) -> str:
    entries = [f"{number}. {each.title}\n   {each.url}\n   {each.snippet}" for number, each in enumerate(results, 1)]
    return "\n".join(entries) or "Nothing found; try other words."


SEARCH_FAILED = "SEARCH_FAILED"
SEARCH_KEY_REFUSED = "SEARCH_KEY_REFUSED"
BAD_ANSWER = "BAD_ANSWER"
LIMITS = RequestLimits(bytes=4 * 1024 * 1024, seconds=20.0)

_TITLE = 300
_SNIPPET = 1500
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")


@dataclass(frozen=True)
class SearchHit:
    title: str
    url: str
    snippet: str


@dataclass(frozen=True)
class SearchRequest:
    """One request to a provider."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def ask(self, door: GuardedClient) -> AbstractAsyncContextManager[HttpResponse]:
        return door.request(self.method, self.url, headers=self.headers, body=self.body, limits=LIMITS)


class SearchProvider(Protocol):
    """Knows where to ask, how, and what the answer means; `advice` is for the operator when it does not answer."""

    name: str
    url: str
    advice: str

    def question(self, url: str, key: str, query: str, count: int) -> SearchRequest: ...

    async def results(self, answer: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        """Mappings with `title`, `url` and `snippet`; None for an answer of another shape."""
        ...


async def search(context: WebContext, query: str, count: int) -> Sequence[SearchHit]:
    """The best results; `Unavailable` and `RateLimited` when the provider does not give them."""
    settings = context.settings.search
    assert settings is not None  # noqa: S101 - else the tool was not offered
    provider = PROVIDERS[settings.provider]
    url = resolve_variables(settings.url).rstrip("/") if settings.url else provider.url
    key = resolve_variables(settings.key.get_secret_value(), field="api_key").strip() if settings.key else ""
    question = provider.question(url, key, query, count)
    door = context.access.client(_policy(settings, question.url))
    async with door, question.ask(door) as answer:
        if answer.status != HTTPStatus.OK:
            raise _refusal(provider, answer)
        body = await answer.read()
    results = await provider.results(body, context.access)
    if results is None:
        reason = f"{provider.name} answered with something else than results; {provider.advice}"
        raise Unavailable(reason, code=BAD_ANSWER)
    return list(_usable(results))[:count]


def _policy(settings: SearchSettings, url: str) -> NetworkPolicy:
    """Where the provider is, and nowhere else. An address that the operator wrote down may be private; a key
    never goes over the network in the clear."""
    from gateway.net.transport import parse_url  # imports the HTTP client, which most processes never need

    try:
        where = parse_url(url)
    except Invalid as error:
        raise Invalid(f"web.search.url: {error.message}", code=error.code) from None
    host = canonical_host(where.raw_host.decode("ascii"))
    port = where.port or (443 if where.scheme == "https" else 80)
    return NetworkPolicy(
        allowed_hosts=(f"[{host}]:{port}" if ":" in host else f"{host}:{port}",),
        allow_private=settings.url is not None,
        https_only=settings.key is not None,
        hosts_setting="web.search.url",
        private_setting="web.search.url",
    )


def _refusal(provider: SearchProvider, answer: HttpResponse) -> GatewayError:
    status = answer.status
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        pause = answer.headers.get("retry-after", "")[:40]
        return RateLimited(f"{provider.name} was asked too often; wait before the next search", retry_after=pause)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Unavailable(f"{provider.name} refuses the search ({status}); {provider.advice}", code=SEARCH_KEY_REFUSED)
    reason = f"{provider.name} answered with status {status}; {provider.advice}"
    return Unavailable(reason, code=SEARCH_FAILED, status=status)


def _usable(results: Iterable[Any]) -> Iterable[SearchHit]:
    """Results one can go to, each once, and no longer than a result is."""
    seen = set()
    for each in results:
        if not isinstance(each, Mapping):
            continue
        url = each.get("url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")) or url in seen or len(url) > 8192:
            continue
        seen.add(url)
        title, snippet = _plain(each.get("title"), _TITLE), _plain(each.get("snippet"), _SNIPPET)
        yield SearchHit(title or url[:_TITLE], url, snippet)


def _plain(text: Any, longest: int) -> str:
    """Words without the tags that mark what was found."""
    if not isinstance(text, str):
        return ""
    return " ".join(html.unescape(_TAG.sub("", text[: 4 * longest])).split())[:longest]


def _listed(answer: bytes, *path: str, snippet: str) -> Iterable[Mapping[str, Any]] | None:
    """The results of a JSON answer, which stand at `path`."""
    try:
        found: Any = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, list):
        return None
    return [{**each, "snippet": each.get(snippet)} for each in found if isinstance(each, dict)]


class SearXNG:
    name = "searxng"
    url = ""
    advice = "let it answer as JSON: 'json' under search.formats in its settings.yml"

    def question(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        address = url if url.endswith("/search") else f"{url}/search"
        asked = urlencode({"q": query, "format": "json"})
        return SearchRequest(f"{address}?{asked}", headers={"accept": "application/json"})

    async def results(self, answer: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        return _listed(answer, "results", snippet="content")


class Brave:
    name = "brave"
    url = "https://api.search.brave.com/res/v1/web/search"
    advice = "check web.search.key, and what its plan allows"

    def question(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        asked = urlencode({"q": query, "count": count, "result_filter": "web", "text_decorations": "false"})
        return SearchRequest(f"{url}?{asked}", headers={"accept": "application/json", "x-subscription-token": key})

    async def results(self, answer: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        found = _listed(answer, "web", "results", snippet="description")
        # A search that finds nothing has no "web" at all.
        return [] if found is None and _is_brave(answer) else found


class Tavily:
    name = "tavily"
    url = "https://api.tavily.com/search"
    advice = "check web.search.key, and what its plan allows"

    def question(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        return SearchRequest(url, "POST", headers, orjson.dumps({"query": query, "max_results": count}))

    async def results(self, answer: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        return _listed(answer, "results", snippet="content")


class DuckDuckGo:
    """Its page for browsers without scripts; it asks who we are when it is asked too much."""

    name = "duckduckgo"
    url = "https://html.duckduckgo.com/html"
    advice = "it takes us for a robot: wait a while, or set up another provider under web.search"

    def question(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
        return SearchRequest(f"{url}/", "POST", headers, urlencode({"q": query}).encode("ascii"))

    async def results(self, answer: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        page = await access.reader.read(answer.decode("utf-8", "replace"), {"want": "results"})
        results: Iterable[Mapping[str, Any]] | None = page["results"]
        return results


PROVIDERS: Mapping[str, SearchProvider] = {each.name: each for each in (SearXNG(), Brave(), Tavily(), DuckDuckGo())}


def _is_brave(answer: bytes) -> bool:
    try:
        found = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and found.get("type") == "search" and "web" not in found
