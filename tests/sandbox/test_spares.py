"""Python code in sandboxes that were started before it was known."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import Invalid, Unavailable
from gateway.sandbox import Exit, Limits, Program, Sandbox
from gateway.sandbox.prestart import PrestartedSandboxes
from gateway.sandbox.run import FinishedProgram, finish

from .siege import python, workspace

pytestmark = pytest.mark.anyio
Make = Callable[..., PrestartedSandboxes]


@pytest.fixture
async def make(any_sandbox: Sandbox) -> AsyncIterator[Make]:
    made: list[PrestartedSandboxes] = []

    def make(**options: Any) -> PrestartedSandboxes:
        made.append(PrestartedSandboxes(any_sandbox, **options))
        return made[-1]

    yield make
    for spares in made:
        await spares.close()
        assert spares.waiting == 0


@pytest.fixture
def program(any_sandbox: Sandbox, tmp_path: Path) -> Program:
    return interpreter(any_sandbox, tmp_path / "ws")


def interpreter(sandbox: Sandbox, folder: Path, **options: Any) -> Program:
    """What is known before the code: the interpreter and its flags."""
    whole = python("", **workspace(folder, sandbox), **options)
    return replace(whole, argv=whole.argv[:3])


async def ready(spares: PrestartedSandboxes, program: Program, count: int = 1) -> None:
    spares.expect(program)
    with anyio.fail_after(60):
        while spares.waiting < count:  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.005)


async def use(
    spares: PrestartedSandboxes, program: Program, code: str, *, given: bytes = b"", **options: Any
) -> FinishedProgram:
    process = await spares.start(program, code, stdin=bool(given), **options)
    return await finish(process, input=given, timeout=60)


@pytest.fixture(params=["warm", "cold"])
async def spares(request: pytest.FixtureRequest, make: Make, program: Program) -> PrestartedSandboxes:
    """Once with a sandbox that waits, once without: it is the same to the code."""
    spares = make()
    if request.param == "warm":
        await ready(spares, program)
    return spares


async def test_code_finds_what_a_program_of_its_own_would(
    spares: PrestartedSandboxes, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "ws/helper.py").write_text("word = 'helped'")
    code = """
import os, sys, helper
print(__name__, sys.argv, os.environ["COLOUR"], helper.word, sys.stdin.read(), os.path.exists("helper.py"))
import pickle
class Thing: pass
pickle.loads(pickle.dumps(Thing()))
sys.exit(7)
"""
    finished = await use(spares, program, code, args=["one", "$two"], env={"COLOUR": "red"}, given=b"input")
    assert (finished.stderr, finished.exit) == (b"", Exit(7))
    assert finished.stdout == b"__main__ ['<code>', 'one', '$two'] red helped input True\n"


async def test_nobody_writes_to_code_that_wants_no_input(spares: PrestartedSandboxes, program: Program) -> None:
    finished = await use(spares, program, "import sys; print(repr(sys.stdin.read()))")
    assert finished.stdout == b"''\n", finished


async def test_a_traceback_shows_the_code_and_nothing_of_ours(
    spares: PrestartedSandboxes, program: Program, tmp_path: Path
) -> None:
    (tmp_path / "ws/traceback.py").write_text("raise SystemExit('not the one of the library')")
    finished = await use(spares, program, "def fail():\n    raise ValueError('no')\n\nfail()\n")
    assert finished.exit == Exit(1)
    assert [line for line in finished.stderr.decode().splitlines() if "^" not in line] == [
        "Traceback (most recent call last):",
        '  File "<code>", line 4, in <module>',
        "    fail()",
        '  File "<code>", line 2, in fail',
        "    raise ValueError('no')",
        "ValueError: no",
    ]
    finished = await use(spares, program, "x = = 1\n")
    assert finished.stderr.decode().splitlines()[:2] == ['  File "<code>", line 1', "    x = = 1"]


async def test_the_channel_is_closed_and_the_code_on_no_command_line(
    spares: PrestartedSandboxes, program: Program
) -> None:
    code = """
import os
word = "a-word" "-of-the-code"
for fd in range(3, 200):
    try:
        os.fstat(fd)
        print("open", fd)
    except OSError:
        pass
