"""Toolsets that misbehave: each costs its own call, the next works, and the gateway is unharmed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest
from eventually import async_eventually

from gateway.errors import ToolFailed
from gateway.runtime import pool, worker_process

from .conftest import Bench

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

GOOD = """
    def good():
        return "good"
"""


async def failure(bench: Bench, source: str, function: str = "bad") -> ToolFailed:
    """What the call of `bad` failed with; `good` of the same toolset works afterwards."""
    bench.write(textwrap.dedent(GOOD) + textwrap.dedent(source))
    with pytest.raises(ToolFailed) as failed:
        await bench.call(function)
    assert await bench.call("good") == "good"
    return failed.value


async def test_a_crash_is_named_and_the_next_call_finds_a_fresh_worker(boxed: Bench) -> None:
    error = await failure(
        boxed,
        """
        def bad():
            import ctypes
            ctypes.string_at(0)
        """,
    )
    assert error.code == "WORKER_DIED"
    assert error.details["signal"] == "SIGSEGV"
    assert "crashed (SIGSEGV" in error.message
    assert "tools/it.py" in error.details["stderr"]
    assert str(boxed.folder) not in error.message


async def test_an_exit_from_below_is_named_with_its_code_and_last_words(boxed: Bench) -> None:
    error = await failure(
        boxed,
        """
        def bad():
            import os, sys
            print("out of paper", file=sys.stderr, flush=True)
            os._exit(7)
        """,
    )
    assert error.code == "WORKER_DIED"
    assert error.details["exit_code"] == 7
    assert "exited with code 7; its last line on stderr: 'out of paper'" in error.message


async def test_what_ends_other_programs_is_an_error_like_any(bench: Bench) -> None:
    bench.write("""
        RAISED = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), MemoryError()]

        def bad(n: int):
            raise RAISED[n]

        async def later(n: int):
            raise RAISED[n]
    """)
    for n, name in enumerate(["SystemExit", "KeyboardInterrupt", "GeneratorExit", "MemoryError"]):
        for function in ("bad", "later"):
            with pytest.raises(ToolFailed) as failed:
                await bench.call(function, n=n)
            assert (failed.value.code, failed.value.details["type"]) == ("EXECUTION_ERROR", name)
    assert bench.runtime.workers == 1


async def test_endless_recursion_is_an_error_like_any(bench: Bench) -> None:
    error = await failure(bench, "\n    def bad():\n        return bad()\n")
    assert error.details["type"] == "RecursionError"


async def test_an_exception_that_cannot_be_told_is_told_of(bench: Bench) -> None:
    error = await failure(
        bench,
        """
    class Bad(Exception):
        def __str__(self):
            raise SystemExit

    def bad():
        raise Bad
        """,
    )
    assert error.details["type"] == "Bad"


async def test_a_neighbour_in_a_crash_is_told_so(bench: Bench) -> None:
    bench.write("""
        import os, time
        from pathlib import Path

        def slow():
            Path("slow").touch()
            time.sleep(600)

        def bad():
            while not Path("slow").exists():
                time.sleep(0.01)
            os._exit(1)
    """)
    outcomes = await asyncio.gather(bench.call("slow"), bench.call("bad"), return_exceptions=True)
    assert [getattr(outcome, "code", None) for outcome in outcomes] == ["WORKER_DIED"] * 2


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_output_without_end_ends_the_call(boxed: Bench, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = await failure(
        boxed,
        f"""
    def bad():
        import sys
        while True:
            sys.{stream}.write("x" * 100_000)
        """,
    )
    assert error.code == "OUTPUT_LIMIT"
    assert "more than 16 MiB" in error.message


async def test_prints_are_counted_for_each_call_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "OUTPUT_LIMIT_BYTES", 1_000_000)
    bench.write("def run():\n    print('x' * 400_000, flush=True)\n")
    for _ in range(5):
        await bench.call("run")
    assert bench.runtime.workers == 1


async def test_a_result_too_large_is_refused_inside_and_the_worker_stays(bench: Bench) -> None:
    error = await failure(bench, "\n    def bad():\n        return 'x' * (33 * 1024 * 1024)\n")
    assert error.code == "INVALID_OUTPUT"
    assert "the limit is 33,554,432" in error.message
    assert bench.runtime.workers == 1


CHANNEL = """
    import os, stat

    def channel():
        for fd in range(3, 256):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    return fd
            except OSError:
                pass

    def send(message: bytes, times: int = 1):
        os.write(channel(), (len(message).to_bytes(4, "big") + message) * times)
