"""What programs may not change in a folder that they may write to."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.sandbox import Mount, Program, Sandbox
from gateway.sandbox.bwrap import ProtectedMount, paths_to_mount
from gateway.sandbox.prestart import PrestartedSandboxes
from gateway.sandbox.run import FinishedProgram, finish, run

from .conftest import make
from .siege import python, workspace

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only bubblewrap can")]

KEPT = ("a/settings", "a/programs", "a/absent")

TRY = """
import os, shutil
def attempt(what, *arguments):
    try:
        what(*arguments)
        print("done", what.__name__, *arguments)
    except OSError:
        pass
def write(path):
    open(path, "w").write("changed")
write("free"), write("a/free"), write("a/absent")
for path in ("a/settings", "a/programs/one", "a/programs/two"):
    attempt(write, path)
    attempt(os.unlink, path)
attempt(os.rename, "free", "a/settings")
attempt(os.rename, "a/free", "a/settings")
attempt(os.rename, "a", "b")
attempt(os.rename, "a/programs", "a/b")
attempt(shutil.rmtree, "a/programs")
attempt(os.link, "a/settings", "a/same")
attempt(os.symlink, "free", "a/settings")
for number in range(3, 60):
    attempt(os.fstat, number)
"""


@pytest.fixture
def sandbox() -> Sandbox:
    return make("bwrap")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ws/a/programs").mkdir(parents=True)
    for name in ("settings", "programs/one"):
        (tmp_path / "ws/a" / name).write_text("as it was")
    return tmp_path / "ws"


def keeping(code: str, folder: Path, sandbox: Sandbox, **options: Any) -> Program:
    whole = python(code, **workspace(folder, sandbox), **options)
    return replace(whole, mounts=tuple(replace(mount, protected=KEPT) for mount in whole.mounts))


async def try_it(sandbox: Sandbox, folder: Path) -> FinishedProgram:
    return await run(sandbox, keeping(TRY, folder, sandbox), timeout=60)


async def test_what_is_kept_stays_as_it_is_and_where_it_is(sandbox: Sandbox, folder: Path) -> None:
    finished = await try_it(sandbox, folder)
    assert (finished.stdout, finished.stderr) == (b"", b"")
    assert {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()} == {
        "a/settings": "as it was",
        "a/programs/one": "as it was",
        "a/absent": "changed",
        "a/free": "changed",
        "free": "changed",
    }


async def test_what_is_not_kept_is_changed_by_the_same_code(sandbox: Sandbox, folder: Path) -> None:
    finished = await run(sandbox, python(TRY, **workspace(folder, sandbox)), timeout=60)
    assert b"done write a/settings" in finished.stdout
    assert b"done rename a b" in finished.stdout


async def test_a_link_leads_to_nothing(sandbox: Sandbox, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (folder / "a").rename(folder / "b")
    (folder / "a").symlink_to(tmp_path / "outside")
    (folder / "b/settings").unlink()
    (folder / "b/settings").symlink_to(tmp_path / "outside/secret")
    os.mkfifo(folder / "b/absent")
    mount = Mount(folder, "/workspace", writable=True, protected=("a/secret", "b/settings", "b/absent", "b/programs"))
    found = [each for each in paths_to_mount(Program((), (mount,))) if isinstance(each, ProtectedMount)]
    for each in found:
        os.close(each.fd)
    assert [(each.bind, each.target) for each in found] == [
        ("--bind", "/workspace/b"),
        ("--ro-bind", "/workspace/b/programs"),
    ]


async def test_a_file_in_the_place_of_a_folder_that_holds_what_is_kept_is_kept(sandbox: Sandbox, folder: Path) -> None:
    (folder / "a").rename(folder / "elsewhere")
    (folder / "a").write_text("as it was")
    code = "import os\nopen('b', 'w').close()\nos.replace('b', 'a')"
    for each in ("open('a', 'w').write('changed')", "import os; os.unlink('a')", code):
        finished = await run(sandbox, keeping(each, folder, sandbox), timeout=60)
        assert b"OSError" in finished.stderr or b"Error: [Errno" in finished.stderr
        assert (folder / "a").read_text() == "as it was"


async def test_one_that_waited_keeps_what_came_meanwhile(sandbox: Sandbox, folder: Path) -> None:
    spares = PrestartedSandboxes(sandbox)
    (folder / "a/settings").unlink()
    program = keeping("", folder, sandbox)
    program = replace(program, argv=program.argv[:3])
    try:
        code = "open('a/settings', 'w').write('changed')"
        await finish(await spares.start(program, "import time; time.sleep(0.5)"), timeout=60)
        assert spares.waiting == 1
        (folder / "a/settings").write_text("as it was")
        finished = await finish(await spares.start(program, code), timeout=60)
        assert b"Read-only file system" in finished.stderr
    finally:
        await spares.close()
