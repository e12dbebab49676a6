"""Secrets of servers added by hand, in a private file beside the database. Each is given to its own server only."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.calls import LOCAL
from gateway.config import OAuthSettings, Settings
from gateway.errors import Forbidden, GatewayError, Invalid, Unavailable
from gateway.files import FileLock, replace_private
from gateway.mcp_client import Endpoint, StdioEndpoint
from gateway.oauth.bearer import BearerToken
from gateway.oauth.store import LoginAccount, Logins
from gateway.secrets import (
    OPTION,
    PUBLIC_HEADERS,
    VARIABLE,
    VariableNames,
    hides_secret,
    is_plain_word,
    is_scheme,
    looks_like_secret,
    may_be_secret,
    split_scheme,
    variable_name,
)
from gateway.sources.upstreams.spec import Spec

FILE_NAME = "secrets.json"
SIZE_LIMIT = 1024 * 1024

_Values = dict[str, dict[str, str]]


class SecretStore:
    """One file that only its owner can read: `{server: {variable: value}}`. It is read whenever a variable is resolved,
    so that every process uses the current values at its next connection."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME

    def names(self, server: str) -> list[str]:
        return sorted(self._read().get(server, ()))

    def environment(self, server: str, fallback: Mapping[str, str] = os.environ) -> Mapping[str, str]:
        """The values of a server's `${VAR}`s: its secrets, then the environment. In this order, since a variable of the
        environment with that name may be meant for another program."""
        return _Environment(lambda: self._read().get(server, {}), fallback)

    def keep(self, server: str, values: Mapping[str, str]) -> None:
        """Store values for a server; values of the same names are replaced."""
        if values:
            self._change(lambda stored: {**stored, server: {**stored.get(server, {}), **values}})

    def forget(self, server: str, *names: str) -> None:
        """Delete the values of these names, or all values of a server."""

        def change(stored: _Values) -> _Values:
            left = {name: value for name, value in stored.get(server, {}).items() if names and name not in names}
            others = {name: values for name, values in stored.items() if name != server}
            return {**others, server: left} if left else others

        if self.path.exists():
            self._change(change)

    def _read(self) -> _Values:
        try:
            stored = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise Forbidden(f"{self.path}: {error.strerror}", code="SECRETS_UNREADABLE") from None
        except ValueError:
            raise self._unreadable() from None
        if not isinstance(stored, dict) or not all(isinstance(values, dict) for values in stored.values()):
            raise self._unreadable()
        return stored

    def _unreadable(self) -> Invalid:
        return Invalid(f"{self.path} is not valid JSON; correct or remove it", code="SECRETS_UNREADABLE")

    def _change(self, change: Callable[[_Values], _Values]) -> None:
        """Replace the file atomically, one process at a time."""
        try:
            with closing(FileLock(self.path.with_suffix(".lock"))) as lock, lock:
                text = json.dumps(change(self._read()), indent=2, ensure_ascii=True) + "\n"
                if len(text) > SIZE_LIMIT:
                    raise Invalid(f"secrets may take at most {SIZE_LIMIT // 1024} KiB; remove some", code="TOO_LARGE")
                replace_private(self.path, text.encode())
        except OSError as error:
            raise Unavailable(f"{self.path}: {error.strerror}", code="SECRETS_UNWRITABLE") from error


class _Environment(Mapping[str, str]):
    def __init__(self, own: Callable[[], Mapping[str, str]], fallback: Mapping[str, str]) -> None:
        self._own = own
        self._fallback = fallback

    def __getitem__(self, name: str) -> str:
        own = self._own()
        return own[name] if name in own else self._fallback[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._fallback, **self._own()})

    def __len__(self) -> int:
        return len({*self._fallback, *self._own()})


_URL = re.compile(
    r"(?P<start>[A-Za-z][\w+.-]*://)(?:(?P<login>[^/?#\s]*)@)?(?P<host>[^/?#\s@]*)(?P<rest>.*)", re.DOTALL
)
_PIECE = re.compile(r"(?P<start>[?&;#])(?P<name>[^=&;#]+)=(?P<value>[^&;#]*)|(?P<segment>[^/?&;#=]+)")
_PAIR = re.compile(r"(?P<name>[A-Za-z_][\w-]*)(?P<sign>=|:\s*)(?P<value>.+)", re.DOTALL)


