"""Import of servers from the settings files of other clients."""

from __future__ import annotations

import os
import sys
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.admin.clients import CLIENTS, UserEnvironment, locate
from gateway.admin.upstream_setup import UpstreamSetup, load_setup
from gateway.admin.upstreams import forget_history
from gateway.config import Settings
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.secrets import VariableNames
from gateway.sources.stored_secrets import SecretStore
from gateway.sources.upstreams.client_configs import Candidate, ImportContext, Skipped, read
from gateway.sources.upstreams.spec import ADDED
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway

# Claude Code keeps more than settings in its file.
FILE_LIMIT = 64 * 1024 * 1024
_VARIABLES_LIMIT = 1024 * 1024
_PROJECT_FOLDERS = (".cursor", ".vscode", ".idea")


class FoundServer(Value):
    """One server in a client's settings file, or the reason why it cannot be imported."""

    file: str
    server: Candidate | Skipped

    @property
    def place(self) -> str:
        return f"{self.file} ({self.server.place})" if self.server.place else self.file


class ImportResult(Value):
    """The outcome for one server: `imported`, `replaced` or `skipped` with the reason. `missing` names variables
    without a value, `questions` has what a client would ask for each."""

    name: str
    file: str
    outcome: str
    reason: str = ""
    settings: Mapping[str, Any] | None = None
    variables: Sequence[str] = ()
    missing: Sequence[str] = ()
    questions: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "file": self.file,
            "outcome": self.outcome,
            "reason": self.reason or None,
            "settings": None if self.settings is None else dict(self.settings),
            "variables": list(self.variables),
            "missing": list(self.missing),
        }


def find_servers(file: Path | None, workspace: Path | None, names: Sequence[str] = ()) -> list[FoundServer]:
    """Find the servers in a settings file, or in those of every client of this machine; only `names` if any."""
    found = list(_read_files(file, workspace))
    known = [each.server.name for each in found]
    for name in names:
        if name not in known:
            raise NotFound(f"there is no server {name!r} in it{did_you_mean(name, known)}", code="UNKNOWN_UPSTREAM")
    return [each for each in found if not names or each.server.name in names]


def parse_servers(text: str) -> list[FoundServer]:
    """Find the servers in the text of a client's settings, as somebody pastes it. Files that it refers to are not
    read."""
    suffix = ".json" if text.lstrip().startswith(("{", "/")) else ".toml" if text.lstrip().startswith("[") else ".yaml"
    servers = read(text, ImportContext(Path.home(), None, os.environ), VariableNames(), suffix)
    return [FoundServer("the pasted text", server) for server in servers]


def importable_names(found: Sequence[FoundServer]) -> list[str]:
    return list(dict.fromkeys(each.server.name for each in found if isinstance(each.server, Candidate)))


def list_secrets(planned: Sequence[ImportResult]) -> list[str]:
    """The variables of servers to be imported whose values stand in the files, each with its server."""
    return [f"{variable} of {result.name}" for result in planned for variable in result.variables]


def secrets_file(settings: Settings) -> Path:
    """The file in which secrets of servers are kept, readable by its owner only."""
    return SecretStore(settings.data_dir).path


async def import_servers(
    gateway: Gateway, found: Sequence[FoundServer], *, replace: bool, keep: bool, dry_run: bool
) -> list[ImportResult]:
    """Add servers one by one; one that cannot be added does not prevent the others.

    `replace` replaces servers of the same names that were added by hand, and `keep` keeps the secrets of the files.
    """
    setup = await load_setup(gateway)
    imported: dict[str, FoundServer] = {}
    results = []
    for each in found:
        server = each.server
        if isinstance(server, Skipped):
            results.append(ImportResult(server.name, each.place, "skipped", server.reason))
            continue
        try:
            _require_new(imported, each)
            replaces = _replaces(setup, server, replace)
            imported[server.name] = each
            if not dry_run:
                await _store(gateway, server, replaces, keep)
        except GatewayError as refusal:
            results.append(ImportResult(server.name, each.place, "skipped", refusal.message))
            continue
        outcome = ("would be " if dry_run else "") + ("replaced" if replaces else "imported")
        results.append(_describe(each, server, outcome, keep))
    return results


