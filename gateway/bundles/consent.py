"""Consent to a toolset's MCP server: the digest a person agrees to, and a description that cannot be misread."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping

from gateway.bundles.spec import Server, ServerSandbox

_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_DESCRIBED = frozenset(["id", "command", "args", "env", "url", "headers", "sandbox"])


def server_digest(toolset_id: str, server: Server, content: str) -> str:
    """Digest of every declared field of a server and of the toolset it belongs to.

    Outside the sandbox the server's code is trusted too, so there it covers the digest of the toolset's `content`.
    """
    fields = server.model_dump(mode="json", exclude_defaults=True)
    covered = {"toolset": toolset_id, "server": fields, "content": content if runs_outside(server) else None}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def runs_outside(server: Server) -> bool:
    """Return whether the server is a program that runs outside the sandbox."""
    return server.command is not None and server.sandbox is False


def describe_server(server: Server) -> Iterator[tuple[str, str]]:
    """Everything a toolset declares about a server, as names and printable ASCII texts, the rights last."""
    if server.command is not None:
        yield "command", " ".join(map(quote, (server.command, *server.args)))
        yield "environment", _table(server.env)
    if server.url is not None:
        yield "url", quote(server.url)
        yield "headers", _table(server.headers)
    for name, value in server.model_dump(mode="json", exclude_defaults=True).items():
        if name not in _DESCRIBED:
            yield name, json.dumps(value)
    yield "rights", _rights(server)


def quote(text: str) -> str:
    """The text as one word of a shell command, in printable ASCII: what is invisible or looks like something else is
    escaped."""
    if _SAFE.fullmatch(text):
        return text
    if text.isascii() and text.isprintable() and "  " not in text:
        return "'" + text.replace("'", "'\\''") + "'"
    # Runs of spaces could push what follows to a line of its own on the terminal.
    return "$'" + re.sub(" (?= )", r"\\x20", "".join(map(_escape, text))) + "'"


def _escape(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isascii() and character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _table(values: Mapping[str, str]) -> str:
    return " ".join(f"{name}={quote(value)}" for name, value in values.items()) or "none"


def _rights(server: Server) -> str:
    if server.command is None:
        return "runs elsewhere; it is sent the headers above and the arguments of each call"
    if runs_outside(server):
        return "WARNING: outside the sandbox, with all rights of your account"
    rights = server.sandbox if isinstance(server.sandbox, ServerSandbox) else ServerSandbox()
    folders = " ".join(map(quote, rights.paths)) or "none of yours"
    return f"in the sandbox; folders: {folders}; hosts: {' '.join(map(quote, rights.network)) or 'none'}"
