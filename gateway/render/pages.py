"""Pages: a render plan as one self-contained HTML document, for a sandboxed iframe."""

# Imported only where a page is made: it imports Pygments and markdown-it.
from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.render.highlight import highlight, stylesheet
from gateway.render.markdown import to_html
from gateway.render.renderers import inject

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
    return f'<pre class="code" tabindex="0"><code>{code}</code></pre>'


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


_STYLE = f"""
:root {{ --paper: #fff; --ink: #1f2328; --faint: #59636e; --line: #d1d9e0; --tint: #f6f8fa; --link: #0969da;
  --bad: #b3261e; --bad-tint: #fff0ee; }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #0d1117; --ink: #e6edf3; --faint: #9198a1;
  --line: #3d444d; --tint: #151b23; --link: #6cb0ff; --bad: #ff9d94; --bad-tint: #2d1513; }} }}
@media (prefers-color-scheme: light) {{
{stylesheet("default", "pre")}
}}
@media (prefers-color-scheme: dark) {{
{stylesheet("github-dark", "pre")}
}}
* {{ box-sizing: border-box; }}
html {{ background: var(--paper); color: var(--ink); }}
body {{ margin: 0; font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }}
header {{ display: flex; flex-wrap: wrap; gap: 0 .75rem; align-items: baseline; padding: .5rem 1rem;
  border-bottom: 1px solid var(--line); color: var(--faint); font-size: .875rem; }}
header h1 {{ margin: 0; font-size: inherit; color: var(--ink); overflow-wrap: anywhere; }}
header code {{ overflow-wrap: anywhere; }}
main {{ padding: 1rem; }}
article {{ max-width: 46rem; margin: 0 auto; overflow-wrap: break-word; }}
article > :first-child {{ margin-top: 0; }}
h1, h2, h3, h4 {{ line-height: 1.25; margin: 1.5em 0 .5em; }}
a {{ color: var(--link); }}
img {{ max-width: 100%; height: auto; }}
code, pre, kbd, samp {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: .875em; }}
pre {{ margin: 0 0 1rem; padding: .75rem 1rem; overflow: auto; line-height: 1.5; tab-size: 4; border-radius: 6px;
  background: var(--tint); color: var(--ink); }}
pre code {{ font-size: inherit; }}
:not(pre) > code {{ padding: .1em .3em; border-radius: 4px; background: var(--tint); }}
blockquote {{ margin: 0 0 1rem; padding: 0 1rem; border-left: .25rem solid var(--line); color: var(--faint); }}
table {{ border-collapse: collapse; display: block; overflow: auto; margin: 0 0 1rem; }}
th, td {{ border: 1px solid var(--line); padding: .35rem .75rem; }}
hr {{ border: 0; border-top: 1px solid var(--line); }}
.note {{ color: var(--faint); font-style: italic; }}
.error {{ padding: .75rem 1rem; margin: 0 0 1rem; border-left: .25rem solid var(--bad); background: var(--bad-tint);
  border-radius: 6px; }}
.error strong {{ color: var(--bad); }}
.error p {{ margin: .25rem 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }}
.address {{ margin: 0 0 .5rem; font-size: .875rem; overflow-wrap: anywhere; }}
iframe {{ display: block; width: 100%; height: calc(100vh - 7rem); min-height: 24rem; border: 1px solid var(--line);
  border-radius: 6px; background: #fff; }}
"""
