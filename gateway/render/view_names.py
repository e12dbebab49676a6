"""The script that lets an upstream's view of MCP Apps use its server's own names behind the gateway."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from gateway.calls import to_json
from gateway.render.renderers import insert_first


@cache
def _script() -> str:
    return Path(__file__).with_name("view_names.js").read_text()


def adapt_view(document: str, names: Mapping[str, str], roots: Sequence[str]) -> str:
    """Return a view with the script before all others. `names` are the public names of its server's tools, by their own
    names; `roots` the beginnings of the server's public URIs, of resources and of views; empty if they are its own."""
    data = html.escape(to_json([names, roots]).decode())
    return insert_first(document, f'<script data-names="{data}">{_script()}</script>')
