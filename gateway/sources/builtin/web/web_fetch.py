"""The tool web_fetch: requests a URL and returns the response as text, in parts."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Annotated, Literal

import orjson
from pydantic import Field

from gateway.errors import Forbidden, Invalid
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.sources.builtin.web.context import WebContext
from gateway.sources.builtin.web.page import WebDocument, fetch
from gateway.tools import Access, Permission

# Characters of one result, by default and at most.
PAGE = 20_000
PAGE_LIMIT = 200_000

# Characters of a request's body.
BODY_LIMIT = 1024 * 1024

# Seconds for a request, by default and at most.
TIMEOUT = 30.0
TIMEOUT_LIMIT = 100.0

Url = Annotated[str, Field(min_length=1, max_length=8192, description="http:// or https:// URL of an allowed host")]
Headers = Annotated[
    dict[str, str] | None,
    Field(
        max_length=30, description="Request headers, such as Accept-Language; not sent to other hosts after a redirect"
    ),
]
Method = Literal["GET", "POST"]
Seconds = Annotated[float, Field(gt=0, le=TIMEOUT_LIMIT, description="Seconds for the whole request")]


class FetchResult(Shape):
    status: int
    headers: dict[str, str]
    body: str
    url: str = Field(description="Final URL, after redirects")
    content_type: str | None = None
    format: str = Field(description="markdown, or raw (as received)")
    title: str | None = None
    offset: int = Field(description="First character of body, from 0")
    next_offset: int | None = Field(default=None, description="Offset of the next part")
    characters: int = Field(description="Length of the whole text")
    truncated: bool = Field(description="More text follows, or the page was too large and was cut")


async def _post_reason(
    context: WebContext,
    url: str,
    method: Method = "GET",
    headers: Mapping[str, str] | None = None,
    body: str | None = None,
    offset: int = 0,
    **options: object,
) -> str | None:
    """Return the reason to ask before something is sent; reading on in a response sends nothing."""
    is_kept = offset and context.pages.get(_key(context, url, method, headers, body, **options)) is not None
    if method == "GET" or is_kept:
        return None
    sent = repr(body if len(body) <= 500 else f"{body[:500]}… ({len(body)} characters)") if body else "an empty body"
    return f"web_fetch sends a POST request to {url}: {sent}"


@builtin(
    title="Fetch from the web",
    longest_result=PAGE_LIMIT,
    category="web",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
    requires_confirmation=_post_reason,
    open_world=True,
    requires=("hosts",),
)
async def web_fetch(
    context: WebContext,
    url: Url,
    method: Annotated[Method, Field(description="POST sends body, after a person has agreed")] = "GET",
    headers: Headers = None,
    body: Annotated[
        str | None,
        Field(
            max_length=BODY_LIMIT,
            description="Body of a POST request; its Content-Type is application/json or text/plain unless in headers",
        ),
    ] = None,
    format: Annotated[  # noqa: A002 - the argument's name
        Literal["markdown", "raw"], Field(description="markdown: HTML converted to Markdown; raw: as received")
    ] = "markdown",
    whole: Annotated[bool, Field(description="Include menus, footers and other parts around the main content")] = False,
    offset: Annotated[int, Field(ge=0, le=2**53, description="First character, from 0")] = 0,
    limit: Annotated[int, Field(ge=100, le=PAGE_LIMIT, description="Maximum number of characters")] = PAGE,
    timeout: Seconds = TIMEOUT,
) -> tuple[FetchResult, str]:
    """Read a URL, or send something to it (POST). The main content of HTML is returned as Markdown with absolute links;
    text, JSON and XML are returned as they are. A long text is cut; nextOffset is the offset of the next part.

    Only allowed hosts can be reached. Content that is not text is refused: save it as a file with web_download."""
    if method == "GET" and body is not None:
        raise Invalid("web_fetch: 'body' is sent with method POST only")
    key = _key(context, url, method, headers, body, format=format, whole=whole)
    document = context.pages.get(key) if offset else None
    if document is None:
        sent = _prepare_post(context, headers or {}, body or "", offset) if method == "POST" else None
        document = await fetch(
            context, url, headers=headers or {}, post=sent, seconds=timeout, raw=format == "raw", whole=whole
        )
        context.pages.put(key, document)
    result = _result(document, offset, limit)
    return result, _text(result, document)


def _key(
    context: WebContext, url: str, method: str, headers: Mapping[str, str] | None, body: str | None, **options: object
) -> Hashable:
    read = (options.get("format", "markdown"), options.get("whole", False))
    return (context.call.caller.principal, url, method, tuple(sorted((headers or {}).items())), body, read)


def _prepare_post(context: WebContext, headers: Mapping[str, str], body: str, offset: int) -> tuple[str, bytes]:
    """Return content type and body of a POST request; refuse it to a caller that may only read, and a second one that
    would only read on."""
    if not context.may_send:
        raise Forbidden("web_fetch: a POST request needs read-write; this profile or caller allows only read-only")
    if offset:
        raise Invalid("web_fetch: that response is no longer kept; leave out 'offset' to send the request again")
    given = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
    return given or ("application/json" if _is_json(body) else "text/plain; charset=utf-8"), body.encode()


def _is_json(body: str) -> bool:
    try:
        return isinstance(orjson.loads(body), dict | list)
    except orjson.JSONDecodeError:
        return False


def _result(document: WebDocument, offset: int, limit: int) -> FetchResult:
    size = len(document.text)
    if offset and offset >= size:
        raise Invalid(f"web_fetch: 'offset' is {offset}, but the text has only {size} characters")
    end = _end(document.text, offset, limit)
    return FetchResult(
        status=document.status,
        headers=dict(document.headers),
        body=document.text[offset:end],
        url=document.url,
        content_type=document.content_type,
        format=document.format,
        title=document.title,
        offset=offset,
        next_offset=end if end < size else None,
        characters=size,
        truncated=end < size or document.cut,
    )


def _end(text: str, offset: int, limit: int) -> int:
    """Return the end of a part: after a line, if one ends in the last quarter."""
    end = offset + limit
    if end >= len(text):
        return len(text)
    return text.rfind("\n", offset + limit * 3 // 4, end) + 1 or end


def _text(result: FetchResult, document: WebDocument) -> str:
    lines = [result.title] if result.title and not result.offset else []
    lines += [result.url, ""]
    if document.text.strip():
        lines.append(result.body)
    elif result.format == "markdown":
        lines.append("[no text: the page is empty, or its scripts create the content; scripts are not run]")
    else:
        lines.append("[the response is empty]")
    if result.next_offset is not None:
        note = f"[characters {result.offset}-{result.next_offset - 1} of {result.characters}; "
        lines += ["", f"{note}continue with offset={result.next_offset}]"]
    elif document.cut:
        lines += ["", "[the page is too large; the rest was left out]"]
    return "\n".join(lines)
