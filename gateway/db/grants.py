"""Grants of the built-in authorization server: what a person allowed a client, and the tokens it got for that. Tokens
are stored as digests."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, Literal

from gateway.db import Database, Row, Statement, bump_revision, load_revision
from gateway.errors import Conflict
from gateway.value import Value

SUBJECT = "oauth_grants"

# Tokens that are not keys; by their prefixes, people and secret scanners tell them apart.
ACCESS_PREFIX = "tgo_"
REFRESH_PREFIX = "tgr_"
CODE_PREFIX = "tgc_"

Kind = Literal["code", "access", "refresh"]
_PREFIXES: Mapping[Kind, str] = {"code": CODE_PREFIX, "access": ACCESS_PREFIX, "refresh": REFRESH_PREFIX}

# Live grants of a principal; a new one beyond that ends the oldest.
GRANTS_LIMIT = 100


class Grant(Value):
    """A person's consent: the client may act as `principal`, within `permission`, at `resource`. `key_digest` is the
    SHA-256 of the key it was given with, and ends with. The assertion of an identity provider has none; it names the
    `role` itself."""

    id: str
    principal: str
    key_digest: str | None
    role: str | None
    client_id: str
    client_name: str
    resource: str
    permission: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class AccessRow(Value):
    """A valid access token: whom it stands for, and the limits that its grant and its key set."""

    digest: str
    principal: str
    role: str
    profile: str | None
    expires_at: float
    key_expires_at: str | None
    permission: str
    resource: str


class StoredToken(Value):
    """A token as it is stored, with its grant. `details` are those of a code."""

    digest: str
    kind: Kind
    expires_at: float
    used_at: float | None
    details: Mapping[str, Any]
    grant: Grant


_GRANT = ", ".join(Grant.__annotations__)
_QUALIFIED = ", ".join(f"g.{name}" for name in Grant.__annotations__)
_ADD_GRANT = f"INSERT INTO oauth_grants ({_GRANT}) VALUES ({', '.join('?' * len(Grant.__annotations__))})"  # noqa: S608 - own names
_ISSUE = "INSERT INTO oauth_tokens (digest, grant_id, kind, expires_at, details) VALUES (?, ?, ?, ?, ?)"
_FIND = f"""SELECT t.digest, t.kind, t.expires_at, t.used_at, t.details, {_QUALIFIED} FROM oauth_tokens t
    JOIN oauth_grants g ON g.id = t.grant_id WHERE t.digest = ?"""  # noqa: S608 - own names
_USE = "UPDATE oauth_tokens SET used_at = ? WHERE digest = ? AND used_at IS NULL"
_REVOKE = "UPDATE oauth_grants SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL"
_LIST = f"""SELECT {_QUALIFIED} FROM oauth_grants g LEFT JOIN api_keys k ON k.digest = g.key_digest
    WHERE g.revoked_at IS NULL AND (g.key_digest IS NULL OR (k.id IS NOT NULL AND k.revoked_at IS NULL))
    AND EXISTS (SELECT 1 FROM oauth_tokens t WHERE t.grant_id = g.id AND t.kind IN ('access', 'refresh')
    AND t.expires_at > ?) ORDER BY g.created_at"""  # noqa: S608 - own names
_LOAD = """SELECT t.digest, g.principal, COALESCE(k.role, g.role), k.profile, t.expires_at, k.expires_at, g.permission,
    g.resource FROM oauth_tokens t JOIN oauth_grants g ON g.id = t.grant_id
    LEFT JOIN api_keys k ON k.digest = g.key_digest
    WHERE t.kind = 'access' AND t.expires_at > ? AND g.revoked_at IS NULL
    AND (g.key_digest IS NULL OR (k.id IS NOT NULL AND k.revoked_at IS NULL))"""
_BUMP = bump_revision(SUBJECT)
_PURGE = (
    "DELETE FROM oauth_tokens WHERE expires_at < ?",
    "DELETE FROM oauth_grants WHERE created_at < ? AND id NOT IN (SELECT grant_id FROM oauth_tokens)",
)
_TRIM = """UPDATE oauth_grants SET revoked_at = ? WHERE revoked_at IS NULL AND principal = ? AND id NOT IN (
    SELECT id FROM oauth_grants WHERE revoked_at IS NULL AND principal = ? ORDER BY created_at DESC LIMIT ?)"""


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Grants:
    """The grants and tokens of one database. `changed` is called after every change of access tokens, so that each
    process loads them again."""

    def __init__(
        self, db: Database, changed: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.time
    ) -> None:
        self._db = db
        self._changed = changed
        self.clock = clock

    async def revision(self) -> int:
        """A number that grows with every change, by any process."""
        return await load_revision(self._db, SUBJECT)

    async def load_access(self) -> list[AccessRow]:
        """Every access token that is valid now."""
        return [AccessRow(*row) for row in await self._db.fetch(_LOAD, self.clock())]

    async def add(self, grant: Grant, once: tuple[str, float] | None = None) -> bool:
        """Store a new grant, and drop what has expired. The oldest of its principal's grants end at the limit. `once`
        is an id, remembered until a time, that counts for one grant only; False if it was used before."""
        now = self.clock()
        used = (token_digest(f"assertion {once[0]}"), grant.id, "assertion", once[1], "{}") if once else None
        statements = [
            Statement(_PURGE[0], (now,)),
            Statement(_PURGE[1], (now - 3600,)),
            Statement(_ADD_GRANT, astuple(grant)),
            *([Statement(_ISSUE, used)] if used else []),
            Statement(_TRIM, (now, grant.principal, grant.principal, GRANTS_LIMIT)),
            _BUMP,
        ]
        try:
            await self._db.run(*statements)
        except Conflict:
            return False
        self._changed()
        return True

    async def issue(self, grant: Grant, lifetimes: Mapping[Kind, float], **details: Any) -> dict[Kind, str]:
        """Store new tokens of a grant, and return them."""
        tokens, statements = self._make_tokens(grant, lifetimes, details)
        await self._db.run(*statements, _BUMP)
        self._changed()
        return tokens

    async def exchange(self, used: StoredToken, lifetimes: Mapping[Kind, float]) -> dict[Kind, str] | None:
        """Use up a code or refresh token for new tokens; None if another request used it first."""
        tokens, statements = self._make_tokens(used.grant, lifetimes, {})
        try:
            await self._db.run(Statement(_USE, (self.clock(), used.digest), 1), *statements, _BUMP)
        except Conflict:
            return None
        self._changed()
        return tokens

    async def find(self, token: str) -> StoredToken | None:
        """Return a token with its grant, whether it is valid or not."""
        rows = await self._db.fetch(_FIND, token_digest(token))
        return _parse(rows[0]) if rows else None

    async def revoke(self, grant_id: str) -> bool:
        """End a grant with all its tokens; False if it has ended before."""
        try:
            await self._db.run(Statement(_REVOKE, (self.clock(), grant_id), 1), _BUMP)
        except Conflict:
            return False
        self._changed()
        return True

    async def list_live(self) -> list[Grant]:
        """The grants whose client can still act, the oldest first."""
        return [Grant(*row) for row in await self._db.fetch(_LIST, self.clock())]

    def _make_tokens(
        self, grant: Grant, lifetimes: Mapping[Kind, float], details: Mapping[str, Any]
    ) -> tuple[dict[Kind, str], list[Statement]]:
        now = self.clock()
        tokens = {kind: f"{_PREFIXES[kind]}{secrets.token_urlsafe(32)}" for kind in lifetimes}
        statements = [
            Statement(_ISSUE, (token_digest(token), grant.id, kind, now + lifetimes[kind], json.dumps(dict(details))))
            for kind, token in tokens.items()
        ]
        return tokens, statements


def _parse(row: Row) -> StoredToken:
    digest, kind, expires_at, used_at, details, *grant = row
    return StoredToken(digest, kind, expires_at, used_at, json.loads(details), Grant(*grant))
