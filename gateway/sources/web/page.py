"""One visit to a URL: what is there as text, or the reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import anyio.to_thread

from gateway.errors import GatewayError, NotFound, RateLimited, ToolFailed, Unavailable
from gateway.net import Limits
from gateway.net.body import RESPONSE_TOO_LARGE
from gateway.net.client import Answer
from gateway.sources.web.charsets import decode, is_text
from gateway.sources.web.context import WebContext
from gateway.sources.web.page_cache import Document

NOT_TEXT = "NOT_TEXT"
BAD_STATUS = "BAD_STATUS"
URL_NOT_FOUND = "URL_NOT_FOUND"
# Of a page; more than anyone reads, and less than would be felt.
BYTES = 8 * 1024 * 1024

_ACCEPT = "text/html, application/xhtml+xml, text/markdown, text/plain, application/json, */*;q=0.5"
_HTML = ("text/html", "application/xhtml+xml")
_TEXTS = frozenset(
    {"ecmascript", "graphql", "javascript", "json", "rtf", "sql", "toml", "typescript", "xml", "xml-dtd", "yaml"}
    | {"x-httpd-php", "x-javascript", "x-ndjson", "x-sh", "x-tex", "x-www-form-urlencoded", "x-yaml"}
)
_UNSURE = ("", "application/octet-stream", "binary/octet-stream", "application/unknown", "unknown/unknown")
_SNIFFED = 4096
_SAID = 300
_HEADERS = 60
_HEADER_LENGTH = 500
_PRIVATE = frozenset({"set-cookie", "set-cookie2"})


async def visit(
    context: WebContext, url: str, *, headers: Mapping[str, str], seconds: float, raw: bool, whole: bool
) -> Document:
    """Fetch it and make text of it. Refused: a status that is none of success, and what is no text."""
    limits = Limits(bytes=BYTES, seconds=seconds, connect_seconds=min(seconds, Limits.connect_seconds))
    given = headers if any(name.lower() == "accept" for name in headers) else {"accept": _ACCEPT, **headers}
    async with (
        context.outside.door(context.policy) as door,
        door.request("GET", url, headers=given, limits=limits) as answer,
    ):
        if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            raise await _refusal(answer)
        kind = _kind(answer)
        if kind is None:
            raise _not_text(answer)
        body = await _body(answer)
    if kind in _UNSURE:
        if not is_text(body[:_SNIFFED]):
            raise _not_text(answer)
        kind = _HTML[0] if body[:_SNIFFED].lstrip().lower().startswith((b"<!doctype html", b"<html")) else kind
    return await _document(context, answer, body, as_markdown=kind in _HTML and not raw, whole=whole)


async def _document(context: WebContext, answer: Answer, body: bytes, *, as_markdown: bool, whole: bool) -> Document:
    text = await anyio.to_thread.run_sync(lambda: decode(body, answer.content_type, is_markup=_is_markup(body)))
    page: dict[str, Any] = {"markdown": text, "title": None, "cut": False}
    if as_markdown:
        page = await context.outside.reader.read(text, {"url": answer.url, "whole": whole})
    return Document(
        status=answer.status,
        url=answer.url,
        headers=_shown(answer.headers),
        content_type=answer.content_type,
        format="markdown" if as_markdown else "raw",
        text=page["markdown"],
        title=page["title"],
        cut=page["cut"],
    )


async def _body(answer: Answer) -> bytes:
    try:
        return await answer.read()
    except ToolFailed as error:
        if error.code != RESPONSE_TOO_LARGE:
            raise
        reason = f"what is there is larger than {BYTES // 2**20} MiB; save it as a file with web_download"
        raise ToolFailed(reason, code=error.code, **error.details) from None


def _kind(answer: Answer) -> str | None:
    """The media type, where it is or may be text; None where it is said not to be."""
    kind = (answer.content_type or "").partition(";")[0].strip().lower()
    is_text = kind.startswith("text/") or kind.endswith(("+json", "+xml"))
    return kind if is_text or kind.removeprefix("application/") in _TEXTS or kind in _UNSURE else None


def _is_markup(body: bytes) -> bool:
    return body[:_SNIFFED].lstrip().startswith((b"<", b"\xef\xbb\xbf<"))


def _not_text(answer: Answer) -> ToolFailed:
    kind = (answer.content_type or "of unknown kind")[:100]
    size = f", {answer.length} bytes" if answer.length is not None else ""
    return ToolFailed(
        f"what is there is no text ({kind}{size}); save it as a file with web_download",
        code=NOT_TEXT,
        content_type=answer.content_type,
        bytes=answer.length,
    )


async def _refusal(answer: Answer) -> GatewayError:
    try:
        status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    except ValueError:
        status = str(answer.status)
    said = await _said(answer)
    details: dict[str, Any] = {"status": answer.status, **({"said": said} if said else {})}
    told = f"{status}: {said}" if said else status
    if answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return NotFound(f"{answer.origin} has nothing at that URL ({told})", code=URL_NOT_FOUND, **details)
    if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
        pause = answer.headers.get("retry-after", "")[:40]
        after = f"; it asks to wait {pause} s" if pause.isdecimal() else ""
        return RateLimited(f"{answer.origin} was asked too often{after}", retry_after=pause or None, **details)
    if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(f"{answer.origin} fails just now ({told}); try again later", code=BAD_STATUS, **details)
    return ToolFailed(f"{answer.origin} does not give it ({told})", code=BAD_STATUS, **details)


async def _said(answer: Answer) -> str | None:
    """The first words of a refusal that is written for programs; a whole page would be of no use."""
    kind = (answer.content_type or "").partition(";")[0].strip().lower()
    if kind != "text/plain" and not kind.endswith("json"):
        return None
    start = b""
    with suppress(ToolFailed, Unavailable):  # the status says enough
        async for chunk in answer.chunks:
            start += chunk
            if len(start) >= _SNIFFED:
                break
    return " ".join(start[:_SNIFFED].decode("utf-8", "replace").split())[:_SAID] or None


def _shown(headers: Mapping[str, str]) -> dict[str, str]:
    named = [(name, value) for name, value in headers.items() if name.lower() not in _PRIVATE]
    return {name: value[:_HEADER_LENGTH] for name, value in named[:_HEADERS]}
