"""The person at a browser: known by a key that they type once, then by a sealed cookie until the key ends."""

from __future__ import annotations

import hmac
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import Forbidden, GatewayError
from gateway.identity import Principal
from gateway.identity.authentication import Identity, hash_secret
from gateway.sealing import Sealer
from gateway.serve.http.authentication import Origin

SESSION_SECONDS = 12 * 3600
_COOKIE = "toolgate_person"
KEY_LIMIT = 8192


@dataclass(frozen=True)
class Person:
    """Somebody who has shown a key in this browser. `digest` is its SHA-256, in hexadecimal; empty for the owner of a
    gateway without keys."""

    principal: Principal
    digest: str
    nonce: str

    def form_token(self, purpose: str) -> str:
        """Return a token that only a form of this browser has for this purpose."""
        return hmac.new(self.nonce.encode(), purpose.encode(), "sha256").hexdigest()

    def check_form(self, token: object, purpose: str) -> None:
        if not isinstance(token, str) or not hmac.compare_digest(token, self.form_token(purpose)):
            raise Forbidden("this form is not from this browser's page; go back and reload it", code="FORM_FORGED")


class People:
    """Recognizes people. Only keys and tokens of the identity provider are taken, never a token of our own: a client
    could otherwise agree to its own requests."""

    def __init__(self, identity: Identity, sealer: Sealer, origin: Origin) -> None:
        self._identity = identity
        self._sealer = sealer
        self._origin = origin

    async def find(self, request: Request) -> Person | None:
        """Return the person of a browser whose key is still valid, or the owner of a gateway that asks for none."""
        claims = self._sealer.unseal_claims(request.cookies.get(self._cookie_name(request)), time.time())
        if claims is None:
            with suppress(GatewayError):
                return Person(await self._identity.authenticate({}), "", "")
            return None
        principal = await self._identity.recognize(bytes.fromhex(claims["digest"]))
        return None if principal is None else Person(principal, claims["digest"], claims["nonce"])

    async def sign_in(self, request: Request, key: object, response: Response) -> Person | None:
        """Return the person that a key belongs to, and remember them in their browser; None for a wrong key."""
        text = key.strip() if isinstance(key, str) else ""
        if not text.isascii() or not text.isprintable() or not 0 < len(text) <= KEY_LIMIT:
            return None
        try:
            principal = await self._identity.authenticate({b"authorization": f"Bearer {text}".encode()})
        except GatewayError:
            return None
        if principal.resource is not None:
            return None
        person = Person(principal, hash_secret(text).hex(), secrets.token_urlsafe(16))
        claims = {"digest": person.digest, "nonce": person.nonce, "exp": time.time() + SESSION_SECONDS}
        response.set_cookie(
            self._cookie_name(request),
            self._sealer.seal_claims(claims),
            max_age=SESSION_SECONDS,
            secure=self._origin.is_https(request),
            httponly=True,
            samesite="lax",  # not strict: the browser comes here from the client's page
        )
        return person

    def sign_out(self, request: Request, response: Response) -> None:
        is_https = self._origin.is_https(request)
        response.delete_cookie(self._cookie_name(request), secure=is_https, httponly=True, samesite="lax")

    def require_own_page(self, request: Request) -> None:
        """Refuse a form that another site sends. Browsers send `Origin` with every form."""
        if request.headers.get("origin", "").lower() != self._origin.of(request):
            raise Forbidden("this form was not sent by a page of this gateway", code="FORM_FORGED")

    def _cookie_name(self, request: Request) -> str:
        # The prefix makes browsers refuse the cookie from subdomains and plain http.
        return f"__Host-{_COOKIE}" if self._origin.is_https(request) else _COOKIE


def host_of(uri: str) -> str:
    """Return the host of a redirect URI, as it is shown to a person; the scheme where an application has its own."""
    parts = urlsplit(uri)
    return parts.netloc if parts.scheme in ("http", "https") else f"{parts.scheme}:"
