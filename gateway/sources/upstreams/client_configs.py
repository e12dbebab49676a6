"""Parse the MCP servers in settings files of other clients. Nothing is read, written or started here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import ValidationError

from gateway.bundles.field_types import RESERVED
from gateway.config import UpstreamSettings
from gateway.db.upstreams import encode_settings
from gateway.errors import Invalid
from gateway.secrets import VARIABLE, VariableNames, variable_name
from gateway.sources.upstreams.secret_store import mask, missing
from gateway.value import Value
from gateway.yamldoc import parse_file

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SERVERS_LIMIT = 500
# Keys of the servers: in the files of Claude, Cursor, Windsurf and most others, in VS Code's own file, in
# VS Code's settings, in Zed's, in Codex's.
_KEYS = ("mcpServers", "servers", "mcp.servers", "context_servers", "mcp_servers")
_URLS = ("url", "serverUrl", "httpUrl", "uri")
_SERVER_KEYS = frozenset(["command", "cmd", *_URLS])
_ALLOWED = ("includeTools", "enabled_tools", "available_tools", "tools")
_DENIED = ("excludeTools", "disabledTools", "disabled_tools")
# Cline, Roo Code and Goose write timeouts in seconds, and have these keys; most others write milliseconds.
_IN_SECONDS = frozenset(["autoApprove", "alwaysAllow", "cmd", "uri"])
_LEAST_MILLISECONDS = 1000
_SHELL = re.compile(r"(?:.*[/\\])?(?:\w*sh|cmd|powershell|pwsh)(?:\.exe)?", re.IGNORECASE)
_TRANSPORTS = {"stdio": None, "local": None, "remote": None, "sse": "sse", "http": "http", "streamablehttp": "http"}
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
# Gemini CLI's $NAME and opencode's {env:NAME}. A dollar sign inside a word is part of a secret.
_BARE = re.compile(r"(?<![\w$])\$([A-Z_][A-Z0-9_]*)(?!\w)|(?<!\$)\{(?:env|file):([^{}]*)\}")
_DEFAULTED = re.compile(r"(?P<name>[A-Za-z_]\w*):-(?P<default>.*)", re.DOTALL)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FOLDER = re.compile(r"workspaceFolder(?::.*)?|workspaceRoot|CLAUDE_PROJECT_DIR")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*?)\s*", re.ASCII)
_OURS = re.compile(r"toolgate(?:\.exe)?(?:[@=<>~\[].*)?")
_OUR_PORT = 8420


class ImportContext(Value):
    """Values that a file may refer to: the home folder, the project's folder and the environment. `read` returns the
    text of an environment file, or None if it cannot be read."""

    home: Path
    workspace: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[Path], str | None] = lambda _: None


class Candidate(Value):
    """A server to import. `values` are the secrets of its settings, by the variables that replace them; `asks` are the
    prompts for values that the client would have asked for, by variable. `given_name` is its name in the client."""

    name: str
    settings: Mapping[str, Any]
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    asks: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    given_name: str = ""

    def missing(self, environment: Mapping[str, str]) -> list[str]:
        """The variables without a value in the file or the environment."""
        return missing(self.settings, {**environment, **self.values})


class Skipped(Value):
    """A server that is not imported, and the reason, which never quotes a value."""

    name: str
    reason: str
    place: str = ""


class _Group(NamedTuple):
    place: str
    servers: Mapping[str, Any]
    inputs: Mapping[str, Mapping[str, Any]]
    around: ImportContext


def read(
    text: str, around: ImportContext, names: VariableNames | None = None, suffix: str = ".json"
) -> list[Candidate | Skipped]:
    """All servers of a file, in order. Refused when it cannot be parsed, or has no servers.

    `names` are shared by files that are imported together, so that no two secrets get the same name.
    """
    groups = list(_groups(parse_file(text, suffix), around))
    if not groups:
        expected = "'mcpServers', 'servers', 'mcp', 'context_servers', 'mcp_servers' or 'extensions'"
        raise Invalid(f"it has no MCP servers; they are expected under {expected}", code="NO_SERVERS")
    found = [(group, name, entry) for group in groups for name, entry in group.servers.items()]
    if len(found) > SERVERS_LIMIT:
        raise Invalid(f"it has more than {SERVERS_LIMIT} servers", code="TOO_MANY")
    names = names or VariableNames()
    return [_import_server(group, name, entry, names) for group, name, entry in found]


def clean_name(name: str) -> str:
    """A valid server name: other characters become `-`. Empty when nothing is left."""
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:64]
    return f"{cleaned}-server" if cleaned.lower() in RESERVED else cleaned


def is_toolgate(settings: Mapping[str, Any]) -> bool:
    """Return whether a server is Toolgate itself, which would call itself in a loop."""
    words = [str(settings.get("command") or ""), *map(str, settings.get("args") or ())]
    if _OURS.fullmatch(re.split(r"[/\\]", words[0])[-1]):
        return True
    pairs = list(zip(words, [*words[1:], ""], strict=True))
    if any(_OURS.fullmatch(word) or (word, after) == ("-m", "gateway") for word, after in pairs):
        return True
    if any(_OURS.fullmatch(PurePath(word).name) and after == "serve" for word, after in pairs):
        return True
    return any(_is_our_address(word) for word in (*words, str(settings.get("url") or "")))


def _groups(data: Any, around: ImportContext) -> Iterator[_Group]:
    if not isinstance(data, Mapping):
        return
    for key in _KEYS:
        if isinstance(servers := data.get(key), Mapping):
            yield _Group("", servers, _inputs(data), around)
    if isinstance(mcp := data.get("mcp"), Mapping):
        nested = mcp.get("servers")
        yield _Group("", nested if isinstance(nested, Mapping) else _entries(mcp), _inputs(mcp), around)
    if isinstance(extensions := data.get("extensions"), Mapping) and (servers := _entries(extensions)):
        yield _Group("", servers, {}, around)  # Goose's, without those that are part of Goose
    if isinstance(projects := data.get("projects"), Mapping):
        for folder, project in projects.items():
            servers = project.get("mcpServers") if isinstance(project, Mapping) else None
            if isinstance(servers, Mapping) and servers:
                within = ImportContext(around.home, Path(folder), around.environment, around.read)
                yield _Group(folder, servers, {}, within)
    if data and len(_entries(data)) == len(data):  # the content of such an object without its key
        yield _Group("", data, {}, around)


def _entries(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        name: entry for name, entry in data.items() if isinstance(entry, Mapping) and not _SERVER_KEYS.isdisjoint(entry)
    }


def _inputs(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    listed = data.get("inputs")
    return {str(each.get("id")): each for each in listed or () if isinstance(each, Mapping)} if listed else {}


def _import_server(group: _Group, name: str, entry: Any, names: VariableNames) -> Candidate | Skipped:
    ours = clean_name(name)
    try:
        if not ours:
            raise Invalid("its name has no letter or digit")
        if not isinstance(entry, Mapping):
            raise Invalid("it is not a JSON object")
        converter = _EntryConverter(group)
        settings = converter.settings(_flat(entry))
        if name.lower() == "toolgate" or is_toolgate(settings):
            raise Invalid("it is this gateway, which would call itself")
        masked, values = mask(ours, settings, names)
        values |= {variable: value for variable, value in converter.values.items() if variable not in values}
        UpstreamSettings.model_validate(masked)
        encode_settings(masked)
    except ValidationError as error:
        fault = error.errors()[0]
        return Skipped(name, f"{'.'.join(map(str, fault['loc'])) or 'it'}: {fault['msg']}", group.place)
    except Invalid as error:
        return Skipped(name, error.message, group.place)
    return Candidate(ours, masked, values, converter.asks, group.place, name)


def _flat(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Flatten an entry: some clients put the transport or the command into a nested object."""
    for key, inner in (("transport", "type"), ("command", "path")):
        if isinstance(nested := entry.get(key), Mapping):
            rest = {name: value for name, value in entry.items() if name != key}
            entry = {**rest, **nested} if inner == "type" else {**rest, **nested, "command": nested.get(inner)}
    command = entry.get("command") or entry.get("cmd")
    if isinstance(command, list) and command:
        entry = {**entry, "command": command[0], "args": [*command[1:], *(entry.get("args") or ())]}
    return entry


