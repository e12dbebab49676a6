"""Literal secrets of a toolset replaced by `${NAME}` before it is exported. What is a secret: `gateway.secrets`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gateway.bundles.field_types import REFERENCE
from gateway.bundles.http_tool import ApiKeyAuth, HttpDefaults, HttpTool, Parameter, Part
from gateway.bundles.spec import Server, Toolset
from gateway.bundles.tool_kinds import ShellTool, StepsTool
from gateway.document import Place
from gateway.literal_secrets import LiteralSecrets, looks_random
from gateway.secrets import (
    PUBLIC_HEADERS,
    VariableNames,
    is_literal,
    is_secret_parameter,
    is_shareable,
    may_be_private,
    variable_name,
)

_SECRET_FIELDS = (
    *("token", "username", "password", "value", "secret", "client_secret"),
    *("access_key", "secret_key", "session_token"),
)
_PARAMETER = re.compile(r"(?P<start>[?&](?P<name>[^=&#]+)=)(?P<value>[^&#]*)")


def mask_secrets(toolset: Toolset) -> Toolset:
    """The toolset with no literal value of an environment variable, a header, an auth helper, or of what is named or
    looks like a secret in arguments, addresses, bodies and `stdin`; each is a `${NAME}` instead. Words of a command
    cannot be: `find_open_secret` names them.

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

    def literals(self, owner: str) -> LiteralSecrets:
        return LiteralSecrets(lambda value, name: self.mask(value, f"{owner}_{variable_name(name)}"))


def find_open_secret(toolset: Toolset) -> tuple[Place, str] | None:
    """Return the place of a literal secret that no reference may replace, and a name for it: a word of a command, which
    other users of the machine can read, or an argument of a step."""
    found: list[str] = []

    def note(value: str, name: str) -> str:
        if is_literal(value, REFERENCE) and not value.startswith("$"):  # $args.token, of a step
            found.append(variable_name(name))
        return value

    secrets = LiteralSecrets(note)
    for index, tool in enumerate(toolset.tools):
        if isinstance(tool, ShellTool):
            for word, _ in enumerate(secrets.mask_arguments(tool.command)):
                if found:
                    return ("tools", index, "command", word), found[0]
        elif isinstance(tool, StepsTool):
            for place, step in enumerate(tool.steps):
                for call in step.calls():
                    secrets.mask_value(call.args)
                if found:
                    return ("tools", index, "steps", place), found[0]
    return None


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
        "args": tuple(names.literals(owner).mask_arguments(server.args)),
        "url": server.url and names.literals(owner).mask_url(server.url),
    }
    return server.model_copy(update=changes)


def _mask_tool(tool: Any, owner: str, names: _References) -> Any:
    owner = variable_name(owner)
    if isinstance(tool, ShellTool):
        stdin = tool.stdin and names.literals(owner).mask_text(tool.stdin)
        return tool.model_copy(update={"env": _mask_environment(tool.env, owner, names), "stdin": stdin})
    return tool.model_copy(update=_mask_request(tool, owner, names)) if isinstance(tool, HttpTool) else tool


def _mask_request(tool: HttpTool, owner: str, names: _References) -> dict[str, Any]:
    literals = names.literals(owner)
    return {
        "url_template": literals.mask_url(tool.url_template),
        "query": _mask_parameters(tool.query, owner, names),
        "headers": _mask_headers(tool.headers, owner, names),
        "cookies": _mask_headers(tool.cookies, owner, names),
        "body": literals.mask_value(tool.body),
        "form": tool.form and _mask_parameters(tool.form, owner, names),
        "parts": tool.parts and {key: _mask_part(key, part, literals) for key, part in tool.parts.items()},
        "auth": tool.auth if tool.auth is None or tool.schemes else _mask_auth(tool.auth, owner, names),
    }


def _mask_defaults(defaults: HttpDefaults | None, owner: str, names: _References) -> HttpDefaults | None:
    if defaults is None:
        return None
    auth = {name: _mask_auth(scheme, owner, names) for name, scheme in defaults.auth.items()}
    headers, base_url = _mask_headers(defaults.headers, owner, names), defaults.base_url
    base_url = base_url and names.literals(owner).mask_url(base_url)
    return defaults.model_copy(update={"base_url": base_url, "headers": headers, "auth": auth})


def _mask_part(name: str, part: str | Part, literals: LiteralSecrets) -> str | Part:
    if isinstance(part, str):
        return str(literals.mask_value(part, name))
    return part.model_copy(update={"value": literals.mask_value(part.value, name)})


def _mask_auth(auth: Any, owner: str, names: _References) -> Any:
    fields = {key: value for key, value in auth if key in _SECRET_FIELDS and value is not None}
    key_name = variable_name(auth.name) if isinstance(auth, ApiKeyAuth) else None
    masked = {key: names.mask(value, f"{owner}_{key_name or variable_name(key)}") for key, value in fields.items()}
    return auth.model_copy(update=masked)


def _mask_parameters(parameters: Mapping[str, Any], owner: str, names: _References) -> dict[str, Any]:
    return {
        key: _mask_parameter_value(value, f"{owner}_{variable_name(key)}", names)
        if is_secret_parameter(key) or looks_random(value if isinstance(value, str) else value.value)
        else value
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
