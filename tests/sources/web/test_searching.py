"""Each search provider against a server that answers as the real one does, and as a broken one does."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from eventually import TIMEOUT
from net.sites import PUBLIC, Lab, Reply, Site, answer, redirect, serving, trusting

from gateway.config.settings import WebSettings
from gateway.errors import Forbidden, GatewayError, Invalid, RateLimited, ToolFailed, Unavailable
from gateway.net.policy import RequestLimits
from gateway.sources.builtin.web import web_search as search_module

from .calling import call, web

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C3")]

KEY = "key-0123456789"
RESULTS = [
    {"title": "Python & co", "url": "https://python.org/", "snippet": "A language."},
    {"title": "Docs", "url": "http://docs.test/a?b=c", "snippet": "They say it all."},
]


def as_json(document: Any, *headers: str) -> bytes:
    return answer(200, json.dumps(document).encode(), "Content-Type: application/json", *headers)


SEARXNG = {
    "query": "python",
    "number_of_results": 0,
    "results": [
        {"url": "https://python.org/", "title": "Python & co", "content": "A language.", "engine": "google",
         "parsed_url": ["https", "python.org", "/", "", "", ""], "score": 9.0, "category": "general"},
        {"url": "https://python.org/", "title": "Again", "content": "Twice."},
        {"url": "magnet:?xt=1", "title": "No page", "content": ""},
        {"url": "http://docs.test/a?b=c", "title": "Docs", "content": " They  say\nit all."},
    ],
    "answers": [], "infoboxes": [], "suggestions": [], "unresponsive_engines": [["bing", "timeout"]],
}  # fmt: skip
BRAVE = {
    "type": "search",
    "query": {"original": "python"},
    "web": {
        "type": "search",
        "results": [
            {"title": "<strong>Python</strong> &amp; co", "url": "https://python.org/",
             "description": "A <strong>language</strong>.", "meta_url": {"scheme": "https"}, "profile": {"name": "x"}},
            {"title": "Docs", "url": "http://docs.test/a?b=c", "description": "They say it all."},
        ],
    },
}  # fmt: skip
TAVILY = {
    "query": "python", "answer": None, "images": [], "response_time": 0.8, "request_id": "x",
    "results": [
        {"title": "Python & co", "url": "https://python.org/", "content": "A language.", "score": 0.9,
         "raw_content": None},
        {"title": "Docs", "url": "http://docs.test/a?b=c", "content": "They say it all.", "score": 0.5},
    ],
}  # fmt: skip
DUCKDUCKGO = """<!DOCTYPE html><html><body><form id="search_form_homepage" action="/html/" method="post"></form>
<div id="links" class="results">
<div class="result results_links results_links_deep result--ad "><h2 class="result__title">
<a rel="nofollow" class="result__a" href="https://duckduckgo.com/y.js?ad_domain=x">Buy</a></h2></div>
<div class="result results_links results_links_deep web-result "><div class="links_main links_deep result__body">
<h2 class="result__title"><a rel="nofollow" class="result__a"
 href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fpython.org%2F&amp;rut=abc">Python &amp; co</a></h2>
