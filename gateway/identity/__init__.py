"""Principals: the authenticated caller of every request, and what it may see and do.

Over HTTP a request is authenticated before anything else happens (`serve/http/authentication.py`), whatever its route.
A route finds the result in the ASGI scope: `scope["state"]["principal"]`, or `request.state.principal` in Starlette.
Over stdio the caller started the process and is its owner.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from gateway.access import AccessPolicy
from gateway.calls import DEFAULT_CHAT, LOCAL, Caller
from gateway.tools import Permission


class ChatNames:
    """Names for the chats of requests that name none. They contain a MAC, so that nobody can use the chat of another
    principal first and thereby own it. `existing` are chats with names of an older form, which anybody could derive,
    and their owners: those keep their chats. So do callers without a key, of whom there is only one: the owner."""

    def __init__(self, load_key: Callable[[], bytes] | None = None) -> None:
        self._load_key = load_key
        self.existing: Mapping[str, str] = {}

    def derive(self, kind: str, name: str, principal: str, unique: str) -> str:
        """Return the name of a principal's chat; `unique` tells it from the principal's others."""
        readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
        older = f"{kind}-{readable}-{sha256(unique.encode()).hexdigest()[:8]}"
        if self._key is None or self.existing.get(older) == principal:
            return older
        mac = hmac.digest(self._key, f"{kind}\0{unique}".encode(), "sha256")
        return f"{kind}-{readable}-{mac.hex()[:24]}"

    @cached_property
    def _key(self) -> bytes | None:
        return None if self._load_key is None else self._load_key()


_NO_KEY = ChatNames()


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
    chats: ChatNames = _NO_KEY

    @cached_property
    def default_chat(self) -> str:
        """The chat of its requests that name none. Chats belong to one principal each."""
        return DEFAULT_CHAT if self.id == LOCAL else self.chats.derive(DEFAULT_CHAT, self.id, self.id, self.id)

    def client_chat(self, name: str) -> str:
        """Return the chat that the sessions of one of its clients share."""
        return self.chats.derive("client", name, self.id, f"{self.id}\0{name}")

    def caller(self, surface: str, client: str | None = None) -> Caller:
        """Return this principal as the caller of tools through a surface (`mcp`, `rest`, …)."""
        return Caller(self.id, surface, client, self.permission, self.access)

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= time.time()

    def is_same(self, other: Principal) -> bool:
        """Return whether another credential is as good as this one: of the same person, with the same access."""
        return self.id == other.id and self.access is other.access and self.admin == other.admin


# The person who started the process, with all rights.
OWNER = Principal(admin=True)

# The principal of the HTTP request in progress, for callbacks that are not given the request.
CURRENT: ContextVar[Principal] = ContextVar("principal", default=OWNER)
