"""Assembly of what installed toolsets need: library, workers, source, and the watch over live folders.

A process without toolsets never imports this module.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from watchfiles import awatch

from gateway.bundles import spec
from gateway.bundles.archive import LIMITS
from gateway.bundles.library import ToolsetLibrary
from gateway.bundles.paths import is_skipped
from gateway.bundles.rows import SourceType
from gateway.bundles.spec import FILE_NAME
from gateway.bundles.tools_file import SUFFIXES, make_toolset, read_tools_file, write_bundle
from gateway.calls import Call, Progress, no_progress
from gateway.config import HttpSettings, Settings
from gateway.db import Database
from gateway.errors import Conflict, GatewayError, NotFound
from gateway.names import did_you_mean
from gateway.net.policy import NetworkPolicy
from gateway.render import declare
from gateway.runtime import WorkerRuntime
from gateway.sandbox import Limits, Mount, Sandbox
from gateway.sandbox.detect import choose
from gateway.sources import Source
from gateway.sources.stored_secrets import SecretStore
from gateway.sources.toolsets import ToolsetSource
from gateway.sources.toolsets.listing import HOME, WORKSPACE
from gateway.sources.toolsets.shell import ShellRunner
from gateway.tools import HidesFor
from gateway.value import Value
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

if TYPE_CHECKING:
    from gateway.sources.http import HttpRunner
    from gateway.sources.steps import CallStep, StepsRunner

DOWNLOAD_SECONDS = 300.0

# Toolsets that come with the gateway: in the package of an installed one, beside the package in a checkout.
_PACKAGE = Path(__file__).parents[2]


class FetchedBundle(Value):
    """A bundle on disk, and where it came from. The edits of a folder are followed, unless it came with the gateway or
    was made of a `tools.yaml`."""

    path: Path
    type: SourceType
    ref: str
    is_copy: bool = False

    @property
    def is_folder(self) -> bool:
        return self.type == "local" and not self.is_copy


def find_shipped(toolset_id: str) -> Path | None:
    """Return the folder of a toolset that comes with the gateway."""
    folder = _shipped_folder() / toolset_id
    return folder if folder.name == toolset_id and (folder / FILE_NAME).is_file() else None


def _shipped_folder() -> Path:
    shipped = _PACKAGE / "shipped"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "toolsets"


@asynccontextmanager
async def fetch_bundle(
    source: str, http: HttpSettings, progress: Progress = no_progress
) -> AsyncIterator[FetchedBundle]:
    """Yield the bundle at a path or URL, or the one of that id that comes with the gateway; a download is removed
    afterwards."""
    if "://" not in source:
        path = Path(source).expanduser().resolve()
        shipped = None if path.exists() else find_shipped(source)
        if shipped is not None:
            yield FetchedBundle(shipped, "local", str(shipped), is_copy=True)
            return
        if path.name == FILE_NAME and path.is_file():
            path = path.parent
        if path.suffix in SUFFIXES and path.is_file():
            with _convert_tools_file(path.read_bytes(), path.name, path.parent) as folder:
                yield FetchedBundle(folder, "local", str(path), is_copy=True)
            return
        try:
            yield FetchedBundle(path, "local" if path.is_dir() else "zip", str(path))
        except NotFound as missing:
            if missing.code != "BUNDLE_NOT_FOUND" or "/" in source:
                raise
            names = sorted(file.parent.name for file in _shipped_folder().glob(f"*/{FILE_NAME}"))
            hint = did_you_mean(source, names) or f"; toolgate comes with {', '.join(names)}"
            raise NotFound(f"there is no folder or ZIP file {source!r} here{hint}", code=missing.code) from None
        return
    # Importing the HTTP client takes 0.1 s; folders and files do not need it.
    download = importlib.import_module("gateway.net.download").download
    with tempfile.NamedTemporaryFile(prefix="toolgate-", suffix=".zip") as file:
        policy = NetworkPolicy(any_host=True, allow_private=http.allow_private)
        await download(source, file, limit=LIMITS.zip_bytes, timeout=DOWNLOAD_SECONDS, policy=policy, progress=progress)
        file.flush()
        if urlsplit(source).path.endswith(SUFFIXES):
            with _convert_tools_file(Path(file.name).read_bytes(), source, None) as folder:
                yield FetchedBundle(folder, "url", source, is_copy=True)
            return
        yield FetchedBundle(Path(file.name), "url", source)


@contextmanager
def _convert_tools_file(content: bytes, name: str, code: Path | None) -> Iterator[Path]:
    """Yield a temporary bundle that runs the specifications of a `tools.yaml`; their code is in the folder `code`."""
    specs = read_tools_file(content, name)
    with tempfile.TemporaryDirectory(prefix="toolgate-tools-") as folder:
        toolset = make_toolset(specs.tools, specs.id, specs.secrets)
        write_bundle(Path(folder), toolset, [] if code is None else [code], specs.tools)
        yield Path(folder)


log = logging.getLogger(__name__)

_TIMES: Any = {"step": 50, "debounce": 300, "rust_timeout": 1000}  # milliseconds
_RETRY_SECONDS = 2.0


class FolderWatcher:
    """Installs edits in watched folders, and calls `edited` after each. An invalid edit changes nothing."""

    def __init__(self, library: ToolsetLibrary) -> None:
        self._library = library
        self._watching: dict[Path, asyncio.Task[None]] = {}
        self._refused: set[Path] = set()

    def watch(self, folders: Collection[Path], edited: Callable[[], None]) -> None:
        """Watch these folders and no others from now on."""
        for folder in [folder for folder in self._watching if folder not in folders]:
            self._watching.pop(folder).cancel()
        for folder in folders:
            if folder not in self._watching:
                task = asyncio.get_running_loop().create_task(self._watch(folder, edited))
                self._watching[folder] = task

    async def close(self) -> None:
        tasks = list(self._watching.values())
        self._watching.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, folder: Path, edited: Callable[[], None]) -> None:
        while True:
            try:
                async for edits in awatch(folder, watch_filter=None, **_TIMES):
                    if any(_matters(Path(path), folder) for _, path in edits):
                        await self._install(folder, edited)
            except (FileNotFoundError, RuntimeError) as error:  # the folder does not exist at the moment
                log.warning("%s cannot be watched: %s; trying again every %g s", folder, error, _RETRY_SECONDS)
            await asyncio.sleep(_RETRY_SECONDS)
            if folder.is_dir():
                await self._install(folder, edited)

    async def _install(self, folder: Path, edited: Callable[[], None]) -> None:
        try:
            installed = await self._library.install(folder, source_type="local", source_ref=str(folder), live=True)
        except GatewayError as refusal:
            log.warning("the toolset in %s stays as it was: %s", folder, refusal)
            self._refused.add(folder)
            return
        except Exception:
            log.exception("the toolset in %s stays as it was", folder)
            self._refused.add(folder)
            return
        if folder in self._refused:
            self._refused.remove(folder)
            log.info("the toolset in %s is valid again, and offered as it is now", folder)
        if installed.changed:
            edited()


def _matters(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) and not is_skipped(path.relative_to(folder).as_posix())


class ToolsetRuntime:
    """The library of toolsets, the runtime of their code, and the source of their tools."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        workspaces: Workspaces,
        hides: HidesFor,
        builtins: Source,
        versions: Versions,
        call_step: CallStep,
    ) -> None:
        sandbox = self._choose
        limits = Limits.from_settings(settings.sandbox, settings.sandbox.cpu_seconds)
        self.runtime = WorkerRuntime(sandbox, settings.data_dir / "runtime", settings.sandbox)
        self.library = ToolsetLibrary(db, settings.data_dir, self.runtime, declare)
        shell = ShellRunner(sandbox, limits, settings.sandbox.timeout)
        self.secrets = SecretStore(settings.data_dir)
        self._http: HttpRunner | None = None
        self._steps: StepsRunner | None = None
        self._versions = versions
        self._call_step = call_step
        self.source = ToolsetSource(
            self.library,
            self.runtime,
            shell,
            workspaces,
            hides=hides,
            builtins=builtins,
            http=self._http_runner,
            steps=self._steps_runner,
            secrets=self.secrets,
        )
        self._watcher = FolderWatcher(self.library)
        self._settings = settings
        self._workspaces = workspaces
        self._sandbox: Sandbox | None = None

    async def install_configured(self) -> list[GatewayError]:
        """Install the toolsets named in the settings; return the errors of those that were refused."""
        problems = []
        for source in self._settings.toolsets:
            try:
                async with fetch_bundle(source, self._settings.http) as bundle:
                    await self._check_pinned(bundle)
                    await self.library.install(
                        bundle.path, source_type=bundle.type, source_ref=bundle.ref, live=bundle.is_folder
                    )
            except GatewayError as refusal:
                log.warning("toolset %s: %s", source, refusal)
                problems.append(refusal)
        return problems

    async def _check_pinned(self, bundle: FetchedBundle) -> None:
        """Refuse specifications from a URL that differ from those installed from it: a person must look at them."""
        if bundle.type != "url" or not bundle.is_copy:
            return
        offered = spec.load((bundle.path / FILE_NAME).read_bytes())
        for toolset in await self.library.list():
            pinned = spec.load((toolset.directory / FILE_NAME).read_bytes())
            if toolset.source_ref == bundle.ref and pinned != offered:
                raise Conflict(
                    f"the tools at {bundle.ref} have changed since they were installed, and stay as they were; "
                    f"see 'toolgate toolset check {bundle.ref}', then accept them with "
                    f"'toolgate toolset install {bundle.ref}'",
                    code="SPEC_CHANGED",
                )

    async def watch(self, edited: Callable[[], None]) -> None:
        """Install every edit of live toolsets, from now until `close`."""
        self._watcher.watch([folder async for folder in self._live_folders()], edited)

    async def _live_folders(self) -> AsyncIterator[Path]:
        for toolset in await self.library.list():
            folder = Path(toolset.source_ref or "").resolve()
            if not toolset.live or not folder.is_dir():
                continue
            attached = self._settings.workspace
            if attached is not None and folder.is_relative_to(attached.resolve()):
                # A tool that writes files could otherwise change its own code.
                log.warning("toolset %s is not watched: its folder is in the attached workspace", toolset.id)
                continue
            yield folder

    def sandbox_paths(self, call: Call) -> tuple[str, str]:
        """Return the paths under which the call's tool sees the chat's workspace and its own toolset."""
        files, own = Mount(self._workspaces.path(call.chat), WORKSPACE), Mount(call.target.home or Path(), HOME)
        if self._sandbox is None:
            return files.target, own.target
        return self._sandbox.inside(files), self._sandbox.inside(own)

    async def _choose(self) -> Sandbox:
        self._sandbox = await choose(self._settings.sandbox)
        return self._sandbox

    # The modules of both are imported at the first use: they load the HTTP client and the MCP client.

    def _http_runner(self) -> HttpRunner:
        if self._http is None:
            make = importlib.import_module("gateway.sources.http").HttpRunner
            self._http = make(self._settings.http, self._workspaces, self._versions)
        return self._http

    def _steps_runner(self) -> StepsRunner:
        if self._steps is None:
            self._steps = importlib.import_module("gateway.sources.steps").StepsRunner(self._call_step)
        return self._steps

    async def close(self) -> None:
        await self._watcher.close()
        for runner in (self._http, self._steps):
            if runner is not None:
                await runner.close()
        await self.runtime.close()