<a class="result__url" href="//duckduckgo.com/l/?uddg=x">python.org</a>
<a class="result__snippet" href="//duckduckgo.com/l/?uddg=x">A <b>language</b>.</a></div></div>
<div class="result results_links web-result "><h2 class="result__title">
<a class="result__a" href="http://docs.test/a?b=c">Docs</a></h2><a class="result__snippet">They say it all.</a></div>
</div></body></html>"""

REPLIES: dict[str, bytes] = {
    "searxng": as_json(SEARXNG),
    "brave": as_json(BRAVE),
    "tavily": as_json(TAVILY),
    "duckduckgo": answer(200, DUCKDUCKGO.encode(), "Content-Type: text/html; charset=UTF-8"),
}
NOTHING: dict[str, bytes] = {
    "searxng": as_json({**SEARXNG, "results": []}),
    "brave": as_json({"type": "search", "query": {"original": "x"}}),
    "tavily": as_json({**TAVILY, "results": []}),
    "duckduckgo": answer(200, b'<div class="results"><div class="no-results">No results.</div></div>'),
}
EVERY = pytest.mark.parametrize("provider", REPLIES)


def settings(provider: str, site: Site | None) -> WebSettings:
    key = {"key": "${TOOLGATE_TEST_KEY}"} if provider in ("brave", "tavily") else {}
    url = {"url": site[""]} if site is not None else {}
    return WebSettings.model_validate({"search": {"provider": provider, **url, **key}})


async def search(provider: str, reply: Reply, **arguments: Any) -> tuple[Site, Any]:
    paths = ("/search", "/", "", "/html/")
    async with serving(dict.fromkeys(paths, reply)) as site:
        source = web(settings(provider, site))
        outcome = await call(source, "web_search", **{"query": "python", **arguments})
        return site, outcome


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGATE_TEST_KEY", KEY)


@EVERY
async def test_results_are_the_same_whoever_found_them(provider: str) -> None:
    _, outcome = await search(provider, REPLIES[provider])
    assert outcome.value == {"results": RESULTS}
    assert outcome.content[0]["text"].startswith("1. Python & co\n   https://python.org/\n   A language.\n2. Docs")


@EVERY
async def test_no_more_than_asked_for_and_nothing_where_nothing_is(provider: str) -> None:
    _, outcome = await search(provider, REPLIES[provider], numResults=1)
    assert outcome.value == {"results": RESULTS[:1]}
    _, outcome = await search(provider, NOTHING[provider])
    assert outcome.value == {"results": []}
    assert outcome.content[0]["text"] == "No results; try other search terms."


QUERY = "a&b=c  +ü #/?%\n"
WORDS = "a&b=c +ü #/?%"


async def test_each_is_asked_in_its_own_way() -> None:
    asked = {name: (await search(name, REPLIES[name], query=QUERY, numResults=3))[0].asked[0] for name in REPLIES}
    assert parse_qs(urlsplit(asked["searxng"].target).query) == {"q": [WORDS], "format": ["json"]}
    assert urlsplit(asked["searxng"].target).path == "/search"
    brave = parse_qs(urlsplit(asked["brave"].target).query)
    assert (brave["q"], brave["count"]) == ([WORDS], ["3"])
    assert asked["brave"].headers["x-subscription-token"] == KEY
    assert (asked["tavily"].method, json.loads(asked["tavily"].body)) == ("POST", {"query": WORDS, "max_results": 3})
    assert asked["tavily"].headers["authorization"] == f"Bearer {KEY}"
    assert (asked["duckduckgo"].method, parse_qs(asked["duckduckgo"].body.decode())) == ("POST", {"q": [WORDS]})
    assert all(KEY not in asked[name].target for name in asked)


@pytest.mark.parametrize(("provider", "url"), [("brave", "https://api.search.brave.com/res/v1/web/search"),
                                               ("tavily", "https://api.tavily.com/search"),
                                               ("duckduckgo", "https://html.duckduckgo.com/html/")])  # fmt: skip
async def test_without_another_address_each_is_asked_at_its_own(provider: str, url: str) -> None:
    host, path = urlsplit(url).hostname or "", urlsplit(url).path
    async with serving({path: REPLIES[provider]}, names=[host]) as site:
        lab = Lab(site.port, {host: [[PUBLIC]]})
        source = web(settings(provider, None), network=lab, tls=trusting())
        assert (await call(source, "web_search", query="python")).value == {"results": RESULTS}
        assert (lab.looked_up, site.asked[0].target.partition("?")[0]) == ([host], path)
        inner = Lab(site.port, {host: [["10.0.0.1"]]})
        with pytest.raises(Forbidden) as refused:
            await call(web(settings(provider, None), network=inner, tls=trusting()), "web_search", query="x")
        assert (refused.value.code, inner.connected) == ("PRIVATE_ADDRESS", [])


MALFORMED = {
    "no JSON": answer(200, b"<html>Welcome", "Content-Type: text/html"),
    "empty": answer(200, b""),
    "another shape": as_json({"error": "no"}),
    "a list": as_json([1]),
    "results of another shape": as_json({"results": {"a": 1}, "web": {"results": "x"}}),
    "null": as_json(None),
    "half": answer(200, b'{"results": [{"url": "http'),
}


@EVERY
@pytest.mark.parametrize("reply", MALFORMED.values(), ids=MALFORMED)
async def test_an_answer_of_another_shape_is_a_clear_error(provider: str, reply: bytes) -> None:
    with pytest.raises(Unavailable, match=f"{provider} returned something other than results; ") as refused:
        await search(provider, reply)
    assert refused.value.code == "BAD_ANSWER"


async def test_results_of_another_shape_are_left_out() -> None:
    odd: list[Any] = [None, 1, "x", {}, {"url": 1}, {"url": "javascript:x"}, {"url": "https://a.test/", "title": None},
                      {"url": "https://b.test/", "title": "<i>t</i>" + "x" * 900, "content": ["y"]}]  # fmt: skip
    _, outcome = await search("searxng", as_json({"results": odd}))
    assert outcome.value["results"][0] == {"title": "https://a.test/", "url": "https://a.test/", "snippet": ""}
    assert outcome.value["results"][1]["title"] == "t" + "x" * 299
    assert len(outcome.value["results"]) == 2


@EVERY
@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(429, RateLimited, "RATE_LIMITED"), (401, Unavailable, "SEARCH_KEY_REFUSED"),
     (403, Unavailable, "SEARCH_KEY_REFUSED"), (500, Unavailable, "SEARCH_FAILED"), (202, Unavailable, "SEARCH_FAILED"),
     (422, Unavailable, "SEARCH_FAILED")],
)  # fmt: skip
async def test_a_refusal_names_the_provider_and_never_the_key(
    provider: str, status: int, kind: type[GatewayError], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(kind, match=provider) as refused:
        await search(provider, answer(status, f"bad token {KEY}".encode(), "Retry-After: 5"))
    assert refused.value.code == code
    assert KEY not in str(refused.value.to_dict()) + caplog.text


async def test_a_searxng_without_json_is_told_how_to_get_it() -> None:
    with pytest.raises(Unavailable, match=r"add 'json' to search\.formats"):
        await search("searxng", answer(403, b"<html>Forbidden"))


@EVERY
async def test_a_provider_that_does_not_answer_is_given_up(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(search_module, "LIMITS", RequestLimits(bytes=1000, seconds=0.2))
    with pytest.raises(Unavailable, match=r"did not answer completely within 0\.2 s"):
        await search(provider, silence)
    monkeypatch.setattr(search_module, "LIMITS", RequestLimits(bytes=1000, seconds=TIMEOUT))
    with pytest.raises(ToolFailed, match="larger than 1000 bytes"):
        await search(provider, as_json({"results": ["x" * 1000]}))


@EVERY
async def test_a_provider_leads_to_itself_alone(provider: str) -> None:
    async with serving({"/": answer(200, b"secret")}) as other:
        with pytest.raises(Forbidden) as refused:
            await search(provider, redirect(other["/"], 307))
        assert refused.value.code in ("HOST_NOT_ALLOWED", "PORT_NOT_ALLOWED")
        assert other.connections == 0


async def test_a_key_does_not_travel_in_the_clear() -> None:
    for provider in ("brave", "tavily"):
        declared = {"provider": provider, "url": "http://proxy.test/search", "key": KEY}
        lab = Lab(1, {"proxy.test": [[PUBLIC]]})
        with pytest.raises(Forbidden) as refused:
            await call(web(WebSettings.model_validate({"search": declared}), network=lab), "web_search", query="x")
        assert (refused.value.code, lab.connected) == ("INSECURE_URL", [])


async def test_a_key_is_looked_up_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLGATE_TEST_KEY")
    with pytest.raises(Invalid, match="TOOLGATE_TEST_KEY is not set"):
        await search("brave", REPLIES["brave"])
    monkeypatch.setenv("TOOLGATE_TEST_KEY", f"{KEY}\n")
    site, _ = await search("brave", REPLIES["brave"])
    assert site.asked[0].headers["x-subscription-token"] == KEY
    monkeypatch.setenv("TOOLGATE_TEST_KEY", f"{KEY}\r\nX: y")
    with pytest.raises(Invalid) as refused:
        await search("brave", REPLIES["brave"])
    assert KEY not in str(refused.value.to_dict())
    declared = WebSettings.model_validate({"search": {"provider": "brave", "key": KEY}})
    assert KEY not in repr(declared)
