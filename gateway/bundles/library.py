"""Installed toolsets: taken in whole or not at all, switched, changed, handed on as bundles, and removed."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Protocol

import anyio
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway import yamldoc
from gateway.bundles import spec, store
from gateway.bundles.archive import LIMITS, Bundle, BundleFile, BundleLimits, module_file, open_bundle, write_zip
from gateway.bundles.field_types import Category, Line, Prose, Seconds
from gateway.bundles.installed import InstalledToolset, installed, override_fields
from gateway.bundles.paths import shown
from gateway.bundles.rows import BundleOrigin, PreparedVersion, SourceType, stored
from gateway.bundles.secret_references import mask_url
from gateway.bundles.spec import ToolOverride, Toolset
from gateway.bundles.store import ToolsetStore, held
from gateway.bundles.tool_kinds import ObjectSchema, PythonTool, Schema, artifact_path
from gateway.bundles.zip_reader import CHUNK
from gateway.calls import Progress, no_progress, to_json
from gateway.db import Database, timestamp
from gateway.db.toolsets import ConsentRow, FileRow, StoredToolset, Toolsets, UserOverrideRow
from gateway.errors import Conflict, GatewayError, Invalid, NotFound, Unavailable
from gateway.names import did_you_mean
from gateway.tools import Access, Permission
from gateway.yamldoc import YamlDocument


def export_bundle(toolset: InstalledToolset, rows: Sequence[FileRow], file: BinaryIO) -> None:
    """Pack the toolset into a file; refused before the first byte when a stored file is not what it was."""
    with held(toolset.directory):
        files = {row.path: _file(toolset, row) for row in rows}
        for stored in files.values():
            for _ in stored.chunks():
                pass
        write_zip(Bundle(toolset.spec, files), file)


def _file(toolset: InstalledToolset, row: FileRow) -> BundleFile:
    def source() -> Iterator[bytes]:
        digest = hashlib.sha256()
        try:
            with (toolset.directory / row.path).open("rb") as stored:
                while chunk := stored.read(CHUNK):
                    digest.update(chunk)
                    yield chunk
        except OSError as error:
            raise _changed(toolset, row, f"cannot be read ({error.strerror})") from error
        if digest.hexdigest() != row.sha256:
            raise _changed(toolset, row, "is no longer what was installed")

    return BundleFile(row.path, row.size, row.sha256, row.executable, source)


def _changed(toolset: InstalledToolset, row: FileRow, what: str) -> Unavailable:
    reason = f"the stored file {shown(row.path)} of toolset {toolset.id!r} {what}; install the toolset again"
    return Unavailable(reason, code="STORED_FILE_CHANGED", toolset=toolset.id, path=row.path)


DESCRIPTION_LIMIT = 256 * 1024
DESCRIPTIONS_LIMIT = 4 * 1024 * 1024
_PROBLEM_LIMIT = 500


class Inspector(Protocol):
    """Loads a toolset's code where it can do no harm, and asks it what its tools are."""

    async def describe(
        self, spec: Toolset, directory: Path, progress: Progress
    ) -> Mapping[str, Mapping[str, Any] | str]:
        """For each Python tool by its id: what its code says of it (`Description`), or in words why its
        entrypoint cannot be loaded. The directory is only read. `Invalid` refuses the whole toolset."""
        ...


