"""Pages: a render plan as one self-contained HTML document, for a sandboxed iframe.

Imported only where a page is made: Pygments, markdown-it and nh3 take 60 ms from a warm cache and 200 from a cold one.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import nh3
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gateway.render.highlight import CLASS_PREFIX, highlight, stylesheet
from gateway.render.renderers import inject

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

NO_RIGHTS = ""
# For a document's links, which open in a new window without an opener.
LINKS = "allow-popups allow-popups-to-escape-sandbox"

SCRIPTS = "allow-scripts"
# Without `allow-same-origin`: a page of the same origin as its viewer could escape with it.
FRAME = "allow-scripts allow-forms allow-popups"

# Lines of code above which none is numbered: the numbers would make the page too large to be read at once.
_NUMBERED_LINES = 5000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Page:
    """A whole document, and the `sandbox` attribute of an iframe that shows it."""

    html: str
    sandbox: str = NO_RIGHTS


def make_page(plan: Mapping[str, Any], content: bytes | None = None, size: int = 0) -> Page:
    """Return the page that shows a call. `content` is the beginning of the file or artifact named in the plan, and
    `size` the size of the whole in bytes.

    It may take seconds: call it in a thread. Our own pages run no script and load nothing.
    """
    if "error" in plan:
        return _error(plan)
    config = plan.get("config", {})
    kind = plan.get("renderer")
    if kind == "frame":
        return _frame(plan, config)
    if kind == "html" and content is not None:
        return _artifact(plan, config, content)
    if kind in ("code", "document"):
        return _text(plan, config, content, size)
    return _page(plan, _note("There is nothing to show of this call."))


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
    """Return the language and the HTML of code; long code is plain."""
    if len(text) <= HIGHLIGHT_LIMIT:
        found = highlight(text, config.get("language", "auto"), config.get("file"))
        if len(found.html) <= HIGHLIGHTED_LIMIT:
            return found.language, found.html
    return "text", html.escape(text, quote=False)


def _text(plan: Mapping[str, Any], config: Mapping[str, Any], content: bytes | None, size: int) -> Page:
    if content is not None and b"\0" in content:
        return _page(plan, _note(f"{config['file']} is not text; it has {size} bytes."), config.get("file"))
    if content is None:
        text, cut = config.get("content"), _cut(plan, "config.content")
    else:
        text, cut = _decode(content), size if len(content) < size else None
    if not text:
        return _page(plan, _note("It is empty."), config.get("file"))
    note = "" if cut is None else _note(f"Only the beginning is shown; the whole has {cut} bytes.")
    if plan["renderer"] == "code":
        return _page(plan, note + _code(text, config), config.get("file"))
    document = f"{note}<article>{to_html(text)}</article>"
    return replace(_page(plan, document, config.get("file")), sandbox=LINKS)


def _decode(content: bytes) -> str:
    """Return the text with invalid bytes replaced, and without a character that was cut at the end."""
    return content.decode("utf-8", "replace").removeprefix("\ufeff").removesuffix("\ufffd")


def _code(text: str, config: Mapping[str, Any]) -> str:
    code = ""
    if len(text) <= HIGHLIGHT_LIMIT:
        code = highlight(text, config.get("language", "auto"), config.get("file")).html
    if not 0 < len(code) <= HIGHLIGHTED_LIMIT:
        code = html.escape(text, quote=False)
    lines = code.removesuffix("\n").split("\n")
    if len(lines) > _NUMBERED_LINES:
        return f'<pre tabindex="0">{code}</pre>'
    rows = "\n".join(f'<span id="L{number}">{line}</span>' for number, line in enumerate(lines, 1))
    return f'<pre class="code" tabindex="0"><code class="w{len(str(len(lines)))}">{rows}</code></pre>'


def _artifact(plan: Mapping[str, Any], config: Mapping[str, Any], content: bytes) -> Page:
    cut = _cut(plan, "config.data") or _cut(plan, "config")
    if cut is not None:  # the page expects whole data
        return _page(plan, _note(f"The data of this call has {cut} bytes, too many to be shown."))
    page = inject(content.decode("utf-8", "replace"), config.get("data"))
    return Page(page, SCRIPTS)


def _frame(plan: Mapping[str, Any], config: Mapping[str, Any]) -> Page:
    url = html.escape(config["url"])
    body = (
        f'<p class="address"><a href="{url}" target="_blank" rel="noopener noreferrer">{url}</a></p>'
        f'<iframe src="{url}" sandbox="{FRAME}" referrerpolicy="no-referrer" title="{_title(plan)}"></iframe>'
    )
    return replace(_page(plan, body, policy=f"{_POLICY}; frame-src {_frame_source(config['origin'])}"), sandbox=FRAME)


def _frame_source(origin: str) -> str:
    """Return the origin as a source of a policy, which cannot name IPv6 addresses."""
    return html.escape(origin if "[" not in origin else f"{origin.partition(':')[0]}:")


def _error(plan: Mapping[str, Any]) -> Page:
    error = plan["error"]
    message = html.escape(str(error.get("message") or "The call failed."))
    body = (
        f'<div class="error" role="alert"><strong>{html.escape(str(error.get("code")))}</strong><p>{message}</p></div>'
    )
    if details := error.get("details"):
        body += f"<pre>{html.escape(json.dumps(details, indent=2, ensure_ascii=False), quote=False)}</pre>"
    return _page(plan, body)


def _cut(plan: Mapping[str, Any], at: str) -> int | None:
    """Return the size in bytes of a value that was too large for the plan, None if it was not cut."""
    return next((cut["bytes"] for cut in plan.get("truncated", ()) if cut["at"] == at), None)


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _title(plan: Mapping[str, Any]) -> str:
    return html.escape(str(plan.get("tool", {}).get("title", "Tool call")))


def _page(plan: Mapping[str, Any], body: str, file: str | None = None, policy: str = _POLICY) -> Page:
    path = f"<code>{html.escape(file)}</code>" if file else ""
    return Page(
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{_title(plan)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<header><h1>{_title(plan)}</h1>{path}</header>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


# The same in every page, the console and the shipped toolsets.
_TOKENS = """
:root { --surface: #ffffff; --sunken: #f3f5f8; --line: #e3e7ed; --line-strong: #ccd3dc; --ink: #1b2230;
  --ink-2: #465164; --ink-3: #5d6879; --accent: #2a5bc4; --accent-tint: #e8effc; --bad: #b3261e;
  --bad-tint: #fdebe9; --add-bg: #e6f6ec;
  --del-bg: #fdecea; --syn-key: #8a2c8f; --syn-str: #1a6b3c; --syn-num: #a3420d; --syn-fn: #2a5bc4; --syn-type: #0f6674;
  --syn-com: #5d6879; --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
@media (prefers-color-scheme: dark) { :root { --surface: #12161d; --sunken: #0e1218; --line: #262d38;
  --line-strong: #3a4453; --ink: #e8ebf1; --ink-2: #b9c1ce; --ink-3: #98a2b3; --accent: #7ba6f5; --accent-tint: #18263f;
  --bad: #ff948b; --bad-tint: #331715; --add-bg: #0f2a1d; --del-bg: #331816; --syn-key: #d7a1f0; --syn-str: #8fd6a5;
  --syn-num: #f0a97a; --syn-fn: #8db4fa; --syn-type: #74c9d8; --syn-com: #98a2b3; } }
"""
_LAYOUT = """
* { box-sizing: border-box; }
html { background: var(--surface); color: var(--ink); scroll-padding: 12px; }
body { margin: 0; font: 14px/20px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans",
  sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; flex-wrap: wrap; gap: 0 12px; align-items: baseline; padding: 12px 20px;
  border-bottom: 1px solid var(--line); color: var(--ink-3); }
header h1 { margin: 0; font-size: 16px; line-height: 24px; font-weight: 600; color: var(--ink);
  overflow-wrap: anywhere; }
header code { overflow-wrap: anywhere; }
main { padding: 16px 20px; }
article { max-width: 46rem; margin: 0 auto; font-size: 15px; line-height: 24px; overflow-wrap: break-word; }
article > :first-child { margin-top: 0; }
h1, h2, h3, h4 { line-height: 1.3; font-weight: 600; margin: 24px 0 8px; }
article h1 { font-size: 20px; } article h2 { font-size: 18px; } article h3, article h4 { font-size: 16px; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
img { max-width: 100%; height: auto; }
code, pre, kbd, samp { font-family: var(--mono); font-size: 12px; font-variant-ligatures: none; }
article :not(pre) > code { font-size: 13px; }
pre { margin: 0 0 16px; padding: 8px 12px; overflow: auto; line-height: 20px; tab-size: 4;
  border: 1px solid var(--line); border-radius: 6px; background: var(--sunken); color: var(--ink); }
pre code { font-size: inherit; }
pre.code { padding: 8px 0; }
pre.code code { display: block; width: max-content; min-width: 100%; counter-reset: line; }
pre.code code > span { display: inline-block; min-width: 100%; padding-right: 12px; counter-increment: line; }
pre.code code > span::before { content: counter(line); position: sticky; left: 0; display: inline-block;
  width: calc(var(--digits) * 1ch + 24px); margin-right: 12px; padding-right: 12px; text-align: right;
  color: var(--ink-3); background: var(--sunken); border-right: 1px solid var(--line); user-select: none; }
pre.code code > span:target, pre.code code > span:target::before { background: var(--accent-tint); }
.w1, .w2 { --digits: 2; } .w3 { --digits: 3; } .w4 { --digits: 4; } .w5 { --digits: 5; } .w6 { --digits: 6; }
:not(pre) > code { padding: 1px 4px; border-radius: 4px; background: var(--sunken); }
blockquote { margin: 0 0 16px; padding: 0 16px; border-left: 3px solid var(--line-strong); color: var(--ink-2); }
table { border-collapse: collapse; display: block; overflow: auto; margin: 0 0 16px; font-size: 13px; }
th, td { border-bottom: 1px solid var(--line); padding: 7px 16px 7px 0; text-align: left; }
th { color: var(--ink-3); font-weight: 550; }
[align="right"] { text-align: right; } [align="center"] { text-align: center; }
hr { border: 0; border-top: 1px solid var(--line); }
.note { color: var(--ink-3); margin: 0 0 16px; }
.error { padding: 12px 14px; margin: 0 0 16px; border: 1px solid var(--bad); border-radius: 8px;
  background: var(--bad-tint); }
.error strong { color: var(--bad); font-weight: 600; }
.error p { margin: 4px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.address { margin: 0 0 8px; font-size: 13px; overflow-wrap: anywhere; }
iframe { display: block; width: 100%; height: calc(100vh - 7rem); min-height: 24rem; border: 1px solid var(--line);
  border-radius: 8px; background: #fff; }
@media (max-width: 480px) { header { padding: 10px 14px; } main { padding: 14px; }
  body { font-size: 15px; line-height: 21px; } }
"""
_STYLE = f"{_TOKENS}{stylesheet('pre')}{_LAYOUT}"