"""


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("os.write(channel(), b'garbage' * 1000)", "announced a message of"),
        ("os.write(channel(), bytes(100))", "sent an invalid message"),
        ("send(b'not json')", "sent an invalid message"),
        ("send(b'[' * 100_000)", "sent an invalid message"),
        ("send(b'[1]')", "sent an invalid message"),
        ("send(b'{}')", "answered an unknown call"),
        ('send(b\'{"id":999,"value":1}\')', "answered an unknown call"),
        ('send(b\'{"id":[1],"value":1}\')', "answered an unknown call"),
        ("send(b'{\"id\":1}')", "sent an invalid answer"),
        # in one write, since a busy machine could spread single messages over many seconds
        ('send(b\'{"id":1,"log":["info","x"]}\', times=5000)', "log lines in a second"),
        ('send(b\'{"id":1,"progress":[\' + b"[1,null,null]," * 10_000 + b"1]}")', "reports before they were delivered"),
    ],
)
async def test_worker_that_breaks_the_protocol_is_ended(bench: Bench, bad: str, reason: str) -> None:
    bench.write(f"""{CHANNEL}
    import time

    def bad():
        {bad}
        time.sleep(600)

    def good():
        return "good"
    """)
    with pytest.raises(ToolFailed, match=reason) as failed:
        await bench.call("bad")
    assert failed.value.code == "WORKER_DIED"
    assert await bench.call("good") == "good"


async def test_reports_of_the_wrong_shape_are_let_pass(bench: Bench) -> None:
    bench.write(f"""{CHANNEL}
    def run():
        for said in (b'1', b'["a"]', b'{{}}', b'[1,2]', b'[["x",null,null]]'):
            send(b'{{"id":1,"progress":' + said + b'}}')
            send(b'{{"id":1,"log":' + said + b'}}')
        return "done"
    """)
    assert await bench.call("run") == "done"


async def test_closing_the_usual_descriptors_harms_nobody(bench: Bench) -> None:
    bench.write("import os\ndef run():\n    os.closerange(0, 100)\n    return 'done'\n")
    assert await bench.call("run") == "done"
    assert await bench.call("run") == "done"


async def test_closing_the_channel_ends_the_worker(bench: Bench) -> None:
    error = await failure(
        bench,
        """
    def bad():
        import os
        os.closerange(3, 256)
        """,
    )
    assert error.code == "WORKER_DIED"


async def test_a_child_process_has_no_channel(bench: Bench) -> None:
    bench.write("""
        import subprocess, sys

        def run():
            code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
            return subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, text=True).stdout
    """)
    assert max(eval(await bench.call("run"))) < 10


async def test_a_fork_that_comes_back_does_not_answer_twice(bench: Bench) -> None:
    bench.write("""
        import os

        def run():
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            return "done"

    """)
    for _ in range(25):
        assert await asyncio.gather(*(bench.call("run") for _ in range(4))) == ["done"] * 4
    assert bench.runtime.workers == 1


async def test_threads_left_behind_report_to_nobody(bench: Bench) -> None:
    bench.write("""
        import threading, time
        from covalt_toolset import get_context

        def run():
            context = get_context()
            def late():
                for n in range(30):
                    context.progress(n)
                    context.log("late")
                    time.sleep(0.01)
            threading.Thread(target=late).start()
            return "done"
    """)
    for _ in range(5):
        assert await bench.call("run") == "done"
        await asyncio.sleep(0.05)
    assert bench.runtime.workers == 1


async def test_a_loop_stopped_by_a_tool_runs_on(bench: Bench) -> None:
    bench.write("""
        import asyncio

        async def stop():
            asyncio.get_running_loop().stop()
            return "stopped"

        async def good():
            await asyncio.sleep(0.01)
            return "good"
    """)
    assert await bench.call("stop") == "stopped"
    assert await bench.call("good") == "good"


async def test_a_toolset_that_dies_while_it_is_imported_is_not_started_in_a_hot_loop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds in ("BACKOFF_SECONDS", "BACKOFF_LIMIT"):
        monkeypatch.setattr(pool, seconds, 600.0)
    bench.write("import os\nos._exit(1)\n")
    reports = []
    for _ in range(30):
        with pytest.raises(ToolFailed) as failed:
            await bench.call("run")
        assert failed.value.code == "WORKER_DIED"
        reports.append(failed.value.message)
    assert "exited with code 1" in reports[0]
    assert "2 times in a row while it started" in reports[2]
    assert sum("in a row" in each for each in reports) == 28
    await bench.runtime.retire(bench.directory)
    bench.write("def run():\n    return 'mended'\n")
    assert await bench.call("run") == "mended"


GATEWAY = """
import asyncio, sys
from pathlib import Path
from gateway.config import SandboxSettings
from gateway.runtime import FunctionCall, WorkerRuntime
from gateway.sandbox.detect import Unconfined

async def main(folder):
    unconfined = Unconfined()
    async def sandbox():
        return unconfined
    runtime = WorkerRuntime(sandbox, folder / "runtime", SandboxSettings())
    def job(function):
        return FunctionCall(toolset="it", directory=folder / "toolset", entrypoint=f"tools.it:{function}", arguments={},
                   workspace=folder / "ws", chat="demo", id="1")
    asyncio.ensure_future(runtime.call(job("spin")))
    print(await runtime.call(job("pid")), flush=True)
    await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
"""


async def test_workers_end_with_a_gateway_that_is_killed(bench: Bench, tmp_path: Path) -> None:
    bench.write("""
        import os, time

        def pid():
            return os.getpid()

        def spin():
            while True:
                time.sleep(0.01)
    """)
    bench.workspace()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        GATEWAY,
        str(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    worker = int(await process.stdout.readline())
    os.kill(worker, 0)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await async_eventually(lambda: not _lives(worker))


def _lives(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
