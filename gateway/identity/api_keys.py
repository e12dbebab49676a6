"""API keys as credentials: making one, and loading them for authentication."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable

from gateway.calls import LOCAL
from gateway.db import timestamp
from gateway.db.api_keys import ApiKey, ApiKeys
from gateway.errors import Invalid
from gateway.identity.authentication import Credential, hash_secret
from gateway.identity.roles import Roles

PREFIX = "tg_"
_BYTES = 32
# No colon: principals of other credentials have one.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def make_key(
    roles: Roles, name: str, role: str, profile: str | None = None, days: float | None = None, by: str = LOCAL
) -> tuple[ApiKey, str]:
    """Return a new key and its secret, which is stored nowhere. Refused for a role or profile that is not set."""
    if not _NAME.fullmatch(name):
        raise Invalid(
            f"{name!r} cannot be the name of a key; use 1 to 64 letters, digits and . _ @ + -, beginning with a letter "
            "or digit",
            code="INVALID_NAME",
        )
    roles.make_principal(name, role, profile)
    secret, now = PREFIX + secrets.token_urlsafe(_BYTES), time.time()
    key = ApiKey(
        id=secrets.token_hex(4),
        name=name,
        role=role,
        profile=profile,
        digest=hash_secret(secret).hex(),
        hint=secret[: len(PREFIX) + 4],
        created_at=timestamp(now),
        created_by=by,
        expires_at=None if days is None else timestamp(now + days * 86400),
    )
    return key, secret


class ApiKeyStore:
    """The stored keys, as authentication loads them."""

    def __init__(self, keys: ApiKeys) -> None:
        self.revision = keys.revision
        self.record_use = keys.record_use
        self._keys = keys

    async def load(self) -> Iterable[Credential]:
        return [_credential(key) for key in await self._keys.list()]


def _credential(key: ApiKey) -> Credential:
    refusal = f"the key {key.hint}… was revoked; ask for a new one" if key.revoked_at is not None else None
    return Credential(bytes.fromhex(key.digest), key.name, key.role, key.profile, key.expiry, refusal)
