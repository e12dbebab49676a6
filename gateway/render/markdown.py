"""Untrusted Markdown as HTML that is safe in a page."""

# Imported only where a document is shown: markdown-it and nh3 take 60 ms from a warm cache and 200 from a cold one.
from __future__ import annotations

import html
import re

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gateway.render.highlight import CLASS_PREFIX, highlight

# Maximum characters; longer text is shown plain.
MARKDOWN_LIMIT = 256 * 1024

_HTML_LIMIT = 4000  # tags; cleaning takes time by the square of their depth
_FENCE_SECONDS = 0.25

_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "caption", "code", "dd", "del", "details", "div", "dl", "dt", "em"),
    *("figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd", "li", "mark"),
    *("ol", "p", "pre", "q", "s", "samp", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody"),
    *("td", "tfoot", "th", "thead", "tr", "ul", "var"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "code": {"class"},
    "img": {"src", "alt", "title", "width", "height"},
    "ol": {"start"},
    "span": {"class"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
}
_ALIGNMENTS = {"align": {"left", "center", "right"}}
_IMAGE_DATA = re.compile(r"data:image/(?:png|gif|jpeg|webp|avif|bmp|x-icon)[;,]", re.IGNORECASE)
_CLASS = re.compile(rf"{CLASS_PREFIX}[a-z0-9]+|language-[\w+#.-]+", re.ASCII)


def to_html(text: str) -> str:
    """Convert CommonMark with tables, strikethrough and highlighted code.

    Harmless HTML in the text is kept; too much of it is shown as text. There are no scripts, event handlers, forms,
    frames, styles or ids. Links may use http, https and mailto, and open in a new window without an opener; images are
    http, https, relative or embedded. The longest texts take seconds: call it in a thread.
    """
    if len(text) > MARKDOWN_LIMIT:
        return f"<pre>{html.escape(text)}</pre>"
    parser = _PARSER if text.count("<") <= _HTML_LIMIT else _PARSER_WITHOUT_HTML
    tokens = parser.parse(text.encode("utf-8", "replace").decode())  # the cleaner refuses lone surrogates
    _align(tokens)
    return _CLEANER.clean(parser.renderer.render(tokens, parser.options, {}))


def _fence(code: str, language: str, _attributes: str) -> str:
    return highlight(code, language or "text", seconds=_FENCE_SECONDS).html


def _align(tokens: list[Token]) -> None:
    """Write the alignment of a cell as an attribute: a page's security policy may forbid inline styles."""
    for token in tokens:
        style = token.attrs.pop("style", None)
        if isinstance(style, str):
            token.attrs["align"] = style.removeprefix("text-align:")


def _filter_attribute(tag: str, attribute: str, value: str) -> str | None:
    """Return the value of an allowed attribute, or None to leave it out."""
    if attribute == "class":
        return value if _CLASS.fullmatch(value) else None
    if attribute in ("href", "src") and value.strip().lower().startswith("data:"):
        return value if tag == "img" and _IMAGE_DATA.match(value) else None
    if attribute == "src" and value.strip().lower().startswith("mailto:"):
        return None
    return value


_PARSER, _PARSER_WITHOUT_HTML = (
    MarkdownIt("commonmark", {"html": raw, "highlight": _fence}).enable(["table", "strikethrough"])
    for raw in (True, False)
)
_CLEANER = nh3.Cleaner(
    tags=_TAGS,
    attributes=_ATTRIBUTES,
    tag_attribute_values={"td": _ALIGNMENTS, "th": _ALIGNMENTS},
    attribute_filter=_filter_attribute,
    set_tag_attribute_values={"a": {"target": "_blank"}},
    url_schemes={"http", "https", "mailto", "data"},
    link_rel="noopener noreferrer nofollow",
)
