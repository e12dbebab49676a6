"""The tool web_fetch: reads a URL as text, in parts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.errors import Invalid
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.sources.builtin.web.context import WebContext
from gateway.sources.builtin.web.page import WebDocument, fetch
from gateway.tools import Access, Permission

# Characters of one result, by default and at most.
PAGE = 20_000
PAGE_LIMIT = 200_000

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


@builtin(
    title="Fetch from the web",
    category="web",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
    idempotent=True,
    open_world=True,
    requires=("hosts",),
)
async def web_fetch(
    context: WebContext,
    url: Url,
    headers: Headers = None,
    format: Annotated[  # noqa: A002 - the argument's name
        Literal["markdown", "raw"], Field(description="markdown: HTML converted to Markdown; raw: as received")
    ] = "markdown",
    whole: Annotated[bool, Field(description="Include menus, footers and other parts around the main content")] = False,
    offset: Annotated[int, Field(ge=0, le=2**53, description="First character, from 0")] = 0,
    limit: Annotated[int, Field(ge=100, le=PAGE_LIMIT, description="Maximum number of characters")] = PAGE,
    timeout: Seconds = TIMEOUT,
) -> tuple[FetchResult, str]:
    """Read a URL (GET). The main content of HTML is returned as Markdown with absolute links; text, JSON and XML are
    returned as they are. A long text is cut; nextOffset is the offset of the next part.

    Only allowed hosts can be reached. Content that is not text is refused: save it as a file with web_download."""
    key = (context.call.caller.principal, url, tuple(sorted((headers or {}).items())), format, whole)
    document = context.pages.get(key) if offset else None
    if document is None:
        document = await fetch(context, url, headers=headers or {}, seconds=timeout, raw=format == "raw", whole=whole)
        context.pages.put(key, document)
    result = _result(document, offset, limit)
    return result, _text(result, document)


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
