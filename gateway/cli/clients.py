"""`toolgate client`: the entry that makes Claude, Cursor or VS Code start or reach this gateway, printed or written."""

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

import click

from gateway.cli import json_edit
from gateway.cli.json_edit import Entry
from gateway.errors import Conflict, Forbidden, Invalid, NotFound, Unavailable


class Client(NamedTuple):
    """What a client's makers document about its file."""

    title: str
    key: str  # the object of the file that holds the servers
    typed: bool  # whether an entry names its transport
    takes_url: bool
    restart: str


# Claude Desktop does not connect to remote servers named in its file: support.claude.com, article 11503834.
CLIENTS: Mapping[str, Client] = {
    "claude-desktop": Client(
        "Claude Desktop", "mcpServers", False, False, "Quit it (closing the window is not enough) and open it again."
    ),
    "claude-code": Client(
        "Claude Code", "mcpServers", True, True, "Start a new session, where /mcp lists it; running ones do not see it."
    ),
    "cursor": Client(
        "Cursor", "mcpServers", False, True, "Restart Cursor and check in its MCP settings that the server is on."
    ),
    "vscode": Client(
        "VS Code", "servers", True, True, "Restart VS Code, or start the server from its command `MCP: List Servers`."
    ),
}
_BRIDGE = (
    "Claude Desktop only starts local commands from this file, so `mcp-remote` (needs Node.js 18 or later) carries "
    "calls to the URL; a public https gateway can be added under Settings > Connectors instead."
)


_PATH_OPTIONS = ("--workspace", "--data-dir", "--config")


class Machine(NamedTuple):
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
    """One client's entry, the file it belongs in, and the folder that exists where the client is installed."""

    client: str
    name: str
    entry: Entry
    file: Path
    folder: Path
    note: str

    @property
    def config(self) -> Entry:
        return {CLIENTS[self.client].key: {self.name: self.entry}}

    @property
    def text(self) -> str:
        return json.dumps(self.config, indent=2, ensure_ascii=False)


class _ThenServe(click.Command):
    """A command that keeps everything after `--` for `serve`, whether or not its own NAME was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        rest = super().parse_args(ctx, args[:cut])
        ctx.params["serve"] = tuple(args[cut + 1 :])
        if ctx.params["serve"] and ctx.params["url"]:
            raise click.UsageError("--url reaches a gateway that already runs: nothing may follow `--`", ctx)
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- SERVE_ARGUMENTS...]"]


def _matching(pattern: str, hint: str) -> Any:
    def check(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        if value is not None and re.fullmatch(pattern, value) is None:
            raise click.BadParameter(f"{value!r}: expected {hint}")
        return value

    return check


_NAME = _matching(r"[A-Za-z0-9_-]{1,64}", "1 to 64 letters, digits, '-' and '_'")
_URL = _matching(r"https?://[^\s/?#]+\S*", "an address such as http://127.0.0.1:8420/mcp")
_named = click.option("--name", "entry_name", default="toolgate", callback=_NAME, help="Name of the entry.")
_reached = click.option("--url", callback=_URL, help="Reach the gateway running there instead of starting one.")


@click.group()
def client() -> None:
    """Connect Claude Desktop, Claude Code, Cursor or VS Code."""


@client.command(cls=_ThenServe)
@click.argument("name", type=click.Choice(list(CLIENTS)), required=False)
@_named
@_reached
@click.option("--json", "as_json", is_flag=True, help="Print for programs.")
def config(name: str | None, entry_name: str, url: str | None, as_json: bool, serve: tuple[str, ...]) -> None:
    """Print the entry to paste and where it belongs, for one client or for all."""
    every = snippets(serve_command(sys.executable, serve), url, name=entry_name)
    shown = [snippet for snippet in every if name in (None, snippet.client)]
    if as_json:
        data = [{"client": s.client, "file": str(s.file), "config": s.config, "note": s.note} for s in shown]
        click.echo(json.dumps(data[0] if name else data, indent=2, ensure_ascii=False))
    else:
        texts = [_lines(f"{CLIENTS[s.client].title}: {s.file}", s.note, s.text) for s in shown]
        click.echo("\n\n".join(texts))


@client.command(cls=_ThenServe)
@click.argument("name", type=click.Choice(list(CLIENTS)))
@click.option("--file", "path", type=click.Path(path_type=Path, dir_okay=False), help="Write this file instead.")
@_named
@_reached
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def install(
    name: str, path: Path | None, entry_name: str, url: str | None, dry_run: bool, serve: tuple[str, ...]
) -> None:
    """Write the entry into the client's own file, keeping a backup and everything else in it."""
    every = snippets(serve_command(sys.executable, serve), url, name=entry_name)
    snippet = next(snippet for snippet in every if snippet.client == name)
    file = path or snippet.file
    before = read(file)
    if before is None and path is None:
        _require_installed(snippet)
    after, replaced = merge(file, before, snippet)
    if after == before:
        click.echo(f"{entry_name} is already there: {file}")
        return
    backup = None if dry_run else write(file, before, after, datetime.now())
    click.echo(f"{'would have ' if dry_run else ''}{'replaced' if replaced else 'added'} {entry_name} in {file}")
    # The entry before is not shown: its environment may hold secrets.
    kept = f"the file before is kept as {backup}" if backup else ""
    click.echo(_lines(snippet.text, kept, snippet.note, "" if dry_run else CLIENTS[name].restart))


