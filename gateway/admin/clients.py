"""Entries for this gateway in the settings files of Claude Desktop, Claude Code, Cursor and VS Code.

An entry is spliced into the JSON text instead of parsing and printing the file, so that the rest stays as its owner
wrote it. Imports nothing heavy: `serve` and `client` use it at every start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from gateway.errors import Conflict, Forbidden, Invalid, Unavailable
from gateway.files import create_file

JsonObject = dict[str, Any]


class ClientApp(NamedTuple):
    """One client, as its makers document its settings file."""

    title: str
    key: str  # the object of the file that holds the servers
    typed: bool  # an entry names its transport
    takes_url: bool
    restart: str


# Claude Desktop does not connect to remote servers named in its file: support.claude.com, article 11503834.
CLIENTS: Mapping[str, ClientApp] = {
    "claude-desktop": ClientApp(
        "Claude Desktop", "mcpServers", False, False, "Quit it (closing the window is not enough) and open it again."
    ),
    "claude-code": ClientApp(
        "Claude Code", "mcpServers", True, True, "Start a new session, where /mcp lists it; running ones do not see it."
    ),
    "cursor": ClientApp(
        "Cursor", "mcpServers", False, True, "Restart Cursor and check in its MCP settings that the server is on."
    ),
    "vscode": ClientApp(
        "VS Code", "servers", True, True, "Restart VS Code, or start the server from its command `MCP: List Servers`."
    ),
}
_BRIDGE = (
    "Claude Desktop only starts local commands from this file, so `mcp-remote` (needs Node.js 18 or later) carries "
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
        return json.dumps(self.config, indent=2, ensure_ascii=False)


def make_snippets(
    command: Sequence[str], url: str | None, *, name: str = "toolgate", environment: UserEnvironment | None = None
) -> list[Snippet]:
    """Make every client's entry: to connect to `url` if there is one, else to start `command`."""
    user = environment or UserEnvironment(Path.home(), sys.platform, os.environ)
    note = _BRIDGE if url else ""
    return [
        Snippet(key, name, _make_entry(app, command, url), *locate(key, user), "" if app.takes_url else note)
        for key, app in CLIENTS.items()
    ]


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


def locate(name: str, user: UserEnvironment) -> tuple[Path, Path]:
    """Return the client's own file for this user, and the folder that exists if the client is installed."""
    if name == "claude-desktop":
        folder = user.applications / "Claude"
        return folder / "claude_desktop_config.json", folder
    if name == "claude-code":
        moved = user.environ.get("CLAUDE_CONFIG_DIR")
        return Path(moved or user.home) / ".claude.json", Path(moved or user.home / ".claude")
    if name == "cursor":
        return user.home / ".cursor" / "mcp.json", user.home / ".cursor"
    folder = user.applications / "Code"
    return folder / "User" / "mcp.json", folder


def _make_entry(app: ClientApp, command: Sequence[str], url: str | None) -> JsonObject:
    if url and not app.takes_url:
        allow_http = ["--allow-http"] if url.startswith("http:") else []
        command, url = ["npx", "-y", "mcp-remote", url, *allow_http], None
    target: JsonObject = {"url": url} if url else {"command": command[0], "args": list(command[1:])}
    return {"type": "http" if url else "stdio", **target} if app.typed else target


def merge(file: Path, before: bytes | None, snippet: Snippet) -> tuple[bytes, str | None]:
    """Return the file's content with the entry in it, and the text of another entry that was replaced, if any.

    Refused, with the position of the error and the entry to paste, when the content is not plain JSON.
    """
    key = CLIENTS[snippet.client].key
    try:
        text = _decode(before if before and before.strip() else b"{}\n")
        text, replaced = _put(text, key, snippet.name, snippet.entry)
    except Invalid as refusal:
        entry = json.dumps({snippet.name: snippet.entry}, ensure_ascii=False)[1:-1]
        hint = f'the file was not changed. Add this to its "{key}" by hand: {entry}'
        raise Invalid(f"{file}: {refusal.message}; {hint}", **refusal.details) from None
    return text.encode(), replaced


def read(file: Path) -> bytes | None:
    """Read the file; None if it is missing."""
    with _convert_os_errors(file), contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    return None