def _describe(found: FoundServer, server: Candidate, outcome: str, keep: bool) -> ImportResult:
    known = server if keep and server.values else Candidate(server.name, server.settings)
    return ImportResult(
        server.name,
        found.place,
        outcome,
        reason="; ".join(_list_changes(server)),
        settings=server.settings,
        variables=sorted(server.values),
        missing=known.missing(os.environ),
        questions=server.asks,
    )


def _list_changes(server: Candidate) -> Iterator[str]:
    if server.given_name not in ("", server.name):
        yield f"{server.given_name[:80]!r} cannot be a name here, so it is {server.name!r}"
    if not server.settings.get("enabled", True):
        yield "it is off in the client, so it is off here too"


def _require_new(imported: Mapping[str, FoundServer], found: FoundServer) -> None:
    """Refuse a server whose name another file of this import had first."""
    earlier, server = imported.get(found.server.name), found.server
    if earlier is None or isinstance(earlier.server, Skipped) or isinstance(server, Skipped):
        return
    same = (dict(earlier.server.settings), dict(earlier.server.values)) == (dict(server.settings), dict(server.values))
    which = "the same server" if same else "another server with this name"
    raise Invalid(f"{which} was already found in {earlier.place}")


def _replaces(setup: UpstreamSetup, server: Candidate, replace: bool) -> bool:
    """Return whether a server is replaced; refused when there is one that must stay."""
    known = setup.specs.get(server.name)
    if known is not None and known.origin == ADDED:
        if not replace:
            raise Invalid("a server with this name already exists; use --replace to replace it")
        return True
    setup.require_free(server.name)
    return False


async def _store(gateway: Gateway, server: Candidate, replaces: bool, keep: bool) -> None:
    store, secrets = gateway.upstreams.store, gateway.upstreams.secrets
    settings = {key: value for key, value in server.settings.items() if key != "enabled"}
    enabled = bool(server.settings.get("enabled", True))
    secrets.forget(server.name)
    if keep:
        secrets.keep(server.name, server.values)
    await forget_history(gateway, server.name)
    if replaces:
        await store.change(server.name, settings)
        await store.enable(server.name, enabled)
    else:
        await store.add(server.name, settings, enabled)


def _read_files(file: Path | None, workspace: Path | None) -> Iterator[FoundServer]:
    files = [file] if file is not None else list(_client_files())
    if not files:
        raise NotFound("no settings of a known client were found; name the file to import")
    names = VariableNames()
    for path in files:
        around = ImportContext(Path.home(), workspace or _project(path), os.environ, _read_variables)
        try:
            servers = read(_read_text(path), around, names, path.suffix)
        except Invalid as refusal:
            if file is not None:
                raise Invalid(f"{path}: {refusal.message}", code=refusal.code) from None
            servers = [] if refusal.code == "NO_SERVERS" else [Skipped(path.name, refusal.message)]
        yield from (FoundServer(str(path), server) for server in servers)


def _client_files() -> Iterator[Path]:
    user = UserEnvironment(Path.home(), sys.platform, os.environ)
    for name in CLIENTS:
        file = locate(name, user)[0]
        files = [file, file.with_name("settings.json")] if name == "vscode" else [file]
        yield from (path for path in files if path.is_file())


def _project(path: Path) -> Path | None:
    """The folder of the project that a file belongs to, if any."""
    folder = path.absolute().parent
    if folder.name in _PROJECT_FOLDERS:
        folder = folder.parent
    elif path.name != ".mcp.json":
        return None
    return None if folder == Path.home() else folder


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > FILE_LIMIT:
            raise Invalid(f"it is larger than {FILE_LIMIT // 1024**2} MiB", code="TOO_LARGE")
        content = path.read_bytes()
        # Windows PowerShell and Notepad may write UTF-16, with a byte order mark.
        return content.decode("utf-16" if content[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"there is no file {str(path)!r}", code="FILE_NOT_FOUND") from None
    except OSError as error:
        raise Invalid(f"{error.strerror}") from None
    except UnicodeDecodeError:
        raise Invalid("it is neither UTF-8 nor UTF-16") from None


def _read_variables(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8-sig") if path.stat().st_size <= _VARIABLES_LIMIT else None
    except (OSError, UnicodeDecodeError):
        return None
