"""The library of installed toolsets: install, enable, override, export and uninstall, each as one transaction."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Protocol, cast

import anyio
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.bundles import spec, store
from gateway.bundles.archive import LIMITS, Bundle, BundleLimits, module_file, open_bundle
from gateway.bundles.field_types import Category, Line, Prose, Seconds
from gateway.bundles.installed import (
    InstalledToolset,
    describe_server,
    load_toolset,
    merge_override,
    override_fields,
    resolve_tool_id,
)
from gateway.bundles.rows import BundleOrigin, PreparedVersion, SourceType, ToolsetEdit, build_rows
from gateway.bundles.secret_references import mask_url
from gateway.bundles.spec import Server, Toolset
from gateway.bundles.store import ToolsetStore, export_bundle, open_stored_file
from gateway.bundles.tool_kinds import ObjectSchema, PythonTool, Schema, ToolSpec
from gateway.calls import Progress, no_progress, to_json
from gateway.db import Database, timestamp
from gateway.db.toolsets import ConsentRow, StoredToolset, Toolsets
from gateway.errors import Conflict, GatewayError, Invalid, NotFound, Unavailable
from gateway.names import did_you_mean
from gateway.tools import Access, Permission
from gateway.value import Value

DESCRIPTION_LIMIT = 256 * 1024
DESCRIPTIONS_LIMIT = 4 * 1024 * 1024
_PROBLEM_LIMIT = 500


class Inspector(Protocol):
    """Loads a toolset's code in a sandbox and asks it for the descriptions of its tools."""

    async def describe(
        self, spec: Toolset, directory: Path, progress: Progress
    ) -> Mapping[str, Mapping[str, Any] | str]:
        """Return for each Python tool, by id, its `Description` as a mapping, or the reason why its entrypoint
        cannot be loaded. The directory is only read. `Invalid` refuses the whole toolset."""
        ...


class Description(BaseModel):
    """The fields that code may declare about a tool. The data is untrusted; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, defer_build=True)

    name: Line | None = None
    description: Prose | None = None
    input_schema: ObjectSchema
    output_schema: Schema | None = None
    requires_confirmation: bool | None = None
    category: Category | None = None
    permission: Permission | None = None
    access: Access | None = None
    timeout: Seconds | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    tags: Annotated[tuple[Line, ...], Field(max_length=32)] = ()


async def inspect_code(
    inspector: Inspector, bundle: Bundle, directory: Path, progress: Progress
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the descriptions of the Python tools, and the reason for each tool that has none.

    A tool whose code is absent from the bundle is among the latter. Refused when a description is invalid.
    """
    present = [tool for tool in bundle.spec.tools if tool.id not in bundle.absent]
    wanted = {tool.id for tool in present if isinstance(tool, PythonTool)}
    toolset = bundle.spec.model_copy(update={"tools": tuple(present)})
    descriptions = await inspector.describe(toolset, directory, progress) if wanted else {}
    described: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = dict(bundle.absent)
    size = 0
    for index, tool in enumerate(bundle.spec.tools):
        description = descriptions.get(tool.id, "its code was not found") if tool.id in wanted else None
        if isinstance(description, str):
            problems[tool.id] = " ".join(description.split())[:_PROBLEM_LIMIT] or "its code cannot be loaded"
        elif description is not None:
            described[tool.id] = _validate_description(description, bundle, index)
            size += len(to_json(described[tool.id]))
    if size > DESCRIPTIONS_LIMIT:
        raise bundle.refusal(f"the descriptions of its tools are larger than {DESCRIPTIONS_LIMIT} bytes", "tools")
    return described, problems


def is_function_missing(tool: PythonTool, bundle: Bundle) -> bool:
    """Return whether the function of a tool is gone rather than broken: its module is not in the bundle, or does
    not mention its name."""
    path = module_file(tool.entrypoint, bundle.files)
    if path is None:
        return True
    function = tool.entrypoint.rpartition(":")[2]
    return not re.search(rf"\b{re.escape(function)}\b", bundle.files[path].read().decode(errors="replace"))