def snippets(
    command: Sequence[str], url: str | None, *, name: str = "toolgate", machine: Machine | None = None
) -> list[Snippet]:
    """Every client's entry: to reach `url` where one is given, else to start `command`."""
    where = machine or Machine(Path.home(), sys.platform, os.environ)
    note = _BRIDGE if url else ""
    return [
        Snippet(key, name, _entry(known, command, url), *locate(key, where), "" if known.takes_url else note)
        for key, known in CLIENTS.items()
    ]


def serve_command(python: str, serve: Sequence[str] = ()) -> list[str]:
    """How a client starts this gateway: by absolute path, because desktop applications lack the shell's PATH."""
    if not_text := [argument for argument in serve if re.search("[\ud800-\udfff]", argument)]:
        raise Invalid(f"{not_text[0]!r} is not UTF-8 and cannot stand in a client's file")
    interpreter = Path(python).absolute()
    scripts = [interpreter.with_name(name) for name in ("toolgate", "toolgate.exe")]
    script = next(([str(path)] for path in scripts if path.is_file()), None)
    return [*(script or [str(interpreter), "-m", "gateway"]), "serve", *_anchored(serve)]


def _anchored(serve: Sequence[str]) -> Iterator[str]:
    """The arguments with their paths made absolute: a client starts us in a folder of its own choosing."""
    previous = ""
    for argument in serve:
        option, equals, value = argument.partition("=")
        if previous in _PATH_OPTIONS:
            yield str(Path(argument).expanduser().absolute())
        elif equals and option in _PATH_OPTIONS:
            yield f"{option}={Path(value).expanduser().absolute()}"
        else:
            yield argument
        previous = argument


def locate(name: str, machine: Machine) -> tuple[Path, Path]:
    """The client's own file for this user, and the folder whose presence says that the client is installed."""
    if name == "claude-desktop":
        folder = machine.applications / "Claude"
        return folder / "claude_desktop_config.json", folder
    if name == "claude-code":
        moved = machine.environ.get("CLAUDE_CONFIG_DIR")
        return Path(moved or machine.home) / ".claude.json", Path(moved or machine.home / ".claude")
    if name == "cursor":
        return machine.home / ".cursor" / "mcp.json", machine.home / ".cursor"
    folder = machine.applications / "Code"
    return folder / "User" / "mcp.json", folder


def _entry(known: Client, command: Sequence[str], url: str | None) -> Entry:
    if url and not known.takes_url:
        plain = ["--allow-http"] if url.startswith("http:") else []
        command, url = ["npx", "-y", "mcp-remote", url, *plain], None
    target: Entry = {"url": url} if url else {"command": command[0], "args": list(command[1:])}
    return {"type": "http" if url else "stdio", **target} if known.typed else target


def _require_installed(snippet: Snippet) -> None:
    if not snippet.folder.is_dir():
        raise NotFound(
            f"{CLIENTS[snippet.client].title} does not seem to be installed: there is no {snippet.folder}. "
            f"To write its file anyway, name it: --file '{snippet.file}'"
        )


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def merge(file: Path, before: bytes | None, snippet: Snippet) -> tuple[bytes, str | None]:
    """The file's content with the entry in it, and the source of the entry replaced, if there was another.

    Refused, with the place of the fault and the entry to paste, when the content is not plain JSON.
    """
    key = CLIENTS[snippet.client].key
    try:
        text = json_edit.decode(before if before and before.strip() else b"{}\n")
        text, replaced = json_edit.put(text, key, snippet.name, snippet.entry)
    except Invalid as refusal:
        entry = json.dumps({snippet.name: snippet.entry}, ensure_ascii=False)[1:-1]
        hint = f'the file was left as it is. Put this into its "{key}" by hand: {entry}'
        raise Invalid(f"{file}: {refusal.message}; {hint}", **refusal.details) from None
    return text.encode(), replaced


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def read(file: Path) -> bytes | None:
    """What is in it, or None where it is missing."""
    with _refusing(file), contextlib.suppress(FileNotFoundError):
        return file.read_bytes()
    return None


def write(file: Path, before: bytes | None, after: bytes, now: datetime) -> Path | None:
    """Put `after` where `before` was read, or refuse when that has changed; the backup. A link stays a link."""
    target = file.resolve()
    with _refusing(file), contextlib.ExitStack() as undo:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        backup = None
        if before is not None:
            backup = _created(file.with_name(f"{file.name}.{now:%Y%m%d-%H%M%S-%f}.bak"), before, mode)
            undo.callback(backup.unlink)
        temporary = _created(target.with_name(f".{target.name}.{os.urandom(6).hex()}.tmp"), after, mode)
        undo.callback(temporary.unlink)
        if read(target) != before:
            raise Conflict(f"{file} was changed by another program meanwhile and was left as it is; try again")
        temporary.replace(target)
        undo.pop_all()
        return backup


def _created(path: Path, content: bytes, mode: int) -> Path:
    """A new file, whole and on the disk before we go on; refused when there is one of that name."""
    with contextlib.ExitStack() as undo, os.fdopen(os.open(path, _NEW, 0o600), "wb") as stream:
        undo.callback(path.unlink)
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        path.chmod(mode)
        undo.pop_all()
    return path


@contextlib.contextmanager
def _refusing(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        refusal = Forbidden if isinstance(error, PermissionError) else Unavailable
        raise refusal(f"{file}: {error.strerror}") from error
