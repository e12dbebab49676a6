"""Programs from start to end: what they are given, what they say, and that their end is the end of all of it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import sys
import time
import uuid
from pathlib import Path

import anyio
import pytest
from amounts import amount
from eventually import async_eventually

from gateway.errors import Invalid, Unavailable
from gateway.sandbox import Exit, Limits, Mount, Program, Sandbox
from gateway.sandbox.run import run

from .conftest import World, make, require_packages
from .siege import python, run_out_of_time, running, workspace

pytestmark = pytest.mark.anyio

DAEMON = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
def beat():
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        with open("beat", "a") as file:
            file.write("x")
        time.sleep(0.01)
if os.fork() == 0:
    beat()
while not os.path.exists("beat") or not os.path.getsize("beat"):
    time.sleep(0.01)
print("daemon lives", flush=True)
"""


async def test_it_gets_its_input_arguments_and_environment_and_nothing_else(
    any_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the gateway")
    code = (
        "import os, sys; print(sys.argv[1:], sorted(os.environ)); print(sys.stdin.read(), file=sys.stderr); sys.exit(7)"
    )
    program = python(code, "one", "$two", env={"COLOUR": "red"}, **workspace(tmp_path / "ws", any_sandbox))
    finished = await run(any_sandbox, program, input=b"some input", timeout=60)
    assert finished.exit == Exit(7)
    assert finished.stderr == b"some input\n"
    arguments, names = finished.stdout.decode().rstrip().split("] [")
    assert arguments == "['one', '$two'"
    assert "'COLOUR'" in names
    assert "SECRET" not in names


async def test_it_finds_its_folders(any_sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in/question").write_text("6 * 7")
    given, wanted = Mount(tmp_path / "in", "/given"), Mount(tmp_path / "out", "/wanted", writable=True)
    code = "import sys; open(f'{sys.argv[2]}/answer', 'w').write(str(eval(open(f'{sys.argv[1]}/question').read())))"
    program = python(code, any_sandbox.inside(given), any_sandbox.inside(wanted), mounts=(given, wanted))
    finished = await run(any_sandbox, program, timeout=60)
    assert finished.exit == Exit(0), finished.stderr
    assert (tmp_path / "out/answer").read_text() == "42"


async def test_a_mount_that_is_not_writable_is_not_written(sandbox: Sandbox, tmp_path: Path) -> None:
    mount = Mount(tmp_path, "/given")
    finished = await run(
        sandbox,
        python("import sys; open(sys.argv[1], 'w')", sandbox.inside(mount) + "/new", mounts=(mount,)),
        timeout=60,
    )
    assert finished.exit.code == 1
    assert b"Error" in finished.stderr
    assert list(tmp_path.iterdir()) == []


async def test_a_socket_it_is_handed_works_both_ways(any_sandbox: Sandbox) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = """
import os, socket, sys
fds = sorted(int(name) for name in os.listdir("/dev/fd")) if os.access("/dev/fd", os.R_OK) else []
channel = socket.socket(fileno=int(sys.argv[1]))
while data := channel.recv(100):
    channel.sendall(data.upper())
"""
        fd = theirs.fileno()
        process = await any_sandbox.start(python(code, str(fd), pass_fds=(fd,)))
        theirs.close()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        with anyio.fail_after(60):
            for word in (b"one", b"two"):
                await loop.sock_sendall(ours, word)
                assert await loop.sock_recv(ours, 100) == word.upper()
            ours.shutdown(socket.SHUT_WR)
            assert await loop.sock_recv(ours, 100) == b""
            assert await process.wait() == Exit(0)


async def test_only_the_descriptors_it_is_handed_are_open(any_sandbox: Sandbox) -> None:
    ours, theirs = os.pipe()
    os.set_inheritable(ours, True)
    code = """
import os
for fd in range(200):
    try:
        os.fstat(fd)
        print(fd)
    except OSError:
        pass
"""
    try:
        finished = await run(any_sandbox, python(code, pass_fds=(theirs,)), timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert [int(line) for line in finished.stdout.split()] == [0, 1, 2, theirs]


async def test_endless_output_ends_the_program(any_sandbox: Sandbox) -> None:
    yes = Program(("/usr/bin/yes", "0123456"))
    finished = await run(any_sandbox, yes, timeout=60, output_limit=1024, hard_limit=2**20)
    assert finished.exit == Exit(137, "output")
    assert finished.stdout_truncated
    assert not finished.stderr_truncated
    assert finished.stdout.startswith(b"0123456\n" * 64 + b"\n... ")
    assert len(finished.stdout) < 1100


async def test_long_output_keeps_its_beginning_and_its_end(sandbox: Sandbox) -> None:
    code = "print('first'); print('x' * 400_000); print('last')"
    finished = await run(sandbox, python(code), timeout=60, output_limit=1024)
    assert finished.exit == Exit(0)
    assert finished.stdout.startswith(b"first\nxxx")
    assert finished.stdout.endswith(b"xxx\nlast\n")
    assert b"... 398988 bytes left out ..." in finished.stdout


async def test_a_program_that_ignores_signals_ends_on_time(any_sandbox: Sandbox) -> None:
    code = """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
print("deaf", flush=True)
time.sleep(300)
"""
    finished = await run_out_of_time(any_sandbox, python(code), b"deaf")
    assert finished.exit == Exit(137, "timeout")
    assert finished.stdout == b"deaf\n"


async def test_a_daemon_does_not_outlive_its_program(any_sandbox: Sandbox, tmp_path: Path) -> None:
    program = python(DAEMON, **workspace(tmp_path / "ws", any_sandbox))
    finished = await run(any_sandbox, program, timeout=60)
    assert finished.exit == Exit(0)
    assert finished.stdout == b"daemon lives\n"
    await no_more_beats(tmp_path / "ws/beat")


async def test_a_cancelled_run_leaves_nothing(any_sandbox: Sandbox, tmp_path: Path) -> None:
    program = python(DAEMON + "time.sleep(300)", **workspace(tmp_path / "ws", any_sandbox))
    task = asyncio.create_task(run(any_sandbox, program, timeout=60))
    await first_beat(tmp_path / "ws/beat")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await no_more_beats(tmp_path / "ws/beat")


@pytest.mark.parametrize("moment", [0, 0.002, 0.005, 0.01, 0.02, 0.04])
async def test_a_start_can_be_cancelled_at_any_moment(any_sandbox: Sandbox, tmp_path: Path, moment: float) -> None:
    program = python(DAEMON + "time.sleep(300)", **workspace(tmp_path / "ws", any_sandbox))
    with anyio.move_on_after(moment):
        await run(any_sandbox, program, timeout=60)
    beat = tmp_path / "ws/beat"
    if beat.exists():
        await no_more_beats(beat)
    await async_eventually(lambda: not [task for task in asyncio.all_tasks() if "sandbox" in repr(task.get_coro())])


async def test_it_dies_with_the_gateway(any_sandbox: Sandbox, tmp_path: Path) -> None:
    script = f"""
import asyncio
from tests.sandbox.siege import *
async def main():
    sandbox = BACKENDS[{any_sandbox.name!r}]()
    program = python({DAEMON + "time.sleep(300)"!r}, **workspace(Path({str(tmp_path / "ws")!r}), sandbox))
    await (await sandbox.start(program)).wait()
asyncio.run(main())
"""
    (tmp_path / "tmp").mkdir()
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=Path(__file__).parents[2], env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    )
    try:
        await first_beat(tmp_path / "ws/beat")
        await anyio.sleep(0.2)  # until it has said so: a broken pipe must not be what ends it
    finally:
        gateway.send_signal(signal.SIGKILL)
        await gateway.wait()
    with anyio.fail_after(60):
        while list((tmp_path / "tmp").iterdir()):  # noqa: ASYNC110 - the supervisor removes it when all are dead
            await anyio.sleep(0.05)
    if any_sandbox.name == "bwrap":  # which has no supervisor, and nothing to remove
        await anyio.sleep(0.5)
    await no_more_beats(tmp_path / "ws/beat")


async def test_it_does_not_begin_when_the_gateway_dies_while_starting_it(tmp_path: Path) -> None:
    make("bwrap")
    token = uuid.uuid4().hex
    script = f"""
import asyncio, os
from gateway.sandbox import bwrap
from tests.sandbox.siege import *
bwrap._Namespace.release = lambda self: os.kill(os.getpid(), 9)
async def main():
    sandbox = bwrap.Bubblewrap()
    await sandbox.start(python({DAEMON!r}, {token!r}, **workspace(Path({str(tmp_path / "ws")!r}), sandbox)))
asyncio.run(main())
"""
    gateway = await asyncio.create_subprocess_exec(sys.executable, "-c", script, cwd=Path(__file__).parents[2])
    assert await gateway.wait() == -signal.SIGKILL
    await async_eventually(lambda: not running(token))
    assert not (tmp_path / "ws/beat").exists()


async def test_python_touches_and_copies_files(any_sandbox: Sandbox, tmp_path: Path) -> None:
    code = (
        "import pathlib, shutil; pathlib.Path('new').touch(); shutil.copy2('new', 'copy'); pathlib.Path('new').touch()"
    )
    finished = await run(any_sandbox, python(code, **workspace(tmp_path / "ws", any_sandbox)), timeout=60)
    assert finished.exit == Exit(0), finished.stderr
    assert sorted(path.name for path in (tmp_path / "ws").iterdir()) == ["copy", "new"]


KILL_ROUNDS = int(os.environ.get("TOOLGATE_KILL_ROUNDS", amount(4, nightly=60)))


@pytest.mark.slow
@pytest.mark.timeout(600 + 10 * KILL_ROUNDS)
@pytest.mark.parametrize("backend", ["bwrap", "landlock"])
@pytest.mark.parametrize("user", ["root", "user"])
def test_nothing_outlives_a_gateway_that_is_killed_while_it_starts_programs(
    backend: str, user: str, world: World
) -> None:
    """`TOOLGATE_KILL_ROUNDS` makes it more rounds than fit into a run of all tests."""
    make(backend)
    require_packages(world, user)
    arguments = (backend, str(world.field), str(KILL_ROUNDS), "2")
    program = world.run(user, "-m", "tests.sandbox.killed_gateway", *arguments, timeout=580 + 10 * KILL_ROUNDS)
    assert program.returncode == 0, program.stderr[-8000:]
    print(program.stdout)  # the figures, shown by `pytest -rP`
    report = json.loads(program.stdout)
    assert report["left"] == [], report
    assert report["rounds"] == KILL_ROUNDS


async def test_a_bubblewrap_that_someone_kills_harms_no_other() -> None:
    sandbox = make("bwrap")
    for _ in range(20):
        process = await sandbox.start(python("import time; time.sleep(300)"))
        os.kill(process.pid, signal.SIGKILL)
        with anyio.fail_after(60):
            assert await process.wait() == Exit(137)
            finished = await run(sandbox, Program(("/bin/true",)), timeout=60)
        assert finished.exit == Exit(0)


async def test_a_value_cannot_smuggle_in_options(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    smuggled = f"red\0--ro-bind\0{tmp_path}\0/tmp"
    with pytest.raises(Invalid):
        await make("bwrap").start(Program(("/bin/cat", "/tmp/secret"), env={"COLOUR": smuggled}))


async def test_a_program_that_is_not_there_is_told(any_sandbox: Sandbox) -> None:
    with pytest.raises(Unavailable) as refused:
        await run(any_sandbox, Program(("/usr/bin/there-is-no-such-program",)), timeout=60)
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
    assert "there-is-no-such-program" in refused.value.message


async def test_many_at_once_end_each_with_its_own(any_sandbox: Sandbox) -> None:
    async def one(number: int) -> Exit:
        limits = Limits(processes=32)
        return (await run(any_sandbox, Program(("/bin/sh", "-c", f"exit {number}"), limits=limits), timeout=60)).exit

    exits = await asyncio.gather(*(one(number) for number in range(12)))
    assert exits == [Exit(number) for number in range(12)]


async def test_nothing_of_ours_is_left_open(any_sandbox: Sandbox) -> None:
    await run(any_sandbox, Program(("/bin/true",)), timeout=60)
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await run(any_sandbox, Program(("/bin/true",)), input=b"x", timeout=60)
    with anyio.fail_after(60):
        while set(os.listdir("/proc/self/fd")) - before:  # noqa: ASYNC110 - nothing tells of a closed descriptor
            await anyio.sleep(0.05)


@pytest.mark.parametrize("output", ["", "head -c 150000 /dev/zero;"])
def test_a_program_ends_with_its_event_loop(any_sandbox: Sandbox, output: str, tmp_path: Path) -> None:
    """Also one that is being started, and one that left more output than was read."""
    token = uuid.uuid4().hex
    program = Program(("/bin/sh", "-c", f"{output} echo begun >&2; read line; : {token}"))

    async def leave_running() -> None:
        process = await any_sandbox.start(program, stdin=True)
        assert await process.stderr.readline() == b"begun\n"

    async def leave_ended() -> None:
        process = await any_sandbox.start(program, stdin=True)
        assert await process.stderr.readline() == b"begun\n"
        process.kill()
        await process.wait()

    async def leave_starting(turns: int) -> None:
        starting = asyncio.ensure_future(any_sandbox.start(program, stdin=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not starting.done()

    for main in (leave_running(), leave_ended(), *(leave_starting(turns) for turns in range(1, 5))):
        asyncio.run(main)
        gc.collect()  # of an open pipe or a process that is not over, Python warns here, and that is an error
        assert not running(token)


async def first_beat(beat: Path) -> None:
    with anyio.fail_after(60):
        while not beat.exists() or not beat.stat().st_size:  # noqa: ASYNC110 - the only sign of life there is
            await anyio.sleep(0.01)


async def no_more_beats(beat: Path) -> None:
    beats = beat.stat().st_size
    began = time.monotonic()
    while time.monotonic() - began < 0.2:
        await anyio.sleep(0.05)
        assert beat.stat().st_size == beats


def test_it_is_the_same_on_uvloop(any_sandbox: Sandbox) -> None:
    async def main() -> None:
        finished = await run(any_sandbox, python("print(input())"), input=b"hello\n", timeout=60)
        assert (finished.exit, finished.stdout, finished.stderr) == (Exit(0), b"hello\n", b"")
        finished = await run(any_sandbox, Program(("/bin/sleep", "300")), timeout=0.1)
        assert finished.exit == Exit(137, "timeout")

    anyio.run(main, backend_options={"use_uvloop": True})


async def test_what_it_writes_is_told_while_it_runs(any_sandbox: Sandbox) -> None:
    received: list[tuple[str, bytes]] = []
    answered = asyncio.Event()

    def said(stream: str, data: bytes) -> None:
        received.append((stream, data))
        answered.set()

    code = "import sys, time; print('now', flush=True); time.sleep(300)"
    running = asyncio.create_task(run(any_sandbox, python(code), timeout=60, on_output=said))
    with anyio.fail_after(60):
        await answered.wait()
    assert received == [("stdout", b"now\n")]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_only_so_much_is_told_and_a_listener_that_fails_harms_nobody(sandbox: Sandbox) -> None:
    received = bytearray()

    def said(stream: str, data: bytes) -> None:
        assert stream == "stdout"
        received.extend(data)

    code = "import sys; sys.stdout.write('x' * 100_000)"
    finished = await run(sandbox, python(code), timeout=60, output_limit=1000, on_output=said)
    assert (len(received), finished.exit, finished.stdout_truncated) == (1000, Exit(0), True)

    def fails(stream: str, data: bytes) -> None:
        received.clear()
        raise RuntimeError("deaf")

    finished = await run(sandbox, python(code), timeout=60, on_output=fails)
    assert (len(finished.stdout), finished.exit, bytes(received)) == (100_000, Exit(0), b"")


def test_a_folder_is_named_whole() -> None:
    with pytest.raises(ValueError, match="an absolute path"):
        Mount(Path(), "/workspace")


async def test_the_processes_and_loops_of_python_work_without_sockets(sandbox: Sandbox) -> None:
    code = """
import asyncio, multiprocessing, socket
async def main():
    one, other = socket.socketpair()
    reader, _ = await asyncio.open_connection(sock=one)
    other.sendall(b"a pair")
    process = await asyncio.create_subprocess_exec("/bin/echo", "a child", stdout=-1)
    print(await reader.read(6), await process.stdout.read())
asyncio.run(main())
ours, theirs = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=lambda: theirs.send(theirs.recv() * 2))
process.start()
ours.send(21)
print(ours.recv())
"""
    finished = await run(sandbox, python(code), timeout=60)
    assert finished.stdout == b"b'a pair' b'a child\\n'\n42\n", finished
