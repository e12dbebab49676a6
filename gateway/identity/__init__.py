"""Principals: the authenticated caller of every request, and what it may see and do.

Over HTTP a request is authenticated before anything else happens (`serve/http/authentication.py`), whatever its route.
A route finds the result in the ASGI scope: `scope["state"]["principal"]`, or `request.state.principal` in Starlette.
Over stdio the caller started the process and is its owner.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from gateway.access import AccessPolicy
from gateway.calls import LOCAL, Caller
from gateway.tools import Permission


@dataclass(frozen=True, eq=False)
class Principal:
    """An authenticated caller. Compared by identity: the same credential yields the same object while it is known.

    `id` owns chats, files, approvals and records. `permission` is the highest level of role and profile together;
    `admin` lets it change the gateway. `expires_at` is in seconds since 1970. `access` is what it may see and call:
    pass it on as `Caller.access`, and list with `catalog.for_principal(access)`; None means everything. `resource` is
    the path that a token is good for; None for a credential that is good everywhere. `restrictions` name all profiles
    and permissions in force, of which `profile` is the last.
    """

    id: str = LOCAL
    role: str | None = None
    profile: str | None = None
    permission: Permission = Permission.EXECUTE
    admin: bool = False
    expires_at: float | None = None
    access: AccessPolicy | None = None
    resource: str | None = None
    restrictions: frozenset[str] = frozenset()

    def caller(self, surface: str, client: str | None = None) -> Caller:
        """Return this principal as the caller of tools through a surface (`mcp`, `rest`, …)."""
        return Caller(self.id, surface, client, self.permission, self.access)

    def is_same(self, other: Principal) -> bool:
        """Return whether another credential is as good as this one: of the same person, with the same access."""
        return self.id == other.id and self.access is other.access and self.admin == other.admin


# The person who started the process, with all rights.
OWNER = Principal(admin=True)

# The principal of the HTTP request in progress, for callbacks that are not given the request.
CURRENT: ContextVar[Principal] = ContextVar("principal", default=OWNER)
