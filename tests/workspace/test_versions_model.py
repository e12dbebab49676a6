"""Versions against a simple model: whatever is written, moved, branched, switched and crashed, both agree."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from amounts import amount
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.db.chats import Chats
from gateway.db.manifests import Manifests
from gateway.db.sqlite import SqliteDatabase
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

Result = TypeVar("Result")
NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "ü ñ\n"])
CONTENTS = st.sampled_from([b"", b"1", b"2", b"22", b"\xff\x00"])
STEPS, EXAMPLES = 60, amount(12, 4)

# The model: path → content and whether it is executable.
Files = dict[str, tuple[bytes, bool]]


class VersionsAgree(RuleBasedStateMachine):
    manifests = Bundle("manifests")
    messages = Bundle("messages")

    @initialize()
    def start(self) -> None:
        self.data = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.disk: Files = {}
        self.kept: dict[str | None, Files] = {None: {}}
        self.head: str | None = None
        self.leaf: str | None = None
        self.own: dict[str, str | None] = {}
        self.parents: dict[str, str | None] = {}
        self.count = 0
        self.open()

    def open(self) -> None:
        self.db = self.run(SqliteDatabase.open(self.data / "toolgate.db"))
        self.versions = Versions(Manifests(self.db), Chats(self.db), Workspaces(self.data))
        self.root = Workspaces(self.data).path("c")

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(work)

    @rule(name=NAMES, content=CONTENTS, executable=st.booleans())
    def write(self, name: str, content: bytes, executable: bool) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)
        self.disk[name] = (content, executable)

    @precondition(lambda self: self.disk)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.disk)))
        (self.root / name).unlink()
        del self.disk[name]

    @precondition(lambda self: self.disk)
    @rule(data=st.data(), name=NAMES)
    def move(self, data: st.DataObject, name: str) -> None:
        source = data.draw(st.sampled_from(sorted(self.disk)))
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.root / source, self.root / name)
        self.disk[name] = self.disk.pop(source)

    @rule(target=manifests)
    def save(self) -> str | None:
        return self.run(self.saved())

    @rule(manifest=manifests)
    def checkout(self, manifest: str | None) -> None:
        async def work() -> None:
            await self.saved()
            async with self.versions.hold("c", "local") as held:
                await held.checkout(manifest)

        self.run(work())
        self.stand(manifest)

    @rule(target=messages, data=st.data())
    def branch(self, data: st.DataObject) -> str:
        """A new message after a known one, after one that is not known, at the beginning, or just after the last."""
        self.count += 1
        parent = data.draw(st.sampled_from([None, "", f"p{self.count}", *sorted(self.own)]))
        message = f"m{self.count}"
        self.switch_to(message, parent)
        return message

    @rule(message=messages)
    def switch(self, message: str) -> None:
        self.switch_to(message, None)

    def switch_to(self, message: str, parent: str | None) -> None:
        async def work() -> None:
            await self.saved()
            async with self.versions.hold("c", "local") as held:
                await held.switch(message, parent)
                assert held.head.message_id == message

        self.run(work())
        if message == self.leaf:
            return
        base = message if message in self.own else parent
        if base and base not in self.own:
            self.own[base], self.parents[base], base = self.head, self.leaf if self.head else None, None
        if message not in self.own:
            above = self.parents[message] = (parent or None) if parent is not None else self.leaf
            self.own[message] = self.head if above is None and base is None else None
        if base is not None and base != self.leaf:
            self.head = self.nearest(base)
            self.disk = dict(self.kept[self.head])
        self.leaf = message

    @rule()
    def crash(self) -> None:
        """The process dies: nothing is closed in order, the stat cache may be gone or half written."""
        index = self.data / "chats/c/index"
        if index.exists() and self.count % 2:
            index.write_bytes(index.read_bytes()[: self.count * 7])
        self.run(self.db.close())
        self.open()

    @rule(manifest=manifests)
    def crash_in_restore(self, manifest: str | None) -> None:
        """The process dies in a restore: half of the files are gone, the intent is written."""

        async def work() -> None:
            await self.saved()
            await self.versions.manifests.record_pending_restore("c", manifest or "")

        self.run(work())
        for name in sorted(self.disk)[::2]:
            (self.root / name).unlink()
        self.crash()
        self.run(self.held())
        self.stand(manifest)

    async def saved(self) -> str | None:
        """Keep what is on disk; a manifest has those files for good, and goes with the message at hand."""
        async with self.versions.hold("c", "local") as held:
            manifest = await held.save("tool_run", "call")
        assert self.kept.setdefault(manifest, dict(self.disk)) == self.disk
        if manifest != self.head:
            self.stand(manifest)
        return manifest

    async def held(self) -> None:
        async with self.versions.hold("c", "local"):
            pass

    def stand(self, manifest: str | None) -> None:
        self.head, self.disk = manifest, dict(self.kept[manifest])
        if self.leaf is not None:
            self.own[self.leaf] = manifest

    def nearest(self, message: str | None) -> str | None:
        while message is not None and self.own.get(message) is None:
            message = self.parents.get(message)
        return self.own[message] if message is not None else None

    @invariant()
    def the_disk_holds_what_the_model_says(self) -> None:
        if not hasattr(self, "root"):
            return
        found = {
            str(path.relative_to(self.root)): (path.read_bytes(), bool(path.stat().st_mode & 0o100))
            for path in self.root.rglob("*")
            if path.is_file()
        }
        assert found == self.disk

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.run(self.db.close())
            self.loop.close()
            shutil.rmtree(self.data)


VersionsAgree.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None, suppress_health_check=list(HealthCheck)
)
TestVersionsAgree = pytest.mark.promise("T2")(pytest.mark.timeout(600)(VersionsAgree.TestCase))
