"""The tool web_search, and the search providers it can use."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
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
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.net.client import GuardedClient, HttpResponse

RESULT_LIMIT = 20


class SearchResult(Shape):
    title: str
    url: str
    snippet: str


class SearchResults(Shape):
    results: list[SearchResult]


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
    query: Annotated[str, Field(min_length=1, max_length=400, pattern=r"\S", description="Search terms")],
    num_results: Annotated[int, Field(ge=1, le=RESULT_LIMIT, description="Maximum number of results")] = 5,
) -> tuple[SearchResults, str]:
    """Search the web. Returns titles, URLs and snippets, best results first. Snippets may be outdated or wrong; read a
    page with web_fetch if its host is allowed."""
    hits = await search(context, " ".join(query.split()), num_results)
    found = SearchResults(results=[SearchResult(**vars(hit)) for hit in hits])
    return found, _text(found.results)


def _text(results: Sequence[SearchResult]) -> str:
    entries = [f"{number}. {hit.title}\n   {hit.url}\n   {hit.snippet}" for number, hit in enumerate(results, 1)]
    return "\n".join(entries) or "No results; try other search terms."


SEARCH_FAILED = "SEARCH_FAILED"
SEARCH_KEY_REFUSED = "SEARCH_KEY_REFUSED"
BAD_ANSWER = "BAD_ANSWER"
LIMITS = RequestLimits(bytes=4 * 1024 * 1024, seconds=20.0)

_TITLE_LENGTH = 300
_SNIPPET_LENGTH = 1500
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")


class SearchHit(Value):
    title: str
    url: str
    snippet: str


class SearchRequest(Value):
    """An HTTP request to a provider."""

    url: str
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None

    def send(self, client: GuardedClient) -> AbstractAsyncContextManager[HttpResponse]:
        return client.request(self.method, self.url, headers=self.headers, body=self.body, limits=LIMITS)


class SearchProvider(Protocol):
    """A search service. `advice` tells the operator what to do when it fails."""

    name: str
    url: str
    advice: str

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest: ...

    async def parse_results(self, body: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        """Return mappings with `title`, `url` and `snippet`; None for an unexpected body."""
        ...


async def search(context: WebContext, query: str, count: int) -> Sequence[SearchHit]:
    """Return the best results; raise `Unavailable` or `RateLimited` when the provider fails."""
    settings = context.settings.search
    assert settings is not None  # noqa: S101 - else the tool was not offered
    provider = PROVIDERS[settings.provider]
    url = resolve_variables(settings.url).rstrip("/") if settings.url else provider.url
    key = resolve_variables(settings.key.get_secret_value(), field="api_key").strip() if settings.key else ""
    request = provider.build_request(url, key, query, count)
    client = context.access.client(_policy(settings, request.url))
    async with client, request.send(client) as response:
        if response.status != HTTPStatus.OK:
            raise _status_error(provider, response)
        body = await response.read()
    results = await provider.parse_results(body, context.access)
    if results is None:
        raise Unavailable(f"{provider.name} returned something other than results; {provider.advice}", code=BAD_ANSWER)
    return list(_select(results))[:count]


def _policy(settings: SearchSettings, url: str) -> NetworkPolicy:
    """Return a policy that allows only the provider's host. An address from the settings may be private; a key is never
    sent without TLS."""
    from gateway.net.transport import parse_url  # imports the HTTP client, which most processes never need

    try:
        parsed = parse_url(url)
    except Invalid as error:
        raise Invalid(f"web.search.url: {error.message}", code=error.code) from None
    host = canonical_host(parsed.raw_host.decode("ascii"))
    port = parsed.port or (443 if parsed.scheme == "https" else 80)
    return NetworkPolicy(
        allowed_hosts=(f"[{host}]:{port}" if ":" in host else f"{host}:{port}",),
        allow_private=settings.url is not None,
        https_only=settings.key is not None,
        hosts_setting="web.search.url",
        private_setting="web.search.url",
    )


def _status_error(provider: SearchProvider, response: HttpResponse) -> GatewayError:
    status = response.status
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        reason = f"{provider.name} received too many requests; wait before the next search"
        return RateLimited(reason, **response.pause, status=status)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Unavailable(f"{provider.name} refused the search ({status}); {provider.advice}", code=SEARCH_KEY_REFUSED)
    reason = f"{provider.name} returned status {status}; {provider.advice}"
    return Unavailable(reason, code=SEARCH_FAILED, status=status)


def _select(results: Iterable[Any]) -> Iterable[SearchHit]:
    """Yield the results with a usable URL, each once, with shortened texts."""
    seen = set()
    for result in results:
        if not isinstance(result, Mapping):
            continue
        url = result.get("url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")) or url in seen or len(url) > 8192:
            continue
        seen.add(url)
        title, snippet = (
            _plain_text(result.get("title"), _TITLE_LENGTH),
            _plain_text(result.get("snippet"), _SNIPPET_LENGTH),
        )
        yield SearchHit(title or url[:_TITLE_LENGTH], url, snippet)


def _plain_text(text: Any, limit: int) -> str:
    """Return the text without HTML tags, which mark the matched words."""
    if not isinstance(text, str):
        return ""
    return " ".join(html.unescape(_TAG.sub("", text[: 4 * limit])).split())[:limit]


def _parse_json(body: bytes, *path: str, snippet: str) -> Iterable[Mapping[str, Any]] | None:
    """Return the results at `path` of a JSON body."""
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return None
    return [{**result, "snippet": result.get(snippet)} for result in value if isinstance(result, dict)]


class SearXNG:
    name = "searxng"
    url = ""
    advice = "enable JSON: add 'json' to search.formats in its settings.yml"

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        address = url if url.endswith("/search") else f"{url}/search"
        parameters = urlencode({"q": query, "format": "json"})
        return SearchRequest(f"{address}?{parameters}", headers={"accept": "application/json"})

    async def parse_results(self, body: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        return _parse_json(body, "results", snippet="content")


class Brave:
    name = "brave"
    url = "https://api.search.brave.com/res/v1/web/search"
    advice = "check web.search.key and the limits of its plan"

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        parameters = urlencode({"q": query, "count": count, "result_filter": "web", "text_decorations": "false"})
        return SearchRequest(f"{url}?{parameters}", headers={"accept": "application/json", "x-subscription-token": key})

    async def parse_results(self, body: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        results = _parse_json(body, "web", "results", snippet="description")
        # A search without results has no "web" key.
        return [] if results is None and _is_brave(body) else results


class Tavily:
    name = "tavily"
    url = "https://api.tavily.com/search"
    advice = "check web.search.key and the limits of its plan"

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        return SearchRequest(url, "POST", headers, orjson.dumps({"query": query, "max_results": count}))

    async def parse_results(self, body: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        return _parse_json(body, "results", snippet="content")


class DuckDuckGo:
    """DuckDuckGo's page for browsers without scripts. After many requests it shows a robot check instead."""

    name = "duckduckgo"
    url = "https://html.duckduckgo.com/html"
    advice = "it takes the gateway for a robot: wait a while, or use another provider in web.search"

    def build_request(self, url: str, key: str, query: str, count: int) -> SearchRequest:
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "text/html"}
        return SearchRequest(f"{url}/", "POST", headers, urlencode({"q": query}).encode("ascii"))

    async def parse_results(self, body: bytes, access: WebAccess) -> Iterable[Mapping[str, Any]] | None:
        page = await access.reader.read(body.decode("utf-8", "replace"), {"want": "results"})
        results: Iterable[Mapping[str, Any]] | None = page["results"]
        return results


PROVIDERS: Mapping[str, SearchProvider] = {
    provider.name: provider for provider in (SearXNG(), Brave(), Tavily(), DuckDuckGo())
}


def _is_brave(body: bytes) -> bool:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.get("type") == "search" and "web" not in value