class Description(BaseModel):
    """What code may say of a tool; data from strangers, and whatever else they say is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

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
    """What the code of each Python tool says, and the problem of each that says nothing; the tools whose
    code is not there are among the latter. Refused when a tool is described as none could be."""
    present = [tool for tool in bundle.spec.tools if tool.id not in bundle.absent]
    wanted = {tool.id for tool in present if isinstance(tool, PythonTool)}
    toolset = bundle.spec.model_copy(update={"tools": tuple(present)})
    answers = await inspector.describe(toolset, directory, progress) if wanted else {}
    described: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = dict(bundle.absent)
    size = 0
    for index, tool in enumerate(bundle.spec.tools):
        answer = answers.get(tool.id, "its code was not found") if tool.id in wanted else None
        if isinstance(answer, str):
            problems[tool.id] = " ".join(answer.split())[:_PROBLEM_LIMIT] or "its code cannot be loaded"
        elif answer is not None:
            described[tool.id] = _validate_description(answer, bundle, index)
            size += len(to_json(described[tool.id]))
    if size > DESCRIPTIONS_LIMIT:
        raise bundle.refusal(f"its tools describe themselves in more than {DESCRIPTIONS_LIMIT} bytes", "tools")
    return described, problems


def is_function_missing(tool: PythonTool, bundle: Bundle) -> bool:
    """Whether the function of a tool is gone, rather than there and broken: its module is not in the
    bundle, or does not so much as mention it."""
    path = module_file(tool.entrypoint, bundle.files)
    if path is None:
        return True
    function = tool.entrypoint.rpartition(":")[2]
    return not re.search(rf"\b{re.escape(function)}\b", bundle.files[path].read().decode(errors="replace"))


def _validate_description(said: Mapping[str, Any], bundle: Bundle, index: int) -> dict[str, Any]:
    try:
        content = to_json(dict(said))
        if len(content) > DESCRIPTION_LIMIT:
            raise Invalid(f"it is longer than {DESCRIPTION_LIMIT} bytes")
        return Description.model_validate_json(content).model_dump(mode="json", exclude_none=True)
    except Invalid as error:
        reason = error.message
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise bundle.refusal(f"what its code says of it is refused: {reason}", "tools", index)


# Refuses a renderer or its config with `Invalid`; the renderers are defined above this package.
CheckRenderer = Callable[[str, Mapping[str, Any]], object]


def check_bundle(bundle: Bundle, check_renderer: CheckRenderer) -> None:
    """Refuse what can be judged without the bundle's code: its renderers."""
    spec.load(spec.dump(bundle.spec))  # what could not be exported is not taken in
    for index, tool in enumerate(bundle.spec.tools):
        if tool.renderer is not None:
            with _locate_errors(bundle, "tools", index, "renderer"):
                check_renderer(tool.renderer.type, tool.renderer.config)
    for index, override in enumerate(bundle.spec.tool_overrides):
        if override.renderer is not None:
            with _locate_errors(bundle, "tool_overrides", index, "renderer_config"):
                check_renderer(override.renderer, override.renderer_config or {})


def check_ids(bundle: Bundle, toolsets: Mapping[str, str], servers: Mapping[str, str]) -> None:
    """Refuse an id under which another toolset (`{id: digest}`) or its server (`{id: toolset}`) already has
    tools: the tools of the two would meet."""
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
    """The tools that are gone, with the reason; refused when one was never there, or is there and broken."""
    known = {row.tool_id for row in previous.tools} if previous else set[str]()
    for index, tool in enumerate(bundle.spec.tools):
        if tool.id not in problems or not isinstance(tool, PythonTool):
            continue
        if bundle.spec.full_id(tool.id) not in known or not is_function_missing(tool, bundle):
            raise bundle.refusal(problems[tool.id], "tools", index, "entrypoint")
    return problems


@contextmanager
def _locate_errors(bundle: Bundle, *place: str | int) -> Iterator[None]:
    """A refusal in here is about that place of `toolset.yaml`."""
    try:
        yield
    except Invalid as error:
        raise bundle.refusal(error.message, *place) from error


def _id_taken(reason: str) -> Conflict:
    return Conflict(f"{reason}; uninstall that toolset, or rename one of the two", code="ID_TAKEN")


INVALID_OVERRIDE = "INVALID_OVERRIDE"


def resolve_tool_id(toolset: InstalledToolset, tool_id: str) -> str:
    """The id a merge_override is kept under; refused when neither a tool nor a server of the toolset answers to it."""
    own = {tool.id for tool in toolset.tools}
    wanted = tool_id if ":" in tool_id else f"{toolset.id}:{tool_id}"
    if wanted not in own and wanted.partition(":")[0] not in {server.id for server in toolset.servers}:
        reason = f"{tool_id!r} is no tool or server's tool of toolset {toolset.id!r}{did_you_mean(wanted, own)}"
        raise NotFound(reason, code="UNKNOWN_TOOL")
    return wanted


