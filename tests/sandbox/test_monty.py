"""Code in an interpreter that knows no way out."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.sandbox import Exit, Limits
from gateway.sandbox.monty import Monty, is_installed

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not is_installed(), reason="Monty is not installed")]


@pytest.fixture
async def monty() -> AsyncIterator[Monty]:
    async with Monty(workers=2) as monty:
        yield monty


async def test_code_works_in_its_folder(monty: Monty, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("6 * 7")
    code = "import os\nopen('out', 'w').write(open('in').read() + os.environ['MORE'])\nprint('done')"
    received: list[tuple[str, bytes]] = []
    finished = await monty.run(
        code, folder=tmp_path, env={"MORE": " = 42"}, timeout=60, on_output=lambda *told: received.append(told)
    )
    assert (finished.exit, finished.stdout, finished.stderr) == (Exit(0), b"done\n", b"")
    assert (tmp_path / "out").read_text() == "6 * 7 = 42"
    assert received == [("stdout", b"done\n")]


async def test_a_failure_is_told_as_python_tells_it(monty: Monty) -> None:
    finished = await monty.run("print(1)\nraise ValueError('no')", timeout=60)
    assert (finished.exit, finished.stdout) == (Exit(1), b"1\n")
    assert finished.stderr.startswith(b'Traceback (most recent call last):\n  File "<code>", line 2, in <module>\n')
    assert finished.stderr.endswith(b"ValueError: no\n")
    assert (await monty.run("x = = 1", timeout=60)).exit == Exit(1)


@pytest.mark.parametrize(
    "code",
    [
        "open('{outside}/secret').read()",
        "open('../secret').read()",
        "open('link').read()",
        "open('folder/secret').read()",
        "open('folder/planted', 'w').write('x')",
        "open('/proc/self/environ').read()",
        "open('/etc/passwd').read()",
        "import subprocess",
        "import socket",
        "import ctypes",
        "import os; os.system('true')",
    ],
)
async def test_there_is_no_way_out(monty: Monty, tmp_path: Path, code: str) -> None:
    folder, outside = tmp_path / "ws", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    for path in (outside / "secret", tmp_path / "secret"):
        path.write_text("secret")
    os.symlink(outside / "secret", folder / "link")
    os.symlink(outside, folder / "folder")
    finished = await monty.run("print(1)\n" + code.format(outside=outside), folder=folder, timeout=60)
    assert (finished.exit, finished.stdout) == (Exit(1), b"1\n"), finished
    assert b"Error" in finished.stderr
    assert os.listdir(outside) == ["secret"]


async def test_it_has_limits(monty: Monty, tmp_path: Path) -> None:
    assert (await monty.run("while True: pass", timeout=0.3)).exit == Exit(137, "timeout")
    bomb = await monty.run("x = 'a' * 10**9", limits=Limits(memory=2**26), timeout=60)
    assert bomb.exit == Exit(137, "memory")
    endless = await monty.run("while True: print('x' * 1000)", timeout=60, output_limit=1000, hard_limit=10_000)
    assert (endless.exit, endless.stdout_truncated) == (Exit(137, "output"), True)
    assert (await monty.run("print('next')", timeout=60)).stdout == b"next\n"


async def test_nothing_is_left_for_the_next(monty: Monty) -> None:
    await monty.run("left = 1", timeout=60)
    assert b"NameError" in (await monty.run("left", timeout=60)).stderr
