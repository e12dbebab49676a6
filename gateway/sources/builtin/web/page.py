"""Fetching a URL as text: character encodings, error statuses, and a cache of fetched pages."""

from __future__ import annotations

import codecs
import importlib.util
import logging
import re
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import orjson

from gateway.errors import GatewayError, NotFound, RateLimited, ToolFailed, Unavailable
from gateway.net.policy import RequestLimits
from gateway.sandbox import Limits, Program, Sandbox
from gateway.sandbox.detect import Unconfined, survey
from gateway.sandbox.run import FinishedProgram, run
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.net.client import HttpResponse
    from gateway.sources.builtin.web.context import WebContext


_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_IN_HEADER = re.compile(r"""charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_IN_META = re.compile(rb"""<meta[^>]{0,500}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE)
_IN_XML = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9_:.-]{1,40})["']""")
_DECLARATION_BYTES = 4096
_WESTERN = "cp1252"

# Encodings that browsers use instead of the declared one, because pages often declare the wrong one.
_REPLACEMENTS = {"ascii": _WESTERN, "iso8859-1": _WESTERN, "iso8859-9": "cp1254", "tis-620": "cp874"}
_REPLACEMENTS |= {"gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "shift_jis": "cp932", "big5": "big5hkscs"}

# Names used on the web that Python does not know.
_ALIASES = {"x-sjis": "cp932", "windows-31j": "cp932", "ms_kanji": "cp932", "windows-874": "cp874", "x-gbk": "gb18030"}
_ALIASES |= {"iso-8859-8-i": "iso8859-8", "x-mac-cyrillic": "mac-cyrillic", "x-cp1251": "cp1251", "x-cp1252": "cp1252"}

# Encodings of the web. Python has others that are not text encodings, and some that are very slow.
_ENCODINGS = frozenset(
    {"utf-8", "utf-16", "utf-16-le", "utf-16-be", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "cp866", "cp874"}
    | {f"cp125{number}" for number in range(9)}
    | {f"iso8859-{number}" for number in range(2, 17)}
    | {"gb18030", "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949"}
)


def decode(body: bytes, content_type: str | None, *, is_markup: bool) -> str:
    """Decode a body by its declared or detected encoding; invalid bytes become U+FFFD."""
    for mark, encoding in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, "replace")
    header = _IN_HEADER.search(content_type or "")
    declared = _find_encoding(header[1]) if header else None
    if declared is None and is_markup:
        match = _IN_META.search(body[:_DECLARATION_BYTES]) or _IN_XML.search(body[:_DECLARATION_BYTES])
        declared = _find_encoding(match[1].decode("ascii")) if match else None
        if declared is not None and declared.startswith("utf-16"):
            declared = "utf-8"  # the declaration itself was not UTF-16
    if declared is not None:
        return body.decode(declared, "replace")
    text = body.decode("utf-8", "replace")
    foreign = sum(not character.isascii() for character in text)
    # Other encodings are hardly ever valid UTF-8: a few invalid bytes are mistakes in a UTF-8 page.
    return text if text.count("\ufffd") * 10 <= foreign else body.decode(_WESTERN, "replace")


def is_text(start: bytes) -> bool:
    """Return whether bytes without a declared type look like text; the last character may be incomplete."""
    if start.startswith(tuple(mark for mark, _ in _BYTE_ORDER_MARKS)):
        return True
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
        text = start[: error.start].decode("utf-8")
    return not any(character < " " and character not in "\t\n\r\f\x1b" for character in text)


def _find_encoding(label: str) -> str | None:
    try:
        name = codecs.lookup(_ALIASES.get(label.lower(), label)).name
    except (LookupError, ValueError):
        return None
    name = _REPLACEMENTS.get(name, name)
    return name if name in _ENCODINGS else None


# How long a page stays in the cache.
CACHE_SECONDS = 300.0

# Characters in the cache; the least recently used pages are dropped first.
CACHE_CHARACTERS = 16_000_000


class WebDocument(Value):
    """The text fetched from a URL. `cut` means that the page was too large."""

    status: int
    url: str
    headers: Mapping[str, str]
    content_type: str | None
    format: str
    text: str
    title: str | None = None
    cut: bool = False