def mask(server: str, settings: Mapping[str, Any], names: VariableNames) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a server with a `${NAME}` for each secret in them, and the value of each name."""
    masking = _ServerMasking(variable_name(server), names, frozenset(variables(settings)))
    masked = {**settings}
    if "env" in settings:
        masked["env"] = {name: masking.mask_variable(name, value) for name, value in settings["env"].items()}
    if "headers" in settings:
        masked["headers"] = {name: masking.mask_header(name, value) for name, value in settings["headers"].items()}
    if "args" in settings:
        masked["args"] = list(masking.mask_arguments(settings["args"]))
    if "url" in settings:
        masked["url"] = masking.mask_url(settings["url"])
    return masked, masking.values


def variables(settings: Mapping[str, Any]) -> list[str]:
    """Every variable that must be set for a server to be reached, in order."""
    values = [settings.get(key) for key in ("command", "cwd", "url")] + list(settings.get("args") or ())
    values += [value for key in ("env", "headers", "oauth") for value in (settings.get(key) or {}).values()]
    texts = [text for text in values if isinstance(text, str)]
    return list(dict.fromkeys(name for text in texts for name in VARIABLE.findall(text)))


def missing(settings: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    return [name for name in variables(settings) if name not in environment]


class _ServerMasking:
    """The secrets of one server as they are found."""

    def __init__(self, owner: str, names: VariableNames, taken: frozenset[str]) -> None:
        self.values: dict[str, str] = {}
        self._owner = owner
        self._names = names
        self._taken = taken

    def mask_variable(self, name: str, value: str) -> str:
        if not hides_secret(name, value):
            return value
        return self._mask_text(value, name, f"{self._owner}_{variable_name(name)}")

    def mask_header(self, name: str, value: str) -> str:
        plain = name.lower() in PUBLIC_HEADERS or (is_plain_word(value) and not may_be_secret(name))
        return value if plain else self._mask_token(value, name)

    def mask_arguments(self, arguments: Sequence[str]) -> Iterator[str]:
        """`--token=abc`, `--token abc`, `-e TOKEN=abc`, `--header "Name: abc"`, addresses, and whatever looks
        like a token by itself."""
        pending_option: str | None = None
        for argument in arguments:
            option = OPTION.fullmatch(argument)
            if option is not None and option["value"] is None:
                pending_option = option["name"]
                secret = looks_like_secret(argument)
                yield self._mask_text(argument, f"{self._owner}_ARGUMENT") if secret else argument
                continue
            yield self._mask_argument(argument, option, pending_option)
            pending_option = None

    def _mask_argument(self, argument: str, option: re.Match[str] | None, pending_option: str | None) -> str:
        if option is not None:
            start, value = argument[: option.start("value")], option["value"]
            return start + self._mask_named(option["name"], value)
        if pending_option in ("header", "H") and (pair := _PAIR.fullmatch(argument)):
            return pair["name"] + pair["sign"] + self.mask_header(pair["name"], pair["value"])
        if pending_option is not None and may_be_secret(pending_option) and hides_secret(pending_option, argument):
            return self._mask_text(argument, f"{self._owner}_{variable_name(pending_option)}")
        if (pair := _PAIR.fullmatch(argument)) and pair["sign"] == "=":
            return f"{pair['name']}={self._mask_named(pair['name'], pair['value'])}"
        return self._mask_named("argument", argument)

    def _mask_named(self, name: str, value: str) -> str:
        if not may_be_secret(name) and _URL.fullmatch(value):
            return self.mask_url(value)
        return self._mask_token(value, name) if hides_secret(name, value) else value

    def mask_url(self, url: str) -> str:
        """The password, what of the query is named like a secret, and what of the path looks like one."""
        parts = _URL.fullmatch(url)
        if parts is None:
            return self._mask_text(url, f"{self._owner}_URL") if looks_like_secret(url) else url
        user, colon, password = (parts["login"] or "").partition(":")
        if colon:
            password = self._mask_text(password, f"{self._owner}_PASSWORD")
        if looks_like_secret(user):
            user = self._mask_text(user, f"{self._owner}_USER")
        login = f"{user}{colon}{password}@" if parts["login"] is not None else ""
        return parts["start"] + login + parts["host"] + _PIECE.sub(self._mask_piece, parts["rest"])

    def _mask_piece(self, match: re.Match[str]) -> str:
        if match["segment"] is not None:
            found = looks_like_secret(match["segment"])
            return self._mask_text(match["segment"], f"{self._owner}_URL_TOKEN") if found else match["segment"]
        value = match["value"]
        if hides_secret(match["name"], value):
            value = self._mask_text(value, f"{self._owner}_{variable_name(match['name'])}")
        return f"{match['start']}{match['name']}={value}"

    def _mask_token(self, value: str, name: str) -> str:
        """`Bearer abc` as `Bearer ${NAME}`: what one sets is then the token alone."""
        scheme, rest = split_scheme(value)
        return scheme + self._mask_text(rest, f"{self._owner}_{variable_name(name)}")

    def _mask_text(self, text: str, *candidates: str) -> str:
        """Each part that is no reference as one; those that are stay, since what is kept is not read again."""
        pieces = VARIABLE.split(text)
        return "".join(
            f"${{{piece}}}" if index % 2 else self._reference(piece, candidates, len(pieces) > 1)
            for index, piece in enumerate(pieces)
        )

    def _reference(self, text: str, candidates: Sequence[str], partial: bool) -> str:
        if not text or (partial and is_scheme(text)):
            return text
        name = self._names.choose(text, self._taken, *candidates)
        self.values[name] = text
        return f"${{{name}}}"


# Principals whose tokens of one server are kept in memory.
BEARERS_LIMIT = 1000


class UpstreamCredentials:
    """The endpoint of one upstream and the logins to it, one per principal, shared by all their connections. A
    configured `Authorization` header is used instead of a login. `settings` are needed for servers in the sandbox."""

    def __init__(
        self,
        spec: Spec,
        environment: Mapping[str, str] = os.environ,
        logins: Logins | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._environment = environment
        self._logins = logins
        self._bearers: dict[str, BearerToken] = {}

    def account(self, principal: str = LOCAL) -> LoginAccount | None:
        """Return the account of a principal's login; None for a server that has none."""
        return self._account(self._spec.endpoint(self._environment), principal)

    def lacks_login(self, error: str | None) -> bool:
        """Return whether somebody must log in first, as far as is known. `error` is the last one of the server."""
        try:
            account = self.account()
            login = self._logins.find(account.server, account.principal) if account and self._logins else None
            is_valid = account is not None and login is not None and account.owns(login) and not login.ended
        except GatewayError:  # a missing variable or an unreadable file is reported when the server is used
            return False
        if account is None or account.unattended or is_valid:
            return False
        return self._spec.settings.oauth is not None or account.command in (error or "")

    def endpoint(self, principal: str = LOCAL) -> Endpoint:
        """Return the endpoint with resolved variables and the stored login of a principal."""
        endpoint = self._spec.endpoint(self._environment)
        if isinstance(endpoint, StdioEndpoint) and self._settings is not None:
            endpoint = replace(endpoint, log=self._spec.log(self._settings.data_dir))
        if isinstance(endpoint, StdioEndpoint) and self._spec.sandbox is not None:
            if self._settings is None:
                raise Unavailable("there are no settings for the sandbox of the server", code="SANDBOX_UNAVAILABLE")
            return replace(endpoint, sandbox=self._spec.confinement(self._environment, self._settings))
        account = self._account(endpoint, principal)
        if account is None or self._logins is None:
            return endpoint
        bearer = self._bearers.get(account.principal)
        if bearer is None or bearer.account != account:
            bearer = self._bearers[account.principal] = BearerToken(account, self._logins)
            while len(self._bearers) > BEARERS_LIMIT:  # a connection keeps its own
                del self._bearers[next(iter(self._bearers))]
        bearer.reload()
        return replace(account.endpoint, authorizer=bearer)

    def has_changed(self, principal: str = LOCAL) -> bool:
        """Return whether a principal has logged in or out since the server was last tried."""
        try:
            bearer = self._bearers.get(LOCAL if self._is_unattended else principal)
            return bearer is not None and bearer.changed
        except GatewayError:  # reported by the next connection
            return False

    async def close(self) -> None:
        await asyncio.gather(*(bearer.close() for bearer in self._bearers.values()))

    @property
    def _is_unattended(self) -> bool:
        return self._spec.settings.oauth is not None and self._spec.settings.oauth.grant == "client_credentials"

    def _account(self, endpoint: Endpoint, principal: str) -> LoginAccount | None:
        if isinstance(endpoint, StdioEndpoint) or any(name.lower() == "authorization" for name in endpoint.headers):
            return None
        oauth = self._spec.settings.oauth or OAuthSettings()
        owner = LOCAL if self._is_unattended else principal  # the gateway logs in as itself, for everybody
        return LoginAccount(self._spec.name, endpoint, oauth, self._environment, owner)
