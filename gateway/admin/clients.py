"""The clients that this gateway can be added to: where each keeps its settings, and the entry it needs there.

Imports nothing heavy: `serve` and `client` use it at every start.
"""

from __future__ import annotations

import json
import os
import re
import sys
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway.errors import Invalid

JsonObject = dict[str, Any]


class ClientApp(NamedTuple):
    """One client, as its makers document its settings file."""

    title: str
    key: str  # the object of the file that holds the servers
    restart: str
    types: tuple[str, str] | None = None  # the names of the transports, where an entry names its own: started, reached
    url_key: str | None = "url"  # None for a client that only starts servers


# Claude Desktop does not connect to remote servers named in its file: support.claude.com, article 11503834.
CLIENTS: Mapping[str, ClientApp] = {
    "claude-desktop": ClientApp(
        "Claude Desktop",
        "mcpServers",
        "Quit it (closing the window is not enough) and open it again.",
        url_key=None,
    ),
    "claude-code": ClientApp(
        "Claude Code",
        "mcpServers",
        "Start a new session, where /mcp lists it; running ones do not see it.",
        ("stdio", "http"),
    ),
    "cursor": ClientApp("Cursor", "mcpServers", "Restart Cursor and check in its MCP settings that the server is on."),
    "vscode": ClientApp(
        "VS Code",
        "servers",
        "Restart VS Code, or start the server from its command `MCP: List Servers`.",
        ("stdio", "http"),
    ),
    "windsurf": ClientApp(
        "Windsurf", "mcpServers", "Press the refresh button in Cascade's MCP panel.", url_key="serverUrl"
    ),
    "zed": ClientApp("Zed", "context_servers", "Zed starts it at once; the settings of the agent panel list it."),
    "codex": ClientApp("Codex", "mcp_servers", "Start a new session, where /mcp lists it."),
    "gemini-cli": ClientApp("Gemini CLI", "mcpServers", "Restart it; /mcp lists its servers.", url_key="httpUrl"),
    "cline": ClientApp(
        "Cline", "mcpServers", "Cline connects at once; its MCP Servers panel lists it.", ("stdio", "streamableHttp")
    ),
    "goose": ClientApp("Goose", "extensions", "Start a new session.", ("stdio", "streamable_http"), url_key="uri"),
    "opencode": ClientApp("opencode", "mcp", "Restart it; `opencode mcp list` lists it.", ("local", "remote")),
    "lm-studio": ClientApp("LM Studio", "mcpServers", "Turn it on under Program > Integrations."),
}
_BRIDGE = (
    "Claude Desktop only starts local commands from this file, so mcp-remote (needs Node.js 18 or later) carries "
    "calls to the URL; a public https gateway can be added under Settings > Connectors instead."
)
_PATH_OPTIONS = ("--workspace", "--data-dir", "--config")


class UserEnvironment(NamedTuple):
    """The home, platform (as in `sys.platform`) and environment in which a client looks for its file."""

    home: Path
    platform: str
    environ: Mapping[str, str]

    @property
    def applications(self) -> Path:
        """The folder in which desktop applications keep their settings."""
        if self.platform == "darwin":
            return self.home / "Library" / "Application Support"
        if self.platform == "win32":
            return Path(self.environ.get("APPDATA") or self.home / "AppData" / "Roaming")
        return self.config

    @property
    def config(self) -> Path:
        """The folder in which programs of Unix keep their settings, on every platform."""
        configured = Path(self.environ.get("XDG_CONFIG_HOME", ""))
        return configured if configured.is_absolute() else self.home / ".config"


class Snippet(NamedTuple):
    """One client's entry, the file it belongs in, and the folder that exists if the client is installed."""

    client: str
    name: str
    entry: JsonObject
    file: Path
    folder: Path
    note: str

    @property
    def config(self) -> JsonObject:
        return {CLIENTS[self.client].key: {self.name: self.entry}}

    @property
    def text(self) -> str:
        """The entry in the format of its file, to paste."""
        if self.file.suffix == ".toml":
            return to_toml(CLIENTS[self.client].key, self.name, self.entry)
        if self.file.suffix == ".yaml":
            return f"{CLIENTS[self.client].key}:\n{to_yaml(self.name, self.entry, '  ')}"
        return json.dumps(self.config, indent=2, ensure_ascii=False)


def make_snippets(
    command: Sequence[str], url: str | None, *, name: str = "toolgate", environment: UserEnvironment | None = None
) -> list[Snippet]:
    """Make every client's entry: to connect to `url` if there is one, else to start `command`."""
    user = environment or UserEnvironment(Path.home(), sys.platform, os.environ)
    note = _BRIDGE if url else ""
    return [
        Snippet(key, name, _make_entry(key, name, command, url), *locate(key, user), "" if app.url_key else note)
        for key, app in CLIENTS.items()
    ]


