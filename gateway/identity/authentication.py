"""Authentication: the principal of a request by its credential, an API key or a token.

Credentials are kept in memory, by their SHA-256, and loaded again when any process has changed one: a counter that all
processes map into their memory tells so without a system call. A request is therefore authenticated without waiting;
only a credential that is new here makes it wait.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from gateway.errors import GatewayError, Unauthenticated
from gateway.files import SharedCounter
from gateway.identity import OWNER, Principal
from gateway.identity.roles import Roles
from gateway.tools import Permission

# Seconds between writes of the last use of keys, and between searches for changes that were not announced.
SYNC_SECONDS = 5.0

# Seconds until a verified token is verified again: its issuer may have withdrawn the key that signed it.
VERIFIED_SECONDS = 300.0

# Verified tokens, and principals under a profile of the URL, that are kept.
_CACHED = 10_000

_BEARER = re.compile(rb"bearer +([!-~]+)", re.IGNORECASE)

log = logging.getLogger(__name__)


class Credential(NamedTuple):
    """A stored secret by its SHA-256, and whom it stands for. `refusal` says why it is not valid any more. A token may
    be limited to a `permission`, and to the path `resource`, whose profile then applies besides its own."""

    digest: bytes
    principal: str
    role: str
    profile: str | None = None
    expires_at: float | None = None
    refusal: str | None = None
    permission: Permission | None = None
    resource: str | None = None
    resource_profile: str | None = None


class CredentialStore(Protocol):
    """A table of credentials. Whoever changes it increments the counter after the commit."""

    async def revision(self) -> int:
        """Return a number that grows with every change."""
        ...

    async def load(self) -> Iterable[Credential]:
        """Return every credential, also those that are not valid any more but should be named when they are used."""
        ...

    async def record_use(self, digests: Iterable[bytes]) -> None:
        """Store that these credentials were used now; others' are ignored."""
        ...


class TokenVerifier(Protocol):
    """Verifies tokens that are not stored here, such as JWTs of an identity provider, the `issuer`."""

    issuer: str

    async def verify(self, token: str) -> Principal:
        """Return the principal of a token; `Unauthenticated` when it is not valid."""
        ...


