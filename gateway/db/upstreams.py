"""Servers added by hand, and the last listing of any server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.calls import to_json
from gateway.db import REVISION, Database, Row, Statement, bump_revision, load_revision, timestamp
from gateway.errors import Conflict, Invalid, NotFound
from gateway.literal_secrets import LiteralSecrets, is_secret_value
from gateway.secrets import KNOWN, is_literal
from gateway.value import Value

SUBJECT = "upstreams"
SETTINGS_LIMIT = 64 * 1024
# Bytes of one stored list of definitions.
LIST_LIMIT = 4 * 1024 * 1024
ERROR_LIMIT = 2000


class UpstreamRow(Value):
    """A server added by hand: `settings` is what `mcpServers` would say of it, secrets as `${VAR}`."""

    name: str
    settings: Mapping[str, Any]
    enabled: bool
    created_at: str
    updated_at: str


class LastListing(Value):
    """The last listing of a server; None for a part it never sent. `error` is the reason why it does not answer,
    `error_at` since when; None while it does."""

    server: str
    era: str | None = None
    tools: Sequence[Any] | None = None
    prompts: Sequence[Any] | None = None
    templates: Sequence[Any] | None = None
    instructions: str | None = None
    seen_at: str | None = None
    error: str | None = None
    error_at: str | None = None


_BUMP = bump_revision(SUBJECT)
_RESTART = "restart:"
_SELECT = "SELECT name, settings, enabled, created_at, updated_at FROM upstreams"
_ADD = "INSERT INTO upstreams (name, settings, enabled, created_at, updated_at) VALUES (?, ?, ?, ?, ?)"
_SELECT_LISTING = (
    "SELECT server, era, tools, prompts, templates, instructions, seen_at, error, error_at FROM upstream_memory "
    "WHERE server = ?"
)
_SAVE_LISTING = """
    INSERT INTO upstream_memory (server, era, tools, prompts, templates, instructions, seen_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (server) DO UPDATE SET
        era = COALESCE(excluded.era, upstream_memory.era),
        tools = COALESCE(excluded.tools, upstream_memory.tools),
        prompts = COALESCE(excluded.prompts, upstream_memory.prompts),
        templates = COALESCE(excluded.templates, upstream_memory.templates),
        instructions = COALESCE(excluded.instructions, upstream_memory.instructions),
        seen_at = excluded.seen_at, error = NULL, error_at = NULL
"""
_FAILED = (
    "INSERT INTO upstream_memory (server, error, error_at) VALUES (?, ?, ?) "
    "ON CONFLICT (server) DO UPDATE SET error = excluded.error, "
    "error_at = COALESCE(upstream_memory.error_at, excluded.error_at)"
)


class Upstreams:
    """The servers of one database. A change of the settings makes the revision grow; what they listed does not."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def revision(self) -> int:
        """A number that grows with every change, by any process."""
        return await load_revision(self._db, SUBJECT)

    async def load(self) -> tuple[int, list[UpstreamRow]]:
        """Every server by name, and the revision at which they were so."""
        revision, rows = await self._db.run(Statement(REVISION, (SUBJECT,)), Statement(f"{_SELECT} ORDER BY name"))
        return int(revision[0][0]) if revision else 0, [_row(row) for row in rows]

    async def find(self, name: str) -> UpstreamRow:
        rows = await self._db.fetch(f"{_SELECT} WHERE name = ?", name)
        if not rows:
            raise _not_found(name)
        return _row(rows[0])

    async def add(self, name: str, settings: Mapping[str, Any], enabled: bool = True) -> None:
        """Store a new server; `Conflict` when the name is taken, `Invalid` when the settings hold a secret."""
        at = timestamp(time.time())
        try:
            await self._db.run(Statement(_ADD, (name, encode_settings(settings), enabled, at, at)), _BUMP)
        except Conflict:
            raise Conflict(f"there is an upstream {name!r} already; remove it first", code="UPSTREAM_EXISTS") from None

    async def change(self, name: str, settings: Mapping[str, Any]) -> None:
        """Store other settings for a server that is there."""
        sql = "UPDATE upstreams SET settings = ?, updated_at = ? WHERE name = ?"
        await self._touch(name, sql, encode_settings(settings), timestamp(time.time()))

    async def enable(self, name: str, enabled: bool) -> None:
        await self._touch(
            name, "UPDATE upstreams SET enabled = ?, updated_at = ? WHERE name = ?", enabled, timestamp(time.time())
        )

    async def remove(self, name: str) -> None:
        """Remove a server and its stored listing."""
        listing = Statement("DELETE FROM upstream_memory WHERE server = ?", (name,))
        await self._touch(name, "DELETE FROM upstreams WHERE name = ?", also=listing)

    async def request_restart(self, name: str) -> None:
        """Have every gateway that runs restart a server, wherever it was set up."""
        await self._db.run(bump_revision(_RESTART + name), _BUMP)

    async def restarts(self) -> dict[str, int]:
        """Return the number of restarts of each server."""
        rows = await self._db.fetch("SELECT subject, revision FROM revisions WHERE subject LIKE ?", f"{_RESTART}%")
        return {str(subject).removeprefix(_RESTART): int(revision) for subject, revision in rows}

    async def load_listing(self, server: str) -> LastListing:
        """The stored listing of a server; an empty one when there is none."""
        rows = await self._db.fetch(_SELECT_LISTING, server)
        return _parse_listing(rows[0]) if rows else LastListing(server)

    async def save_listing(
        self,
        server: str,
        *,
        era: str | None = None,
        tools: Sequence[Any] | None = None,
        prompts: Sequence[Any] | None = None,
        templates: Sequence[Any] | None = None,
        instructions: str | None = None,
    ) -> None:
        """Note that a server answered, and what it listed; None leaves what is stored, an empty text takes
        instructions back. Refused when a list is too large to keep."""
        lists = [_encode(server, *each) for each in (("tools", tools), ("prompts", prompts), ("templates", templates))]
        text = None if instructions is None else _encode(server, "instructions", instructions)
        await self._db.run(Statement(_SAVE_LISTING, (server, era, *lists, text, timestamp(time.time()))))

    async def record_failure(self, server: str, error: str) -> None:
        """Note why a server does not answer; its listing stays."""
        error = KNOWN.mask(error)
        shown = error if len(error) <= ERROR_LIMIT else f"{error[:ERROR_LIMIT]}…"
        clean = shown.encode("utf-8", "replace").decode().replace("\x00", " ")
        await self._db.run(Statement(_FAILED, (server, clean, timestamp(time.time()))))

    async def forget(self, server: str) -> None:
        await self._db.run(Statement("DELETE FROM upstream_memory WHERE server = ?", (server,)))

    async def _touch(self, name: str, sql: str, *parameters: Any, also: Statement | None = None) -> None:
        try:
            await self._db.run(Statement(sql, (*parameters, name), 1), *([also] if also else []), _BUMP)
        except Conflict:
            raise _not_found(name) from None


def encode_settings(settings: Mapping[str, Any]) -> str:
    """The settings as JSON. Refused when a value that is or looks like a secret is not a `${VAR}`: what is
    stored here is copied, shown and backed up."""
    for place in _literals(settings):
        variable = re.sub(r"[^A-Za-z0-9]+", "_", place.rpartition(".")[2]).strip("_").upper() or "SECRET"
        raise Invalid(
            f"{place} holds a secret; put it into the environment and write ${{{variable}}} in its place",
            code="LITERAL_SECRET",
            key=place,
        )
    text = to_json(dict(settings)).decode()
    if len(text) > SETTINGS_LIMIT:
        raise Invalid(f"the settings of an upstream are larger than {SETTINGS_LIMIT // 1024} KiB", code="TOO_LARGE")
    return text


def _literals(settings: Mapping[str, Any]) -> Iterator[str]:
    """The places of literal secrets."""
    for key in ("env", "headers"):
        for name, value in (settings.get(key) or {}).items():
            if is_literal(str(value)) and is_secret_value(name, str(value)):
                yield f"{key}.{name}"
    places = list[str]()
    group = "url"

    def note(value: str, name: str) -> str:
        if is_literal(value):
            places.append(f"{group}.{'token' if name == 'argument' else name}")
        return value

    secrets = LiteralSecrets(note)
    secrets.mask_url(str(settings.get("url") or ""))
    group = "args"
    for _ in secrets.mask_arguments(map(str, settings.get("args") or ())):
        pass
    yield from places


def _encode(server: str, what: str, value: Any) -> str | None:
    if value is None:
        return None
    try:
        text = to_json(value).decode()
    except Invalid:  # lone surrogates, which servers can send; escaped they do no harm
        text = json.dumps(value)
    if len(text) > LIST_LIMIT:
        raise Invalid(f"{server!r} lists more {what} than are stored ({LIST_LIMIT} bytes)", code="TOO_LARGE")
    return text


def _row(row: Row) -> UpstreamRow:
    name, settings, enabled, created_at, updated_at = row
    return UpstreamRow(name, json.loads(settings), bool(enabled), created_at, updated_at)


def _parse_listing(row: Row) -> LastListing:
    server, era, *texts, seen_at, error, error_at = row
    tools, prompts, templates, instructions = (None if text is None else json.loads(text) for text in texts)
    return LastListing(server, era, tools, prompts, templates, instructions or None, seen_at, error, error_at)


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"no upstream {name!r} was added by hand; servers of the settings file and of toolsets are changed there",
        code="UNKNOWN_UPSTREAM",
    )
