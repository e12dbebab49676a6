"""The SDK's provider protocol over our grants: what `/authorize`, `/token`, `/register` and `/revoke` do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    IdentityAssertionParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import build_metadata, cors_middleware, create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.authorization import CONSENT_PATH, METADATA_PATH
from gateway.authorization.clients import AuthorizedClient, Clients
from gateway.config import AuthClientSettings
from gateway.db.grants import Grant, Grants, Kind, StoredToken
from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.identity import Principal
from gateway.identity.authentication import Identity
from gateway.names import new_id
from gateway.sealing import Sealer
from gateway.tools import Permission

if TYPE_CHECKING:
    from gateway.identity.jwt import JwtVerifier

CONSENT_SECONDS = 900.0
CODE_SECONDS = 60.0
ACCESS_SECONDS = 3600.0
# From the last use: each refresh token is replaced by a new one.
REFRESH_SECONDS = 30 * 86400.0
# A refresh token may be used again so long after its first use: the answer may have been lost on the way, or two
# processes of a client refreshed at once. Later, somebody has stolen it (RFC 9700, section 4.14.2).
REUSE_SECONDS = 10.0

STATE_LIMIT = 2048
ASSERTION_TYPE = "oauth-id-jag+jwt"
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")  # of SHA-256
_PROFILE = re.compile(r"[A-Za-z0-9_-]{1,64}")

Tokens = dict[Kind, str]


class StoredCode(AuthorizationCode):
    """An authorization code, and what is stored about it."""

    stored: Any


class StoredRefreshToken(RefreshToken):
    """A refresh token, and what is stored about it."""

    stored: Any


class AuthorizationProvider(OAuthAuthorizationServerProvider[StoredCode, StoredRefreshToken, AccessToken]):
    """The authorization server under one issuer URL. `jwt` verifies the assertions of an identity provider."""

    def __init__(
        self,
        issuer: str,
        resource_path: str,
        grants: Grants,
        clients: Clients,
        sealer: Sealer,
        identity: Identity,
        jwt: JwtVerifier | None = None,
    ) -> None:
        self.issuer = issuer
        self._resource_path = resource_path
        self._grants = grants
        self._clients = clients
        self._sealer = sealer
        self._identity = identity
        self._jwt = jwt

    # Clients.

    async def get_client(self, client_id: str) -> AuthorizedClient | None:
        return await self._clients.find(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self._clients.register(client_info)

    # Consent: the browser is sent to our page with the sealed request, and from there back to the client.

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        """Return the address of the consent page. Nothing is stored before a person has agreed."""
        if not _CHALLENGE.fullmatch(params.code_challenge):
            raise AuthorizeError("invalid_request", "code_challenge must be the SHA-256 of the verifier (S256)")
        if len(params.state or "") > STATE_LIMIT:
            raise AuthorizeError("invalid_request", f"state is longer than {STATE_LIMIT} characters")
        assert isinstance(client, AuthorizedClient)  # noqa: S101 - `get_client` returns no other
        request = {
            "iss": self.issuer,
            "exp": self._grants.clock() + CONSENT_SECONDS,
            "client_id": client.client_id,
            "name": client.label,
            "host": client.host,
            "redirect_uri": str(params.redirect_uri),
            "explicit": params.redirect_uri_provided_explicitly,
            "challenge": params.code_challenge,
            "state": params.state,
            "scopes": [scope for scope in params.scopes or () if scope in set(Permission)],
            "resource": self._check_resource(params.resource),
        }
        return f"{CONSENT_PATH}?{urlencode({'request': self._sealer.seal_claims(request)})}"

    def open_request(self, sealed: str | None) -> dict[str, Any] | None:
        """Return the request of a consent page; None if it is not ours, or too old."""
        return self._sealer.unseal_claims(sealed, self._grants.clock())

    async def allow(
        self, request: dict[str, Any], principal: Principal, key_digest: str, permission: Permission
    ) -> str:
        """Store a person's consent, and return the address that takes its code to the client."""
        grant = self._make_grant(
            principal,
            client_id=request["client_id"],
            client_name=request["name"],
            resource=request["resource"],
            permission=permission,
            key_digest=key_digest,
            expires_at=principal.expires_at,
        )
        await self._grants.add(grant)
        tokens = await self._grants.issue(
            grant,
            {"code": CODE_SECONDS},
            challenge=request["challenge"],
            redirect_uri=request["redirect_uri"],
            explicit=request["explicit"],
        )
        return self._redirect(request, code=tokens["code"])

    def _make_grant(self, principal: Principal, *, permission: Permission, **fields: Any) -> Grant:
        missing: dict[str, Any] = {"key_digest": None, "role": None}
        now, limited = self._grants.clock(), permission.value
        return Grant(id=new_id(), principal=principal.id, permission=limited, created_at=now, **missing | fields)

    def deny(self, request: dict[str, Any]) -> str:
        return self._redirect(request, error="access_denied", error_description="the person did not agree")

    def _redirect(self, request: dict[str, Any], **params: str) -> str:
        return construct_redirect_uri(request["redirect_uri"], **params, state=request["state"], iss=request["iss"])

    def _check_resource(self, resource: str | None) -> str:
        """Return the resource that a token is for: this gateway, or one profile of it (RFC 8707)."""
        path = self._resource_path
        if resource is None:
            return self.issuer + path
        given, own = urlsplit(resource), urlsplit(self.issuer)
        rest = given.path.rstrip("/").removeprefix(own.path)
        is_ours = (given.scheme.lower(), given.netloc.lower()) == (own.scheme, own.netloc.lower())
        if not is_ours or given.query or given.fragment or not given.path.startswith(own.path):
            raise AuthorizeError("invalid_target", f"this server grants access to {self.issuer}{path} only")
        if rest in ("", path) or (rest.startswith(f"{path}/") and _PROFILE.fullmatch(rest[len(path) + 1 :])):
            return self.issuer + (rest or path)
        raise AuthorizeError("invalid_target", f"this server grants access to {self.issuer}{path} only")

    # Tokens.

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> StoredCode | None:
        stored = await self._find(client, authorization_code, "code")
        if stored is None:
            return None
        if stored.used_at is not None:  # replayed: whoever has the tokens of the first use may be the thief
            await self._grants.revoke(stored.grant.id)
            return None
        details = stored.details
        return StoredCode(
            code=authorization_code,
            scopes=[stored.grant.permission],
            expires_at=stored.expires_at,
            client_id=stored.grant.client_id,
            code_challenge=details["challenge"],
            redirect_uri=details["redirect_uri"],
            redirect_uri_provided_explicitly=details["explicit"],
            resource=stored.grant.resource,
            subject=stored.grant.principal,
            stored=stored,
        )

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: StoredCode
    ) -> OAuthToken:
        return await self._exchange(authorization_code.stored)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> StoredRefreshToken | None:
        stored = await self._find(client, refresh_token, "refresh")
        if stored is None:
            return None
        if stored.used_at is not None and self._grants.clock() > stored.used_at + REUSE_SECONDS:
            await self._grants.revoke(stored.grant.id)
            return None
        return StoredRefreshToken(
            token=refresh_token,
            client_id=stored.grant.client_id,
            scopes=[stored.grant.permission],
            expires_at=int(stored.expires_at),
            resource=stored.grant.resource,
            subject=stored.grant.principal,
            stored=stored,
        )

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: StoredRefreshToken, scopes: list[str]
    ) -> OAuthToken:
        stored: StoredToken = refresh_token.stored
        if stored.used_at is None:
            return await self._exchange(stored)
        return self._answer(stored.grant, await self._grants.issue(stored.grant, self._lifetimes(stored.grant)))

    async def load_access_token(self, token: str) -> AccessToken | None:
        stored = await self._grants.find(token)
        if stored is None or stored.kind != "access" or not await self._is_live(stored):
            return None
        grant = stored.grant
        return AccessToken(token=token, client_id=grant.client_id, scopes=[grant.permission], resource=grant.resource)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        """End the grant of a token: a client that revokes one of its tokens is done."""
        stored = await self._grants.find(token.token)
        if stored is not None:
            await self._grants.revoke(stored.grant.id)

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        """Exchange the assertion of the enterprise's identity provider (SEP-990) for a token. It counts once."""
        if self._jwt is None:
            raise TokenError("unsupported_grant_type", "auth.jwt names no identity provider")
        try:
            claims = await self._jwt.decode(params.assertion, [self.issuer], ASSERTION_TYPE)
            principal = self._jwt.make_principal(claims)
        except Unavailable as error:
            raise TokenError("invalid_request", error.message) from None
        except GatewayError as error:
            raise TokenError("invalid_grant", error.message) from None
        if claims.get("client_id") != client.client_id or not isinstance(claims.get("jti"), str):
            raise TokenError("invalid_grant", "the assertion is for another client, or has no id")
        grant = self._make_grant(
            principal,
            client_id=client.client_id,
            client_name=client.client_name or client.client_id,
            resource=self._find_resource(claims.get("resource")),
            permission=_least(principal.permission, str(claims.get("scope") or "").split()),
            role=principal.role,
        )
        if not await self._grants.add(grant, (f"{claims['iss']} {claims['jti']}", float(claims["exp"]) + CODE_SECONDS)):
            raise TokenError("invalid_grant", "the assertion was used before")
        # No refresh token: the identity provider decides how long the person may stay.
        return self._answer(grant, await self._grants.issue(grant, {"access": self._lifetimes(grant)["access"]}))

    def _find_resource(self, claim: Any) -> str:
        try:
            return self._check_resource(claim if isinstance(claim, str) else None)
        except AuthorizeError as error:
            raise TokenError("invalid_target", error.error_description) from None

    async def _find(self, client: OAuthClientInformationFull, token: str, kind: Kind) -> StoredToken | None:
        """Return a token of this client; None for one that has expired, or whose grant has ended."""
        stored = await self._grants.find(token)
        if stored is None or stored.kind != kind or stored.grant.client_id != client.client_id:
            return None
        return stored if await self._is_live(stored) else None

    async def _is_live(self, stored: StoredToken) -> bool:
        now, grant = self._grants.clock(), stored.grant
        return (
            now < stored.expires_at
            and grant.revoked_at is None
            and (grant.expires_at is None or now < grant.expires_at)
            and (
                grant.key_digest is None or await self._identity.recognize(bytes.fromhex(grant.key_digest)) is not None
            )
        )

    async def _exchange(self, stored: StoredToken) -> OAuthToken:
        tokens = await self._grants.exchange(stored, self._lifetimes(stored.grant))
        if tokens is None:  # two requests with the same code at once: one of them is not the client's
            if stored.kind == "code":
                await self._grants.revoke(stored.grant.id)
            raise TokenError("invalid_grant", "it was used before")
        return self._answer(stored.grant, tokens)

    def _lifetimes(self, grant: Grant) -> dict[Kind, float]:
        left = float("inf") if grant.expires_at is None else grant.expires_at - self._grants.clock()
        return {"access": min(ACCESS_SECONDS, left), "refresh": min(REFRESH_SECONDS, left)}

    def _answer(self, grant: Grant, tokens: Tokens) -> OAuthToken:
        return OAuthToken(
            access_token=tokens["access"],
            refresh_token=tokens.get("refresh"),
            expires_in=max(1, int(self._lifetimes(grant)["access"])),
            scope=grant.permission,
        )