def write(file: Path, before: bytes | None, after: bytes, now: datetime) -> Path | None:
    """Replace `before` by `after`, or refuse when the file has changed; return the backup. A link stays a link."""
    target = file.resolve()
    with _convert_os_errors(file), contextlib.ExitStack() as undo:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        backup = None
        if before is not None:
            backup = create_file(file.with_name(f"{file.name}.{now:%Y%m%d-%H%M%S-%f}.bak"), before, mode)
            undo.callback(backup.unlink)
        temporary = create_file(target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp"), after, mode)
        undo.callback(temporary.unlink)
        if read(target) != before:
            raise Conflict(f"{file} was changed by another program at the same time and was not written; try again")
        temporary.replace(target)
        undo.pop_all()
        return backup


@contextlib.contextmanager
def _convert_os_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        refusal = Forbidden if isinstance(error, PermissionError) else Unavailable
        raise refusal(f"{file}: {error.strerror}") from error


class _Member(NamedTuple):
    key: str
    value: Any
    gap: str  # the white space before the key
    start: int
    end: int


_SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder(parse_int=float)  # float, unlike int, takes any number of digits


def _put(text: str, key: str, name: str, entry: JsonObject) -> tuple[str, str | None]:
    """Put `entry` under `name` into the object `key` of the top level; return the text and what was replaced."""
    top = _find_object(text)
    servers = _find_member(text, top, key)
    if servers is None:
        return _insert(text, top, key, {name: entry}), None
    if not isinstance(servers.value, dict):
        raise _syntax_error(text, servers.start, f'"{key}" is not an object')
    old = _find_member(text, servers.start, name)
    if old is None:
        return _insert(text, servers.start, name, entry), None
    if old.value == entry:
        return text, None
    new = _format(text, entry, old.gap)
    return text[: old.start] + new + text[old.end :], text[old.start : old.end]


def _find_object(text: str) -> int:
    """The position of the brace that opens the object of the whole text."""
    start = _skip_space(text, 0)
    try:
        value = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise _syntax_error(text, error.pos, f"{error.msg} (comments and trailing commas are not plain JSON)") from None
    except RecursionError:
        raise _syntax_error(text, start, "nested too deeply") from None
    if not isinstance(value, dict):
        raise _syntax_error(text, start, "the top level is not an object")
    return start


def _members(text: str, opening: int) -> Iterator[_Member]:
    """The members of the object that opens there, in a text known to be JSON."""
    position = opening + 1
    while text[key_start := _skip_space(text, position)] != "}":
        key, colon = _decoder.raw_decode(text, key_start)
        start = _skip_space(text, _skip_space(text, colon) + 1)
        value, end = _decoder.raw_decode(text, start)
        yield _Member(key, value, text[position:key_start], start, end)
        position = _skip_space(text, end)
        position += text[position] == ","


def _find_member(text: str, opening: int, key: str) -> _Member | None:
    """Find the last member of that key: JSON parsers keep the last one."""
    return next((member for member in reversed([*_members(text, opening)]) if member.key == key), None)


def _insert(text: str, opening: int, key: str, value: JsonObject) -> str:
    """Append a member to the object that opens there, laid out like its neighbours."""
    members = [*_members(text, opening)]
    if members:
        end, gap = members[-1].end, members[-1].gap
        return f"{text[:end]},{gap}{json.dumps(key)}: {_format(text, value, gap)}{text[end:]}"
    end, gap, outer = text.index("}", opening), "", ""
    if "\n" in text.strip() or opening == _skip_space(text, 0):
        newline, unit = _layout(text)
        line = text[text.rfind("\n", 0, opening) + 1 :]
        outer = newline + line[: _skip_space(line, 0)]
        gap = outer + unit
    return f"{text[: opening + 1]}{gap}{json.dumps(key)}: {_format(text, value, gap)}{outer}{text[end:]}"


def _format(text: str, value: JsonObject, gap: str) -> str:
    """Format a value for a key that stands after `gap`: on one line if its neighbours are."""
    if "\n" not in gap:
        return json.dumps(value, ensure_ascii=False)
    newline, unit = _layout(text)
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", newline + gap.rpartition("\n")[2])


def _layout(text: str) -> tuple[str, str]:
    """The line ending in use, and one step of indentation."""
    first = next(_members(text, _skip_space(text, 0)), None)
    unit = first.gap.rpartition("\n")[2] if first and "\n" in first.gap else "  "
    return "\r\n" if "\r\n" in text else "\n", unit


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _decode(data: bytes) -> str:
    """Decode a file; refused with the position where it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        valid = data[: error.start].decode()
        raise _syntax_error(valid, len(valid), "not UTF-8") from None


def _syntax_error(text: str, position: int, reason: str) -> Invalid:
    line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
    return Invalid(f"line {line} column {column}: {reason}", line=line, column=column)
