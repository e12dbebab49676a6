"""Literal secrets of a toolset replaced by `${NAME}` before it is exported. What is a secret: `gateway.secrets`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gateway.bundles.field_types import REFERENCE
from gateway.bundles.http_tool import ApiKeyAuth, HttpDefaults, HttpTool, Parameter
from gateway.bundles.spec import Server, Toolset
from gateway.bundles.tool_kinds import ShellTool
from gateway.secrets import (
    OPTION,
    PUBLIC_HEADERS,
    VariableNames,
    is_literal,
    is_secret_parameter,
    is_shareable,
    may_be_private,
    variable_name,
)

_SECRET_FIELDS = ("token", "username", "password", "value", "secret", "client_secret")
_PARAMETER = re.compile(r"(?P<start>[?&](?P<name>[^=&#]+)=)(?P<value>[^&#]*)")


def mask_secrets(toolset: Toolset) -> Toolset:
    """The toolset with no literal value of an environment variable, a header, an auth helper, or a query
    parameter or option that is named like a secret; each is a `${NAME}` instead.

    A word of at most ten letters or a number of at most five digits is kept where the variable's or the
    header's name does not sound like a secret: `LOG_LEVEL: debug`. An environment variable gets its own
    name, anything else its owner's and its own. A value that says more than references and a scheme
    (`Bearer ${TOKEN}`) is replaced whole. Two different values never get one name.
    """
    names = _References(toolset)
    servers = tuple(_mask_server(server, names) for server in toolset.mcp_servers)
    tools = tuple(_mask_tool(tool, toolset.id, names) for tool in toolset.tools)
    http = _mask_defaults(toolset.http, variable_name(toolset.id), names)
    used = {name for tool in (*tools, *([http] if http else [])) for _, name in tool.placeholders()}
    secrets = (*toolset.secrets, *sorted(names.assigned & used))
    return toolset.model_copy(update={"mcp_servers": servers, "tools": tools, "http": http, "secrets": secrets})


class _References:
    """Replaces literals by references, whose names mean nothing else in the toolset."""

    def __init__(self, toolset: Toolset) -> None:
        self._taken = set(toolset.variables()) | set(_argument_names(toolset))
        self._names = VariableNames()

    @property
    def assigned(self) -> frozenset[str]:
        return frozenset(self._names.values)

    def mask(self, value: str, *candidates: str) -> str:
        """`value`, or the reference to put in its place."""
        if not is_literal(value, REFERENCE):
            return value
        return f"${{{self._names.choose(value, self._taken, *candidates)}}}"


def mask_url(url: str) -> str:
    """A URL to store: without user, password and fragment, the secrets of its query masked."""
    parts = urlsplit(url)
    return _PARAMETER.sub(_mask_parameter, urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], *parts[2:4], "")))


def _mask_parameter(match: re.Match[str]) -> str:
    private = is_secret_parameter(match["name"]) or may_be_private(match["name"])
    return f"{match['start']}${{{variable_name(match['name'])}}}" if private else match[0]


def _argument_names(toolset: Toolset) -> Iterator[str]:
    for tool in toolset.tools:
        yield from (tool.input_schema or {}).get("properties", ())
        yield from (name for _, name in tool.placeholders())


def _mask_server(server: Server, names: _References) -> Server:
    owner = variable_name(server.id)
    changes: dict[str, Any] = {
        "env": _mask_environment(server.env, owner, names),
        "headers": _mask_headers(server.headers, owner, names),
        "args": tuple(_mask_options(server.args, owner, names)),
        "url": server.url and _mask_query(server.url, owner, names),
    }
    return server.model_copy(update=changes)


def _mask_tool(tool: Any, owner: str, names: _References) -> Any:
    owner = variable_name(owner)
    if isinstance(tool, ShellTool):
        return tool.model_copy(update={"env": _mask_environment(tool.env, owner, names)})
    return tool.model_copy(update=_mask_request(tool, owner, names)) if isinstance(tool, HttpTool) else tool


def _mask_request(tool: HttpTool, owner: str, names: _References) -> dict[str, Any]:
    return {
        "url_template": _mask_query(tool.url_template, owner, names),
        "query": _mask_parameters(tool.query, owner, names),
        "headers": _mask_headers(tool.headers, owner, names),
        "cookies": _mask_headers(tool.cookies, owner, names),
        "form": tool.form and _mask_parameters(tool.form, owner, names),
        "auth": tool.auth if tool.auth is None or tool.schemes else _mask_auth(tool.auth, owner, names),
    }


def _mask_defaults(defaults: HttpDefaults | None, owner: str, names: _References) -> HttpDefaults | None:
    if defaults is None:
        return None
    auth = {name: _mask_auth(scheme, owner, names) for name, scheme in defaults.auth.items()}
    return defaults.model_copy(update={"headers": _mask_headers(defaults.headers, owner, names), "auth": auth})


def _mask_auth(auth: Any, owner: str, names: _References) -> Any:
    fields = {key: value for key, value in auth if key in _SECRET_FIELDS}
    key_name = variable_name(auth.name) if isinstance(auth, ApiKeyAuth) else None
    masked = {key: names.mask(value, f"{owner}_{key_name or variable_name(key)}") for key, value in fields.items()}
    return auth.model_copy(update=masked)


def _mask_parameters(parameters: Mapping[str, Any], owner: str, names: _References) -> dict[str, Any]:
    return {
        key: _mask_parameter_value(value, f"{owner}_{variable_name(key)}", names) if is_secret_parameter(key) else value
        for key, value in parameters.items()
    }


def _mask_parameter_value(value: str | Parameter, name: str, names: _References) -> str | Parameter:
    if isinstance(value, str):
        return names.mask(value, name)
    return value.model_copy(update={"value": names.mask(value.value, name)})


def _mask_environment(env: Mapping[str, str], owner: str, names: _References) -> dict[str, str]:
    return {
        key: value if is_shareable(key, value) else names.mask(value, key, f"{owner}_{variable_name(key)}")
        for key, value in env.items()
    }


def _mask_headers(headers: Mapping[str, Any], owner: str, names: _References) -> dict[str, Any]:
    return {
        key: value
        if key.lower() in PUBLIC_HEADERS  # without them an HTTP tool would not work
        or is_shareable(key, value.value if isinstance(value, Parameter) else value)
        else _mask_parameter_value(value, f"{owner}_{variable_name(key)}", names)
        for key, value in headers.items()
    }


def _mask_query(url: str, owner: str, names: _References) -> str:
    def mask(match: re.Match[str]) -> str:
        if not is_secret_parameter(match["name"]):
            return match[0]
        return match["start"] + names.mask(match["value"], f"{owner}_{variable_name(match['name'])}")

    return _PARAMETER.sub(mask, url)


def _mask_options(arguments: tuple[str, ...], owner: str, names: _References) -> Iterator[str]:
    """`--token=abc` and `--token abc`, with the value masked."""
    secret: str | None = None
    for argument in arguments:
        option = OPTION.fullmatch(argument)
        if option is None:
            yield names.mask(argument, f"{owner}_{variable_name(secret)}") if secret else argument
            secret = None
            continue
        name = option["name"] if is_secret_parameter(option["name"]) else None
        value = option["value"]
        if name and value:
            argument = argument[: option.start("value")] + names.mask(value, f"{owner}_{variable_name(name)}")
        yield argument
        secret = name if value is None else None
