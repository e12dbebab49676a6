"""The proof of who we are that requests to one server carry, kept fresh for all connections to it."""

from __future__ import annotations

import asyncio
import re
import shlex
import time

from ....errors import GatewayError, Unavailable
from ..link import Unauthorized
from ..link.requests import header_lines
from .account import Account
from .challenge import parameter, wants_token
from .store import Login, Logins, Mark

LOOK_SECONDS = 5.0
"""How long another process's login or logout may go unnoticed."""

MARGIN_SECONDS = 30.0
"""How long before its end a token is renewed; of a short one, a quarter of its life."""

AGAIN_SECONDS = 3.0
"""When a renewal that failed is tried again; until then callers are told at once."""

HURRY_SECONDS = 10.0
"""A token that is refused so soon after it was renewed because of a refusal is not renewed again."""

CLOSE_SECONDS = 10.0

_UNSEEN = (0, 0, 0)
_SCOPE = re.compile(r"[!#-\[\]-~ ]{1,500}")


class Bearer:
    """One for all connections to a server, so that whatever they do at once, a token is renewed but once.

    Renewing runs in a task of its own: whoever gives up waiting must not lose the token that is on its way.
    """

    def __init__(self, account: Account, logins: Logins) -> None:
        self.account = account
        self._logins = logins
        self._login: Login | None = None
        self._mark: Mark | None = _UNSEEN
        self._line = b""
        self._until = 0.0
        self._renewing: asyncio.Task[GatewayError | None] | None = None
        self._failure: GatewayError | None = None
        self._failed_at = 0.0
        self._hurried: tuple[str, float] = ("", 0.0)

    @property
    def line(self) -> bytes | None:
        """The header of a request; nothing while nobody is logged in, None when it must be looked at first."""
        return self._line if time.time() < self._until else None

    @property
    def changed(self) -> bool:
        """Whether somebody has logged in or out since anybody looked."""
        return self._logins.mark(self.account.server, self.account.principal) != self._mark

    def look(self) -> None:
        """Take what is kept now."""
        mark = self._logins.mark(self.account.server, self.account.principal)
        if mark != self._mark:
            login = self._logins.find(self.account.server, self.account.principal) if mark else None
            self._login = login if login is not None and self.account.owns(login) else None
            token = self._login and self._login.access_token
            self._line = header_lines([("authorization", f"Bearer {token}")]) if token else b""
            self._mark, self._failure = mark, None
        self._until = min(time.time() + LOOK_SECONDS, self._due_at())

    async def fresh(self) -> bytes:
        """The header, renewed if it is time. A token that still holds is used when it cannot be renewed now."""
        self.look()
        if self._due_at() <= time.time():
            try:
                await self._renew()
            except GatewayError:
                login = self._login
                if login is None or _is_over(login):
                    raise
                self._until = time.time() + AGAIN_SECONDS
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
            token, at = self._hurried
            if token == self._login.access_token and time.monotonic() < at + HURRY_SECONDS:
                raise self._unauthorized(f"{self.account.server!r} refuses the token it was just given")
        await self._renew()
        if self._login is not None:
            self._hurried = self._login.access_token, time.monotonic()
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

    async def _renew(self) -> None:
        if self._failure is not None and time.monotonic() < self._failed_at + AGAIN_SECONDS:
            raise _again(self._failure)
        if self._renewing is None:
            self._renewing = asyncio.get_running_loop().create_task(self._renew_alone())
        failure = await asyncio.shield(self._renewing)
        if failure is not None:
            raise _again(failure)

    async def _renew_alone(self) -> GatewayError | None:
        """Why it could not be renewed, where it could not."""
        try:
            await self._take_turn()
        except GatewayError as error:
            self._failure, self._failed_at = error, time.monotonic()
            return error
        finally:
            self._renewing = None
        return None

    async def _take_turn(self) -> None:
        # What speaks to authorization servers is loaded when one is first spoken to.
        from .renewal import Ended, renew

        account, had = self.account, self._login
        async with self._logins.turn(account.server, account.principal):
            self.look()
            if self._login is not had and self._login is not None:
                return  # another process was faster
            if not self._renewable():
                raise self._unauthorized()  # somebody has logged out
            try:
                renewed = await renew(account, self._login)
            except Ended as ended:
                await asyncio.to_thread(self._logins.keep, ended.login)
                self.look()
                raise self._ended() from None
            # Written down before anyone uses it: the token it was got with is worth nothing now.
            await asyncio.to_thread(self._logins.keep, renewed)
            self.look()

    def _ended(self) -> Unauthorized:
        return self._unauthorized(f"the login to {self.account.server!r} has ended")

    def _lacking(self, scope: str | None) -> Unauthorized:
        """`scope` is the server's word, and somebody may paste it into a shell."""
        account = self.account
        if scope is None or not _SCOPE.fullmatch(scope):
            return self._unauthorized(f"the login to {account.server!r} does not reach as far as this")
        options = " ".join(f"--scope {shlex.quote(each)}" for each in scope.split())
        return Unauthorized(
            f"{account.server!r} wants the scope {scope!r} for this: run `{account.command} {options}`",
            login=account.server,
            scope=scope,
        )

    def _unauthorized(self, why: str | None = None) -> Unauthorized:
        account = self.account
        why = why or f"you are not logged in to {account.server!r}"
        return Unauthorized(f"{why}: run `{account.command}`", login=account.server)


def _is_over(login: Login) -> bool:
    return login.expires_at is not None and login.expires_at <= time.time()


def _again(error: GatewayError) -> GatewayError:
    """The same for one more to raise: an exception gathers the traceback of whoever raises it."""
    if isinstance(error, Unauthorized):
        return Unauthorized(error.message, **error.details)
    return Unavailable(error.message, code=error.code, **error.details)
