"""One visit to a URL: what is there as text, or the reason why not."""

from __future__ import annotations

import codecs
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from gateway.errors import GatewayError, NotFound, RateLimited, ToolFailed, Unavailable
from gateway.net.policy import RequestLimits

if TYPE_CHECKING:
    from gateway.net.client import HttpResponse
    from gateway.sources.builtin.web.context import WebContext


_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_NAMED = re.compile(r"""charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_IN_PAGE = re.compile(rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_IN_XML = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9_:.-]{1,40})["']""")
_SEARCHED = 4096
_WESTERN = "cp1252"

_TAKEN_FOR = {"ascii": _WESTERN, "iso8859-1": _WESTERN, "iso8859-9": "cp1254", "tis-620": "cp874"}
_TAKEN_FOR |= {"gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "shift_jis": "cp932", "big5": "big5hkscs"}
"""What browsers read instead, because pages say the one and mean the other."""

_ALSO = {"x-sjis": "cp932", "windows-31j": "cp932", "ms_kanji": "cp932", "windows-874": "cp874", "x-gbk": "gb18030"}
_ALSO |= {"iso-8859-8-i": "iso8859-8", "x-mac-cyrillic": "mac-cyrillic", "x-cp1251": "cp1251", "x-cp1252": "cp1252"}
"""Names of the web that Python does not know."""

# Encodings of the web. Python knows others that are none, and some that take forever.
_KNOWN = frozenset(
    {"utf-8", "utf-16", "utf-16-le", "utf-16-be", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp866", "cp874"}
    | {f"cp125{number}" for number in range(9)}
    | {f"iso8859-{number}" for number in range(2, 17)}
    | {"gb18030", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949"}
)


def decode(body: bytes, content_type: str | None, *, is_markup: bool) -> str:
    """The text; what does not fit its encoding shows as U+FFFD."""
    for mark, marked in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(marked, "replace")
    named = _NAMED.search(content_type or "")
    encoding = _known(named[1]) if named else None
    if encoding is None and is_markup:
        found = _IN_PAGE.search(body[:_SEARCHED]) or _IN_XML.search(body[:_SEARCHED])
        encoding = _known(found[1].decode("ascii")) if found else None
        if encoding is not None and encoding.startswith("utf-16"):
            encoding = "utf-8"  # it could not have been read in that encoding
    if encoding is not None:
        return body.decode(encoding, "replace")
    text = body.decode("utf-8", "replace")
    strange = sum(not character.isascii() for character in text)
    # Hardly any of it fits by chance: a fault here and there is one of a page in UTF-8.
    return text if text.count("\ufffd") * 10 <= strange else body.decode(_WESTERN, "replace")


def is_text(start: bytes) -> bool:
    """Whether bytes that nobody has named look like text; the last character may be cut off."""
    if start.startswith(tuple(mark for mark, _ in _MARKS)):
        return True
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
        text = start[: error.start].decode("utf-8")
    return not any(character < " " and character not in "\t\n\r\f\x1b" for character in text)


def _known(label: str) -> str | None:
    try:
        name = codecs.lookup(_ALSO.get(label.lower(), label)).name
    except (LookupError, ValueError):
        return None
    name = _TAKEN_FOR.get(name, name)
    return name if name in _KNOWN else None


SECONDS = 300.0
# Kept in all; the longest unused go first.
CHARACTERS = 16_000_000


@dataclass(frozen=True)
class WebDocument:
    """What was at a URL, as text to be read in pages."""

    status: int
    url: str
    headers: Mapping[str, str]
    content_type: str | None
    format: str
    text: str
    title: str | None = None
    cut: bool = False


class PageCache:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, WebDocument]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable) -> WebDocument | None:
        self._forget_old()
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def put(self, key: Hashable, document: WebDocument) -> None:
        self._drop(key)
        self._kept[key] = (self._clock(), document)
        self._size += len(document.text)
        while self._size > CHARACTERS:
            self._drop(next(iter(self._kept)))

    def _forget_old(self) -> None:
        oldest = self._clock() - SECONDS
        for key in [key for key, (since, _) in self._kept.items() if since < oldest]:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        _, document = self._kept.pop(key, (0.0, None))
        self._size -= len(document.text) if document is not None else 0


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
) -> WebDocument:
    """Fetch it and make text of it. Refused: a status that is none of success, and what is no text."""
    limits = RequestLimits(bytes=BYTES, seconds=seconds, connect_seconds=min(seconds, RequestLimits.connect_seconds))
    given = headers if any(name.lower() == "accept" for name in headers) else {"accept": _ACCEPT, **headers}
    async with (
        context.access.client(context.policy) as door,
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


async def _document(
    context: WebContext, answer: HttpResponse, body: bytes, *, as_markdown: bool, whole: bool
) -> WebDocument:
    text = await anyio.to_thread.run_sync(lambda: decode(body, answer.content_type, is_markup=_is_markup(body)))
    page: dict[str, Any] = {"markdown": text, "title": None, "cut": False}
    if as_markdown:
        page = await context.access.reader.read(text, {"url": answer.url, "whole": whole})
    return WebDocument(
        status=answer.status,
        url=answer.url,
        headers=_shown(answer.headers),
        content_type=answer.content_type,
        format="markdown" if as_markdown else "raw",
        text=page["markdown"],
        title=page["title"],
        cut=page["cut"],
    )


async def _body(answer: HttpResponse) -> bytes:
    try:
        return await answer.read()
    except ToolFailed as error:
        if error.code != "RESPONSE_TOO_LARGE":
            raise
        reason = f"what is there is larger than {BYTES // 2**20} MiB; save it as a file with web_download"
        raise ToolFailed(reason, code=error.code, **error.details) from None


def _kind(answer: HttpResponse) -> str | None:
    """The media type, where it is or may be text; None where it is said not to be."""
    kind = (answer.content_type or "").partition(";")[0].strip().lower()
    is_text = kind.startswith("text/") or kind.endswith(("+json", "+xml"))
    return kind if is_text or kind.removeprefix("application/") in _TEXTS or kind in _UNSURE else None


def _is_markup(body: bytes) -> bool:
    return body[:_SNIFFED].lstrip().startswith((b"<", b"\xef\xbb\xbf<"))


def _not_text(answer: HttpResponse) -> ToolFailed:
    kind = (answer.content_type or "of unknown kind")[:100]
    size = f", {answer.length} bytes" if answer.length is not None else ""
    return ToolFailed(
        f"what is there is no text ({kind}{size}); save it as a file with web_download",
        code=NOT_TEXT,
        content_type=answer.content_type,
        bytes=answer.length,
    )


async def _refusal(answer: HttpResponse) -> GatewayError:
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


async def _said(answer: HttpResponse) -> str | None:
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
