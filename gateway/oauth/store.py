"""Stored logins: one private file each, renewed by one process at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryFile

from gateway.calls import LOCAL
from gateway.config import OAuthSettings, resolve_variables
from gateway.errors import Forbidden, Invalid, Unavailable
from gateway.files import FileLock, replace_private
from gateway.mcp_client import HttpEndpoint

DIRECTORY = "logins"
SIZE_LIMIT = 256 * 1024
_USUAL_SIZE = 16 * 1024
# How long another process may take to renew a login before we say that it hangs.
TURN_SECONDS = 45.0

_TOKEN = re.compile(r"[!-~]*")
_KINDS = {"str": str, "str | None": str | None, "float": float, "float | None": float | None, "bool": bool}

# Tells one version of a file from the next.
Mark = tuple[int, int, int]


@dataclass(frozen=True)
class Login:
    """Tokens, and all it takes to renew them without asking anybody where. `client_secret` is one that was given to
    us when we registered; one of the settings is never kept. `hurried_at` is when it was renewed because the server
    refused the token before, if that was why; `ended` is a login that nobody can renew any more."""

    server: str
    url: str
    issuer: str
    token_endpoint: str
    client_id: str
    access_token: str = field(repr=False)
    principal: str = LOCAL
    grant: str = "authorization_code"
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str = "none"
    resource: str | None = None
    scope: str | None = None
    refresh_token: str | None = field(default=None, repr=False)
    obtained_at: float = 0.0
    expires_at: float | None = None
    hurried_at: float = 0.0
    revocation_endpoint: str | None = None
    ended: bool = False


class Logins:
    """The logins of one data directory. They are read again whenever a file has changed, by whichever process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / DIRECTORY

    def path(self, server: str, principal: str = LOCAL) -> Path:
        digest = hashlib.sha256(json.dumps([principal, server]).encode()).hexdigest()[:40]
        return self.directory / f"{digest}.json"

    def mark(self, server: str, principal: str = LOCAL) -> Mark | None:
        """Which version of a login is kept now; None when there is none."""
        try:
            found = self.path(server, principal).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Forbidden(f"{self.directory}: {error.strerror}", code="SECRETS_UNREADABLE") from None
        return found.st_ino, found.st_ctime_ns, found.st_size

    def find(self, server: str, principal: str = LOCAL) -> Login | None:
        path = self.path(server, principal)
        try:
            with path.open("rb") as file:
                return _checked(Login(**json.loads(file.read(SIZE_LIMIT), parse_int=float)))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Forbidden(f"{path}: {error.strerror}", code="SECRETS_UNREADABLE") from None
        except (ValueError, TypeError, RecursionError):
            raise Invalid(
                f"{path} cannot be read; remove it and run: toolgate upstream login {shlex.quote(server)}",
                code="SECRETS_UNREADABLE",
            ) from None

    def require_room(self) -> None:
        """Refuse when nothing can be written down now."""
        try:
            with TemporaryFile(dir=self.directory) as file:
                file.write(bytes(_USUAL_SIZE))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def keep(self, login: Login) -> None:
        """Keep a login in place of the one before, in one's `turn`. When this returns, it is on the disk."""
        content = json.dumps(asdict(login), indent=2).encode() + b"\n"
        if len(content) > SIZE_LIMIT:
            raise Invalid(f"a login of more than {SIZE_LIMIT // 1024} KiB is not kept", code="TOO_LARGE")
        try:
            self._prepare()
            path = self.path(login.server, login.principal)
            for left in self.directory.glob(f".{path.name}.*"):  # by whoever was killed while writing
                left.unlink(missing_ok=True)
            replace_private(path, content)
        except OSError as error:
            raise self._unwritable(error) from error

    def forget(self, server: str, principal: str = LOCAL) -> None:
        try:
            self.path(server, principal).unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    @asynccontextmanager
    async def turn(self, server: str, principal: str = LOCAL) -> AsyncIterator[None]:
        """Be the only one, in any process, who changes a login. Refused when another takes too long over it."""
        with ExitStack() as stack:
            try:
                self._prepare()
                lock = stack.enter_context(closing(FileLock(self.path(server, principal).with_suffix(".lock"))))
                async with asyncio.timeout(TURN_SECONDS):
                    await lock.acquire()
            except TimeoutError:
                raise Unavailable(
                    f"another process has been renewing the login to {server!r} for {TURN_SECONDS:g} seconds",
                    code="LOGIN_BUSY",
                ) from None
            except OSError as error:
                raise self._unwritable(error) from error
            yield

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _unwritable(self, error: OSError) -> Unavailable:
        return Unavailable(f"{self.directory}: {error.strerror}", code="SECRETS_UNWRITABLE")


def _checked(login: Login) -> Login:
    """`ValueError` for one that nobody wrote so: whoever uses it relies on its types, and on a token in one line."""
    fit = all(isinstance(getattr(login, each.name), _KINDS[str(each.type)]) for each in fields(login))
    if not fit or not _TOKEN.fullmatch(login.access_token):
        raise ValueError("not a login")
    return login


@dataclass(frozen=True)
class Account:
    """`endpoint` carries no login itself. Secrets are resolved when they are needed, never before."""

    server: str
    endpoint: HttpEndpoint
    oauth: OAuthSettings = field(default_factory=OAuthSettings)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    principal: str = LOCAL

    @property
    def url(self) -> str:
        return self.endpoint.url

    @property
    def unattended(self) -> bool:
        """Whether the gateway signs in by itself."""
        return self.oauth.grant == "client_credentials"

    @property
    def command(self) -> str:
        """What a person types to sign in."""
        return f"toolgate upstream login {shlex.quote(self.server)}"

    @property
    def remedy(self) -> str:
        """What a person does about a login that does not work."""
        if not self.unattended:
            return f"run `{self.command}`"
        return f"check its oauth settings; `toolgate upstream logout {shlex.quote(self.server)}` has it looked up anew"

    @property
    def client_id(self) -> str | None:
        """Who we are to the authorization server, where the settings say so."""
        return self._resolved(self.oauth.client_id)

    @property
    def client_secret(self) -> str | None:
        return self._resolved(self.oauth.client_secret, "client_secret")

    def owns(self, login: Login) -> bool:
        """Whether a login is this account's: what is for one URL, or one client, is never used for another."""
        client = self.client_id
        return (
            (login.server, login.principal, login.url) == (self.server, self.principal, self.url)
            and login.grant == self.oauth.grant
            and client in (None, login.client_id)
        )

    def _resolved(self, said: str | None, field: str = "") -> str | None:
        return None if said is None else resolve_variables(said, self.environment, field)