class Identity:
    """Authenticates requests. Without stores and verifier everybody is the owner, as with `anonymous` while no
    credential exists. `required` is the setting: True always demands a credential, False never does."""

    def __init__(
        self,
        roles: Roles | None = None,
        stores: Sequence[CredentialStore] = (),
        counter: SharedCounter | None = None,
        verifier: TokenVerifier | None = None,
        *,
        required: bool | None = None,
        anonymous: bool = True,
    ) -> None:
        self.roles = roles or Roles({}, {})
        self._stores = stores
        self._counter = counter
        self._verifier = verifier
        self._required = required
        self._anonymous = anonymous
        self._seen: bytes | None = b"" if counter is None else None  # the counter when the credentials were loaded
        self._revisions: list[int] = []
        self._everybody: Principal | None = OWNER if counter is None and verifier is None else None
        self._principals: dict[bytes | None, Principal] = {}
        self._refusals: dict[bytes, GatewayError] = {}
        self._verified: dict[bytes, tuple[Principal, float]] = {}
        self._narrowed: dict[tuple[Principal, str], Principal] = {}
        self._used: set[bytes | None] = set()
        self._lock = asyncio.Lock()

    @property
    def issuer(self) -> str | None:
        """The identity provider whose tokens are accepted."""
        return None if self._verifier is None else self._verifier.issuer

    @property
    def can_authenticate(self) -> bool:
        """True if somebody could be let in: everybody, or the holder of a credential."""
        return self._everybody is not None or self._verifier is not None or bool(self._principals)

    def find(self, credential: bytes | None, profile: str | None = None) -> Principal | None:
        """Return the principal of a credential that is known to be valid now, under a profile of the URL. None when
        only `authenticate` can tell."""
        if self._counter is not None and self._counter.read() != self._seen:
            return None
        principal = self._everybody
        if principal is None:
            principal = self._principals.get(credential)
            if principal is None:
                principal = self._find_verified(credential)
            elif principal.has_expired:
                return None
            else:
                self._used.add(credential)
        return principal if principal is None or profile is None else self._narrow(principal, profile)

    async def authenticate(self, headers: Mapping[bytes, bytes], profile: str | None = None) -> Principal:
        """Return the principal of a request; `Unauthenticated` when it has no valid credential, `NotFound` when the
        profile does not exist."""
        credential = parse_credential(headers)
        principal = self.find(credential, profile)
        if principal is not None:
            return principal
        if self._counter is not None and self._counter.read() != self._seen:
            await self.refresh()
            principal = self.find(credential, profile)
            if principal is not None:
                return principal
        principal = self._everybody or await self._verify(credential, headers)
        return principal if profile is None else self._narrow(principal, profile)

    async def refresh(self) -> None:
        """Load all credentials again, unless somebody else just did."""
        async with self._lock:
            seen = b"" if self._counter is None else self._counter.read()
            if seen == self._seen:
                return
            self._revisions = [await store.revision() for store in self._stores]
            rows = [row for store in self._stores for row in await store.load()]
            principals: dict[bytes | None, Principal] = {}
            refusals: dict[bytes, GatewayError] = {}
            for row in rows:
                try:
                    if row.refusal is not None:
                        raise Unauthenticated(row.refusal)
                    principals[row.digest] = self._make_principal(row)
                except GatewayError as refusal:
                    refusals[row.digest] = refusal
            exists = bool(rows) or self._verifier is not None
            self._everybody = OWNER if self._anonymous and not exists and not self._required else None
            if self._anonymous and self._required is False:
                principals[None] = OWNER
            self._principals, self._refusals = principals, refusals
            self._narrowed.clear()
            self._seen = seen

    async def run(self, on_sync: Callable[[], Awaitable[None]]) -> None:
        """Store when keys were used, and notice changes whose process died before it announced them; call `on_sync`
        after each time."""
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            try:
                await self.sync()
                await on_sync()
            except GatewayError as error:
                log.warning("API keys could not be looked up: %s", error)

    async def sync(self) -> None:
        used = [digest for digest in self._used if digest is not None]
        self._used.clear()
        if used:
            for store in self._stores:
                await store.record_use(used)
        if [await store.revision() for store in self._stores] != self._revisions:
            self._seen = None
            await self.refresh()

    async def recognize(self, digest: bytes) -> Principal | None:
        """Return the principal of a stored credential by its SHA-256, if it is valid now in any process."""
        await self.refresh()
        return self.find(digest)

    def _make_principal(self, row: Credential) -> Principal:
        principal = self.roles.make_principal(row.principal, row.role, row.profile, row.expires_at)
        if row.resource_profile is not None:
            principal = self.roles.narrow(principal, row.resource_profile)
        if row.permission is not None:
            principal = self.roles.limit(principal, row.permission)
        return principal if row.resource is None else replace(principal, resource=row.resource)

    async def _verify(self, credential: bytes | None, headers: Mapping[bytes, bytes]) -> Principal:
        if credential is None:
            raise Unauthenticated(
                "this gateway needs a key; send it as 'Authorization: Bearer tg_…' "
                "(make one with: toolgate key create NAME)"
            )
        if (refusal := self._refusals.get(credential)) is not None:
            raise refusal
        if credential in self._principals:
            raise Unauthenticated("this key has expired; ask for a new one", code="CREDENTIAL_EXPIRED")
        token = parse_token(headers)
        if self._verifier is None or token is None or token.startswith("tg_"):
            raise Unauthenticated("this key is not known here; send one that `toolgate key create NAME` has printed")
        principal = await self._verifier.verify(token)
        if len(self._verified) >= _CACHED:
            self._verified.clear()
        until = time.time() + VERIFIED_SECONDS
        self._verified[credential] = principal, min(until, principal.expires_at or until)
        return principal

    def _find_verified(self, credential: bytes | None) -> Principal | None:
        principal, until = self._verified.get(credential or b"", (None, 0.0))
        return principal if until > time.time() else None

    def _narrow(self, principal: Principal, profile: str) -> Principal:
        narrowed = self._narrowed.get((principal, profile))
        if narrowed is None:
            narrowed = self.roles.narrow(principal, profile)
            if len(self._narrowed) >= _CACHED:
                self._narrowed.clear()
            self._narrowed[principal, profile] = narrowed
        return narrowed


def parse_token(headers: Mapping[bytes, bytes]) -> str | None:
    """Return the bearer token of a request; None if it has none."""
    match = _BEARER.fullmatch(headers.get(b"authorization", b""))
    return None if match is None else match[1].decode("ascii")


def parse_credential(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the SHA-256 of a request's bearer token; None without an `Authorization` header. Any other scheme yields
    the digest of no token."""
    if b"authorization" not in headers:
        return None
    return hash_secret(parse_token(headers) or "")


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
