"""The bearer token of one server, renewed for all connections to it."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from contextlib import suppress
from dataclasses import replace

from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client import Unauthorized
from gateway.mcp_client.http_headers import header_lines
from gateway.oauth.store import FileVersion, Login, LoginAccount, Logins
from gateway.secrets import KNOWN

_BEARER = re.compile(r"\bbearer\b", re.IGNORECASE)
_PARAMETER = re.compile(r'(?<![\w-])([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.){0,2000})"|([^\s,"]{1,2000}))', re.ASCII)
_SCOPE = re.compile(r"[!#-\[\]-~]{1,500}")
_SCOPES_LIMIT = 200


def challenge_parameter(header: str, name: str) -> str | None:
    """Return the first parameter of that name in a `WWW-Authenticate` header. A name inside quotes does not count."""
    matches = (match for match in _PARAMETER.finditer(header) if match[1].lower() == name)
    return next((match[2] or match[3] for match in matches), None)


def valid_scopes(text: object) -> str | None:
    """Return the valid scopes of a text (RFC 6749, section 3.3). Others could do harm where they are shown."""
    words = text.split()[:_SCOPES_LIMIT] if isinstance(text, str) else ()
    return " ".join(word for word in words if _SCOPE.fullmatch(word)) or None


def wants_token(header: str) -> bool:
    return _BEARER.search(header) is not None


# The time after which a login or logout by another process is noticed.
RELOAD_SECONDS = 5.0

# A token is renewed so long before it expires; a short-lived one in the last quarter of its life.
MARGIN_SECONDS = 30.0

# The time before a failed renewal is tried again; until then callers get its error.
RETRY_SECONDS = 3.0

# A token that is refused so soon after a renewal because of a refusal, in any process, is not renewed again. Otherwise
# two processes would renew it in turns for as long as the server refuses all tokens.
REFUSED_SECONDS = 10.0

# The time a caller waits for a new token while the old one is still valid.
RENEW_WAIT_SECONDS = 3.0

CLOSE_SECONDS = 10.0

_NEVER_READ = (0, 0, 0)


class BearerToken:
    """The token of all connections to a server, so that concurrent requests renew it only once.

    A renewal runs in a task of its own: a caller that is cancelled must not lose the new token.
    """

    def __init__(self, account: LoginAccount, logins: Logins) -> None:
        self.account = account
        self._logins = logins
        self._login: Login | None = None
        self._seen: FileVersion | None = _NEVER_READ
        self._loaded: FileVersion | None = _NEVER_READ
        self._header = b""
        self._valid_until = 0.0
        self._renewing: asyncio.Task[GatewayError | None] | None = None
        self._failure: GatewayError | None = None
        self._failed_at = 0.0

    @property
    def header(self) -> bytes | None:
        """The header line of requests, empty while nobody is logged in; None when `refresh_header` must be called."""
        return self._header if time.monotonic() < self._valid_until else None

    @property
    def changed(self) -> bool:
        """True if somebody has logged in or out since the login was read."""
        return self._logins.version(self.account.server, self.account.principal) != self._seen

    def reload(self) -> None:
        """Read the stored login if it has changed. A version that cannot be read counts as seen, too."""
        version = self._seen = self._logins.version(self.account.server, self.account.principal)
        if version != self._loaded:
            login = self._logins.find(self.account.server, self.account.principal) if version else None
            self._login = login if login is not None and self.account.owns(login) else None
            token = self._login and self._login.access_token
            self._header = header_lines([("authorization", f"Bearer {token}")]) if token else b""
            if token:
                KNOWN.add(token, ("login", self.account.server, self.account.principal))
            self._loaded, self._failure = version, None
        # The wall clock may be set, so that its times hold for `RELOAD_SECONDS` at most.
        self._valid_until = time.monotonic() + min(RELOAD_SECONDS, self._due_at() - time.time())

    async def refresh_header(self) -> bytes:
        """Return the header line, with a renewed token if it is due. One that is still valid is used when the renewal
        fails."""
        self.reload()
        if self._due_at() <= time.time():
            is_valid = self._login is not None and not _is_expired(self._login)
            try:
                async with asyncio.timeout(RENEW_WAIT_SECONDS if is_valid else None):
                    await self._renew()
            except TimeoutError:  # if the token expires meanwhile, the server refuses it, and that waits
                self._valid_until = time.monotonic() + RETRY_SECONDS
            except GatewayError:
                if self._login is None or _is_expired(self._login):
                    raise
                self._valid_until = time.monotonic() + RETRY_SECONDS
        elif self._login is not None and self._login.ended and _is_expired(self._login):
            raise self._login_ended()
        return self._header

    async def handle_refusal(self, header: bytes, status: int, challenge: str) -> bool:
        """Return whether a request that the server refused should be sent again, with a new token. `Unauthorized` when
        only a person can help; false when the refusal is not about a login."""
        if status == 403:
            if challenge_parameter(challenge, "error") != "insufficient_scope":
                return False
            missing = valid_scopes(challenge_parameter(challenge, "scope"))
            await self._remember_missing(missing)
            raise self._scope_error(missing)
        self.reload()
        if self._header and self._header != header:
            return True
        if self._login is None and not self.account.unattended:
            if not wants_token(challenge):
                return False
            raise self._login_error()
        if self._login is not None:
            if not self._is_renewable():
                raise self._login_ended()
            if 0 <= time.time() - self._login.hurried_at < REFUSED_SECONDS:
                raise self._login_error(f"{self.account.server!r} refuses the token that was just renewed")
        await self._renew(hurried=True)
        return True

    async def close(self) -> None:
        """Wait for a renewal in progress: a token that is not stored would be lost."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing], timeout=CLOSE_SECONDS)

    def _is_renewable(self) -> bool:
        login = self._login
        return self.account.unattended or (login is not None and login.refresh_token is not None)

    def _due_at(self) -> float:
        """Return when the token is to be renewed. One that cannot be renewed is used until the server refuses it."""
        if not self._is_renewable():
            return float("inf")
        if self._login is None:
            return 0.0
        if self._login.expires_at is None:
            return float("inf")
        return self._login.expires_at - min(MARGIN_SECONDS, (self._login.expires_at - self._login.obtained_at) / 4)

    async def _renew(self, hurried: bool = False) -> None:
        if self._failure is not None and time.monotonic() < self._failed_at + RETRY_SECONDS:
            raise _copy(self._failure)
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._run_renewal(hurried))
        failure = await asyncio.shield(self._renewing)
        if failure is not None:
            raise _copy(failure)

    async def _run_renewal(self, hurried: bool) -> GatewayError | None:
        """Renew the token; returns the error if that failed."""
        try:
            await self._renew_locked(hurried)
        except GatewayError as error:
            self._failure, self._failed_at = error, time.monotonic()
            return error
        finally:
            self._renewing = None
        return None

    async def _renew_locked(self, hurried: bool) -> None:
        # Loaded for the first request to an authorization server: it imports the SDK.
        from gateway.oauth.tokens import LoginEnded, renew_login

        account, previous = self.account, self._login
        async with self._logins.lock(account.server, account.principal):
            self.reload()
            if self._login is not None and (previous is None or self._login.access_token != previous.access_token):
                return  # another process has renewed it
            if not self._is_renewable():
                raise self._login_error()  # somebody has logged out
            await asyncio.to_thread(self._logins.check_writable)  # otherwise the new token would be lost
            try:
                renewed = await renew_login(account, self._login)
            except LoginEnded as ended:
                await asyncio.to_thread(self._logins.save, ended.login)
                self.reload()
                raise self._login_ended() from None
            # Stored before it is used: the refresh token it was obtained with is worthless now.
            renewed = replace(renewed, hurried_at=time.time() if hurried else 0.0)
            await asyncio.to_thread(self._logins.save, renewed)
            self.reload()

    def _login_ended(self) -> Unauthorized:
        return self._login_error(f"the login to {self.account.server!r} has ended")

    async def _remember_missing(self, scope: str | None) -> None:
        """Store a scope that the server requires, for the next login to request it too (SEP-2350)."""
        account = self.account
        if scope is None or account.unattended:
            return
        with suppress(GatewayError):  # the refusal names the scope anyway
            async with self._logins.lock(account.server, account.principal):
                self.reload()
                if self._login is None or set(scope.split()) <= set((self._login.missing_scope or "").split()):
                    return
                missing = " ".join(dict.fromkeys(f"{self._login.missing_scope or ''} {scope}".split()))
                await asyncio.to_thread(self._logins.save, replace(self._login, missing_scope=valid_scopes(missing)))
                self.reload()

    def _scope_error(self, wanted: str | None) -> Unauthorized:
        """`wanted` comes from the server, and somebody may paste it into a shell."""
        account = self.account
        if wanted is None:
            return self._login_error(f"the login to {account.server!r} does not permit this")
        options = " ".join(f"--scope {shlex.quote(name)}" for name in wanted.split())
        remedy = "add it to its oauth.scopes" if account.unattended else f"run `{account.command} {options}`"
        reason = f"{account.server!r} requires the scope {wanted!r} for this: {remedy}"
        return Unauthorized(reason, login=account.server, scope=wanted)

    def _login_error(self, reason: str | None = None) -> Unauthorized:
        account = self.account
        reason = reason or f"you are not logged in to {account.server!r}"
        return Unauthorized(f"{reason}: {account.remedy}", login=account.server)


def _is_expired(login: Login) -> bool:
    return login.expires_at is not None and login.expires_at <= time.time()


def _copy(error: GatewayError) -> GatewayError:
    """Return the same error for one more caller: an exception collects the traceback of everyone who raises it."""
    if isinstance(error, Unauthorized):
        return Unauthorized(error.message, **error.details)
    return Unavailable(error.message, code=error.code, **error.details)
