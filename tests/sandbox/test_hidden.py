"""Files that a program can neither read nor change, in a folder it is given."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.sandbox import Program, Sandbox
from gateway.sandbox.prestart import PrestartedSandboxes
from gateway.sandbox.run import finish, run
from gateway.workspace.hidden import ENTRIES, MOUNTS_LIMIT, Hidden, find_hidden, hidden_paths

from .conftest import make
from .siege import python, workspace

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="only bubblewrap can")]

SECRET = "a word that nobody inside may know"
RULE = "rule 1 of approval.rules"

TRY = """
import os, shutil, subprocess
def attempt(what, *arguments):
    try:
        print("done", what.__name__, *arguments, what(*arguments))
    except OSError:
        pass
def read(path):
    return open(path, "rb").read()
def write(path):
    open(path, "w").write("changed")
def listed(path):
    return os.listdir(path)
for path in ("a.env", "conf/a.env", "secrets/key", "secrets/deep/key", "hard.txt", "open/b.env"):
    for what in (read, write, os.unlink):
        attempt(what, path)
    attempt(os.chmod, path, 0o777)
    attempt(os.rename, path, "public.txt")
    attempt(os.link, path, "public.txt")
    attempt(os.truncate, path, 0)
attempt(read, "linked.txt")
attempt(write, "linked.txt")
attempt(listed, "secrets")
attempt(os.chmod, "secrets", 0o777)
attempt(write, "secrets/new")
for path in ("conf", "secrets", "open"):
    attempt(os.rename, path, "moved")