def merge_override(
    stored: StoredToolset, toolset: InstalledToolset, tool_id: str, changes: Mapping[str, Any]
) -> tuple[UserOverrideRow, ToolOverride]:
    """What was changed about a tool before, with `changes` on top, as a row and as an override; None takes a
    merge_override back, and another renderer leaves nothing of the config of the one before."""
    wanted = resolve_tool_id(toolset, tool_id)
    before = next((override_fields(row) for row in stored.user_overrides if row.tool_id == wanted), {})
    if "renderer" in changes:
        before.pop("renderer_config", None)
    said = {key: value for key, value in (before | dict(changes)).items() if value is not None}
    document = YamlDocument(f"the merge_override of {wanted}", INVALID_OVERRIDE, {**said, "tool_id": wanted})
    override = yamldoc.validate(document, ToolOverride)
    artifact = artifact_path(override.renderer_config or {})
    if artifact is not None and artifact not in {file.path for file in stored.files}:
        near = did_you_mean(artifact, [file.path for file in stored.files])
        raise Invalid(f"there is no {artifact} in toolset {toolset.id!r}{near}", code=INVALID_OVERRIDE)
    return _override_row(toolset.id, override), override


def _override_row(toolset_id: str, override: ToolOverride) -> UserOverrideRow:
    config = override.renderer_config
    return UserOverrideRow(
        toolset_id=toolset_id,
        tool_id=override.tool_id,
        renderer=override.renderer,
        renderer_config=None if config is None else to_json(config).decode(),
        name_override=override.name_override,
        description_override=override.description_override,
        requires_confirmation=override.requires_confirmation,
        enabled=override.enabled,
    )


log = logging.getLogger(__name__)


