"""Sessions of people in a browser as credentials. The cookie of one is worth nothing as a bearer token."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable
from datetime import datetime

from gateway.db import timestamp
from gateway.db.sessions import BrowserSessions, SessionRow
from gateway.identity import Principal
from gateway.identity.authentication import Credential

SESSION_SECONDS = 12 * 3600
_COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
_BROWSER_CHARACTERS = 200


def session_digest(cookie: str) -> bytes | None:
    """Return the SHA-256 under which a cookie is stored; None for what is no cookie of ours. No bearer token contains
    the separator, so that none has the digest of a cookie."""
    if not _COOKIE.fullmatch(cookie):
        return None
    return hashlib.sha256(b"session\0" + cookie.encode()).digest()


def make_session(principal: Principal, key_digest: str, browser: str) -> tuple[SessionRow, str]:
    """Return a new session and its cookie, which is stored nowhere."""
    cookie, now = secrets.token_urlsafe(32), time.time()
    digest = session_digest(cookie)
    if digest is None:
        raise AssertionError("a cookie of ours is always one")
    ends = min(now + SESSION_SECONDS, principal.expires_at or now + SESSION_SECONDS)
    row = SessionRow(
        id=secrets.token_hex(4),
        digest=digest.hex(),
        principal=principal.id,
        role=principal.role or "",
        profile=principal.profile,
        key_digest=key_digest,
        browser=browser[:_BROWSER_CHARACTERS],
        created_at=timestamp(now),
        expires_at=timestamp(ends),
    )
    return row, cookie


class SessionStore:
    """The valid sessions, as authentication loads them."""

    def __init__(self, sessions: BrowserSessions) -> None:
        self.revision = sessions.revision
        self.record_use = sessions.record_use
        self._sessions = sessions

    async def load(self) -> Iterable[Credential]:
        return [_credential(row) for row in await self._sessions.list_live()]


def _credential(row: SessionRow) -> Credential:
    ends = datetime.fromisoformat(row.expires_at).timestamp()
    return Credential(bytes.fromhex(row.digest), row.principal, row.role, row.profile, ends)
