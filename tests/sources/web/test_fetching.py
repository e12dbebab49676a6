"""What `web_fetch` makes of what is there: pages to read, texts as they are, and clear refusals of the rest."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from net.sites import PUBLIC, Lab, Reply, answer, redirect, serving

from gateway.calls import Call
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound, RateLimited, ToolFailed, Unavailable
from gateway.sources.builtin.source import BuiltinSource
from gateway.sources.builtin.web.context import WebTools
from gateway.sources.builtin.web.page import CACHE_SECONDS, PageCache, WebDocument
from gateway.tools import Permission
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

from .calling import ANYWHERE, call, fetch, web

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C3")]

ARTICLE = b"""<!doctype html><html><head><title>On  moths</title></head><body>
<nav><a href="/">Home</a> <a href="/all">All posts</a></nav>
<main><h1>On moths</h1>
<p>A moth is <b>not</b> a <a href="../butterfly?a=1#x">butterfly</a>, says the caf\xc3\xa9.</p></main>
<footer>Imprint</footer></body></html>"""


async def got(reply: Reply | list[Reply], **arguments: Any) -> dict[str, Any]:
    async with serving({"/a/b": reply}) as site:
        return await fetch(web(network=Lab(site.port, {"a.test": [[PUBLIC]]})), "http://a.test/a/b", **arguments)


async def test_html_is_read_as_markdown_and_only_what_the_page_is_about() -> None:
    page = await got(
        answer(200, ARTICLE, "Content-Type: text/html; charset=utf-8", "X-Served-By: us", "Set-Cookie: a=b")
    )
    body = "# On moths\n\nA moth is **not** a [butterfly](http://a.test/butterfly?a=1#x), says the café."
    assert page["headers"].pop("x-served-by") == "us"
    assert "set-cookie" not in page.pop("headers")
    assert page == {
        "status": 200,
        "url": "http://a.test/a/b",
        "contentType": "text/html; charset=utf-8",
        "format": "markdown",
        "title": "On moths",
        "body": body,
        "offset": 0,
        "characters": len(body),
        "truncated": False,
    }


async def test_the_whole_page_and_its_source_are_there_for_the_asking() -> None:
    reply = answer(200, ARTICLE, "Content-Type: text/html")
    assert "[All posts](http://a.test/all)" in (await got(reply, whole=True))["body"]
    raw = await got(reply, format="raw")
    assert (raw["format"], raw["body"]) == ("raw", ARTICLE.decode())


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/json", "application/problem+json", "text/markdown", "application/xml", "text/csv",
     "image/svg+xml", "application/javascript", "application/octet-stream", "TEXT/Plain; charset=UTF-8"],
)  # fmt: skip
async def test_texts_come_as_they_are(kind: str) -> None:
    page = await got(answer(200, '{"a":  "<b>ü</b>"}\n'.encode(), f"Content-Type: {kind}"))
    assert (page["body"], page["format"]) == ('{"a":  "<b>ü</b>"}\n', "raw")


async def test_what_nobody_named_is_looked_at() -> None:
    assert (await got(answer(200, ARTICLE)))["format"] == "markdown"
    assert (await got(answer(200, b"just text")))["body"] == "just text"
    assert (await got(answer(204)))["body"] == ""


@pytest.mark.parametrize(
    ("kind", "body"),
    [("image/png", b"\x89PNG"), ("application/pdf", b"%PDF-1.7"), ("application/zip", b"PK\3\4"), ("video/mp4", b"x"),
     ("application/octet-stream", b"\x7fELF\0\1"), ("", b"\0\1\2"), ("font/woff2", b"wOF2")],
)  # fmt: skip
async def test_what_is_no_text_is_refused_with_the_way_to_get_it(kind: str, body: bytes) -> None:
    with pytest.raises(ToolFailed, match=r"not text .*web_download") as refused:
        await got(answer(200, body, *([f"Content-Type: {kind}"] if kind else [])))
    assert refused.value.code == "NOT_TEXT"


async def test_a_page_that_is_too_large_is_refused_with_the_way_to_get_it() -> None:
    with pytest.raises(ToolFailed, match="larger than 8 MiB; save it as a file with web_download"):
        await got(answer(200, b"x" * (8 * 1024 * 1024 + 1), "Content-Type: text/plain"))


REFUSALS: list[tuple[int, type[GatewayError], str, str]] = [
    (404, NotFound, "URL_NOT_FOUND", "http://a.test has nothing at that URL (404 Not Found)"),
    (410, NotFound, "URL_NOT_FOUND", "http://a.test has nothing at that URL (410 Gone)"),
    (401, ToolFailed, "BAD_STATUS", "http://a.test returned 401 Unauthorized"),
    (403, ToolFailed, "BAD_STATUS", "http://a.test returned 403 Forbidden"),
    (304, ToolFailed, "BAD_STATUS", "http://a.test returned 304 Not Modified"),
    (300, ToolFailed, "BAD_STATUS", "http://a.test returned 300 Multiple Choices"),
    (429, RateLimited, "RATE_LIMITED", "http://a.test received too many requests; wait 7 s"),
    (500, Unavailable, "BAD_STATUS", "http://a.test returned 500 Internal Server Error; try again later"),
    (799, Unavailable, "BAD_STATUS", "http://a.test returned 799; try again later"),
]


@pytest.mark.parametrize(("status", "kind", "code", "message"), REFUSALS)
async def test_a_status_that_is_no_success_is_a_clear_error(
    status: int, kind: type[GatewayError], code: str, message: str
) -> None:
    with pytest.raises(kind) as refused:
        body = b"" if status == 304 else b"<html>page"
        await got(answer(status, body, "Content-Type: text/html", "Retry-After: 7"))
    assert (refused.value.code, refused.value.message) == (code, message)
    assert refused.value.details["status"] == status


async def test_what_an_interface_says_about_an_error_is_told() -> None:
    with pytest.raises(ToolFailed) as refused:
        await got(answer(400, b'{"error":\n "no such user"}' + b" " * 10_000, "Content-Type: application/json"))
    assert refused.value.message == 'http://a.test returned 400 Bad Request: {"error": "no such user"}'
    with pytest.raises(ToolFailed) as refused:
        await got(b"HTTP/1.1 400 X\r\nContent-Type: text/plain\r\nContent-Length: 99\r\nConnection: close\r\n\r\nshort")
    assert refused.value.details == {"status": 400, "said": "short"}


async def test_a_long_text_is_read_page_by_page_from_one_fetch() -> None:
    text = "".join(f"line {number}\n" for number in range(5000))
    async with serving({"/": [answer(200, text.encode(), "Content-Type: text/plain"), answer(500)]}) as site:
        source = web(network=Lab(site.port, {"a.test": [[PUBLIC]]}))
        pages = [await fetch(source, "http://a.test/", limit=10_000)]
        while "nextOffset" in pages[-1]:
            assert pages[-1]["truncated"] and pages[-1]["body"].endswith("\n")
            pages.append(await fetch(source, "http://a.test/", limit=10_000, offset=pages[-1]["nextOffset"]))
        assert "".join(page["body"] for page in pages) == text
        assert len(site.asked) == 1
        with pytest.raises(Invalid, match=rf"the text has only {len(text)} characters"):
            await fetch(source, "http://a.test/", offset=len(text))
        with pytest.raises(Unavailable):  # from the beginning it is fetched anew
            await fetch(source, "http://a.test/")
        with pytest.raises(Unavailable):  # and with other headers it is another text
            await fetch(source, "http://a.test/", offset=100, headers={"Accept-Language": "de"})


async def test_the_model_is_told_where_it_reads_and_how_to_go_on() -> None:
    async with serving({"/": redirect("/x"), "/x": answer(200, b"<title>T</title><p>" + b"word " * 100)}) as site:
        source = web(network=Lab(site.port, {"a.test": [[PUBLIC]]}))
        outcome = await call(source, "web_fetch", url="http://a.test/", limit=100)
        assert outcome.content is not None
        text = outcome.content[0]["text"]
        assert text.startswith("http://a.test/x\n\n<title>")
        site.replies["/x"] = answer(200, b"<title>T</title><p>" + b"word " * 100, "Content-Type: text/html")
        outcome = await call(source, "web_fetch", url="http://a.test/", limit=100)
        assert outcome.content is not None
        text = outcome.content[0]["text"]
        assert text.startswith("T\nhttp://a.test/x\n\nword word")
        assert text.endswith("[characters 0-99 of 499; continue with offset=100]")
        site.replies["/x"] = answer(200, b"<div id=app></div><script>x()</script>", "Content-Type: text/html")
        outcome = await call(source, "web_fetch", url="http://a.test/")
        assert outcome.content is not None
        assert "its scripts create the content" in outcome.content[0]["text"]


async def test_what_is_sent_is_ours_and_what_the_caller_adds() -> None:
    async with serving({"/": answer(200, b"x", "Content-Type: text/plain")}) as site:
        source = web(network=Lab(site.port, {"a.test": [[PUBLIC]]}))
        await fetch(source, "http://a.test/", headers={"Accept-Language": "de", "Authorization": "Bearer k"})
        await fetch(source, "http://a.test/", headers={"Accept": "text/csv"})
    first, second = site.asked
    assert (first.method, first.headers["accept-language"], first.headers["authorization"]) == ("GET", "de", "Bearer k")
    assert first.headers["user-agent"].startswith("toolgate/")
    assert first.headers["accept"].startswith("text/html")
    assert second.headers["accept"] == "text/csv"


@pytest.mark.parametrize(
    ("body", "headers", "kind"),
    [
        ('{"a": 1}', None, "application/json"),
        ("a=1", None, "text/plain; charset=utf-8"),
        ("a=1", {"Content-Type": "application/x-www-form-urlencoded"}, "application/x-www-form-urlencoded"),
        (None, None, "text/plain; charset=utf-8"),
    ],
)
async def test_post_sends_its_body_once_and_reads_on_without_sending_again(
    body: str | None, headers: dict[str, str] | None, kind: str
) -> None:
    reply = answer(201, b"made " * 100, "Content-Type: text/plain")
    arguments: dict[str, Any] = {"method": "POST", "limit": 100}
    arguments |= {name: value for name, value in (("body", body), ("headers", headers)) if value is not None}
    async with serving({"/": reply}) as site:
        source = web(network=Lab(site.port, {"a.test": [[PUBLIC]]}))
        first = await fetch(source, "http://a.test/", **arguments)
        second = await fetch(source, "http://a.test/", offset=first["nextOffset"], **arguments)
        with pytest.raises(Invalid, match="leave out 'offset' to send the request again"):
            await fetch(source, "http://a.test/", offset=100, method="POST", body="other")
        with pytest.raises(Invalid, match="'body' is sent with method POST only"):
            await fetch(source, "http://a.test/", body="x")
    assert (first["status"], first["nextOffset"], second["offset"]) == (201, 100, 100)
    [asked] = site.asked
    assert (asked.method, asked.body, asked.headers["content-type"]) == ("POST", (body or "").encode(), kind)


async def test_post_asks_a_person_and_is_refused_to_who_may_only_read() -> None:
    async with serving({"/": answer(200, b"x", "Content-Type: text/plain")}) as site:
        network = Lab(site.port, {"a.test": [[PUBLIC]]})
        source = web(network=network)
        tool = next(tool for tool in await source.list_tools() if tool.id == "web_fetch")
        assert callable(tool.requires_confirmation)

        async def reason(**arguments: Any) -> str | None:
            assert callable(tool.requires_confirmation)
            call = Call(name="web_fetch", tool=tool, arguments={"url": "http://a.test/", **arguments})
            return await tool.requires_confirmation(call)

        assert await reason() is None
        assert await reason(method="POST", body="a") == "web_fetch sends a POST request to http://a.test/: 'a'"
        assert await reason(method="POST") == "web_fetch sends a POST request to http://a.test/: an empty body"
        files = cast("Workspaces", None), cast("Versions", None)
        reader = BuiltinSource([WebTools(ANYWHERE, *files, Permission.READ_ONLY, network=network)])
        with pytest.raises(Forbidden, match="a POST request needs read-write"):
            await fetch(reader, "http://a.test/", method="POST")
        assert site.asked == []


async def test_others_are_served_while_a_page_is_awaited() -> None:
    release = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(200, b"late", "Content-Type: text/plain"))

    async with serving({"/slow": wait, "/": answer(200, b"soon", "Content-Type: text/plain")}) as site:
        source = web(network=Lab(site.port, {"a.test": [[PUBLIC]]}))
        slow = asyncio.create_task(fetch(source, "http://a.test/slow"))
        await site.was_asked(1)
        assert (await fetch(source, "http://a.test/"))["body"] == "soon"
        release.set()
        assert (await slow)["body"] == "late"


def document(text: str) -> WebDocument:
    return WebDocument(200, "http://a.test/", {}, None, "raw", text)


def test_pages_are_remembered_for_a_while_and_not_without_end() -> None:
    now = 0.0
    kept = PageCache(lambda: now)
    for number in range(5):
        kept.put(number, document("x" * 4_000_000))
    assert [number for number in range(5) if kept.get(number)] == [1, 2, 3, 4]
    kept.get(1)
    kept.put(5, document("x" * 4_000_000))
    assert [number for number in range(6) if kept.get(number)] == [1, 3, 4, 5]
    kept.put(5, document("y"))
    assert kept.get(5) == document("y")
    now = CACHE_SECONDS + 1
    assert [number for number in range(6) if kept.get(number)] == []
