"""The page at `/`: what the gateway does now, and how clients are connected to it.

It runs no script and loads nothing; its policy forbids both.
"""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from gateway import __version__
from gateway.errors import NotFound
from gateway.identity import Principal
from gateway.serve.http.authentication import error_response
from gateway.serve.http.pages import allow_style, protect


@dataclass(frozen=True)
class ClientLines:
    """The text to paste into the settings of one client, and the file."""

    title: str
    file: str
    text: str


@dataclass(frozen=True)
class GatewayStatus:
    """The state of the gateway for its owner. `upstreams` are names with their states; `waiting` are ids and reasons of
    calls that wait for a person."""

    url: str
    tools: int
    upstreams: Sequence[tuple[str, str]]
    waiting: Sequence[tuple[str, str]]
    clients: Sequence[ClientLines]


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --faint: #888; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin-top: 2rem; }
code, pre { font: 14px/1.5 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { padding: .75rem 1rem; border: 1px solid var(--line); border-radius: 6px; overflow: auto; white-space: pre-wrap; }
table { border-collapse: collapse; } td { padding: .2rem 1.5rem .2rem 0; vertical-align: top; }
summary { cursor: pointer; } small { color: var(--faint); }
"""
_POLICY = f"{allow_style(_STYLE)}; form-action 'none'"


# Returns what the page shows to a principal.
Describe = Callable[[Principal], Awaitable[GatewayStatus]]


def status_route(describe: Describe) -> Route:
    """Return the route of the page. Only browsers get it: a program that asks here has a wrong address."""

    async def index(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return error_response(NotFound("there is nothing here; MCP is served at /mcp"))
        response = HTMLResponse(make_status_page(await describe(request.state.principal)))
        protect(response, _POLICY)
        return response

    return Route("/", index)


def make_status_page(status: GatewayStatus) -> str:
    """Return the page as HTML."""
    waiting = _table((f"toolgate approval allow {approval}", reason) for approval, reason in status.waiting)
    parts = [
        f"<p>It serves <b>{status.tools} tools</b> at <code>{html.escape(status.url)}</code>.</p>",
        f"<h2>Calls that wait for you</h2>{waiting}" if status.waiting else "",
        f"<h2>Upstream servers</h2>{_table(status.upstreams)}" if status.upstreams else "",
        "<h2>Connect a client</h2>",
        *map(_client, status.clients),
        "<p><small><code>toolgate doctor</code> checks the installation; <code>toolgate --help</code> lists the "
        "commands.</small></p>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Toolgate</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>\n'
        f"<body><h1>Toolgate {html.escape(__version__)} is running</h1>\n{chr(10).join(filter(None, parts))}\n"
        "</body></html>\n"
    )


def _client(client: ClientLines) -> str:
    return (
        f"<details><summary>{html.escape(client.title)}</summary><p>In <code>{html.escape(client.file)}</code>:</p>"
        f"<pre>{html.escape(client.text)}</pre></details>"
    )


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><td><code>{html.escape(a)}</code></td><td>{html.escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{cells}</table>"
