"""The bearer token of one server, renewed for all connections to it."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from dataclasses import replace

from gateway.errors import GatewayError, Unavailable
from gateway.mcp_client import Unauthorized
from gateway.mcp_client.http_headers import header_lines
from gateway.oauth.store import Account, Login, Logins, Mark
from gateway.secrets import KNOWN

_BEARER = re.compile(r"\bbearer\b", re.IGNORECASE)
_PARAMETER = re.compile(r'(?<![\w-])([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.){0,2000})"|([^\s,"]{1,2000}))', re.ASCII)
_SCOPE = re.compile(r"[!#-\[\]-~]{1,500}")
_SCOPES_LIMIT = 200


def parameter(header: str, name: str) -> str | None:
    """The first of that name; what stands in quotes is no name."""
    given = (found for found in _PARAMETER.finditer(header) if found[1].lower() == name)
    return next((found[2] or found[3] for found in given), None)


def scopes(said: object) -> str | None:
    """The scopes of a text that are ones (RFC 6749, 3.3): others would be shown to people, and may be made to harm."""
    words = said.split()[:_SCOPES_LIMIT] if isinstance(said, str) else ()
    return " ".join(word for word in words if _SCOPE.fullmatch(word)) or None


def wants_token(header: str) -> bool:
    return _BEARER.search(header) is not None


# How long another process's login or logout may go unnoticed.
LOOK_SECONDS = 5.0

# How long before its end a token is renewed; of a short one, a quarter of its life.
MARGIN_SECONDS = 30.0

# When a renewal that failed is tried again; until then callers are told at once.
AGAIN_SECONDS = 3.0

# A token that is refused so soon after it was renewed because of a refusal, by whichever process, is not renewed
# again: else two of them would take turns at it for as long as the server refuses all.
HURRY_SECONDS = 10.0

# How long a caller waits for a new token while the old one still holds.
PATIENCE_SECONDS = 3.0

CLOSE_SECONDS = 10.0

_UNSEEN = (0, 0, 0)


class Bearer:
    """One for all connections to a server, so that whatever they do at once, a token is renewed but once.

    Renewing runs in a task of its own: whoever gives up waiting must not lose the token that is on its way.
    """

    def __init__(self, account: Account, logins: Logins) -> None:
        self.account = account
        self._logins = logins
        self._login: Login | None = None
        self._seen: Mark | None = _UNSEEN
        self._mark: Mark | None = _UNSEEN
        self._line = b""
        self._until = 0.0
        self._renewing: asyncio.Task[GatewayError | None] | None = None
        self._failure: GatewayError | None = None
        self._failed_at = 0.0

    @property
    def line(self) -> bytes | None:
        """The header of a request; nothing while nobody is logged in, None when it must be looked at first."""
        return self._line if time.monotonic() < self._until else None

    @property
    def changed(self) -> bool:
        """Whether somebody has logged in or out since anybody looked."""
        return self._logins.mark(self.account.server, self.account.principal) != self._seen

    def look(self) -> None:
        """Take what is kept now. What cannot be read is seen all the same: it is no news until it changes."""
        mark = self._seen = self._logins.mark(self.account.server, self.account.principal)
        if mark != self._mark:
            login = self._logins.find(self.account.server, self.account.principal) if mark else None
            self._login = login if login is not None and self.account.owns(login) else None
            token = self._login and self._login.access_token
            self._line = header_lines([("authorization", f"Bearer {token}")]) if token else b""
            if token:
                KNOWN.add(token, ("login", self.account.server, self.account.principal))
            self._mark, self._failure = mark, None
        # By the clock that nobody sets: what is due by the other is looked at again soon, whatever becomes of it.
        self._until = time.monotonic() + min(LOOK_SECONDS, self._due_at() - time.time())

    async def fresh(self) -> bytes:
        """The header, renewed if it is time. A token that still holds is used when it cannot be renewed now."""
        self.look()
        if self._due_at() <= time.time():
            holds = self._login is not None and not _is_over(self._login)
            try:
                async with asyncio.timeout(PATIENCE_SECONDS if holds else None):
                    await self._renew()
            except TimeoutError:  # should it end meanwhile, the server refuses it, and that is waited for
                self._until = time.monotonic() + AGAIN_SECONDS
            except GatewayError:
                if self._login is None or _is_over(self._login):
                    raise
                self._until = time.monotonic() + AGAIN_SECONDS
        elif self._login is not None and self._login.ended and _is_over(self._login):
            raise self._ended()
        return self._line

    async def refused(self, line: bytes, status: int, challenge: str) -> bool:
        """Whether a request that the server refused is worth another try: with a token that is new by now. Refused
        when only a person can help; false when this is not about a login."""
        if status == 403:
            if parameter(challenge, "error") != "insufficient_scope":
                return False
            raise self._lacking(parameter(challenge, "scope"))
        self.look()
        if self._line and self._line != line:
            return True
        if self._login is None and not self.account.unattended:
            if not wants_token(challenge):
                return False
            raise self._unauthorized()
        if self._login is not None:
            if not self._renewable():
                raise self._ended()
            if 0 <= time.time() - self._login.hurried_at < HURRY_SECONDS:
                raise self._unauthorized(f"{self.account.server!r} refuses the token it was just given")
        await self._renew(hurried=True)
        return True

    async def close(self) -> None:
        """Let a renewal come to its end: a token that nobody wrote down would be lost."""
        if self._renewing is not None:
            await asyncio.wait([self._renewing], timeout=CLOSE_SECONDS)

    def _renewable(self) -> bool:
        login = self._login
        return self.account.unattended or (login is not None and login.refresh_token is not None)

    def _due_at(self) -> float:
        """When it is to be renewed. One that cannot be is used until the server refuses it."""
        if not self._renewable():
            return float("inf")
        if self._login is None:
            return 0.0
        if self._login.expires_at is None:
            return float("inf")
        return self._login.expires_at - min(MARGIN_SECONDS, (self._login.expires_at - self._login.obtained_at) / 4)

    async def _renew(self, hurried: bool = False) -> None:
        if self._failure is not None and time.monotonic() < self._failed_at + AGAIN_SECONDS:
            raise _again(self._failure)
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew_alone(hurried))
        failure = await asyncio.shield(self._renewing)
        if failure is not None:
            raise _again(failure)

    async def _renew_alone(self, hurried: bool) -> GatewayError | None:
        """Why it could not be renewed, where it could not."""
        try:
            await self._take_turn(hurried)
        except GatewayError as error:
            self._failure, self._failed_at = error, time.monotonic()
            return error
        finally:
            self._renewing = None
        return None

    async def _take_turn(self, hurried: bool) -> None:
        # What speaks to authorization servers is loaded when one is first spoken to.
        from gateway.oauth.tokens import Ended, renew

        account, had = self.account, self._login
        async with self._logins.turn(account.server, account.principal):
            self.look()
            if self._login is not None and (had is None or self._login.access_token != had.access_token):
                return  # another process was faster
            if not self._renewable():
                raise self._unauthorized()  # somebody has logged out
            await asyncio.to_thread(self._logins.require_room)  # else a token is spent on one that is lost
            try:
                renewed = await renew(account, self._login)
            except Ended as ended:
                await asyncio.to_thread(self._logins.keep, ended.login)
                self.look()
                raise self._ended() from None
            # Written down before anyone uses it: the token it was got with is worth nothing now.
            renewed = replace(renewed, hurried_at=time.time() if hurried else 0.0)
            await asyncio.to_thread(self._logins.keep, renewed)
            self.look()

    def _ended(self) -> Unauthorized:
        return self._unauthorized(f"the login to {self.account.server!r} has ended")

    def _lacking(self, scope: str | None) -> Unauthorized:
        """`scope` is the server's word, and somebody may paste it into a shell."""
        account, wanted = self.account, scopes(scope)
        if wanted is None:
            return self._unauthorized(f"the login to {account.server!r} does not reach as far as this")
        options = " ".join(f"--scope {shlex.quote(each)}" for each in wanted.split())
        remedy = "add it to its oauth.scopes" if account.unattended else f"run `{account.command} {options}`"
        reason = f"{account.server!r} wants the scope {wanted!r} for this: {remedy}"
        return Unauthorized(reason, login=account.server, scope=wanted)

    def _unauthorized(self, why: str | None = None) -> Unauthorized:
        account = self.account
        why = why or f"you are not logged in to {account.server!r}"
        return Unauthorized(f"{why}: {account.remedy}", login=account.server)


def _is_over(login: Login) -> bool:
    return login.expires_at is not None and login.expires_at <= time.time()


def _again(error: GatewayError) -> GatewayError:
    """The same for one more to raise: an exception gathers the traceback of whoever raises it."""
    if isinstance(error, Unauthorized):
        return Unauthorized(error.message, **error.details)
    return Unavailable(error.message, code=error.code, **error.details)