class PageCache:
    """Recently fetched pages, so that reading on does not fetch them again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pages: OrderedDict[Hashable, tuple[float, WebDocument]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable) -> WebDocument | None:
        self._drop_expired()
        if key not in self._pages:
            return None
        self._pages.move_to_end(key)
        return self._pages[key][1]

    def put(self, key: Hashable, document: WebDocument) -> None:
        self._drop(key)
        self._pages[key] = (self._clock(), document)
        self._size += len(document.text)
        while self._size > CACHE_CHARACTERS:
            self._drop(next(iter(self._pages)))

    def _drop_expired(self) -> None:
        oldest = self._clock() - CACHE_SECONDS
        for key in [key for key, (since, _) in self._pages.items() if since < oldest]:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        _, document = self._pages.pop(key, (0.0, None))
        self._size -= len(document.text) if document is not None else 0


NOT_TEXT = "NOT_TEXT"
BAD_STATUS = "BAD_STATUS"
URL_NOT_FOUND = "URL_NOT_FOUND"
# Of a page: more than anyone reads, and small enough to hold in memory.
PAGE_BYTES = 8 * 1024 * 1024

_ACCEPT = "text/html, application/xhtml+xml, text/markdown, text/plain, application/json, */*;q=0.5"
_HTML = ("text/html", "application/xhtml+xml")
_TEXT_TYPES = frozenset(
    {"ecmascript", "graphql", "javascript", "json", "rtf", "sql", "toml", "typescript", "xml", "xml-dtd", "yaml"}
    | {"x-httpd-php", "x-javascript", "x-ndjson", "x-sh", "x-tex", "x-www-form-urlencoded", "x-yaml"}
)
_UNKNOWN_TYPES = ("", "application/octet-stream", "binary/octet-stream", "application/unknown", "unknown/unknown")
_SNIFFED_BYTES = 4096
_REASON_LENGTH = 300
_HEADERS = 60
_HEADER_LENGTH = 500
_PRIVATE_HEADERS = frozenset({"set-cookie", "set-cookie2"})


async def fetch(
    context: WebContext,
    url: str,
    *,
    headers: Mapping[str, str],
    post: tuple[str, bytes] | None = None,
    seconds: float,
    raw: bool,
    whole: bool,
) -> WebDocument:
    """Fetch a URL and convert it to text; `post` is the type and content of a POST request. Refused: an error status,
    and content that is not text."""
    limits = RequestLimits(
        bytes=PAGE_BYTES, seconds=seconds, connect_seconds=min(seconds, RequestLimits.connect_seconds)
    )
    sent = headers if any(name.lower() == "accept" for name in headers) else {"accept": _ACCEPT, **headers}
    if post is not None:
        sent = {name: value for name, value in sent.items() if name.lower() != "content-type"}
        sent["content-type"] = post[0]
    async with (
        context.access.client(context.policy) as client,
        client.request(
            "POST" if post else "GET", url, headers=sent, body=post[1] if post else None, limits=limits
        ) as response,
    ):
        if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
            raise await _status_error(response)
        kind = _kind(response)
        if kind is None:
            raise _not_text(response)
        body = await _body(response)
    if kind in _UNKNOWN_TYPES:
        if not is_text(body[:_SNIFFED_BYTES]):
            raise _not_text(response)
        kind = _HTML[0] if body[:_SNIFFED_BYTES].lstrip().lower().startswith((b"<!doctype html", b"<html")) else kind
    return await _document(context, response, body, as_markdown=kind in _HTML and not raw, whole=whole)


async def _document(
    context: WebContext, response: HttpResponse, body: bytes, *, as_markdown: bool, whole: bool
) -> WebDocument:
    text = await anyio.to_thread.run_sync(lambda: decode(body, response.content_type, is_markup=_is_markup(body)))
    page: dict[str, Any] = {"markdown": text, "title": None, "cut": False}
    if as_markdown:
        page = await context.access.reader.read(text, {"url": response.url, "whole": whole})
    return WebDocument(
        status=response.status,
        url=response.url,
        headers=_visible_headers(response.headers),
        content_type=response.content_type,
        format="markdown" if as_markdown else "raw",
        text=page["markdown"],
        title=page["title"],
        cut=page["cut"],
    )


async def _body(response: HttpResponse) -> bytes:
    try:
        return await response.read()
    except ToolFailed as error:
        if error.code != "RESPONSE_TOO_LARGE":
            raise
        reason = f"the page is larger than {PAGE_BYTES // 2**20} MiB; save it as a file with web_download"
        raise ToolFailed(reason, code=error.code, **error.details) from None


def _kind(response: HttpResponse) -> str | None:
    """Return the media type if it is or may be text; else None."""
    kind = (response.content_type or "").partition(";")[0].strip().lower()
    is_text = kind.startswith("text/") or kind.endswith(("+json", "+xml"))
    return kind if is_text or kind.removeprefix("application/") in _TEXT_TYPES or kind in _UNKNOWN_TYPES else None


def _is_markup(body: bytes) -> bool:
    return body[:_SNIFFED_BYTES].lstrip().startswith((b"<", b"\xef\xbb\xbf<"))


def _not_text(response: HttpResponse) -> ToolFailed:
    kind = (response.content_type or "of unknown kind")[:100]
    size = f", {response.length} bytes" if response.length is not None else ""
    return ToolFailed(
        f"the content is not text ({kind}{size}); save it as a file with web_download",
        code=NOT_TEXT,
        content_type=response.content_type,
        bytes=response.length,
    )


async def _status_error(response: HttpResponse) -> GatewayError:
    try:
        status = f"{response.status} {HTTPStatus(response.status).phrase}"
    except ValueError:
        status = str(response.status)
    reason = await _reason(response)
    details: dict[str, Any] = {"status": response.status, **({"said": reason} if reason else {})}
    description = f"{status}: {reason}" if reason else status
    if response.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE):
        return NotFound(f"{response.origin} has nothing at that URL ({description})", code=URL_NOT_FOUND, **details)
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        pause = response.pause
        after = f"; wait {pause['retry_after']} s" if pause else ""
        return RateLimited(f"{response.origin} received too many requests{after}", **pause, **details)
    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Unavailable(f"{response.origin} returned {description}; try again later", code=BAD_STATUS, **details)
    return ToolFailed(f"{response.origin} returned {description}", code=BAD_STATUS, **details)


async def _reason(response: HttpResponse) -> str | None:
    """Return the beginning of an error body in plain text or JSON; an HTML page would be of no use."""
    kind = (response.content_type or "").partition(";")[0].strip().lower()
    if kind != "text/plain" and not kind.endswith("json"):
        return None
    start = b""
    with suppress(ToolFailed, Unavailable):  # the status is enough
        async for chunk in response.chunks:
            start += chunk
            if len(start) >= _SNIFFED_BYTES:
                break
    return " ".join(start[:_SNIFFED_BYTES].decode("utf-8", "replace").split())[:_REASON_LENGTH] or None


def _visible_headers(headers: Mapping[str, str]) -> dict[str, str]:
    public = [(name, value) for name, value in headers.items() if name.lower() not in _PRIVATE_HEADERS]
    return {name: value[:_HEADER_LENGTH] for name, value in public[:_HEADERS]}


_log = logging.getLogger(__name__)

UNREADABLE_PAGE = "UNREADABLE_PAGE"
SECONDS = 20.0
# Pages read at once; more wait.
CONCURRENT_PAGES = 4

_MEBIBYTE = 1024 * 1024
_LIMITS = Limits(memory=1024 * _MEBIBYTE, processes=8, disk=_MEBIBYTE, files=16, cpu_seconds=12)
_OUTPUT = 32 * _MEBIBYTE
_HERE = Path(__file__).resolve().parent
_OUT_OF_TIME = (128 + signal.SIGKILL, 128 + signal.SIGXCPU)
_LAUNCH = "import sys; sys.path += sys.argv[1:]; from reader import main; main()"


class HtmlReader:
    """Reads pages in child processes, a few at a time."""

    def __init__(self) -> None:
        self._slots = anyio.Semaphore(CONCURRENT_PAGES)

    async def read(self, html: str, options: Mapping[str, Any], *, seconds: float = SECONDS) -> dict[str, Any]:
        """Return the result of `reader.read`; raise `UNREADABLE_PAGE` when it takes too much time or memory."""
        request = orjson.dumps(options) + b"\n" + html.encode("utf-8", "replace")
        async with self._slots:
            finished = await run(
                await _sandbox(), _program(), input=request, timeout=seconds, output_limit=_OUTPUT, hard_limit=_OUTPUT
            )
        return _result(finished)


async def _sandbox() -> Sandbox:
    # The program is our own, so it may run without a sandbox; as a process it can still be killed.
    return (await survey()).sandbox or Unconfined()


def _program() -> Program:
    parser = importlib.util.find_spec("selectolax")
    packages = [Path(folder).parent for folder in (parser.submodule_search_locations or ())] if parser else []
    path = [_HERE, *packages]  # readable as whole directories: Python searches them for modules
    return Program(
        argv=(sys.executable, "-I", "-S", "-B", "-c", _LAUNCH, *map(str, path)),
        readable=tuple(sorted({*path, Path(sys.prefix), Path(sys.base_prefix)})),
        env={"LC_ALL": "C.UTF-8"},
        limits=_LIMITS,
    )


def _result(finished: FinishedProgram) -> dict[str, Any]:
    if finished.exit.code != 0 or finished.stdout_truncated:
        reason = finished.exit.killed or ("time" if finished.exit.code in _OUT_OF_TIME else "a crash")
        _log.info("the HTML reader failed: %s, %s", finished.exit, finished.stderr[-500:])
        raise ToolFailed(
            f"the page cannot be converted within the limits ({reason}); fetch it with format='raw'",
            code=UNREADABLE_PAGE,
        )
    result: dict[str, Any] = orjson.loads(finished.stdout)
    return result
