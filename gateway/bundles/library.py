"""Installed toolsets: taken in whole or not at all, switched, changed, handed on as bundles, and removed."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import anyio
from anyio import to_thread

from gateway.bundles import checks, spec, store
from gateway.bundles.archive import LIMITS, Bundle, Limits, open_bundle
from gateway.bundles.checks import Rules
from gateway.bundles.exporting import export
from gateway.bundles.inspection import Inspector, inspect
from gateway.bundles.installed import Installed, InstalledTool, changes_in, installed
from gateway.bundles.overrides import change, full_id
from gateway.bundles.rows import Origin, SourceType, Version, stored
from gateway.bundles.secret_references import mask_url
from gateway.bundles.store import Shelf
from gateway.calls import Progress, no_progress
from gateway.db import Database, timestamp
from gateway.db.toolsets import ConsentRow, StoredToolset, Toolsets
from gateway.errors import Conflict, GatewayError, NotFound, Unavailable
from gateway.names import did_you_mean

__all__ = ["Inspector", "Installed", "InstalledTool", "Library", "Rules"]

log = logging.getLogger(__name__)


class Library:
    """The installed toolsets of one data directory, shared by any number of processes.

    The database says what there is. The files of a version lie in a folder of their own, which is never
    changed: another version is put beside it, and one transaction switches.
    """

    def __init__(
        self, db: Database, data_dir: Path, inspector: Inspector, rules: Rules, limits: Limits = LIMITS
    ) -> None:
        self._rows = Toolsets(db)
        self._shelf = Shelf(data_dir)
        self._inspector = inspector
        self._rules = rules
        self._limits = limits
        self._listed: tuple[int, tuple[Installed, ...]] = (-1, ())

    async def install(
        self,
        source: Path | Bundle,
        *,
        source_type: SourceType,
        source_ref: str | None,
        live: bool = False,
        progress: Progress = no_progress,
    ) -> Installed:
        """Take in a ZIP file, a folder or a bundle, over the toolset of the same id if there is one.

        Refused whole, with the line or the path at fault; then everything is as it was. Of a toolset that
        is there already, a tool that is no longer named or whose function is gone is kept as `missing`, and
        what the person switched and changed stays. The same content again changes nothing.
        """
        origin = Origin(source_type, mask_url(source_ref) if source_ref and source_type == "url" else source_ref, live)
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

    async def list(self) -> tuple[Installed, ...]:
        """Every toolset, by id. One whose rows cannot be read is left out, with a word in the log."""
        if self._listed[0] != await self._rows.revision():
            revision, rows = await self._rows.load()
            self._listed = revision, await to_thread.run_sync(tuple, self._readable(rows))
        return self._listed[1]

    async def get(self, toolset_id: str) -> Installed:
        return await to_thread.run_sync(self._installed, await self._find(toolset_id))

    async def revision(self) -> int:
        """A number that grows with every change, by any process."""
        return await self._rows.revision()

    async def enable(self, toolset_id: str, enabled: bool) -> Installed:
        """Switch a whole toolset on or off."""
        if not await self._rows.enable(toolset_id, enabled):
            raise await self._unknown(toolset_id)
        return await self.get(toolset_id)

    async def override(self, toolset_id: str, tool_id: str, changes: Mapping[str, Any]) -> Installed:
        """Change a tool for this gateway, by any key of an entry of `tool_overrides`; None takes a change back.

        It outlasts every new version of the toolset, and goes with an export.
        """
        async with self._shelf.locked():  # two that change one tool at once do so one after the other
            found = await self._find(toolset_id)
            now = await to_thread.run_sync(self._installed, found)
            row, override = change(found, now, tool_id, changes)
            if override.renderer is not None:
                self._rules.renderer(override.renderer, override.renderer_config or {})
            others = tuple(other for other in found.user_overrides if other.tool_id != row.tool_id)
            after = await to_thread.run_sync(self._installed, replace(found, user_overrides=(*others, row)))
            await to_thread.run_sync(lambda: spec.load(spec.dump(after.spec)))  # else it could not be exported
            if changes_in(row):
                await self._rows.set_override(row)
            else:
                await self._rows.remove_override(toolset_id, row.tool_id)
        return await self.get(toolset_id)

    async def clear_override(self, toolset_id: str, tool_id: str) -> Installed:
        """Let a tool be as the toolset has it."""
        now = await self.get(toolset_id)
        await self._rows.remove_override(toolset_id, full_id(now, tool_id))
        return await self.get(toolset_id)

    async def allow_servers(self, toolset_id: str, digests: Mapping[str, str], by: str) -> Installed:
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

    async def disallow_servers(self, toolset_id: str) -> Installed:
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
        await to_thread.run_sync(export, now, found.files, file)

    async def clean(self) -> int:
        """Remove what killed processes left behind and versions that nobody uses; how many folders."""
        async with self._shelf.locked():
            return await to_thread.run_sync(self._shelf.clean, await self._rows.digests())

    def _open(self, source: Path | Bundle, known: frozenset[str], opened: ExitStack) -> tuple[Bundle, Bundle]:
        """The bundle as it is given, and as it will be stored."""
        given = source if isinstance(source, Bundle) else opened.enter_context(open_bundle(source, self._limits, known))
        bundle = given.masked()
        checks.check(bundle, self._rules)
        return given, bundle

    async def _renew(self, bundle: Bundle, origin: Origin) -> bool | None:
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

    async def _take_in(self, bundle: Bundle, origin: Origin, progress: Progress) -> None:
        async with self._shelf.staging() as made:
            await progress(0, None, "unpacking")
            await to_thread.run_sync(store.unpack, bundle, made)
            await progress(0, None, "asking its code what its tools are")
            described, problems = await inspect(self._inspector, bundle, made, progress)
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
        origin: Origin,
    ) -> None:
        """Put the version in its place and make it the one that counts."""
        toolset_id = bundle.spec.id
        checks.check_names(bundle, await self._rows.digests(), await self._rows.servers())
        previous = await self._rows.find(toolset_id)
        missing = await to_thread.run_sync(checks.missing, bundle, problems, previous)
        place = self._shelf.version(toolset_id, bundle.digest)
        version = Version(bundle, described, missing, origin, place, timestamp(time.time()))
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

    def _installed(self, found: StoredToolset) -> Installed:
        row = found.toolset
        try:
            return installed(found, self._shelf.version(row.id, row.digest))
        except ValueError as error:
            reason = f"what is stored of toolset {row.id!r} cannot be read; install it again"
            raise Unavailable(reason, code="TOOLSET_UNREADABLE") from error

    def _readable(self, rows: Iterable[StoredToolset]) -> Iterator[Installed]:
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
