"""Pages: what a plan describes as one self-contained HTML document, for an iframe without rights of its own."""

# Nothing imports this module but what shows something: it brings in Pygments and markdown-it.
from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.render.highlight import highlight, stylesheet
from gateway.render.markdown import to_html
from gateway.render.renderers import inject

# Characters of code shown in colours, which take some six times the room of the text and as much time.
COLOURED = 64 * 1024
# Characters of code with its colours; what would take more is shown without.
COLOURS_LIMIT = 384 * 1024

NO_RIGHTS = ""
# For a document's links, which open in a window of their own that knows nothing of this one.
LINKS = "allow-popups allow-popups-to-escape-sandbox"

SCRIPTS = "allow-scripts"
# Without `allow-same-origin`, which would let a page that shares its address with whoever shows it break out.
FRAME = "allow-scripts allow-forms allow-popups"

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True)
class Page:
    """A whole document, and what the `sandbox` attribute of an iframe that shows it must allow."""

    html: str
    sandbox: str = NO_RIGHTS


def make_page(plan: Mapping[str, Any], content: bytes | None = None, size: int = 0) -> Page:
    """The page that shows a call. `content` is the beginning of the file or artifact that the plan
    names, and `size` how many bytes the whole has.

    Takes up to seconds: call it in a thread. Of our own pages nothing runs and nothing loads.
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
        return _page(plan, _note(f"{config['file']} is no text; it has {size} bytes."), config.get("file"))
    if content is None:
        text, cut = config.get("content"), _cut(plan, "config.content")
    else:
        text, cut = _decoded(content), size if len(content) < size else None
    if not text:
        return _page(plan, _note("It is empty."), config.get("file"))
    note = "" if cut is None else _note(f"Only the beginning is shown; the whole has {cut} bytes.")
    if plan["renderer"] == "code":
        return _page(plan, note + _code(text, config), config.get("file"))
    document = f"{note}<article>{to_html(text)}</article>"
    return replace(_page(plan, document, config.get("file")), sandbox=LINKS)


def _decoded(content: bytes) -> str:
    """The text, whatever its bytes; where it was cut inside a character, without that one."""
    return content.decode("utf-8", "replace").removeprefix("\ufeff").removesuffix("\ufffd")


def _code(text: str, config: Mapping[str, Any]) -> str:
    coloured = highlight(text, config.get("language", "auto"), config.get("file")).html if len(text) <= COLOURED else ""
    shown = coloured if 0 < len(coloured) <= COLOURS_LIMIT else html.escape(text, quote=False)
    return f'<pre class="code" tabindex="0"><code>{shown}</code></pre>'


def _artifact(plan: Mapping[str, Any], config: Mapping[str, Any], content: bytes) -> Page:
    cut = _cut(plan, "config.data") or _cut(plan, "config")
    if cut is not None:  # the author's page expects data of a shape, and half of it has none
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
    """The origin as a policy names it, which knows no IPv6 addresses."""
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
    """How many bytes something had that was too large for the plan."""
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
