"""The built-in authorization server (OAuth 2.1): a person with a key allows a client to act as them.

It exists for clients that take no key, such as the connectors of Claude and ChatGPT. The endpoints (`provider`) are the
SDK's, and loaded with the first request to one; `GrantStore` is what authentication needs of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from urllib.parse import urlsplit

from gateway.db.grants import AccessRow, Grants
from gateway.identity.authentication import Credential
from gateway.tools import Permission

CONSENT_PATH = "/consent"
METADATA_PATH = "/.well-known/oauth-authorization-server"


class GrantStore:
    """The valid access tokens, as authentication loads them."""

    def __init__(self, grants: Grants, path: str) -> None:
        self.revision = grants.revision
        self._grants = grants
        self._path = path

    async def load(self) -> Iterable[Credential]:
        return [self._credential(row) for row in await self._grants.load_access()]

    async def record_use(self, digests: Iterable[bytes]) -> None:
        """Ignore the use of tokens: they expire soon."""

    def _credential(self, row: AccessRow) -> Credential:
        path, folder = urlsplit(row.resource).path, f"{self._path}/"
        ends = [row.expires_at]
        if row.key_expires_at is not None:
            ends.append(datetime.fromisoformat(row.key_expires_at).timestamp())
        return Credential(
            bytes.fromhex(row.digest),
            row.principal,
            row.role,
            row.profile,
            min(ends),
            permission=Permission(row.permission),
            resource=row.resource,
            resource_profile=path.removeprefix(folder) if path.startswith(folder) else None,
        )
