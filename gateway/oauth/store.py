"""Stored logins: one private, encrypted file each, renewed by one process at a time."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import asdict, field, fields
from pathlib import Path
from tempfile import TemporaryFile

from gateway.calls import LOCAL
from gateway.config import OAuthSettings, resolve_variables
from gateway.errors import Forbidden, Invalid, Unavailable
from gateway.files import FileLock, replace_private
from gateway.mcp_client import HttpEndpoint
from gateway.sealing import Sealer
from gateway.value import Value

DIRECTORY = "logins"
SIZE_LIMIT = 256 * 1024
_PROBE_SIZE = 16 * 1024
# The time another process may take to renew a login before that is an error.
LOCK_SECONDS = 45.0

_TOKEN = re.compile(r"[!-~]*")
_TYPES = {"str": str, "str | None": str | None, "float": float, "float | None": float | None, "bool": bool}

# Identifies a version of a file.
FileVersion = tuple[int, int, int]


class Login(Value):
    """Tokens, and everything needed to renew them without another discovery.

    `client_secret` comes from a registration; one of the settings is never stored. `hurried_at` is when the login was
    renewed because the server refused the token, if that was the reason. `missing_scope` is what the server required in
    vain since the login. `ended` marks a login that cannot be renewed any more.
    """

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
    missing_scope: str | None = None
    refresh_token: str | None = field(default=None, repr=False)
    obtained_at: float = 0.0
    expires_at: float | None = None
    hurried_at: float = 0.0
    revocation_endpoint: str | None = None
    ended: bool = False


class Logins:
    """The logins of one data directory, shared by all processes that use it."""

    def __init__(self, data_dir: Path, keys: Sequence[str] = ()) -> None:
        self.directory = data_dir / DIRECTORY
        self._sealer = Sealer("login", keys, data_dir)

    def path(self, server: str, principal: str = LOCAL) -> Path:
        digest = hashlib.sha256(json.dumps([principal, server]).encode()).hexdigest()[:40]
        return self.directory / f"{digest}.json"

    def version(self, server: str, principal: str = LOCAL) -> FileVersion | None:
        """Return the version of a stored login; None when there is none."""
        try:
            status = self.path(server, principal).stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Forbidden(f"{self.directory}: {error.strerror}", code="SECRETS_UNREADABLE") from None
        return status.st_ino, status.st_ctime_ns, status.st_size

    def find(self, server: str, principal: str = LOCAL) -> Login | None:
        path = self.path(server, principal)
        try:
            with path.open("rb") as file:
                return self._parse(file.read(2 * SIZE_LIMIT))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Forbidden(f"{path}: {error.strerror}", code="SECRETS_UNREADABLE") from None
        except (ValueError, TypeError, RecursionError):
            raise Invalid(
                f"{path} cannot be read; remove it and run: toolgate upstream login {shlex.quote(server)}",
                code="SECRETS_UNREADABLE",
            ) from None

    def check_writable(self) -> None:
        """Raise when a login cannot be stored now."""
        try:
            with TemporaryFile(dir=self.directory) as file:
                file.write(bytes(_PROBE_SIZE))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error

    def save(self, login: Login) -> None:
        """Replace the stored login, under its `lock`. When this returns, it is on the disk."""
        content = json.dumps(asdict(login)).encode()
        if len(content) > SIZE_LIMIT:
            raise Invalid(f"a login of more than {SIZE_LIMIT // 1024} KiB cannot be stored", code="TOO_LARGE")
        try:
            content = json.dumps({"sealed": self._sealer.seal(content)}).encode()
            self._prepare()
            path = self.path(login.server, login.principal)
            for temporary in self.directory.glob(f".{path.name}.*"):  # of a process that was killed while writing
                temporary.unlink(missing_ok=True)
            replace_private(path, content)
        except OSError as error:
            raise self._unwritable(error) from error

    def delete(self, server: str, principal: str = LOCAL) -> None:
        try:
            self.path(server, principal).unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    @asynccontextmanager
    async def lock(self, server: str, principal: str = LOCAL) -> AsyncIterator[None]:
        """Lock a login for all processes; `Unavailable` when another one holds it for too long."""
        with ExitStack() as stack:
            try:
                self._prepare()
                lock = stack.enter_context(closing(FileLock(self.path(server, principal).with_suffix(".lock"))))
                async with asyncio.timeout(LOCK_SECONDS):
                    await lock.acquire()
            except TimeoutError:
                raise Unavailable(
                    f"another process has been renewing the login to {server!r} for {LOCK_SECONDS:g} seconds",
                    code="LOGIN_BUSY",
                ) from None
            except OSError as error:
                raise self._unwritable(error) from error
            yield

    def _parse(self, content: bytes) -> Login:
        """Return a stored login. Those of earlier versions are not encrypted until they are stored again."""
        stored = json.loads(content, parse_int=float)
        if "sealed" in stored:
            plain = self._sealer.unseal(stored["sealed"])
            if plain is None:
                raise ValueError("sealed with another key")
            stored = json.loads(plain, parse_int=float)
        return _validate(Login(**stored))

    def _prepare(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _unwritable(self, error: OSError) -> Unavailable:
        return Unavailable(f"{self.directory}: {error.strerror}", code="SECRETS_UNWRITABLE")


def _validate(login: Login) -> Login:
    """Raise `ValueError` for wrong types, or a token that does not fit on a header line."""
    has_types = all(isinstance(getattr(login, field.name), _TYPES[str(field.type)]) for field in fields(login))
    if not has_types or not _TOKEN.fullmatch(login.access_token):
        raise ValueError("not a login")
    return login


class LoginAccount(Value):
    """The principal and the server that a login is for. `endpoint` has no login itself. Secrets are resolved when they
    are needed."""

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
        """True if the gateway logs in by itself."""
        return self.oauth.grant == "client_credentials"

    @property
    def command(self) -> str:
        """The command with which a person logs in."""
        return f"toolgate upstream login {shlex.quote(self.server)}"

    @property
    def remedy(self) -> str:
        """Advice about a login that does not work."""
        if not self.unattended and self.principal != LOCAL:
            return "log in to it with your own account, at the link that your client shows"
        if not self.unattended:
            return f"run `{self.command}`"
        return f"check its oauth settings; `toolgate upstream logout {shlex.quote(self.server)}` starts over"

    @property
    def client_id(self) -> str | None:
        """The client id of the settings, if there is one."""
        return self._resolve(self.oauth.client_id)

    @property
    def client_secret(self) -> str | None:
        return self._resolve(self.oauth.client_secret, "client_secret")

    def owns(self, login: Login) -> bool:
        """Return whether a login belongs to this account. One for another URL or client is never used."""
        client = self.client_id
        return (
            (login.server, login.principal, login.url) == (self.server, self.principal, self.url)
            and login.grant == self.oauth.grant
            and client in (None, login.client_id)
        )

    def _resolve(self, value: str | None, field: str = "") -> str | None:
        return None if value is None else resolve_variables(value, self.environment, field)