class _EntryConverter:
    """Converts one entry and its variables. `asks` and `values` collect what the variables stand for."""

    def __init__(self, group: _Group) -> None:
        self.asks: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self._inputs = group.inputs
        self._around = group.around

    def settings(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        url = next((entry[key] for key in _URLS if isinstance(entry.get(key), str)), None)
        command = entry.get("command") or entry.get("cmd")
        if entry.get("headersHelper"):
            raise Invalid("its headers come from a program (headersHelper), which is not run here")
        if url is not None and command:
            raise Invalid("it names both a command and a URL; keep one of them")
        if command and not isinstance(command, str):
            raise Invalid("its command is not text")
        if url is None and not command:
            raise Invalid("it names neither a command nor a URL")
        settings = self._http_settings(entry, url) if url is not None else self._stdio_settings(entry, str(command))
        if entry.get("disabled") is True or entry.get("enabled") is False:
            settings["enabled"] = False
        if (timeout := _timeout(entry)) is not None:
            settings["timeout"] = timeout
        allowed, denied = _tool_names(entry, _ALLOWED), _tool_names(entry, _DENIED)
        filters = {"allow": [] if "*" in allowed else allowed, "deny": denied}
        if any(filters.values()):
            settings["tools"] = {key: names for key, names in filters.items() if names}
        return settings

    def _http_settings(self, entry: Mapping[str, Any], url: str) -> dict[str, Any]:
        address = self._text(url)
        try:
            whole = VARIABLE.match(address) or urlsplit(address).scheme in ("http", "https")
        except ValueError:
            whole = False
        if not whole:
            raise Invalid("its URL is neither http nor https")
        transport = str(entry.get("type") or entry.get("transport") or "http")
        kind = re.sub(r"[-_ ]", "", transport).lower()
        if kind not in _TRANSPORTS:
            raise Invalid(f"its transport {transport!r} is not supported")
        settings: dict[str, Any] = {"url": address}
        if _TRANSPORTS[kind] == "sse":
            settings["type"] = "sse"
        headers = self._texts(entry.get("headers") or entry.get("http_headers"), "headers")
        named = self._texts(entry.get("env_http_headers"), "env_http_headers")
        headers |= {header: self._reference(variable) for header, variable in named.items()}
        if isinstance(token := entry.get("bearer_token_env_var"), str):
            headers["Authorization"] = f"Bearer {self._reference(token)}"
        if headers:
            settings["headers"] = headers
        return settings

    def _stdio_settings(self, entry: Mapping[str, Any], command: str) -> dict[str, Any]:
        arguments = entry.get("args") or []
        if not isinstance(arguments, list):
            raise Invalid("its 'args' are not a list")
        settings: dict[str, Any] = {"command": self._text(command)}
        if arguments:
            expands = not _SHELL.fullmatch(command)  # a shell expands its own variables
            settings["args"] = [self._text(_to_text(each, "args"), expands) for each in arguments]
        own = self._texts(entry.get("env") or entry.get("environment") or entry.get("envs"), "env")
        if env := {**self._list_inherited(entry), **self._file(entry.get("envFile")), **own}:
            settings["env"] = env
        if (folder := self._folder(entry.get("cwd"))) is not None:
            settings["cwd"] = folder
        return settings

    def _list_inherited(self, entry: Mapping[str, Any]) -> dict[str, str]:
        """The variables that Codex passes on from its environment, and those that Goose keeps in the keyring."""
        listed = entry.get("env_vars") or entry.get("env_keys") or ()
        names = (each.get("name") if isinstance(each, Mapping) else each for each in listed)
        return {name: self._reference(name) for name in names if isinstance(name, str)}

    def _folder(self, cwd: Any) -> str | None:
        """The working directory: clients start the servers of a project in its folder."""
        project = self._around.workspace
        if not isinstance(cwd, str) or not cwd:
            return str(project) if project is not None else None
        folder = self._text(cwd)
        return folder if project is None or VARIABLE.match(folder) else str(project / folder)

    def _file(self, name: Any) -> dict[str, str]:
        """The variables of its environment file."""
        if not isinstance(name, str) or not name:
            return {}
        path = Path(self._text(name))
        text = self._around.read(path if self._around.workspace is None else self._around.workspace / path)
        if text is None:
            raise Invalid(f"its environment file cannot be read: {name}")
        matches = (match for line in text.splitlines() if (match := _ASSIGNMENT.fullmatch(line)) is not None)
        return {match["name"]: _unquote(match["value"]) for match in matches}

    def _texts(self, values: Any, key: str) -> dict[str, str]:
        if values is None:
            return {}
        if not isinstance(values, Mapping):
            raise Invalid(f"its {key!r} are not an object")
        return {name: self._text(_to_text(value, key)) for name, value in values.items() if value is not None}

    def _text(self, text: str, expands: bool = True) -> str:
        """Write references to variables as `${NAME}`; without `expands`, only those that are written so already."""
        if expands:
            text = _BARE.sub(self._bare_reference, text)
        replaced = _REFERENCE.sub(lambda match: self._reference(match[1]), text)
        if replaced.count("${") != len(VARIABLE.findall(replaced)):
            raise Invalid("it has a '${' that is not a variable, or one inside another")
        return replaced

    def _bare_reference(self, match: re.Match[str]) -> str:
        if match[0].startswith("{file:"):
            raise Invalid("it reads a value from another file ({file:…}), which only its client does")
        return f"${{{match[1] or match[2]}}}"

    def _reference(self, name: str) -> str:
        kind, colon, rest = name.partition(":")
        if name in ("userHome", "pathSeparator", "/"):
            return str(self._around.home) if name == "userHome" else "/"
        if _FOLDER.fullmatch(name) or name == "workspaceFolderBasename":
            return self._workspace(name)
        if kind == "input" and colon:
            return self._input(rest)
        if (defaulted := _DEFAULTED.fullmatch(name)) is not None:
            known = defaulted["name"] in self._around.environment
            return f"${{{defaulted['name']}}}" if known else defaulted["default"]
        variable = rest if kind == "env" and colon else name
        if not _IDENTIFIER.fullmatch(variable):
            raise Invalid(f"it uses ${{{name}}}, which only its client knows")
        return f"${{{variable}}}"

    def _workspace(self, name: str) -> str:
        folder = self._around.workspace
        if folder is None:
            raise Invalid(f"it uses ${{{name}}}; name that folder with --workspace DIR")
        return folder.name if name == "workspaceFolderBasename" else str(folder)

    def _input(self, identifier: str) -> str:
        """A value that the client asks the person for: a variable to be set, or its default."""
        variable, asked = variable_name(identifier), self._inputs.get(identifier, {})
        self.asks[variable] = str(asked.get("description") or identifier)
        if isinstance(default := asked.get("default"), str) and default and not asked.get("password"):
            self.values[variable] = default
        return f"${{{variable}}}"


def _timeout(entry: Mapping[str, Any]) -> float | None:
    """The seconds a call may take, where the entry says so."""
    given = entry.get("tool_timeout_sec") or entry.get("timeout")
    if isinstance(given, Mapping):
        given = given.get("request")
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        return None
    in_seconds = "tool_timeout_sec" in entry or not _IN_SECONDS.isdisjoint(entry)
    return given if in_seconds or given < _LEAST_MILLISECONDS else given / 1000


def _tool_names(entry: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """The tools that an entry names under the keys. Gemini CLI allows `name(arguments)`."""
    listed = [each for key in keys if isinstance(entry.get(key), list) for each in entry[key]]
    return [each.partition("(")[0] for each in listed if isinstance(each, str)]


def _to_text(value: Any, key: str) -> str:
    """A value as text: many write numbers and booleans without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise Invalid(f"its {key!r} have a value that is not a text")


def _unquote(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


def _is_our_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        local = parts.hostname in ("127.0.0.1", "localhost", "::1", "0.0.0.0")  # noqa: S104 - compared, not bound
        return local and parts.port == _OUR_PORT
    except ValueError:
        return False