class ToolsetLibrary:
    """The installed toolsets of one data directory, shared by any number of processes.

    The database says what there is. The files of a version lie in a folder of their own, which is never
    changed: another version is put beside it, and one transaction switches.
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
        self._shelf = ToolsetStore(data_dir)
        self._inspector = inspector
        self._check_renderer = check_renderer
        self._limits = limits
        self._listed: tuple[int, tuple[InstalledToolset, ...]] = (-1, ())

    async def install(
        self,
        source: Path | Bundle,
        *,
        source_type: SourceType,
        source_ref: str | None,
        live: bool = False,
        progress: Progress = no_progress,
    ) -> InstalledToolset:
        """Take in a ZIP file, a folder or a bundle, over the toolset of the same id if there is one.

        Refused whole, with the line or the path at fault; then everything is as it was. Of a toolset that
        is there already, a tool that is no longer named or whose function is gone is kept as `missing`, and
        what the person switched and changed stays. The same content again changes nothing.
        """
        origin = BundleOrigin(
            source_type, mask_url(source_ref) if source_ref and source_type == "url" else source_ref, live
        )
        known = await self._rows.tool_ids()
        with ExitStack() as opened:
            await progress(0, None, "reading the bundle")
            given, bundle = await to_thread.run_sync(self._open, source, known, opened)
            changed = await self._renew(bundle, origin)
            if changed is None:
                changed = True
                await self._take_in(bundle, origin, progress)
        masked = sorted(bundle.spec.variables() - given.spec.variables())
        return replace(await self.get(bundle.spec.id), changed=changed, masked=tuple(masked))

    async def list(self) -> tuple[InstalledToolset, ...]:
        """Every toolset, by id. One whose rows cannot be read is left out, with a word in the log."""
        if self._listed[0] != await self._rows.revision():
            revision, rows = await self._rows.load()
            self._listed = revision, await to_thread.run_sync(tuple, self._readable(rows))
        return self._listed[1]

    async def get(self, toolset_id: str) -> InstalledToolset:
        return await to_thread.run_sync(self._installed, await self._find(toolset_id))

    async def revision(self) -> int:
        """A number that grows with every change, by any process."""
        return await self._rows.revision()

    async def enable(self, toolset_id: str, enabled: bool) -> InstalledToolset:
        """Switch a whole toolset on or off."""
        if not await self._rows.enable(toolset_id, enabled):
            raise await self._unknown(toolset_id)
        return await self.get(toolset_id)

    async def override(self, toolset_id: str, tool_id: str, changes: Mapping[str, Any]) -> InstalledToolset:
        """Change a tool for this gateway, by any key of an entry of `tool_overrides`; None takes a change back.

        It outlasts every new version of the toolset, and goes with an export.
        """
        async with self._shelf.locked():  # two that change one tool at once do so one after the other
            found = await self._find(toolset_id)
            now = await to_thread.run_sync(self._installed, found)
            row, override = merge_override(found, now, tool_id, changes)
            if override.renderer is not None:
                self._check_renderer(override.renderer, override.renderer_config or {})
            others = tuple(other for other in found.user_overrides if other.tool_id != row.tool_id)
            after = await to_thread.run_sync(self._installed, replace(found, user_overrides=(*others, row)))
            await to_thread.run_sync(lambda: spec.load(spec.dump(after.spec)))  # else it could not be exported
            if override_fields(row):
                await self._rows.set_override(row)
            else:
                await self._rows.remove_override(toolset_id, row.tool_id)
        return await self.get(toolset_id)

    async def clear_override(self, toolset_id: str, tool_id: str) -> InstalledToolset:
        """Let a tool be as the toolset has it."""
        now = await self.get(toolset_id)
        await self._rows.remove_override(toolset_id, resolve_tool_id(now, tool_id))
        return await self.get(toolset_id)

    async def allow_servers(self, toolset_id: str, digests: Mapping[str, str], by: str) -> InstalledToolset:
        """Record a person's consent to servers of a toolset, by the digests that were shown: `{server id: digest}`.

        Refused with `Conflict`, and nothing recorded, when one of them has another digest by now.
        """
        async with self._shelf.locked():  # no other version is put in place between the comparison and the record
            now = await self.get(toolset_id)
            current = {server.id: now.server_digest(server) for server in now.servers}
            for server_id, digest in digests.items():
                if current.get(server_id) != digest:
                    raise Conflict(
                        f"the MCP server {server_id!r} of {toolset_id!r} has changed since it was shown; look again",
                        code="SERVER_CHANGED",
                    )
            moment = timestamp(time.time())
            await self._rows.agree([ConsentRow(toolset_id, *shown, by, moment) for shown in digests.items()])
        return await self.get(toolset_id)

    async def disallow_servers(self, toolset_id: str) -> InstalledToolset:
        """Withdraw every consent to servers of a toolset."""
        await self._find(toolset_id)
        await self._rows.withdraw(toolset_id)
        return await self.get(toolset_id)

    async def uninstall(self, toolset_id: str) -> None:
        """Remove a toolset, its files, all that was changed about it, and the consents to its servers."""
        async with self._shelf.locked():
            with anyio.CancelScope(shield=True):
                if not await self._rows.remove(toolset_id):
                    raise await self._unknown(toolset_id)
                await to_thread.run_sync(self._shelf.remove, toolset_id)

    async def export(self, toolset_id: str, file: BinaryIO) -> None:
        """Pack a toolset: its `toolset.yaml` anew from the database, its files as they were taken in. The same
        state gives the same bytes. Refused before the first byte when a stored file is not what it was."""
        found = await self._find(toolset_id)
        now = await to_thread.run_sync(self._installed, found)
        await to_thread.run_sync(export_bundle, now, found.files, file)

    async def clean(self) -> int:
        """Remove what killed processes left behind and versions that nobody uses; how many folders."""
        async with self._shelf.locked():
            return await to_thread.run_sync(self._shelf.clean, await self._rows.digests())

    def _open(self, source: Path | Bundle, known: frozenset[str], opened: ExitStack) -> tuple[Bundle, Bundle]:
        """The bundle as it is given, and as it will be stored."""
        given = source if isinstance(source, Bundle) else opened.enter_context(open_bundle(source, self._limits, known))
        bundle = given.masked()
        check_bundle(bundle, self._check_renderer)
        return given, bundle

    async def _renew(self, bundle: Bundle, origin: BundleOrigin) -> bool | None:
        """None when the content is not there yet; else whether at least its origin is new."""
        found = await self._rows.find(bundle.spec.id)
        if found is None or found.toolset.digest != bundle.digest:
            return None
        if not await to_thread.run_sync(self._is_whole, found, bundle):
            return None
        row = found.toolset
        if (row.source_type, row.source_ref, row.live) == (origin.source_type, origin.source_ref, origin.live):
            return False
        await self._rows.set_source(row.id, origin.source_type, origin.source_ref, origin.live)
        return True

    def _is_whole(self, found: StoredToolset, bundle: Bundle) -> bool:
        try:
            return store.is_complete(self._installed(found).directory, bundle)
        except Unavailable:
            return False

    async def _take_in(self, bundle: Bundle, origin: BundleOrigin, progress: Progress) -> None:
        async with self._shelf.staging() as made:
            await progress(0, None, "unpacking")
            await to_thread.run_sync(store.unpack, bundle, made)
            await progress(0, None, "asking its code what its tools are")
            described, problems = await inspect_code(self._inspector, bundle, made, progress)
            await to_thread.run_sync(_finish, made, bundle)
            async with self._shelf.locked():
                with anyio.CancelScope(shield=True):
                    await self._switch(bundle, made, described, problems, origin)

    async def _switch(
        self,
        bundle: Bundle,
        made: Path,
        described: Mapping[str, Mapping[str, Any]],
        problems: Mapping[str, str],
        origin: BundleOrigin,
    ) -> None:
        """Put the version in its place and make it the one that counts."""
        toolset_id = bundle.spec.id
        check_ids(bundle, await self._rows.digests(), await self._rows.servers())
        previous = await self._rows.find(toolset_id)
        missing = await to_thread.run_sync(find_missing_tools, bundle, problems, previous)
        place = self._shelf.version(toolset_id, bundle.digest)
        version = PreparedVersion(bundle, described, missing, origin, place, timestamp(time.time()))
        before = previous.toolset.digest if previous else None
        try:
            await to_thread.run_sync(self._shelf.put, made, toolset_id, bundle)
            await self._rows.put(stored(version, previous), before)
        except BaseException:
            with suppress(GatewayError):  # the next clean-up does it
                now = (await self._rows.digests()).get(toolset_id)
                await to_thread.run_sync(self._shelf.keep, toolset_id, [now or "", before or ""])
            raise
        # The version before stays for now: other processes have yet to notice, and a power failure could take
        # the transaction back.
        await to_thread.run_sync(self._shelf.keep, toolset_id, [bundle.digest, before or ""])

    async def _find(self, toolset_id: str) -> StoredToolset:
        found = await self._rows.find(toolset_id)
        if found is None:
            raise await self._unknown(toolset_id)
        return found

    async def _unknown(self, toolset_id: str) -> NotFound:
        near = did_you_mean(toolset_id, await self._rows.digests())
        return NotFound(f"no toolset {toolset_id!r} is installed{near}", code="UNKNOWN_TOOLSET")

    def _installed(self, found: StoredToolset) -> InstalledToolset:
        row = found.toolset
        try:
            return installed(found, self._shelf.version(row.id, row.digest))
        except ValueError as error:
            reason = f"what is stored of toolset {row.id!r} cannot be read; install it again"
            raise Unavailable(reason, code="TOOLSET_UNREADABLE") from error

    def _readable(self, rows: Iterable[StoredToolset]) -> Iterator[InstalledToolset]:
        for row in rows:
            try:
                yield self._installed(row)
            except Unavailable as problem:
                log.warning("%s", problem)


def _finish(made: Path, bundle: Bundle) -> None:
    """Strangers' code was run beside the files: they must still be what was checked, and then be durable."""
    path = store.difference(made, bundle)
    if path is not None:
        raise Conflict(f"{path!r} was changed while the toolset was being installed", code="BUNDLE_CHANGED")
    store.sync(made)
