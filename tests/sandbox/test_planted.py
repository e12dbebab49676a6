"""What a sandboxed program leaves in a workspace does not trip the gateway that works there afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.errors import GatewayError
from gateway.sandbox import Exit, Sandbox
from gateway.sandbox.run import run
from gateway.sandbox.supervisor_main import remove
from gateway.workspace import Root, parse
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout

from .siege import python, workspace

pytestmark = pytest.mark.anyio

PLANT = """
import os, socket, sys
outside = sys.argv[1]
os.symlink(outside + "/secret.db", "report.txt")
os.symlink(outside, "sub")
os.symlink("/proc/self/environ", "env")
os.symlink("../files-evil", "near")
os.mkfifo("pipe")
try:
    socket.socket(socket.AF_UNIX).bind("socket")
except OSError:
    pass
open(b"bad\\xff\\xfe", "w").close()
open("two\\nlines", "w").close()
os.truncate(os.open("sparse", os.O_CREAT | os.O_WRONLY), 1 << 24)
os.makedirs("deep/" * 100)
open("honest", "w").write("work")
try:
    os.chmod("honest", 0o4755)
except OSError:
    pass
print("planted")
"""


def code(action: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(GatewayError) as refused:
        action(*arguments)
    return refused.value.code


async def test_what_a_program_planted_is_harmless(sandbox: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    checkout = Checkout(folder, FileBlobs(tmp_path / "blobs"), tmp_path / "index")
    outside, near = tmp_path / "outside", tmp_path / "files-evil"
    for each in (outside, near):
        each.mkdir()
        (each / "secret.db").write_text("secret")
    finished = await run(sandbox, python(PLANT, str(outside), **workspace(folder, sandbox)), timeout=60)
    assert (finished.exit, finished.stdout) == (Exit(0), b"planted\n"), finished
    assert not (folder / "honest").stat().st_mode & 0o6000
    with Root(folder) as root:
        for path in ("report.txt", "env", "sub/secret.db", "near/secret.db"):
            assert code(root.open, parse(path)) == "INVALID_PATH"
        for path in ("sub/new", "near/new", "report.txt"):
            assert code(root.replace, parse(path), b"x") == "INVALID_PATH"
        assert code(parse, "../files-evil/secret.db") == "INVALID_PATH"
        assert code(root.open, ("pipe",)) == "NOT_A_FILE"
        with root.open(("honest",)) as file:
            assert file.read() == b"work"
        assert len(list(root.walk())) > 60
    tree = checkout.snapshot()
    assert {"honest", "sparse", "report.txt", "sub", "two\nlines"} <= set(tree.files)
    assert "pipe" in checkout.skipped
    assert all(name.encode() for name in tree.files)  # each can be told in JSON
    assert not [name for name in tree.files if name.startswith(("sub/", "near/"))]
    assert sorted(os.listdir(outside)) == sorted(os.listdir(near)) == ["secret.db"]
    remove(str(folder))


async def test_a_program_that_leaves_too_large_a_file_is_stopped_before(sandbox: Sandbox, tmp_path: Path) -> None:
    beyond = "import os; os.truncate(os.open('sparse', os.O_CREAT | os.O_WRONLY), 1 << 40)"
    finished = await run(sandbox, python(beyond, **workspace(tmp_path / "files", sandbox)), timeout=60)
    assert b"File too large" in finished.stderr or finished.exit.code > 128
    assert (tmp_path / "files/sparse").stat().st_size == 0
