"""Definitions of upstreams as they were accepted, and beside each the one that waits for a person or was refused."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from gateway.db import Database, Statement, bump_revision, load_revision, timestamp
from gateway.errors import Conflict, NotFound

SUBJECT = "pins"
# The decider of definitions that were accepted unseen, because they were the server's first.
FIRST_SIGHT = "first sight"
WAITING_LIMIT = 1000

State = Literal["accepted", "held", "rejected"]


@dataclass(frozen=True, slots=True)
class Pin:
    """One definition, without its texts. `digest` is that of the accepted one, None before any was;
    `held_digest` that of the one which waits (`held`) or was refused (`rejected`). `bytes` is what both weigh."""

    server: str
    kind: str
    name: str
    state: State
    digest: str | None
    held_digest: str | None
    first_seen: str
    held_at: str | None = None
    decided_at: str | None = None
    decided_by: str | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PinTexts:
    """A pin with the JSON texts of the accepted and the other definition."""

    pin: Pin
    definition: str | None
    held_definition: str | None


@dataclass(frozen=True, slots=True)
class Sighting:
    """One definition in a listing: `pin` is its stored state, None when it is new; `digest` and `text` are as listed
    now. It is `trusted` when it is to be accepted without review."""

    server: str
    kind: str
    name: str
    digest: str
    text: str
    pin: Pin | None = None
    trusted: bool = False


_COLUMNS = [field.name for field in fields(Pin) if field.name != "bytes"]
_WEIGHT = "COALESCE(LENGTH(definition), 0) + COALESCE(LENGTH(held_definition), 0)"
_SELECT = f"SELECT {', '.join(_COLUMNS)}, {_WEIGHT} FROM pins"  # noqa: S608 - own names
_WHOLE = f"SELECT {', '.join(_COLUMNS)}, {_WEIGHT}, definition, held_definition FROM pins"  # noqa: S608
_ONE = "WHERE server = ? AND kind = ? AND name = ?"
_UNCHANGED = f"{_ONE} AND state = ? AND COALESCE(digest, '') = ? AND COALESCE(held_digest, '') = ?"
_ADD = (
    "INSERT INTO pins (server, kind, name, state, digest, definition, held_digest, held_definition, "
    "first_seen, held_at, decided_at, decided_by) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_HOLD = f"UPDATE pins SET state = 'held', held_digest = ?, held_definition = ?, held_at = ? {_UNCHANGED}"  # noqa: S608
_RELEASE = (
    "UPDATE pins SET state = 'accepted', held_digest = NULL, held_definition = NULL, held_at = NULL "  # noqa: S608
    f"{_UNCHANGED}"
)
_ACCEPT = (
    "UPDATE pins SET state = 'accepted', digest = held_digest, definition = held_definition, "  # noqa: S608
    f"held_digest = NULL, held_definition = NULL, held_at = NULL, decided_at = ?, decided_by = ? {_UNCHANGED}"
)
_REJECT = f"UPDATE pins SET state = 'rejected', decided_at = ?, decided_by = ? {_UNCHANGED}"  # noqa: S608
_REVOKE = (
    "UPDATE pins SET state = 'rejected', held_digest = digest, held_definition = definition, digest = NULL, "  # noqa: S608
    f"definition = NULL, decided_at = ?, decided_by = ? {_UNCHANGED}"
)
_BUMP = bump_revision(SUBJECT)


class Pins:
    """The pins of one database. Each change names what it replaces: of two at once, one is refused."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def revision(self) -> int:
        """A number that grows with every change, by any process."""
        return await load_revision(self._db, SUBJECT)

    async def load(self, server: str) -> list[Pin]:
        """Every pin of a server, those of definitions it no longer lists among them."""
        return [Pin(*row) for row in await self._db.fetch(f"{_SELECT} WHERE server = ?", server)]

    async def find(self, server: str, kind: str, name: str) -> PinTexts:
        """One pin with its texts; refused when there is none."""
        rows = await self._db.fetch(f"{_WHOLE} {_ONE}", server, kind, name)
        if not rows:
            raise NotFound(f"the server {server!r} never listed a {kind} {name!r}", code="UNKNOWN_DEFINITION")
        *columns, definition, held_definition = rows[0]
        return PinTexts(Pin(*columns), definition, held_definition)

    async def list_waiting(self, server: str | None = None, limit: int = WAITING_LIMIT) -> list[Pin]:
        """Pins that wait for a review, by server, kind and name."""
        where, parameters = ("AND server = ?", [server]) if server is not None else ("", [])
        sql = f"{_SELECT} WHERE state = 'held' {where} ORDER BY server, kind, name LIMIT ?"
        return [Pin(*row) for row in await self._db.fetch(sql, *parameters, limit)]

    async def record(self, sightings: Sequence[Sighting]) -> None:
        """Store what a listing taught, whole or not at all; `Conflict` when a pin is no longer as it was known.

        New is accepted or held, changed is held beside the accepted one, and what is back at the accepted
        one waits no longer.
        """
        at = timestamp(time.time())
        if sightings:
            await self._db.run(*(_to_statement(sighting, at) for sighting in sightings), _BUMP)

    async def accept(self, server: str, kind: str, name: str, digest: str, by: str) -> None:
        """Accept the held or rejected definition of that digest; `Conflict` when it is another by now."""
        pin = (await self.find(server, kind, name)).pin
        if pin.held_digest != digest:
            raise _conflict(pin)
        await self._decide(_ACCEPT, pin, by)

    async def reject(self, server: str, kind: str, name: str, digest: str, by: str) -> None:
        """Refuse the definition of that digest, the held one or the accepted one, until someone accepts it;
        `Conflict` when it is another by now."""
        pin = (await self.find(server, kind, name)).pin
        if digest == pin.held_digest:
            await self._decide(_REJECT, pin, by)
        elif digest == pin.digest:
            await self._decide(_REVOKE, pin, by)
        else:
            raise _conflict(pin)

    async def forget(self, server: str) -> None:
        """Drop every pin of a server: whoever has that name next is a stranger."""
        await self._db.run(Statement("DELETE FROM pins WHERE server = ?", (server,)), _BUMP)

    async def _decide(self, sql: str, pin: Pin, by: str) -> None:
        try:
            await self._db.run(Statement(sql, (timestamp(time.time()), by, *_as_known(pin)), 1), _BUMP)
        except Conflict:
            raise _conflict(pin) from None


def _to_statement(seen: Sighting, at: str) -> Statement:
    if seen.pin is not None and seen.digest == seen.pin.digest:
        return Statement(_RELEASE, _as_known(seen.pin), 1)
    if seen.pin is not None:
        return Statement(_HOLD, (seen.digest, seen.text, at, *_as_known(seen.pin)), 1)
    key, listed = (seen.server, seen.kind, seen.name), (seen.digest, seen.text)
    if seen.trusted:
        return Statement(_ADD, (*key, "accepted", *listed, None, None, at, None, at, FIRST_SIGHT))
    return Statement(_ADD, (*key, "held", None, None, *listed, at, at, None, None))


def _as_known(pin: Pin) -> tuple[str, ...]:
    return (pin.server, pin.kind, pin.name, pin.state, pin.digest or "", pin.held_digest or "")


def _conflict(pin: Pin) -> Conflict:
    return Conflict(
        f"the {pin.kind} {pin.name!r} of {pin.server!r} is no longer what you looked at; look again with: "
        f"toolgate upstream review {pin.server}",
        code="DEFINITION_CHANGED",
    )
