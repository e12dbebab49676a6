"""The console's files over HTTP: one page for every address of the console, and the modules and styles it loads.

The files contain no data, so that they need no credential. They are read once; their address contains a digest of all
of them, so that browsers keep them until another version is installed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gateway.errors import NotFound
from gateway.identity.authentication import Identity
from gateway.serve.http.authentication import SIGN_IN_PATH, Origin, error_response
from gateway.serve.http.pages import protect
from gateway.serve.web.approve import ApproveRoutes
from gateway.serve.web.sign_in import SignInRoutes

if TYPE_CHECKING:
    from gateway.gateway import Gateway

ROOT = Path(__file__).parent
STATIC_FOLDER = "/static/"
THEME_COOKIE = "theme"
_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
# Before the other styles, in this order.
_FIRST_STYLES = ("core/tokens.css", "core/base.css", "console/shell.css")
_POLICY = (
    "script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; frame-src 'self' blob:; "
    "form-action 'self'"
)
# Made by `hatch_build.py` where npm is there; loaded when somebody edits a file.
_EDITOR = "editor.js"
_KEPT = "public, max-age=31536000, immutable"


class ConsoleFiles(NamedTuple):
    """Every module and style by its path, the digest of all, and the page that loads them."""

    contents: Mapping[str, bytes]
    version: str
    page: str


@functools.cache
def load_files() -> ConsoleFiles:
    """Read the files of the console and of the parts it shares with the views."""
    paths = sorted(path for folder in ("core", "console") for path in (ROOT / folder).rglob("*"))
    paths += [path for path in [ROOT / _EDITOR] if path.exists()]
    contents = {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths if path.suffix in _TYPES}
    index = (ROOT / "console" / "index.html").read_text(encoding="utf-8")
    digest = hashlib.sha256(index.encode())
    for name, content in contents.items():
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(content), content))
    version = digest.hexdigest()[:16]
    return ConsoleFiles(contents, version, _fill(index, contents, f"{STATIC_FOLDER}{version}/"))


def _fill(index: str, contents: Mapping[str, bytes], base: str) -> str:
    """Return the page with links to all styles, and to the modules that every page needs."""
    others = (name for name in contents if name.endswith(".css") and name not in _FIRST_STYLES)
    styles = [*(name for name in _FIRST_STYLES if name in contents), *others]
    later = ("console/pages/", _EDITOR)
    modules = [name for name in contents if name.endswith(".js") and not name.startswith(later)]
    links = [f'<link rel="stylesheet" href="{base}{escape(name)}">' for name in styles]
    links += [f'<link rel="modulepreload" href="{base}{escape(name)}">' for name in modules]
    editor = f' data-editor="{base}{_EDITOR}"' if _EDITOR in contents else ""
    page = index.replace("<!-- links -->", "\n".join(links)).replace("{base}", base)
    return page.replace("<body>", f"<body{editor}>")


def make_console_routes(gateway: Gateway, identity: Identity) -> tuple[list[Route], frozenset[str]]:
    """Return the routes of the console, and which of them are public: the files, and signing in."""
    origin = Origin(gateway.settings.server.public_url)
    routes = [
        Route("/", _show_page),
        Route("/console", _show_page),
        Route("/console/{path:path}", _show_page),
        Route(STATIC_FOLDER + "{version}/{path:path}", _send_file),
        *SignInRoutes(gateway, identity, origin).routes,
        *ApproveRoutes(gateway, origin).routes,
    ]
    return routes, frozenset({STATIC_FOLDER, SIGN_IN_PATH})


async def _show_page(request: Request) -> Response:
    """Send the page to browsers; a program that asks here has a wrong address."""
    if "text/html" not in request.headers.get("accept", ""):
        return error_response(NotFound("there is nothing here for programs; MCP is served at /mcp, REST at /api"))
    files = await anyio.to_thread.run_sync(load_files)
    theme = request.cookies.get(THEME_COOKIE)
    page = files.page
    if theme in ("light", "dark"):  # written here, so that the page has its colours before a script runs
        page = page.replace("<html ", f'<html data-theme="{theme}" ', 1)
    response = HTMLResponse(page)
    protect(response, _POLICY)
    return response


async def _send_file(request: Request) -> Response:
    files = await anyio.to_thread.run_sync(load_files)
    name, version = request.path_params["path"], request.path_params["version"]
    content = files.contents.get(name)
    if content is None:
        return error_response(NotFound(f"the console has no file {name[:200]!r}", code="UNKNOWN_FILE"))
    headers = {
        "cache-control": _KEPT if version == files.version else "no-cache",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
    }
    return Response(content, media_type=_TYPES[Path(name).suffix], headers=headers)