def _validate_description(description: Mapping[str, Any], bundle: Bundle, index: int) -> dict[str, Any]:
    try:
        content = to_json(dict(description))
        if len(content) > DESCRIPTION_LIMIT:
            raise Invalid(f"it is longer than {DESCRIPTION_LIMIT} bytes")
        return Description.model_validate_json(content).model_dump(mode="json", exclude_none=True)
    except Invalid as error:
        reason = error.message
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise bundle.refusal(f"the description in its code is refused: {reason}", "tools", index)


# Refuses a renderer or its config with `Invalid`; the renderers are defined above this package.
CheckRenderer = Callable[[str, Mapping[str, Any]], object]


def check_bundle(bundle: Bundle, check_renderer: CheckRenderer) -> None:
    """Refuse what can be checked without running the bundle's code: its renderers."""
    spec.load(spec.dump(bundle.spec))  # what could not be exported is not installed
    for index, tool in enumerate(bundle.spec.tools):
        if tool.renderer is not None:
            with _locate_errors(bundle, "tools", index, "renderer"):
                check_renderer(tool.renderer.type, tool.renderer.config)
    for index, override in enumerate(bundle.spec.tool_overrides):
        if override.renderer is not None:
            with _locate_errors(bundle, "tool_overrides", index, "renderer_config"):
                check_renderer(override.renderer, override.renderer_config or {})


def check_ids(bundle: Bundle, toolsets: Mapping[str, str], servers: Mapping[str, str]) -> None:
    """Refuse an id that another toolset (`{id: digest}`) or its server (`{id: toolset}`) already uses: their tools
    would have the same names."""
    own = bundle.spec.id
    if servers.get(own, own) != own:
        raise _id_taken(f"toolset {servers[own]!r} brings a server with the id {own!r}")
    for server in bundle.spec.mcp_servers:
        if servers.get(server.id, own) != own:
            raise _id_taken(f"toolset {servers[server.id]!r} brings a server with the id {server.id!r} too")
        if server.id in toolsets and server.id != own:
            raise _id_taken(f"the server {server.id!r} has the id of an installed toolset")


def find_missing_tools(
    bundle: Bundle, problems: Mapping[str, str], previous: StoredToolset | None
) -> Mapping[str, str]:
    """Return the missing tools with the reason; refused when a tool is new, or is present but broken."""
    known = {row.tool_id for row in previous.tools} if previous else set[str]()
    for index, tool in enumerate(bundle.spec.tools):
        if tool.id not in problems or not isinstance(tool, PythonTool):
            continue
        if bundle.spec.full_id(tool.id) not in known or not is_function_missing(tool, bundle):
            raise bundle.refusal(problems[tool.id], "tools", index, "entrypoint")
    return problems


@contextmanager
def _locate_errors(bundle: Bundle, *place: str | int) -> Iterator[None]:
    """Report an `Invalid` raised inside as an error at that place of `toolset.yaml`."""
    try:
        yield
    except Invalid as error:
        raise bundle.refusal(error.message, *place) from error


def _id_taken(reason: str) -> Conflict:
    return Conflict(f"{reason}; uninstall that toolset, or rename one of the two", code="ID_TAKEN")


class NameChanges(Value):
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, old: Mapping[str, object], new: Mapping[str, object]) -> NameChanges:
        both = sorted(old.keys() & new.keys())
        changed = tuple(name for name in both if old[name] != new[name])
        return cls(tuple(sorted(new.keys() - old.keys())), changed, tuple(sorted(old.keys() - new.keys())))