print(word in open("/proc/self/cmdline").read(), annotated.__annotations__)
""".replace("import os", "import os\ndef annotated(x: int): pass")
    finished = await use(spares, program, code)
    assert finished.stdout == b"False {'x': <class 'int'>}\n", finished


async def test_a_spare_is_used_once_and_followed_by_another(make: Make, program: Program) -> None:
    spares = make()
    await ready(spares, program)
    code = "import os, tempfile; print(os.listdir(tempfile.gettempdir())); open(tempfile.gettempdir() + '/left', 'w')"
    used: set[int] = set()
    for _ in range(3):
        used.update(spare.process.pid for spare in spares._ready.values())
        finished = await use(spares, program, code)
        assert finished.stdout == b"[]\n", finished
        await ready(spares, program)
    assert len(used) == 3


async def test_one_that_died_is_not_missed(make: Make, program: Program) -> None:
    spares = make()
    await ready(spares, program)
    (spare,) = spares._ready.values()
    os.kill(spare.process.pid, signal.SIGKILL)
    time.sleep(0.3)  # noqa: ASYNC251 - so that it is dead, and the loop has not had time to see it
    assert spares.waiting == 1
    assert (await use(spares, program, "print(1)")).stdout == b"1\n"
    await ready(spares, program)
    (spare,) = spares._ready.values()
    spare.process.kill()
    with anyio.fail_after(60):
        while spares.waiting:  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.005)
    assert (await use(spares, program, "print(1)")).stdout == b"1\n"


async def test_a_folder_that_was_replaced_is_the_new_one(make: Make, program: Program, tmp_path: Path) -> None:
    spares = make()
    await ready(spares, program)
    (tmp_path / "ws").rename(tmp_path / "old")
    (tmp_path / "ws").mkdir()
    finished = await use(spares, program, "open('new', 'w')")
    assert finished.exit == Exit(0), finished
    assert ((tmp_path / "ws/new").exists(), (tmp_path / "old/new").exists()) == (True, False)


async def test_a_folder_within_that_was_replaced_is_the_new_one(
    make: Make, any_sandbox: Sandbox, tmp_path: Path
) -> None:
    program = interpreter(any_sandbox, tmp_path / "ws")
    program = replace(program, cwd=program.cwd + "/src")
    (tmp_path / "ws/src").mkdir()
    spares = make()
    await ready(spares, program)
    (tmp_path / "ws/src").rmdir()
    (tmp_path / "ws/src").mkdir()
    assert (await use(spares, program, "open('new', 'w')")).exit == Exit(0)
    assert (tmp_path / "ws/src/new").exists()


async def test_only_the_last_used_are_kept_and_not_for_ever(make: Make, any_sandbox: Sandbox, tmp_path: Path) -> None:
    spares = make(kept=2)
    programs = [interpreter(any_sandbox, tmp_path / f"ws{number}") for number in range(3)]
    for number, each in enumerate(programs):
        await ready(spares, each, min(number + 1, 2))
    with anyio.fail_after(60):
        while len(spares._recent) > 2:
            assert spares.waiting <= 2
            await anyio.sleep(0.005)
    assert [each.mounts for each in spares._recent.values()] == [each.mounts for each in programs[1:]]
    idle = make(kept=2, idle=0.2)
    idle.expect(programs[0], now=True)
    (coming,) = idle._starting.values()
    await coming
    with anyio.fail_after(60):
        while idle._recent:  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.05)
    assert not idle.waiting


async def test_one_that_is_expected_now_is_the_one_that_is_used(make: Make, program: Program) -> None:
    spares = make(kept=1)
    spares.expect(program, now=True)
    spares.expect(program, now=True)
    (coming,) = spares._starting.values()
    process = await spares.start(program, "print(1)")
    assert process is coming.result().process
    assert (await finish(process, timeout=60)).stdout == b"1\n"


async def test_many_expected_now_do_not_end_each_other(make: Make, any_sandbox: Sandbox, tmp_path: Path) -> None:
    spares = make(kept=2)
    programs = [interpreter(any_sandbox, tmp_path / f"ws{number}") for number in range(5)]
    for each in programs:
        spares.expect(each, now=True)
    coming = list(spares._starting.values())
    assert len(coming) == 2
    found = await asyncio.gather(*(use(spares, each, "print(1)") for each in programs))
    assert {each.stdout for each in found} == {b"1\n"}
    assert not any(task.cancelled() for task in coming)


async def test_those_that_were_expected_and_not_used_are_not_kept_either(
    make: Make, any_sandbox: Sandbox, tmp_path: Path
) -> None:
    spares = make(kept=2)
    for number in range(4):
        spares.expect(interpreter(any_sandbox, tmp_path / f"ws{number}"), now=True)
        with anyio.fail_after(60):
            while spares._starting:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.005)
    with anyio.fail_after(60):
        while spares.waiting > 2:  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.005)
    assert [each.mounts[0].source.name for each in spares._recent.values()] == ["ws2", "ws3"]


async def test_those_that_cannot_begin_are_not_remembered(make: Make, any_sandbox: Sandbox, tmp_path: Path) -> None:
    spares = make(kept=2)
    for number in range(4):
        program = interpreter(any_sandbox, tmp_path / f"ws{number}")
        (tmp_path / f"ws{number}").rmdir()
        spares.expect(program, now=True)
        with anyio.fail_after(60):
            while spares._starting:  # noqa: ASYNC110 - nothing tells of it
                await anyio.sleep(0.005)
    with anyio.fail_after(60):
        while len(spares._recent) > 2 or spares.waiting:  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.005)


@pytest.mark.slow
async def test_time_before_the_use_does_not_count(make: Make, any_sandbox: Sandbox, tmp_path: Path) -> None:
    folder = tmp_path / "ws"
    program = interpreter(any_sandbox, folder, limits=Limits(cpu_seconds=1, disk=2**22))
    spares = make()
    await ready(spares, program)
    (folder / "written meanwhile").write_bytes(os.urandom(2**23))
    await anyio.sleep(0.1)  # the clock of a file system ticks slowly
    finished = await use(spares, program, "import time\nwhile time.process_time() < 0.95: pass\nprint('done')")
    assert (finished.exit, finished.stdout) == (Exit(0), b"done\n")
    spinning = "import time\nwhile time.process_time() < 6: pass"
    assert (await use(spares, program, spinning)).exit.code in (137, 152)


async def test_many_at_once_run_each_its_own(make: Make, program: Program) -> None:
    spares = make()
    await ready(spares, program)
    found = await asyncio.gather(*(use(spares, program, f"print({number})") for number in range(6)))
    assert [each.stdout for each in found] == [b"%d\n" % number for number in range(6)]


@pytest.mark.parametrize("moment", [0, 0.001, 0.004, 0.02])
async def test_a_use_can_be_cancelled_at_any_moment(
    spares: PrestartedSandboxes, program: Program, moment: float
) -> None:
    with anyio.move_on_after(moment):
        await use(spares, program, "import time; time.sleep(300)")
    await spares.close()
    assert [task for task in asyncio.all_tasks() if "sandbox" in repr(task.get_coro())] == []


async def test_large_code_arrives_whole_and_too_large_code_is_refused(
    spares: PrestartedSandboxes, program: Program
) -> None:
    code = f"text = {'x' * 2_000_000!r}\nprint(len(text))"
    assert (await use(spares, program, code)).stdout == b"2000000\n"
    with pytest.raises(Invalid):
        await spares.start(program, "#" * 2**24)
    with pytest.raises(Invalid):
        await spares.start(program, "", env={"A=B": "c"})


async def test_an_interpreter_that_is_not_there_is_told(make: Make, program: Program) -> None:
    with pytest.raises(Unavailable) as refused:
        await make().start(replace(program, argv=("/usr/bin/no-such-python",)), "print(1)")
    assert "no-such-python" in refused.value.message
    assert refused.value.code == "SANDBOX_UNAVAILABLE"


def planted(program: Program, folder: Path, script: str) -> Program:
    """The same with an interpreter that a program could have left in its workspace."""
    (folder / "python").write_text(f"#!/bin/bash\n{script}\n")
    (folder / "python").chmod(0o755)
    return replace(program, argv=(f"{program.cwd}/python", "-I"))


async def test_an_interpreter_that_programs_can_change_never_waits(
    make: Make, program: Program, tmp_path: Path
) -> None:
    spares = make()
    inside = planted(program, tmp_path / "ws", "touch began; exec sleep 300")
    spares.expect(inside)
    await ready(spares, program)
    await anyio.sleep(0.1)
    assert spares.waiting == 1
    assert not (tmp_path / "ws/began").exists()


@pytest.mark.parametrize("script", ["exec sleep 300", 'for fd in {3..50}; do eval "exec $fd>&-"; done; exec sleep 300'])
async def test_an_interpreter_that_does_not_take_the_code_ends_on_time(
    make: Make, program: Program, tmp_path: Path, script: str
) -> None:
    with anyio.fail_after(60):
        process = await make().start(planted(program, tmp_path / "ws", script), "print(1)", timeout=0.5)
        finished = await finish(process, timeout=60)
    assert (finished.exit.killed, finished.stdout) == ("timeout", b"")


def test_it_is_the_same_on_uvloop(any_sandbox: Sandbox, tmp_path: Path) -> None:
    program = interpreter(any_sandbox, tmp_path / "ws")

    async def main() -> None:
        spares = PrestartedSandboxes(any_sandbox)
        for _ in range(2):
            await ready(spares, program)
            assert (await use(spares, program, "print(input())", given=b"hello\n")).stdout == b"hello\n"
        await spares.close()

    anyio.run(main, backend_options={"use_uvloop": True})