def make_install_link(snippet: Snippet) -> str | None:
    """Return the address by which a client adds the entry itself, as its makers document it; None if it has none."""
    document = json.dumps(snippet.entry, separators=(",", ":"))
    encoded = quote(b64encode(document.encode()).decode(), safe="")
    match snippet.client:
        case "cursor":
            return f"cursor://anysphere.cursor-deeplink/mcp/install?name={quote(snippet.name)}&config={encoded}"
        case "vscode":
            return f"vscode:mcp/install?{quote(json.dumps({'name': snippet.name, **snippet.entry}), safe='')}"
        case "lm-studio":
            return f"lmstudio://add_mcp?name={quote(snippet.name)}&config={encoded}"
    return None


def serve_command(python: str, arguments: Sequence[str] = ()) -> list[str]:
    """The command that starts this gateway, by absolute path: desktop applications lack the shell's PATH."""
    if not_text := [argument for argument in arguments if re.search("[\ud800-\udfff]", argument)]:
        raise Invalid(f"{not_text[0]!r} is not UTF-8 and cannot be written to a client's file")
    interpreter = Path(python).absolute()
    scripts = [interpreter.with_name(name) for name in ("toolgate", "toolgate.exe")]
    script = next(([str(path)] for path in scripts if path.is_file()), None)
    return [*(script or [str(interpreter), "-m", "gateway"]), "serve", *_make_absolute(arguments)]


def _make_absolute(arguments: Sequence[str]) -> Iterator[str]:
    """Make the paths among the arguments absolute: a client starts us in a folder of its own choosing."""
    previous = ""
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if previous in _PATH_OPTIONS:
            yield str(Path(argument).expanduser().absolute())
        elif equals and option in _PATH_OPTIONS:
            yield f"{option}={Path(value).expanduser().absolute()}"
        else:
            yield argument
        previous = argument


def to_toml(table: str, name: str, entry: JsonObject) -> str:
    """Write an entry as a table of TOML, whose strings and lists may be those of JSON."""
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    return "\n".join([f"[{table}.{name}]", *lines])


def to_yaml(name: str, entry: JsonObject, indent: str) -> str:
    """Write an entry as a block of YAML, whose values may be those of JSON."""
    lines = [f"{indent}  {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entry.items()]
    return "\n".join([f"{indent}{name}:", *lines])


def locate(name: str, user: UserEnvironment) -> tuple[Path, Path]:
    """Return the client's own file for this user, and the folder that exists if the client is installed."""
    home, environ, on_windows = user.home, user.environ, user.platform == "win32"
    match name:
        case "claude-desktop":
            return _in(user.applications / "Claude", "claude_desktop_config.json")
        case "claude-code":
            moved = environ.get("CLAUDE_CONFIG_DIR")
            return Path(moved or home) / ".claude.json", Path(moved or home / ".claude")
        case "cursor":
            return _in(home / ".cursor", "mcp.json")
        case "vscode":
            return _in(user.applications / "Code", "User/mcp.json")
        case "windsurf":
            return _in(home / ".codeium/windsurf", "mcp_config.json")
        case "zed":
            return _in(user.applications / "Zed" if on_windows else user.config / "zed", "settings.json")
        case "codex":
            return _in(Path(environ.get("CODEX_HOME") or home / ".codex"), "config.toml")
        case "gemini-cli":
            return _in(home / ".gemini", "settings.json")
        case "cline":
            return _locate_cline(user)
        case "goose":
            windows = user.applications / "Block/goose/config"
            return _in(windows if on_windows else user.config / "goose", "config.yaml")
        case "opencode":
            folder = user.config / "opencode"
            return _in(folder, "opencode.jsonc" if (folder / "opencode.jsonc").is_file() else "opencode.json")
    older, folder = home / ".cache/lm-studio", home / ".lmstudio"
    return _in(older if older.is_dir() and not folder.is_dir() else folder, "mcp.json")


def _in(folder: Path, file: str) -> tuple[Path, Path]:
    return folder / file, folder


def _locate_cline(user: UserEnvironment) -> tuple[Path, Path]:
    """Locate Cline's file; older versions of the extension keep it in the editor's folder."""
    file = "cline_mcp_settings.json"
    if named := user.environ.get("CLINE_MCP_SETTINGS_PATH"):
        return Path(named), Path(named).parent
    older, folder = user.applications / "Code/User/globalStorage/saoudrizwan.claude-dev", user.home / ".cline"
    if older.is_dir() and not folder.is_dir():
        return _in(older, f"settings/{file}")
    return _in(folder, f"data/settings/{file}")


def _make_entry(client: str, name: str, command: Sequence[str], url: str | None) -> JsonObject:
    app = CLIENTS[client]
    if url and app.url_key is None:
        allow_http = ["--allow-http"] if url.startswith("http:") else []
        command, url = ["npx", "-y", "mcp-remote", url, *allow_http], None
    target: JsonObject = {"command": command[0], "args": list(command[1:])}
    if url and app.url_key:
        target = {app.url_key: url}
    elif client == "opencode":
        target = {"command": list(command)}
    elif client == "zed":
        target = {"source": "custom", **target}
    elif client == "goose":
        target = {"cmd": command[0], "args": list(command[1:])}
    if client == "goose":
        target = {"name": name, "description": "Toolgate", "enabled": True, **target}
    return {"type": app.types[bool(url)], **target} if app.types else target