class BundleDifference(Value):
    """The difference that installing a bundle would make; `installed_version` is None for a new toolset. `levels` are
    those that its tools declare outside of their code, `variables` the secrets that it wants, and `commands` describes
    the servers it would start or reach."""

    id: str
    name: str
    version: str
    installed_version: str | None
    changed: bool
    files: NameChanges
    tools: NameChanges
    servers: NameChanges
    levels: Mapping[str, str | None]
    variables: tuple[str, ...]
    commands: Mapping[str, Mapping[str, str]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


log = logging.getLogger(__name__)


class ToolsetLibrary:
    """The installed toolsets of one data directory, shared by any number of processes.

    The database is authoritative. The files of a version are in a folder of their own that never changes:
    a new version is put beside it, and one transaction switches to it.
    """

    def __init__(
        self,
        db: Database,
        data_dir: Path,
        inspector: Inspector,
        check_renderer: CheckRenderer,
        limits: BundleLimits = LIMITS,
    ) -> None:
        self._rows = Toolsets(db)
        self._store = ToolsetStore(data_dir)
        self._inspector = inspector
        self._check_renderer = check_renderer
        self._limits = limits
        self._listed: tuple[int, tuple[InstalledToolset, ...]] = (-1, ())
        self._visible: tuple[InstalledToolset, ...] = ()

    async def install(
        self,
        source: Path | Bundle,
        *,
        source_type: SourceType,
        source_ref: str | None,
        live: bool = False,
        progress: Progress = no_progress,
    ) -> InstalledToolset:
        """Install a ZIP file, a folder or a bundle, replacing the toolset of the same id if there is one.

        A refusal names the line or the path at fault and changes nothing. On replacement, a tool that is no
        longer declared or whose function is gone is kept as `missing`, and the person's switches and overrides
        stay. Installing the same content again changes nothing.
        """
        origin = BundleOrigin(
            source_type, mask_url(source_ref) if source_ref and source_type == "url" else source_ref, live
        )
        known = await self._rows.tool_ids()
        with ExitStack() as opened:
            await progress(0, None, "reading the toolset")
            given, bundle = await to_thread.run_sync(self._open, source, known, opened)
            changed = await self._update_origin(bundle, origin)
            if changed is None:
                changed = True
                await self._install_version(bundle, origin, progress)
        masked = sorted(bundle.spec.variables() - given.spec.variables())
        return replace(await self.get(bundle.spec.id), changed=changed, masked=tuple(masked))

    async def compare(self, source: Path) -> BundleDifference:
        """Compare a ZIP file or folder with what is installed, and change nothing. It is checked as by `install`, but
        its code is not loaded."""
        with ExitStack() as opened:
            _, bundle = await to_thread.run_sync(self._open, source, await self._rows.tool_ids(), opened)
        check_ids(bundle, await self._rows.digests(), await self._rows.servers())
        found = await self._rows.find(bundle.spec.id)
        now = None if found is None else await to_thread.run_sync(self._load, found)
        return BundleDifference(
            id=bundle.spec.id,
            name=bundle.spec.name,
            version=bundle.spec.version,
            installed_version=None if now is None else now.spec.version,
            changed=found is None or found.toolset.digest != bundle.digest,
            files=NameChanges.of(
                {} if found is None else {row.path: row.sha256 for row in found.files},
                {path: file.sha256 for path, file in bundle.files.items()},
            ),
            tools=NameChanges.of(_by_id(now.spec.tools if now else ()), _by_id(bundle.spec.tools)),
            servers=NameChanges.of(_by_id(now.servers if now else ()), _by_id(bundle.spec.mcp_servers)),
            levels={
                tool.id: level.value if (level := tool.permission or bundle.spec.permission) else None
                for tool in bundle.spec.tools
            },
            variables=tuple(sorted(bundle.spec.variables())),
            commands={server.id: dict(describe_server(server)) for server in bundle.spec.mcp_servers},
        )

    async def list(self) -> tuple[InstalledToolset, ...]:
        """Return every toolset, by id. One whose rows cannot be read is left out and logged."""
        await self.list_all()
        return self._visible

    async def list_all(self) -> tuple[InstalledToolset, ...]:
        """Return every toolset like `list`, and those that are soft-deleted."""
        if self._listed[0] != await self._rows.revision():
            revision, rows = await self._rows.load()
            self._listed = revision, await to_thread.run_sync(tuple, self._load_readable(rows))
            self._visible = tuple(toolset for toolset in self._listed[1] if toolset.deleted_at is None)
        return self._listed[1]

    async def get(self, toolset_id: str) -> InstalledToolset:
        return await to_thread.run_sync(self._load, await self._find(toolset_id))

    async def revision(self) -> int:
        """Return a number that grows with every change, by any process."""
        return await self._rows.revision()

    async def enable(self, toolset_id: str, enabled: bool) -> InstalledToolset:
        """Switch a whole toolset on or off."""
        if not await self._rows.enable(toolset_id, enabled):
            raise await self._not_found(toolset_id)
        return await self.get(toolset_id)

    async def create(self, toolset: Toolset, bundle_id: str) -> InstalledToolset:
        """Store a new toolset without files; `Conflict` when its id or bundle id is taken."""
        bundle = Bundle(toolset, {}).without_secrets()
        await self._install_version(bundle, BundleOrigin("rest", None), no_progress, ToolsetEdit(None, bundle_id))
        return await self.get(toolset.id)

    async def edit(
        self, toolset_id: str, change: Callable[[InstalledToolset], Toolset], removed: Sequence[str] = ()
    ) -> InstalledToolset:
        """Replace the declarations of a toolset by what `change` makes of them. Its files, its code's descriptions and
        the person's overrides stay; `removed` tools are not kept as missing. A soft-deleted toolset comes back.

        `change` gets the toolset without the person's overrides. It runs again when another process was faster.
        """
        while True:
            found = await self._find(toolset_id, deleted=True)
            row, bundle = found.toolset, await to_thread.run_sync(self._change, found, change)
            if bundle.digest == row.digest and row.deleted_at is None and not removed:
                return await self.get(toolset_id)
            origin = BundleOrigin(cast(SourceType, row.source_type), row.source_ref, row.live)
            try:
                await self._install_version(bundle, origin, no_progress, ToolsetEdit(found, None, tuple(removed)))
            except Conflict as conflict:
                if conflict.code != "TOOLSET_CHANGED":
                    raise
                continue
            return await self.get(toolset_id)

    async def soft_delete(self, toolset_id: str) -> str:
        """Hide a toolset, its files kept, until it is put again or reaped; return the time."""
        moment = timestamp(time.time())
        if not await self._rows.soft_delete(toolset_id, moment):
            raise await self._not_found(toolset_id)
        return moment

    async def reap(self, before: float) -> int:
        """Remove the toolsets that were soft-deleted before that time and are empty; return how many."""
        reaped = 0
        for toolset in await self.list_all():
            if toolset.deleted_at is None or toolset.deleted_at >= timestamp(before) or toolset.tools:
                continue
            found = await self._rows.find(toolset.id)
            if found is None or found.files or found.servers:
                continue
            async with self._store.locked():
                with anyio.CancelScope(shield=True):
                    if await self._rows.remove(toolset.id, toolset.deleted_at):  # nobody put it again meanwhile
                        await to_thread.run_sync(self._store.remove, toolset.id)
                        reaped += 1
        return reaped

    async def usage(self) -> dict[str, tuple[int, str]]:
        """Return the number of calls of each tool that was called, and when the last one began."""
        return await self._rows.usage()

    async def override(self, toolset_id: str, tool_id: str, changes: Mapping[str, Any]) -> InstalledToolset:
        """Override fields of a tool, by any key of an entry of `tool_overrides`; None removes an override.

        It is kept when a new version is installed, and is part of an export.
        """
        async with self._store.locked():  # two changes of one tool must not interleave
            found = await self._find(toolset_id)
            now = await to_thread.run_sync(self._load, found)
            row, override = merge_override(found, now, tool_id, changes)
            if override.renderer is not None:
                self._check_renderer(override.renderer, override.renderer_config or {})
            others = tuple(other for other in found.user_overrides if other.tool_id != row.tool_id)
            after = await to_thread.run_sync(self._load, replace(found, user_overrides=(*others, row)))
            await to_thread.run_sync(lambda: spec.load(spec.dump(after.spec)))  # refuses what could not be exported
            enabled = _is_enabled(after, row.tool_id)
            if override_fields(row):
                await self._rows.set_override(row, enabled)
            else:
                await self._rows.remove_override(toolset_id, row.tool_id, enabled)
        return await self.get(toolset_id)

    async def clear_override(self, toolset_id: str, tool_id: str) -> InstalledToolset:
        """Remove a person's override of a tool."""
        async with self._store.locked():
            found = await self._find(toolset_id)
            wanted = resolve_tool_id(await to_thread.run_sync(self._load, found), tool_id)
            others = tuple(row for row in found.user_overrides if row.tool_id != wanted)
            after = await to_thread.run_sync(self._load, replace(found, user_overrides=others))
            await self._rows.remove_override(toolset_id, wanted, _is_enabled(after, wanted))
        return await self.get(toolset_id)

    async def allow_servers(self, toolset_id: str, digests: Mapping[str, str], by: str) -> InstalledToolset:
        """Record a person's consent to servers of a toolset, by the digests that were shown: `{server id: digest}`.

        Refused with `Conflict`, and nothing recorded, when one of them has another digest by now.
        """
        async with self._store.locked():  # no other version is activated between the comparison and the record
            now = await self.get(toolset_id)
            current = {server.id: now.server_digest(server) for server in now.servers}
            for server_id, digest in digests.items():
                if current.get(server_id) != digest:
                    raise Conflict(
                        f"the MCP server {server_id!r} of {toolset_id!r} has changed since it was shown; look again",
                        code="SERVER_CHANGED",
                    )
            moment = timestamp(time.time())
            await self._rows.agree([ConsentRow(toolset_id, *quote_path, by, moment) for quote_path in digests.items()])
        return await self.get(toolset_id)

    async def disallow_servers(self, toolset_id: str) -> InstalledToolset:
        """Withdraw every consent to servers of a toolset."""
        await self._find(toolset_id)
        await self._rows.withdraw(toolset_id)
        return await self.get(toolset_id)

    async def uninstall(self, toolset_id: str) -> None:
        """Remove a toolset with its files, overrides, and consents to its servers."""
        async with self._store.locked():
            with anyio.CancelScope(shield=True):
                if not await self._rows.remove(toolset_id):
                    raise await self._not_found(toolset_id)
                await to_thread.run_sync(self._store.remove, toolset_id)

    async def export(self, toolset_id: str, file: BinaryIO) -> None:
        """Write a toolset as a ZIP file: its `toolset.yaml` from the database, its files as installed.

        The same state gives the same bytes. Refused before the first byte when a stored file was changed.
        """
        found = await self._find(toolset_id)
        now = await to_thread.run_sync(self._load, found)
        await to_thread.run_sync(export_bundle, now, found.files, file)

    async def clean(self) -> int:
        """Remove leftovers of killed processes and unused versions; return the number of folders."""
        async with self._store.locked():
            return await to_thread.run_sync(self._store.clean, await self._rows.digests())

    def _change(self, found: StoredToolset, change: Callable[[InstalledToolset], Toolset]) -> Bundle:
        """Return the changed toolset with the files it has, checked; its digest is computed."""
        now = self._load(replace(found, user_overrides=()))
        files = {row.path: open_stored_file(now, row) for row in found.files}
        bundle = Bundle(change(now), files).without_secrets()
        if bundle.digest != found.toolset.digest:
            check_bundle(bundle, self._check_renderer)
        return bundle

    def _open(self, source: Path | Bundle, known: frozenset[str], opened: ExitStack) -> tuple[Bundle, Bundle]:
        """Return the bundle as given, and as it will be stored."""
        given = source if isinstance(source, Bundle) else opened.enter_context(open_bundle(source, self._limits, known))
        bundle = given.without_secrets()
        check_bundle(bundle, self._check_renderer)
        return given, bundle

    async def _update_origin(self, bundle: Bundle, origin: BundleOrigin) -> bool | None:
        """Record the origin of content that is installed already; return whether it is new, or None for new content."""
        found = await self._rows.find(bundle.spec.id)
        if found is None or found.toolset.digest != bundle.digest or found.toolset.deleted_at is not None:
            return None
        if not await to_thread.run_sync(self._is_complete, found, bundle):
            return None
        row = found.toolset
        if (row.source_type, row.source_ref, row.live) == (origin.source_type, origin.source_ref, origin.live):
            return False
        await self._rows.set_source(row.id, origin.source_type, origin.source_ref, origin.live)
        return True

    def _is_complete(self, found: StoredToolset, bundle: Bundle) -> bool:
        try:
            return store.is_complete(self._load(found).directory, bundle)
        except Unavailable:
            return False

    async def _install_version(
        self, bundle: Bundle, origin: BundleOrigin, progress: Progress, edit: ToolsetEdit | None = None
    ) -> None:
        async with self._store.staging() as made:
            await progress(0, None, "unpacking")
            await to_thread.run_sync(store.unpack, bundle, made)
            await progress(0, None, "loading descriptions of its tools")
            if edit is None:
                described, problems = await inspect_code(self._inspector, bundle, made, progress)
            else:
                described, problems = edit.descriptions(), {}
            await to_thread.run_sync(_verify_and_sync, made, bundle)
            async with self._store.locked():
                with anyio.CancelScope(shield=True):
                    await self._activate(bundle, made, described, problems, origin, edit)

    async def _activate(
        self,
        bundle: Bundle,
        made: Path,
        described: Mapping[str, Mapping[str, Any]],
        problems: Mapping[str, str],
        origin: BundleOrigin,
        edit: ToolsetEdit | None,
    ) -> None:
        """Move the version into place and make it the current one."""
        toolset_id = bundle.spec.id
        check_ids(bundle, await self._rows.digests(), await self._rows.servers())
        previous = await self._rows.find(toolset_id)
        removed = edit.removed if edit is not None else ()
        if edit is not None:
            edit.check_current(previous)
        if previous is not None and removed:
            previous = replace(previous, tools=tuple(row for row in previous.tools if row.tool_id not in removed))
        missing = await to_thread.run_sync(find_missing_tools, bundle, problems, previous)
        place = self._store.version_path(toolset_id, bundle.digest)
        bundle_id = edit.bundle_id if edit is not None else None
        version = PreparedVersion(bundle, described, missing, origin, place, timestamp(time.time()), bundle_id)
        before = previous.toolset.digest if previous else None
        try:
            await to_thread.run_sync(self._store.add_version, made, toolset_id, bundle)
            await self._rows.put(build_rows(version, previous), before, removed)
        except BaseException:
            with suppress(GatewayError):  # left to the next clean-up
                now = (await self._rows.digests()).get(toolset_id)
                await to_thread.run_sync(self._store.remove_other_versions, toolset_id, [now or "", before or ""])
            raise
        # The previous version stays for now: other processes have not noticed yet, and a power failure could undo
        # the transaction.
        await to_thread.run_sync(self._store.remove_other_versions, toolset_id, [bundle.digest, before or ""])

    async def _find(self, toolset_id: str, deleted: bool = False) -> StoredToolset:
        """Return the rows of a toolset, of a soft-deleted one only with `deleted`."""
        found = await self._rows.find(toolset_id)
        if found is None or (found.toolset.deleted_at is not None and not deleted):
            raise await self._not_found(toolset_id)
        return found

    async def _not_found(self, toolset_id: str) -> NotFound:
        near = did_you_mean(toolset_id, await self._rows.digests())
        return NotFound(f"no toolset {toolset_id!r} is installed{near}", code="UNKNOWN_TOOLSET")

    def _load(self, found: StoredToolset) -> InstalledToolset:
        row = found.toolset
        try:
            return load_toolset(found, self._store.version_path(row.id, row.digest))
        except ValueError as error:
            reason = f"the stored rows of toolset {row.id!r} cannot be read; install it again"
            raise Unavailable(reason, code="TOOLSET_UNREADABLE") from error

    def _load_readable(self, rows: Iterable[StoredToolset]) -> Iterator[InstalledToolset]:
        for row in rows:
            try:
                yield self._load(row)
            except Unavailable as problem:
                log.warning("%s", problem)


def _by_id(declared: Sequence[ToolSpec | Server]) -> dict[str, object]:
    return {each.id: each for each in declared}


def _is_enabled(toolset: InstalledToolset, tool_id: str) -> bool:
    return next((tool.enabled for tool in toolset.tools if tool.id == tool_id), True)


def _verify_and_sync(made: Path, bundle: Bundle) -> None:
    """Check that running the toolset's code left its files unchanged, then sync them."""
    path = store.find_difference(made, bundle)
    if path is not None:
        raise Conflict(f"{path!r} was changed while the toolset was being installed", code="BUNDLE_CHANGED")
    store.sync(made)
