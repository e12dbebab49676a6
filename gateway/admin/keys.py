"""API keys, the clients that people connected with them, and their sessions in browsers: made, listed and revoked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.calls import LOCAL
from gateway.db.api_keys import ApiKey as ApiKey
from gateway.errors import Invalid, NotFound
from gateway.identity.api_keys import make_key
from gateway.identity.roles import DEFAULT_ROLE
from gateway.identity.sessions import make_session

if TYPE_CHECKING:
    from gateway.db.grants import Grant
    from gateway.db.sessions import SessionRow
    from gateway.gateway import Gateway
    from gateway.identity import Principal


def describe_key(key: ApiKey) -> dict[str, Any]:
    """Return all of a key but the digest of its secret."""
    names = ("id", "name", "role", "profile", "hint", "status", "created_at", "created_by", "expires_at")
    return {name: getattr(key, name) for name in (*names, "last_used_at", "revoked_at")}


def describe_client(grant: Grant) -> dict[str, Any]:
    """Return who connected a client, and what it may do."""
    names = ("id", "principal", "client_name", "permission", "resource", "created_at")
    return {name: getattr(grant, name) for name in names}


async def create_key(
    gateway: Gateway,
    name: str,
    role: str = DEFAULT_ROLE,
    *,
    profile: str | None = None,
    days: float | None = None,
    by: str = LOCAL,
) -> tuple[ApiKey, str]:
    """Make a key and return it with its secret, which nobody can see again."""
    key, secret = make_key(gateway.roles, name, role, profile, days, by)
    await gateway.api_keys.add(key)
    return key, secret


async def list_keys(gateway: Gateway) -> list[ApiKey]:
    """List every key, the oldest first."""
    return await gateway.api_keys.list()


async def revoke_key(gateway: Gateway, key_id: str) -> ApiKey:
    """Revoke a key, named by its id, or by its name if only one active key has it. The next request with it is
    refused, in every process."""
    known = await gateway.api_keys.list()
    keys = [key for key in known if key.status == "active" or key.id == key_id]
    found = [key for key in keys if key.id == key_id] or [key for key in keys if key.name == key_id]
    if not found:
        problem = "has no active key" if any(key.name == key_id for key in known) else "is no key"
        raise NotFound(f"{key_id!r} {problem}; see: toolgate key list", code="UNKNOWN_KEY")
    if len(found) > 1:
        ids = ", ".join(key.id for key in found)
        raise Invalid(f"{len(found)} keys are named {key_id!r}; revoke one by its id: {ids}", code="AMBIGUOUS_KEY")
    await gateway.api_keys.revoke(found[0].id)
    return found[0]


async def list_clients(gateway: Gateway) -> list[Grant]:
    """List the clients that may act for somebody because they agreed, the oldest first."""
    return await gateway.grants.list_live()


async def disconnect_client(gateway: Gateway, grant_id: str) -> None:
    """End what somebody allowed a client. Its next request is refused, in every process."""
    if not await gateway.grants.revoke(grant_id):
        raise NotFound(f"there is no client {grant_id!r}; see: toolgate key clients", code="UNKNOWN_CLIENT")


async def open_session(gateway: Gateway, principal: Principal, key_digest: str, browser: str) -> str:
    """Begin a session of somebody in a browser and return its cookie, which nobody can see again."""
    row, cookie = make_session(principal, key_digest, browser)
    await gateway.sessions.add(row)
    return cookie


async def list_sessions(gateway: Gateway, principal: str | None = None) -> list[SessionRow]:
    """List the sessions that are valid now, of `principal` if one is named, the oldest first."""
    rows = await gateway.sessions.list_live()
    return [row for row in rows if principal is None or row.principal == principal]


async def end_session(
    gateway: Gateway, session_id: str | None = None, *, digest: bytes | None = None, principal: str | None = None
) -> None:
    """End a session, named by its id or the digest of its cookie; of `principal` if one is named. The next request with
    it is refused, in every process."""
    named = digest.hex() if digest is not None else None
    rows = await list_sessions(gateway, principal)
    found = next((row for row in rows if row.id == session_id or row.digest == named), None)
    if found is None or not await gateway.sessions.end(found.id):
        raise NotFound(f"there is no session {session_id!r}; it may have ended", code="UNKNOWN_SESSION")