attempt(shutil.rmtree, "secrets")
os.symlink("a.env", "by-link")
attempt(read, "by-link")
print(read("conf/plain.txt").decode(), read("free.txt").decode())
write("conf/made.txt"), write("free.txt")
print(subprocess.run(["/bin/sh", "-c", "cat a.env conf/a.env secrets/*"], capture_output=True).stdout)
"""


def hides(path: str, agreed: frozenset[str] = frozenset()) -> str | None:
    return RULE if path.endswith(".env") or f"{path}/".startswith("secrets/") else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "ws"
    for name in ("a.env", "conf/a.env", "secrets/key", "secrets/deep/key", "open/b.env"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(SECRET)
    (place / "conf/plain.txt").write_text("plain")
    (place / "free.txt").write_text("free")
    (place / "linked.txt").symlink_to("conf/a.env")
    os.link(place / "a.env", place / "hard.txt")
    return place


def hiding(sandbox: Sandbox, folder: Path, hidden: Hidden, code: str = TRY, **options: Any) -> Program:
    whole = python(code, **workspace(folder, sandbox), **options)
    return replace(whole, mounts=tuple(replace(each, hidden=hidden_paths(hidden)) for each in whole.mounts))


async def test_hidden_files_are_found_under_every_name_and_a_directory_stands_for_all_in_it(folder: Path) -> None:
    found = find_hidden(folder, hides)
    assert [path for path, *_ in found] == ["a.env", "conf/a.env", "hard.txt", "open/b.env", "secrets"]
    assert {reason for _, reason, *_ in found} == {RULE}
    (folder / "secrets/empty").mkdir()
    (folder / "secrets/link").symlink_to("key")
    assert find_hidden(folder, hides) == found
    (folder / "a.env").unlink()
    (folder / "a.env").write_text("another")
    assert find_hidden(folder, hides) != found


async def test_protected_directory_with_a_hidden_file_deep_in_it_stays_read_only(tmp_path: Path) -> None:
    sandbox, folder = make("bwrap"), tmp_path / "ws"
    (folder / ".husky/_").mkdir(parents=True)
    (folder / ".husky/_/a.env").write_text(SECRET)
    code = (
        "import pathlib\ntry: pathlib.Path('.husky/_/pre-push').write_text('planted')\nexcept OSError: print('refused')"
    )
    program = hiding(sandbox, folder, find_hidden(folder, hides), code)
    program = replace(program, mounts=tuple(replace(each, protected=(".husky",)) for each in program.mounts))
    finished = await run(sandbox, program, timeout=60)
    assert (finished.stdout, list((folder / ".husky/_").iterdir())) == (b"refused\n", [folder / ".husky/_/a.env"])


@pytest.mark.skipif(os.getuid() == 0, reason="root can list every directory")
async def test_a_directory_that_cannot_be_listed_is_hidden_whole(folder: Path) -> None:
    (folder / "conf").chmod(0)
    try:
        assert "conf" in [path for path, *_ in find_hidden(folder, hides)]
    finally:
        (folder / "conf").chmod(0o755)


@pytest.mark.parametrize("limit", ["ENTRIES", "MOUNTS_LIMIT"])
async def test_more_files_than_can_be_looked_at_or_hidden_are_refused(
    folder: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ENTRIES > MOUNTS_LIMIT > 100
    monkeypatch.setattr(f"gateway.workspace.hidden.{limit}", 3)
    with pytest.raises(Unavailable, match="3") as refused:
        find_hidden(folder, hides)
    assert refused.value.code == "FILES_NOT_HIDDEN"


async def test_a_hidden_file_can_neither_be_read_nor_changed_nor_moved_away(folder: Path) -> None:
    sandbox = make("bwrap")
    before = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    finished = await run(sandbox, hiding(sandbox, folder, find_hidden(folder, hides)), timeout=60)
    assert (finished.stdout, finished.stderr) == (b"plain free\nb''\n", b"")
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == before | {"by-link", "conf/made.txt"}
    for name in ("a.env", "hard.txt", "conf/a.env", "secrets/key", "secrets/deep/key", "open/b.env"):
        assert (folder / name).read_text() == SECRET


async def test_a_hidden_file_cannot_be_read_in_a_folder_that_is_read_only(folder: Path) -> None:
    sandbox = make("bwrap")
    program = hiding(sandbox, folder, find_hidden(folder, hides), "print(open('a.env').read())")
    program = replace(program, mounts=tuple(replace(each, writable=False) for each in program.mounts))
    finished = await run(sandbox, program, timeout=60)
    assert finished.stdout == b"" and b"PermissionError" in finished.stderr


async def test_a_hidden_directory_hides_the_protected_files_in_it_too(folder: Path) -> None:
    sandbox = make("bwrap")
    program = hiding(sandbox, folder, find_hidden(folder, hides), "print(open('secrets/key').read())")
    program = replace(
        program, mounts=tuple(replace(each, protected=("secrets/key", "conf")) for each in program.mounts)
    )
    finished = await run(sandbox, program, timeout=60)
    assert finished.stdout == b"" and b"PermissionError" in finished.stderr


@pytest.mark.parametrize("backend", ["landlock", "unconfined"])
async def test_a_sandbox_that_cannot_hide_files_refuses_with_the_rule_the_file_and_the_choices(
    folder: Path, backend: str
) -> None:
    sandbox = make(backend)
    with pytest.raises(Unavailable) as refused:
        await sandbox.start(hiding(sandbox, folder, find_hidden(folder, hides)))
    assert refused.value.code == "FILES_NOT_HIDDEN"
    assert refused.value.message.startswith(f"{RULE} keeps 'a.env' from programs, and the sandbox {backend} cannot")
    assert "move it out of the workspace, change the rule, or run where bubblewrap" in refused.value.message
    finished = await run(sandbox, hiding(sandbox, folder, (), "print(1)"), timeout=60)
    assert finished.stdout == b"1\n"


async def test_a_spare_started_before_a_hidden_file_was_replaced_is_not_used(folder: Path) -> None:
    sandbox = make("bwrap")
    spares = PrestartedSandboxes(sandbox)
    reading = "try: print(open('a.env').read())\nexcept OSError: print('hidden')"

    def program() -> Program:
        whole = hiding(sandbox, folder, find_hidden(folder, hides))
        return replace(whole, argv=whole.argv[:1])

    try:
        for _ in range(3):
            process = await spares.start(program(), reading)
            finished = await finish(process, timeout=60)
            assert (finished.stdout, finished.stderr) == (b"hidden\n", b"")
            spares.expect(program(), now=True)
            (folder / "new").write_text(SECRET)
            (folder / "new").rename(folder / "a.env")
            (folder / f"{len(os.listdir(folder))}.env").write_text(SECRET)
    finally:
        await spares.close()
