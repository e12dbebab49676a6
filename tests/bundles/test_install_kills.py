"""A process killed at any step of an install leaves the old version or the new one, whole, and rubbish that goes."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from amounts import amount

from gateway.bundles import read_folder
from gateway.bundles.store import find_difference

from .libraries import CODE, NO_ROWS, TWO_TOOLS, exported, folder, install, on_disk, opened, rows

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = 12
# The last steps of an install replace the old version: every one is tried, or every second one.
STRIDE = amount(2, nightly=1)
FILES = {f"assets/{number % 5}/{number}": f"{number}" * 50 for number in range(40)}

CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from gateway.bundles.library import ToolsetLibrary
from gateway.db.sqlite import SqliteDatabase

data, source, action, left = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])

def die_after(system_call):
    def counted(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return system_call(*arguments, **options)
    return counted

class Inspector:
    async def describe(self, spec, directory, progress):
        return {tool.id: {"input_schema": {"type": "object"}} for tool in spec.tools}

async def main():
    db = await SqliteDatabase.open(data / "toolgate.db")
    for name in ("open", "rename", "unlink", "mkdir", "rmdir", "close", "fsync", "stat"):
        setattr(os, name, die_after(getattr(os, name)))
    library = ToolsetLibrary(db, data, Inspector(), lambda *_: None)
    if action == "uninstall":
        await library.uninstall("demo")
    else:
        await library.install(source, source_type="local", source_ref=str(source))
    print(int(sys.argv[4]) - left, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # also a process that has told nobody yet

asyncio.run(main())
"""


def run_and_kill(data: Path, source: Path, action: str, steps: int = 10**9) -> int:
    """How many steps it took, or more than that when it was killed before it was done."""
    command = [sys.executable, "-c", CHILD, str(data), str(source), action, str(steps)]
    child = subprocess.run(command, check=False, capture_output=True, text=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    return int(child.stdout or steps + 1)


def run_together(command: list[str], count: int) -> list[tuple[int, str]]:
    children = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(count)]
    outputs = [child.communicate(timeout=90)[1] for child in children]
    return [(child.returncode, error) for child, error in zip(children, outputs, strict=True)]


async def test_an_install_killed_at_any_step_leaves_the_old_or_the_new_version_whole(tmp_path: Path) -> None:
    data, chance = tmp_path / "data", random.Random(11)
    sources = [
        folder(tmp_path / f"v{number}", TWO_TOOLS.replace("1.0.0", f"{number}.0.0"), CODE | FILES | {"v": f"{number}"})
        for number in (1, 2, 3)
    ]
    bundles = {read_folder(source).digest: read_folder(source) for source in sources}
    outcomes: list[tuple[bool, bool]] = []
    async with opened(data) as library:
        await install(library, sources[0])
        whole = run_and_kill(data, sources[1], "install")
        points = [*range(whole - 28, whole - 8, STRIDE), *(chance.randint(1, whole) for _ in range(ROUNDS // STRIDE))]
        for number, steps in enumerate(points, 2):
            before = (await library.get("demo")).digest
            run_and_kill(data, sources[number % 3], "install", steps)
            placed = len(list((data / "toolsets/demo").iterdir())) > 1
            await library.clean()
            found = await library.get("demo")
            outcomes.append((placed, found.digest == before))
            assert found.digest in (before, read_folder(sources[number % 3]).digest)
            assert find_difference(found.directory, bundles[found.digest].without_secrets()) is None
            assert {path.split("/")[1] for path in on_disk(data) if "/" in path} == {found.directory.name}
            assert len(await exported(library)) > 1000
            assert rows(data)["tools"] == 2
    assert {(False, True), (True, True), (True, False)} <= set(outcomes)


async def test_a_first_install_or_an_uninstall_killed_at_any_step_is_whole_or_nothing(tmp_path: Path) -> None:
    data, chance = tmp_path / "data", random.Random(12)
    source = folder(tmp_path / "src", TWO_TOOLS, CODE | FILES)
    outcomes = set()
    async with opened(data) as library:
        for _ in range(ROUNDS):
            there = bool(await library.list())
            action = "uninstall" if there else "install"
            run_and_kill(data, source, action, chance.randint(1, 100 if there else 900))
            await library.clean()
            toolsets = await library.list()
            outcomes.add((action, bool(toolsets)))
            if toolsets:
                assert find_difference(toolsets[0].directory, read_folder(source).without_secrets()) is None
            else:
                assert (on_disk(data), rows(data)) == (set(), NO_ROWS)
    assert len(outcomes) >= 3


async def test_processes_that_install_and_clean_up_at_once_disturb_nobody(tmp_path: Path) -> None:
    data = tmp_path / "data"
    sources = [
        folder(tmp_path / f"v{number}", TWO_TOOLS.replace("1.0.0", f"{number}.0.0"), CODE | {"v": f"{number}"})
        for number in (1, 2, 3)
    ]
    assert run_together([sys.executable, "-c", STORM, str(data), *map(str, sources)], 4) == [(0, "")] * 4
    async with opened(data) as library:
        await library.clean()
        found = await library.get("demo")
        bundle = read_folder(sources[int(found.spec.version[0]) - 1])
        assert (found.digest, find_difference(found.directory, bundle.without_secrets())) == (bundle.digest, None)
        assert {path.split("/")[1] for path in on_disk(data) if "/" in path} == {found.directory.name}


STORM = (
    CHILD[: CHILD.index("data, source")]
    + CHILD[CHILD.index("class Inspector") : CHILD.index("async def main")]
    + """
import io, random
data, sources = Path(sys.argv[1]), [Path(source) for source in sys.argv[2:]]

async def main():
    db = await SqliteDatabase.open(data / "toolgate.db")
    library = ToolsetLibrary(db, data, Inspector(), lambda *_: None)
    for number in range(12):
        source = random.choice(sources)
        await library.install(source, source_type="local", source_ref=str(source))
        await library.override("demo", "a", {"enabled": bool(number % 2)})
        if number % 3 == 0:
            await library.clean()
    await db.close()

asyncio.run(main())
"""
)
