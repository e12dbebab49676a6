"""Pages shown in the person's own browser."""

from __future__ import annotations

import html
import tempfile
import threading
import webbrowser
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gateway.render.pages import Page

# Shown as they are: a browser runs nothing in them.
_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"})
# The page in the frame inherits it: nothing is loaded from the network but what a frame shows.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "frame-src http: https:; base-uri 'none'; form-action 'none'"
)
# With both colour schemes, since a browser paints the canvas of a framed page only where its scheme is another one.
_STYLE = (
    ":root { color-scheme: light dark; } "
    "html, body, iframe { margin: 0; border: 0; width: 100%; height: 100%; display: block; }"
)
# The name of the frame. Views that see it (`views/bridge.js`) show everything unfolded.
_NAME = "toolgate-whole"


def open_page(page: Page, title: str) -> None:
    """Show a page in the browser, which opens it as a local file."""
    _open(frame_page(page, title).encode(), "page.html")


def frame_page(page: Page, title: str) -> str:
    """Return a document with a page in a frame of the rights it declares, so that it cannot act as a local file."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><style>{_STYLE}</style></head><body>'
        f'<iframe sandbox="{page.sandbox}" name="{_NAME}" srcdoc="{html.escape(page.html)}"></iframe></body></html>\n'
    )


def open_file(path: str, content: bytes) -> None:
    """Show a file of a workspace: a picture as it is, anything else in a view."""
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _PICTURES:
        _open(content, f"picture{suffix}")
        return
    # Imported here: it imports Pygments and markdown-it, which no other command needs.
    from gateway.render.pages import make_page
    from gateway.serve.web.inline import read_view

    renderer = "document" if suffix in (".md", ".markdown") else "code"
    plan = {"renderer": renderer, "config": {"file": path}, "tool": {"title": PurePosixPath(path).name}}
    open_page(make_page(read_view(renderer), plan, content, len(content)), path)


def open_url(url: str) -> None:
    """Open an address, in a thread of its own: a browser in this terminal would never return."""
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _open(content: bytes, name: str) -> None:
    file = Path(tempfile.mkdtemp(prefix="toolgate-")) / name
    file.write_bytes(content)
    is_open = webbrowser.open(file.as_uri())
    note = "opened" if is_open else "no browser was found; open this address in one:"
    click.echo(f"{note} {file.as_uri()}", err=True)
