"""What must not leave with a toolset: values written out where a secret belongs become `${NAME}`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gateway.bundles.field_types import references, without_references
from gateway.bundles.http import ApiKey, HttpTool
from gateway.bundles.kinds import ShellTool
from gateway.bundles.spec import Server, Toolset

_SECRET_FIELDS = ("token", "username", "password", "value", "secret", "client_secret")
# Headers that say what is wanted, never who asks; without them an HTTP tool would no longer work.
_PUBLIC_HEADERS = frozenset(
    ["accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "content-type", "user-agent"]
)

_SCHEME = re.compile(r"\b(?:bearer|basic|token|key|apikey|digest)\b|[\W_]", re.IGNORECASE)
# Names of query parameters and options whose values are secrets.
_TELLING = re.compile(
    r"(?:.*(?:api|app|access|auth|client|private|secret|subscription)[_.-]?)?key|.*token|.*secret"
    r"|(?:.*[_.-])?(?:password|passwd|pwd|auth|sig|signature|credentials?)",
    re.IGNORECASE,
)

_HARMLESS = re.compile(r"[a-z]{1,10}|[A-Z]{1,10}|[A-Z][a-z]{1,9}|[0-9]{1,5}")
# Names of variables and headers that may stand for a secret, however plain the value looks.
_SUSPICIOUS = re.compile(
    r"key|token|secret|pass|pwd|auth|cred|cookie|session|salt|private|login|user|account|bearer|webhook"
    r"|(?:^|[^a-z])(?:pin|otp|code|id|sig|pat|jwt|hash|seed|dsn)(?:$|[^a-z])",
    re.IGNORECASE,
)

_PARAMETER = re.compile(r"(?P<start>[?&](?P<name>[^=&#]+)=)(?P<value>[^&#]*)")
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?P<value>=.*)?", re.DOTALL)
_NAME_LIMIT = 120


def mask_secrets(toolset: Toolset) -> Toolset:
    """The toolset with no literal value of an environment variable, a header, an auth helper, or a query
    parameter or option that is named like a secret; each is a `${NAME}` instead.

    A word of at most ten letters or a number of at most five digits is kept where the variable's or the
    header's name does not sound like a secret: `LOG_LEVEL: debug`. An environment variable gets its own
    name, anything else its owner's and its own. A value that says more than references and a scheme
    (`Bearer ${TOKEN}`) is replaced whole. Two different values never get one name.
    """
    names = _Names(toolset)
    servers = tuple(_server(server, names) for server in toolset.mcp_servers)
    tools = tuple(_tool(tool, toolset.id, names) for tool in toolset.tools)
    used = {name for tool in tools for _, name in tool.placeholders()}
    secrets = (*toolset.secrets, *sorted(names.given & used))
    return toolset.model_copy(update={"mcp_servers": servers, "tools": tools, "secrets": secrets})


class _Names:
    """Hands out a name for each literal, once, none of which means anything else in the toolset."""

    def __init__(self, toolset: Toolset) -> None:
        self._taken = set(toolset.variables()) | set(_arguments(toolset))
        self._literals: dict[str, str] = {}

    @property
    def given(self) -> frozenset[str]:
        return frozenset(self._literals)

    def mask(self, value: str, *wishes: str) -> str:
        """`value`, or the reference to put in its place."""
        if not is_literal(value):
            return value
        last = wishes[-1][:_NAME_LIMIT]
        numbered = (f"{last}_{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain((*wishes[:-1], last), numbered) if self._fits(name, value))
        self._literals[name] = value
        return f"${{{name}}}"

    def _fits(self, name: str, value: str) -> bool:
        return name not in self._taken and self._literals.get(name, value) == value


def is_literal(value: str) -> bool:
    """Whether a value says something itself, beside references and the scheme before them."""
    if not references(value):
        return bool(value)
    return bool(_SCHEME.sub("", without_references(value)))


def is_harmless(name: str, value: str) -> bool:
    """Whether a value of that name is too short and plain to be a secret."""
    return bool(_HARMLESS.fullmatch(value)) and not _SUSPICIOUS.search(name)


def mask_url(url: str) -> str:
    """An address to remember: without user, password and fragment, the secrets of its query masked."""
    parts = urlsplit(url)
    return _PARAMETER.sub(_masked, urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], *parts[2:4], "")))


def _masked(match: re.Match[str]) -> str:
    telling = _TELLING.fullmatch(match["name"]) or _SUSPICIOUS.search(match["name"])
    return f"{match['start']}${{{_upper(match['name'])}}}" if telling else match[0]


def _arguments(toolset: Toolset) -> Iterator[str]:
    for tool in toolset.tools:
        yield from (tool.input_schema or {}).get("properties", ())
        yield from (name for _, name in tool.placeholders())


def _server(server: Server, names: _Names) -> Server:
    owner = _upper(server.id)
    changes: dict[str, Any] = {
        "env": _environment(server.env, owner, names),
        "headers": _headers(server.headers, owner, names),
        "args": tuple(_options(server.args, owner, names)),
        "url": server.url and _url(server.url, owner, names),
    }
    return server.model_copy(update=changes)


def _tool(tool: Any, owner: str, names: _Names) -> Any:
    owner = _upper(owner)
    if isinstance(tool, ShellTool):
        return tool.model_copy(update={"env": _environment(tool.env, owner, names)})
    return tool.model_copy(update=_request(tool, owner, names)) if isinstance(tool, HttpTool) else tool


def _request(tool: HttpTool, owner: str, names: _Names) -> dict[str, Any]:
    query = {
        key: names.mask(value, f"{owner}_{_upper(key)}") if _TELLING.fullmatch(key) else value
        for key, value in tool.query.items()
    }
    changes: dict[str, Any] = {"headers": _headers(tool.headers, owner, names), "query": query}
    changes["url_template"] = _url(tool.url_template, owner, names)
    if tool.auth is None:
        return changes
    own = {key: value for key, value in tool.auth if key in _SECRET_FIELDS}
    called = _upper(tool.auth.name) if isinstance(tool.auth, ApiKey) else None
    masked = {key: names.mask(value, f"{owner}_{called or _upper(key)}") for key, value in own.items()}
    return {**changes, "auth": tool.auth.model_copy(update=masked)}


def _environment(env: Mapping[str, str], owner: str, names: _Names) -> dict[str, str]:
    return {
        key: value if is_harmless(key, value) else names.mask(value, key, f"{owner}_{_upper(key)}")
        for key, value in env.items()
    }


def _headers(headers: Mapping[str, str], owner: str, names: _Names) -> dict[str, str]:
    return {
        key: value
        if key.lower() in _PUBLIC_HEADERS or is_harmless(key, value)
        else names.mask(value, f"{owner}_{_upper(key)}")
        for key, value in headers.items()
    }


def _url(url: str, owner: str, names: _Names) -> str:
    def masked(match: re.Match[str]) -> str:
        if not _TELLING.fullmatch(match["name"]):
            return match[0]
        return match["start"] + names.mask(match["value"], f"{owner}_{_upper(match['name'])}")

    return _PARAMETER.sub(masked, url)


def _options(arguments: tuple[str, ...], owner: str, names: _Names) -> Iterator[str]:
    """`--token=abc` and `--token abc`, with the value masked."""
    secret: str | None = None
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if option is None:
            yield names.mask(argument, f"{owner}_{_upper(secret)}") if secret else argument
            secret = None
            continue
        telling = option["name"] if _TELLING.fullmatch(option["name"]) else None
        value = option["value"]
        if telling and value:
            argument = argument[: option.start("value") + 1] + names.mask(value[1:], f"{owner}_{_upper(telling)}")
        yield argument
        secret = telling if not value else None


def _upper(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper() or "VALUE"
    return f"_{name}" if name[0].isdigit() else name
