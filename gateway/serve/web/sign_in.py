"""Signing in to the console with a key: a form without scripts, and a session in a cookie that no script can read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.admin import keys
from gateway.errors import Forbidden, GatewayError, Unauthenticated
from gateway.identity.authentication import Identity, hash_secret
from gateway.identity.sessions import SESSION_SECONDS, session_digest
from gateway.serve.http.authentication import SIGN_IN_PATH, Origin, error_response
from gateway.serve.http.pages import KEY_LIMIT, button, form, key_field, page, paragraph, protect

if TYPE_CHECKING:
    from gateway.gateway import Gateway

SIGN_OUT_PATH = "/sign-out"
# A path of this origin. A browser takes `//host` and `/\host` for another one, and drops control characters.
_LOCAL_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")
_HINT = "Whoever runs this gateway makes one with: toolgate key create NAME --role ROLE"


class SignInRoutes:
    """The routes by which people begin and end their sessions."""

    def __init__(self, gateway: Gateway, identity: Identity, origin: Origin) -> None:
        self._gateway = gateway
        self._identity = identity
        self._origin = origin
        self.routes = [
            Route(SIGN_IN_PATH, self._show, methods=["GET"]),
            Route(SIGN_IN_PATH, self._sign_in, methods=["POST"]),
            Route(SIGN_OUT_PATH, self._sign_out, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        target = _local_path(request.query_params.get("next"))
        if await self._is_signed_in(request):
            return _redirect(target)
        return _form_page(target)

    async def _is_signed_in(self, request: Request) -> bool:
        await self._identity.refresh()
        digest = session_digest(request.cookies.get(self._origin.cookie_name(request), ""))
        return self._identity.find(digest) is not None

    async def _sign_in(self, request: Request) -> Response:
        fields = await request.form(max_files=0, max_fields=5)
        target, secret = _local_path(fields.get("next")), fields.get("key")
        try:
            if request.headers.get("origin", "").lower() != self._origin.of(request):
                raise Forbidden("this form was not sent by a page of this gateway", code="FORM_FORGED")
            cookie = await self._open_session(secret if isinstance(secret, str) else "", request)
        except GatewayError as refusal:
            return _form_page(target, refusal)
        response = _redirect(target)
        response.set_cookie(
            self._origin.cookie_name(request),
            cookie,
            max_age=SESSION_SECONDS,
            secure=self._origin.is_https(request),
            httponly=True,
            samesite="strict",
        )
        return response

    async def _open_session(self, text: str, request: Request) -> str:
        secret = text.strip()
        if not secret.startswith("tg_") or not secret.isascii() or not secret.isprintable() or len(secret) > KEY_LIMIT:
            raise Unauthenticated("this is not a key; it begins with tg_")
        principal = await self._identity.authenticate({b"authorization": f"Bearer {secret}".encode()})
        if principal.resource is not None:
            raise Unauthenticated("this is a client's token; sign in with a key")
        digest = hash_secret(secret).hex()
        return await keys.open_session(self._gateway, principal, digest, request.headers.get("user-agent", ""))

    async def _sign_out(self, request: Request) -> Response:
        digest = request.state.session
        if digest is None:
            return error_response(Forbidden("nobody is signed in here by a session", code="NO_SESSION"))
        await keys.end_session(self._gateway, digest=digest)
        response = Response(status_code=204)
        secure = self._origin.is_https(request)
        response.delete_cookie(self._origin.cookie_name(request), secure=secure, httponly=True, samesite="strict")
        protect(response)
        return response


def _local_path(text: object) -> str:
    """Return the path to go to after signing in; the start page in place of an address elsewhere."""
    return text if isinstance(text, str) and _LOCAL_PATH.fullmatch(text) else "/"


def _redirect(target: str) -> Response:
    response = RedirectResponse(target, 303)
    protect(response)
    return response


def _form_page(target: str, refusal: GatewayError | None = None) -> Response:
    parts = [
        *([paragraph(refusal.message, "problem")] if refusal is not None else []),
        form(SIGN_IN_PATH, [key_field(_HINT), button("Sign in", "action", "sign-in", "primary")], next=target),
    ]
    return page("Sign in", parts, 200 if refusal is None else refusal.status)
