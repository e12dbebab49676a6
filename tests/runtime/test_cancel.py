"""Calls that are called off: they return at once, what can be stopped is, and neighbours go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from eventually import TIME_LIMITS, TIMEOUT, async_eventually

from gateway.runtime import worker_process

from .conftest import Bench

pytestmark = pytest.mark.anyio

# Turns of the event loop in which a cancelled call must have returned.
TURNS = 10

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
    await async_eventually(path.exists)


async def cancel(call: asyncio.Future[Any]) -> None:
    """Cancel a call, which must return within a few turns of the event loop: without waiting for its worker."""
    call.cancel()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert call.cancelled()


async def test_a_cancelled_coroutine_cleans_up_and_its_worker_stays(
    boxed: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxed.write(TOOLS)
    for seconds in TIME_LIMITS:
        monkeypatch.setattr(worker_process, "CANCEL_SECONDS", seconds)
        who = await boxed.call("who")
        call = asyncio.ensure_future(boxed.call("wait"))
        await appears(boxed.workspace() / "begun")
        await cancel(call)
        await appears(boxed.workspace() / "cleaned")
        await asyncio.sleep(seconds + 0.1)
        if await boxed.call("who") == who:
            return
        for name in ("begun", "cleaned"):
            (boxed.workspace() / name).unlink()
    pytest.fail("every worker was replaced")


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
    await cancel(call)
    async with asyncio.timeout(TIMEOUT):
        while await boxed.call("who") == old:
            pass
    assert boxed.runtime.workers == 2
    (boxed.workspace() / "go").touch()
    assert await neighbour == old
    await async_eventually(lambda: boxed.runtime.workers == 1)


@pytest.mark.slow
@pytest.mark.parametrize("function", ["stubborn", "blocking"])
async def test_a_coroutine_that_does_not_give_up_costs_the_worker(bench: Bench, function: str) -> None:
    bench.write(TOOLS)
    old = await bench.call("who")
    call = asyncio.ensure_future(bench.call(function))
    await appears(bench.workspace() / "begun")
    await cancel(call)
    await async_eventually(lambda: bench.runtime.workers == 0)
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
    await async_eventually(lambda: len(list(bench.workspace().glob("slow-*"))) == 8)  # every thread there is
    waiting = asyncio.ensure_future(bench.call("spin"))
    await asyncio.sleep(0.05)
    await cancel(waiting)
    await cancel(later)
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
        if call.done():  # a fast machine has started the worker by then
            break
        await cancel(call)
    assert await bench.call("who")
    await async_eventually(lambda: bench.runtime.workers == 1)


async def test_many_cancelled_calls_leave_nothing_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may take longer to stop a call than a worker is given, which is then replaced.
    monkeypatch.setattr(worker_process, "CANCEL_SECONDS", TIMEOUT)
    bench.write(TOOLS)
    who = await bench.call("who")
    before = len(asyncio.all_tasks())
    calls = [asyncio.ensure_future(bench.call("wait")) for _ in range(50)]
    await appears(bench.workspace() / "begun")
    for call in calls:
        await cancel(call)
    assert await bench.call("who") == who
    await async_eventually(lambda: len(asyncio.all_tasks()) <= before)
