"""Calls that are called off: they return at once, what can be stopped is, and neighbours go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.runtime import worker_process

from .conftest import Bench

pytestmark = pytest.mark.anyio

TOOLS = """
    import asyncio, os, threading, time
    from pathlib import Path

    WHO = os.urandom(4).hex()

    def who():
        return WHO

    def spin():
        Path("begun").write_text("")
        while True:
            pass

    def slow():
        Path("slow").write_text("")
        Path(f"slow-{threading.get_ident()}").write_text("")
        while not Path("go").exists():
            time.sleep(0.01)
        return WHO

    async def wait():
        Path("begun").write_text("")
        try:
            await asyncio.sleep(60)
        finally:
            Path("cleaned").write_text("")

    async def stubborn():
        Path("begun").write_text("")
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                pass

    async def blocking():
        Path("begun").write_text("")
        time.sleep(60)
"""


async def appears(path: Path) -> None:
    async with asyncio.timeout(10):
        while not path.exists():  # noqa: ASYNC110 - a file sets no event
            await asyncio.sleep(0.005)


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - nor does a number
            await asyncio.sleep(0.005)


async def cancelled(call: asyncio.Future[Any]) -> float:
    """How long a cancelled call took to return."""
    began = time.monotonic()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    assert call.cancelled()
    return time.monotonic() - began


async def test_a_cancelled_coroutine_cleans_up_and_its_worker_stays(boxed: Bench) -> None:
    boxed.write(TOOLS)
    who = await boxed.call("who")
    call = asyncio.ensure_future(boxed.call("wait"))
    await appears(boxed.workspace() / "begun")
    assert await cancelled(call) < 0.2
    await appears(boxed.workspace() / "cleaned")
    assert await boxed.call("who") == who
    await asyncio.sleep(worker_process.CANCEL_SECONDS + 0.1)
    assert await boxed.call("who") == who


async def test_a_cancelled_function_costs_the_worker_and_a_neighbour_finishes(
    boxed: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "CANCEL_SECONDS", 30.0)  # it says by itself that it cannot stop
    boxed.write(TOOLS)
    old = await boxed.call("who")
    neighbour = asyncio.ensure_future(boxed.call("slow"))
    call = asyncio.ensure_future(boxed.call("spin"))
    await appears(boxed.workspace() / "begun")
    await appears(boxed.workspace() / "slow")
    assert await cancelled(call) < 0.2
    async with asyncio.timeout(10):
        while await boxed.call("who") == old:
            pass
    assert boxed.runtime.workers == 2
    (boxed.workspace() / "go").touch()
    assert await neighbour == old
    await until(lambda: boxed.runtime.workers == 1)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["stubborn", "blocking"])
async def test_a_coroutine_that_does_not_give_up_costs_the_worker(bench: Bench, function: str) -> None:
    bench.write(TOOLS)
    old = await bench.call("who")
    call = asyncio.ensure_future(bench.call(function))
    await appears(bench.workspace() / "begun")
    assert await cancelled(call) < 0.2
    await until(lambda: bench.runtime.workers == 0)
    assert await bench.call("who") != old


async def test_a_cancelled_call_that_waits_for_a_thread_never_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "CANCEL_SECONDS", 30.0)  # a busy machine may be slow to say that it gave up
    bench.write(TOOLS)
    who = await bench.call("who")
    later = asyncio.ensure_future(bench.call("wait"))
    await appears(bench.workspace() / "begun")
    (bench.workspace() / "begun").unlink()
    running = [asyncio.ensure_future(bench.call("slow")) for _ in range(8)]
    await until(lambda: len(list(bench.workspace().glob("slow-*"))) == 8)  # every thread there is
    waiting = asyncio.ensure_future(bench.call("spin"))
    await asyncio.sleep(0.05)
    await cancelled(waiting)
    await cancelled(later)
    await appears(bench.workspace() / "cleaned")  # a worker reads in order: it has read of the other, too
    (bench.workspace() / "go").touch()
    assert await asyncio.gather(*running) == [who] * 8
    assert await bench.call("who") == who
    assert not (bench.workspace() / "begun").exists()


async def test_a_call_cancelled_while_its_worker_starts_leaves_a_good_worker(bench: Bench) -> None:
    bench.write(TOOLS)
    for delay in (0, 0.01, 0.05, 0.1):
        call = asyncio.ensure_future(bench.call("who"))
        await asyncio.sleep(delay)
        await cancelled(call)
    assert await bench.call("who")
    await until(lambda: bench.runtime.workers == 1)


async def test_many_cancelled_calls_leave_nothing_behind(bench: Bench) -> None:
    bench.write(TOOLS)
    who = await bench.call("who")
    before = len(asyncio.all_tasks())
    calls = [asyncio.ensure_future(bench.call("wait")) for _ in range(50)]
    await asyncio.sleep(0.05)
    for call in calls:
        await cancelled(call)
    assert await bench.call("who") == who
    await asyncio.sleep(0.1)
    assert len(asyncio.all_tasks()) <= before
