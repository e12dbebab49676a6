"""Contents of plans as HTML, and pages: a plan in its view as one document, for a sandboxed iframe without a host.

Imported only where a page is made: Pygments, markdown-it and nh3 take 60 ms from a warm cache and 200 from a cold one.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gateway.render.highlight import CLASS_PREFIX, highlight
from gateway.render.renderers import RENDERERS, TEXT_RENDERERS, embed, inject, insert_first
from gateway.value import Value

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


# Maximum characters of highlighted code: the HTML is about six times as long, and takes as much time.
HIGHLIGHT_LIMIT = 64 * 1024
# Maximum characters of the HTML of highlighted code; longer code is shown plain.
HIGHLIGHTED_LIMIT = 384 * 1024

# The `sandbox` of an iframe that shows a page: its own script, and for a document its links, which open in a new window
# without an opener. Without `allow-same-origin`: a page of the same origin as its viewer could escape with it.
SCRIPTS = "allow-scripts"
LINKS = "allow-scripts allow-popups allow-popups-to-escape-sandbox"
FRAME = "allow-scripts allow-forms allow-popups"

# The `id` of the script element with the plan and the content that a page shows.
PLAN_ID = "toolgate-plan"
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)
_RIGHTS = {"document": LINKS, "frame": FRAME}


class Page(Value):
    """A whole document, and the `sandbox` attribute of an iframe that shows it."""

    html: str
    sandbox: str = SCRIPTS


def choose_view(plan: Mapping[str, Any]) -> str:
    """Return the name of the view that shows a plan."""
    return plan["renderer"] if plan.get("renderer") in RENDERERS else "auto"


def make_page(view: str, plan: Mapping[str, Any], content: bytes | None = None, size: int = 0, uri: str = "") -> Page:
    """Return a page that shows a call without a host: its view, as a document, with the plan in it. `content` is the
    beginning of the file or artifact named in the plan, and `size` the size of the whole in bytes. A toolset's own page
    is returned with its data instead.

    It may take seconds: call it in a thread. A view loads nothing but the frame that its plan names.
    """
    kind, config = plan.get("renderer"), plan.get("config", {})
    shown: dict[str, Any] = {"uri": uri, "plan": plan}
    policy = _POLICY
    if "error" not in plan:
        if kind == "html" and content is not None and not (_cut(plan, "config.data") or _cut(plan, "config")):
            return Page(inject(content.decode("utf-8", "replace"), config.get("data")))
        if kind in TEXT_RENDERERS:
            shown["content"] = make_content(plan, content, size)
        elif kind == "frame":
            policy = f"{_POLICY}; frame-src {_frame_source(config['origin'])}"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    document = insert_first(embed(view, PLAN_ID, shown), meta)
    return Page(document, SCRIPTS if "error" in plan else _RIGHTS.get(str(kind), SCRIPTS))


def make_content(
    plan: Mapping[str, Any], content: bytes | None, size: int, revision: str | None = None
) -> dict[str, Any]:
    """Return the text of a `code` or `document` plan with the HTML that shows it. `content` is the beginning of its
    file, `size` the size of the whole; `revision` names the state of a file that may be changed.

    It may take seconds: call it in a thread."""
    config, binary = plan.get("config", {}), content is not None and b"\0" in content
    if content is None:
        text, cut = config.get("content") or "", _cut(plan, "config.content")
        size = cut or len(text.encode())
    else:
        text, cut = "" if binary else _decode(content), size if len(content) < size else None
    language, shown = "markdown", to_html(text) if plan["renderer"] == "document" else ""
    if plan["renderer"] == "code":
        language, shown = _highlight(text, config)
    editable = config.get("editable") is True and revision is not None and cut is None and not binary
    return {
        "text": text,
        "html": shown,
        "language": language,
        "size": size,
        "truncated": cut is not None,
        "binary": binary,
        "revision": revision,
        "editable": editable,
    }


def _highlight(text: str, config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the language and the HTML of code; long code has none, and is shown plain."""
    if len(text) <= HIGHLIGHT_LIMIT:
        found = highlight(text, config.get("language", "auto"), config.get("file"))
        if len(found.html) <= HIGHLIGHTED_LIMIT:
            return found.language, found.html
    return "text", ""


def _decode(content: bytes) -> str:
    """Return the text with invalid bytes replaced, and without a character that was cut at the end."""
    return content.decode("utf-8", "replace").removeprefix("\ufeff").removesuffix("\ufffd")


def _frame_source(origin: str) -> str:
    """Return the origin as a source of a policy, which cannot name IPv6 addresses."""
    return html.escape(origin if "[" not in origin else f"{origin.partition(':')[0]}:")


def _cut(plan: Mapping[str, Any], at: str) -> int | None:
    """Return the size in bytes of a value that was too large for the plan, None if it was not cut."""
    return next((cut["bytes"] for cut in plan.get("truncated", ()) if cut["at"] == at), None)
