"""Tokens of an external identity provider: JWTs, verified with the keys that their issuer publishes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import jwt

from gateway.config import JwtSettings
from gateway.errors import Forbidden, GatewayError, Unauthenticated, Unavailable
from gateway.identity import Principal
from gateway.identity.roles import Roles
from gateway.oauth.http import open_http

# How long the keys are used before they are fetched again, and how long if the issuer does not answer, in seconds.
KEYS_SECONDS, STALE_SECONDS = 600.0, 86400.0

# Time between two requests to the issuer, in seconds, whatever tokens are sent.
FETCH_SECONDS = 30.0

# Difference between two clocks that is tolerated, in seconds.
LEEWAY = 30.0

_SUBJECT = 200  # characters
_KEYS = 100

log = logging.getLogger(__name__)


class JwtVerifier:
    """Verifies tokens of one issuer: signature, algorithm, audience, issuer and expiry. Their subject is the principal,
    with a prefix that no API key has."""

    def __init__(self, settings: JwtSettings, roles: Roles) -> None:
        self.issuer = settings.issuer
        self._settings = settings
        self._roles = roles
        self._jwks_url = settings.jwks_url
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_at = -STALE_SECONDS
        self._tried_at = -FETCH_SECONDS
        self._lock = asyncio.Lock()

    async def verify(self, token: str) -> Principal:
        """Return the principal of a token; `Unauthenticated` with the reason when it is not valid."""
        return self.make_principal(await self.decode(token, self._settings.audience))

    async def decode(self, token: str, audience: Sequence[str], kind: str | None = None) -> Mapping[str, Any]:
        """Return the claims of a token of the issuer for one of these audiences. `kind` is the required `typ`."""
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError as error:
            raise _invalid(f"the token is neither a key of this gateway nor a JWT: {error}") from None
        if header.get("alg") not in self._settings.algorithms:
            raise _invalid(f"the token is signed with {header.get('alg')!r}, which auth.jwt.algorithms does not allow")
        if kind is not None and str(header.get("typ")).lower() != kind:
            raise _invalid(f"the token is not of the type {kind}")
        key = await self._find_key(header.get("kid"))
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(self._settings.algorithms),
                audience=list(audience),
                issuer=self._settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired; log in again", code="CREDENTIAL_EXPIRED") from None
        except jwt.PyJWTError as error:
            raise _invalid(f"the token is not valid here: {error}") from None
        return claims

    def make_principal(self, claims: Mapping[str, Any]) -> Principal:
        """Return the principal of verified claims."""
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _SUBJECT or not subject.isprintable():
            raise _invalid(f"the token's subject is not a text of 1 to {_SUBJECT} characters")
        return self._roles.make_principal(f"jwt:{subject}", self._find_role(claims), expires_at=float(claims["exp"]))

    def _find_role(self, claims: Mapping[str, Any]) -> str:
        """Return the first role in the token's claim that the settings have."""
        named = list(_names(_find_claim(claims, self._settings.role_claim)))
        for role in named:
            if role in self._roles.roles:
                return role
        if self._settings.default_role is not None:
            return self._settings.default_role
        shown = f"names {', '.join(repr(role[:64]) for role in named[:5])}" if named else "is missing"
        raise Forbidden(
            f"the token gives no role that 'roles' has: its claim {self._settings.role_claim!r} {shown}",
            code="UNKNOWN_ROLE",
        )

    async def _find_key(self, key_id: Any) -> jwt.PyJWK:
        key = self._get_key(key_id)
        if key is None or self._is_due():  # others do not wait for a fetch
            async with self._lock:
                age = time.monotonic() - self._fetched_at
                if (age > KEYS_SECONDS or self._get_key(key_id) is None) and self._may_fetch():
                    await self._fetch(age)
            key = self._get_key(key_id)
        if key is None:
            raise _invalid(f"the token is signed by a key that {self.issuer} does not publish")
        return key

    def _get_key(self, key_id: Any) -> jwt.PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id) if isinstance(key_id, str | None) else None

    def _is_due(self) -> bool:
        return time.monotonic() - self._fetched_at > KEYS_SECONDS and self._may_fetch()

    def _may_fetch(self) -> bool:
        return time.monotonic() - self._tried_at >= FETCH_SECONDS

    async def _fetch(self, age: float) -> None:
        """Fetch the issuer's keys; the ones from before are used for a day if that fails."""
        self._tried_at = time.monotonic()
        try:
            self._keys = await self._load_keys()
            self._fetched_at = time.monotonic()
        except GatewayError as error:
            log.warning("the keys of %s could not be fetched: %s", self.issuer, error)
            if age > STALE_SECONDS:
                self._keys = {}
                raise Unavailable(f"the keys of the issuer {self.issuer} cannot be fetched now; try again") from error

    async def _load_keys(self) -> dict[str | None, jwt.PyJWK]:
        async with open_http(self.issuer) as http:
            url = self._jwks_url
            if url is None:
                url = self._jwks_url = await self._discover(http)
            response = await http.get(url)
        published = response.content.get("keys")
        if response.status != 200 or not isinstance(published, list):
            raise Unavailable(f"{url} is no key set: {response.describe()}")
        keys: dict[str | None, jwt.PyJWK] = {}
        for each in published[:_KEYS]:
            try:
                key = jwt.PyJWK.from_dict(each)
            except (jwt.PyJWTError, TypeError, AttributeError):
                continue  # of a kind that we do not use, such as one for encryption
            if key.key_type != "oct" and each.get("use", "sig") == "sig":
                keys[key.key_id] = key
        return keys

    async def _discover(self, http: Any) -> str:
        """Return where the issuer publishes its keys, by OpenID Connect discovery or RFC 8414."""
        parts = urlsplit(self.issuer)
        base, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
        for url in (
            f"{base}{path}/.well-known/openid-configuration",
            f"{base}/.well-known/oauth-authorization-server{path}",
        ):
            metadata = (await http.get(url)).content
            named, issuer = metadata.get("jwks_uri"), metadata.get("issuer")
            if isinstance(named, str) and issuer == self.issuer:
                return named
        raise Unavailable(f"{self.issuer} does not publish where its keys are; set auth.jwt.jwks_url")


def _find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name or, if there is none, by the path that its dots make."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _names(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _invalid(message: str) -> Unauthenticated:
    return Unauthenticated(message, code="INVALID_TOKEN")