def make_routes(provider: AuthorizationProvider, assertions: bool) -> list[Route]:
    """Return the SDK's endpoints; `Invalid` for an issuer that is neither https nor this machine. Our metadata names
    what the SDK's does not: clients without a secret, metadata documents, and the issuer in redirects."""
    issuer = AnyHttpUrl(provider.issuer)
    registration, revocation = ClientRegistrationOptions(enabled=True), RevocationOptions(enabled=True)
    try:
        routes = create_auth_routes(provider, issuer, None, registration, revocation, assertions)
    except ValueError:
        raise Invalid(
            f"clients cannot log in at {provider.issuer}: set server.public_url to the https address of the gateway",
            code="INSECURE_URL",
        ) from None
    described = build_metadata(issuer, None, registration, revocation, assertions)
    methods = ["none", *(described.token_endpoint_auth_methods_supported or ())]
    metadata = described.model_dump(mode="json", exclude_none=True) | {
        "issuer": provider.issuer,
        "token_endpoint_auth_methods_supported": methods,
        "revocation_endpoint_auth_methods_supported": methods,
        "client_id_metadata_document_supported": True,
        "authorization_response_iss_parameter_supported": True,
    }

    async def describe(_: Request) -> Response:
        return JSONResponse(metadata)

    endpoints = [route for route in routes if route.path != METADATA_PATH]
    return [Route(METADATA_PATH, cors_middleware(describe, ["GET"])), *endpoints]


def _least(permission: Permission, scopes: Sequence[str]) -> Permission:
    """Return the highest permission among the scopes that a principal has, or its own if they name none."""
    named = [level for level in Permission if level.value in scopes and permission.allows(level)]
    return named[-1] if named else permission


class AuthorizationServers:
    """Makes the built-in authorization server of each issuer URL by which the gateway is known."""

    def __init__(
        self,
        path: str,
        grants: Grants,
        clients: Mapping[str, AuthClientSettings],
        make_sealer: Callable[[str], Sealer],
        identity: Identity,
        jwt: JwtVerifier | None,
    ) -> None:
        self._path = path
        self._grants = grants
        self._clients = Clients(make_sealer("oauth client"), clients)
        self._sealer = make_sealer("authorization request")
        self._identity = identity
        self._jwt = jwt

    def __call__(self, issuer: str) -> tuple[AuthorizationProvider, list[Route]]:
        parts = (self._grants, self._clients, self._sealer, self._identity, self._jwt)
        provider = AuthorizationProvider(issuer, self._path, *parts)
        return provider, make_routes(provider, assertions=self._jwt is not None)
