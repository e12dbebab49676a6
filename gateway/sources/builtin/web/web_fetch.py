"""Reading what is at a URL, a page of it at a time."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gateway.errors import Invalid
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.sources.builtin.web.context import WebContext
from gateway.sources.builtin.web.page import WebDocument, visit
from gateway.tools import Access, Permission

PAGE = 20_000
LONGEST_PAGE = 200_000
SECONDS = 30.0
LONGEST_WAIT = 100.0

Url = Annotated[str, Field(min_length=1, max_length=8192, description="http:// or https://, of an allowed host")]
Headers = Annotated[
    dict[str, str] | None,
    Field(max_length=30, description="Sent with the request, such as Accept-Language; to that server alone"),
]
Seconds = Annotated[float, Field(gt=0, le=LONGEST_WAIT, description="Seconds it may take in all")]


class FetchResult(Shape):
    status: int
    headers: dict[str, str]
    body: str
    url: str = Field(description="Where it was found in the end, after redirects")
    content_type: str | None = None
    format: str = Field(description="markdown, or raw: as it was sent")
    title: str | None = None
    offset: int = Field(description="First character of body, from 0")
    next_offset: int | None = Field(default=None, description="Where to go on reading")
    characters: int = Field(description="Of the whole text")
    truncated: bool = Field(description="More follows, or the page was too large to be kept whole")


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
        Literal["markdown", "raw"], Field(description="markdown: HTML made readable; raw: as it was sent")
    ] = "markdown",
    whole: Annotated[bool, Field(description="Of HTML also menus, footers and the like")] = False,
    offset: Annotated[int, Field(ge=0, le=2**53, description="First character, from 0, to read on")] = 0,
    limit: Annotated[int, Field(ge=100, le=LONGEST_PAGE, description="At most so many characters")] = PAGE,
    timeout: Seconds = SECONDS,
) -> tuple[FetchResult, str]:
    """Read what is at a URL (GET). The main content of HTML comes as Markdown, with absolute links; text, JSON and
    XML come as they are. A long text is cut, and nextOffset says where to go on.

    Only allowed hosts are reached. What is no text is refused: save it as a file with web_download."""
    key = (context.call.caller.principal, url, tuple(sorted((headers or {}).items())), format, whole)
    document = context.pages.get(key) if offset else None
    if document is None:
        document = await visit(context, url, headers=headers or {}, seconds=timeout, raw=format == "raw", whole=whole)
        context.pages.put(key, document)
    page = _page(document, offset, limit)
    return page, _told(page, document)


def _page(document: WebDocument, offset: int, limit: int) -> FetchResult:
    size = len(document.text)
    if offset and offset >= size:
        raise Invalid(f"web_fetch: 'offset' is {offset}, but the text has {size} characters")
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
    """Where a page ends: after a line, if one ends in its last quarter."""
    end = offset + limit
    if end >= len(text):
        return len(text)
    return text.rfind("\n", offset + limit * 3 // 4, end) + 1 or end


def _told(page: FetchResult, document: WebDocument) -> str:
    lines = [page.title] if page.title and not page.offset else []
    lines += [page.url, ""]
    if document.text.strip():
        lines.append(page.body)
    elif page.format == "markdown":
        lines.append("[no text: the page is empty, or is put together by its scripts, which are not run]")
    else:
        lines.append("[nothing: the answer is empty]")
    if page.next_offset is not None:
        closing = f"[characters {page.offset}-{page.next_offset - 1} of {page.characters}; "
        lines += ["", f"{closing}go on with offset={page.next_offset}]"]
    elif document.cut:
        lines += ["", "[the page is too large: what follows was left out]"]
    return "\n".join(lines)
