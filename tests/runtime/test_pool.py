"""How many workers there are, who gets one, and when they go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from eventually import TIMEOUT, async_eventually

from gateway.errors import Unavailable
from gateway.runtime import pool
from gateway.sandbox import Mount, Process, Program, Sandbox

from .conftest import Bench
from .test_cancel import appears

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TOOLS = """
    import os, time
    from pathlib import Path

    WHO = os.urandom(4).hex()

    def who():
        return WHO

    def hold():
        Path("held").write_text("")
        while not Path("go").exists():
            time.sleep(0.01)
        return WHO
"""


async def who(bench: Bench, workspace: str) -> Any:
    return await bench.runtime.call(bench.job("who", {}, workspace))


def hold(bench: Bench, workspace: str) -> asyncio.Future[Any]:
    """A call that stays inside until `let_go`."""
    return asyncio.ensure_future(bench.runtime.call(bench.job("hold", {}, workspace)))


def let_go(bench: Bench, workspace: str) -> None:
    (bench.workspace(workspace) / "go").touch()


async def test_the_idle_worker_used_longest_ago_makes_room(bench: Bench) -> None:
    bench.write(TOOLS)
    bench.open(workers=2)
    first, second = await who(bench, "1"), await who(bench, "2")
    assert await who(bench, "1") == first
    await who(bench, "3")
    assert bench.runtime.workers == 2
    assert await who(bench, "1") == first
    assert await who(bench, "2") != second


async def test_an_idle_worker_ends_by_itself_and_a_busy_one_does_not(bench: Bench) -> None:
    bench.write(TOOLS)
    bench.open(worker_idle=0.2)
    call = hold(bench, "1")
    await appears(bench.workspace("1") / "held")
    await who(bench, "2")
    await async_eventually(lambda: bench.runtime.workers == 1)
    await asyncio.sleep(0.3)
    assert bench.runtime.workers == 1
    let_go(bench, "1")
    await call
    await async_eventually(lambda: bench.runtime.workers == 0)


async def test_when_all_are_busy_calls_wait_their_turn_in_order(bench: Bench) -> None:
    bench.write(TOOLS)
    bench.open(workers=1)
    holding = hold(bench, "0")
    await appears(bench.workspace("0") / "held")
    done: list[str] = []

    async def visit(name: str) -> None:
        await who(bench, name)
        done.append(name)

    visits = []
    for name in ("1", "2", "3"):
        visits.append(asyncio.ensure_future(visit(name)))
        await asyncio.sleep(0.02)
    assert (done, bench.runtime.workers) == ([], 1)
    let_go(bench, "0")
    await asyncio.gather(holding, *visits)
    assert done == ["1", "2", "3"]
    assert bench.runtime.workers == 1


async def test_a_worker_that_is_never_idle_does_not_starve_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "STARVATION_SECONDS", 0.2)
    bench.write("import time\ndef run():\n    time.sleep(0.05)\n")
    bench.open(workers=1)
    served = asyncio.Event()

    async def hog() -> None:
        while not served.is_set():
            await bench.runtime.call(bench.job("run", {}, "hog"))

    hogs = [asyncio.ensure_future(hog()) for _ in range(4)]
    await asyncio.sleep(0.3)
    await asyncio.wait_for(bench.runtime.call(bench.job("run", {}, "other")), TIMEOUT)
    served.set()
    await asyncio.gather(*hogs)


async def test_too_many_who_wait_are_told_to_come_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "QUEUE_FACTOR", 2)
    bench.write(TOOLS)
    bench.open(workers=1)
    holding = hold(bench, "0")
    await appears(bench.workspace("0") / "held")
    waiting = [asyncio.ensure_future(who(bench, str(n))) for n in (1, 2)]
    await async_eventually(lambda: len(bench.runtime._pool._starting) == 2)
    with pytest.raises(Unavailable) as refused:
        await who(bench, "3")
    assert refused.value.code == "OVERLOADED"
    let_go(bench, "0")
    await asyncio.gather(holding, *waiting)


async def test_one_who_stops_waiting_leaves_the_queue_in_order(bench: Bench) -> None:
    bench.write(TOOLS)
    bench.open(workers=1)
    holding = hold(bench, "0")
    await appears(bench.workspace("0") / "held")
    first, second = (asyncio.ensure_future(who(bench, name)) for name in ("1", "2"))
    await async_eventually(lambda: len(bench.runtime._pool._waiting) == 2)
    first.cancel()
    await asyncio.wait([first])
    let_go(bench, "0")
    await asyncio.gather(holding, second)
    assert await who(bench, "3")


async def test_calls_that_come_while_a_worker_starts_share_it(bench: Bench) -> None:
    bench.write(TOOLS)
    assert len(set(await asyncio.gather(*(who(bench, "1") for _ in range(20))))) == 1
    assert bench.runtime.workers == 1


async def test_a_retired_toolset_finishes_its_calls_and_new_ones_run_the_new_code(bench: Bench) -> None:
    bench.write(TOOLS)
    old = await who(bench, "1")
    call = hold(bench, "1")
    await appears(bench.workspace("1") / "held")
    await bench.runtime.retire(bench.directory)
    bench.write("def who():\n    return 'new code'\n")
    assert await who(bench, "1") == "new code"
    let_go(bench, "1")
    assert await call == old
    await async_eventually(lambda: bench.runtime.workers == 1)


async def test_closing_ends_everything_within_seconds_and_refuses_more(
    boxed: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxed.write(TOOLS)
    call = hold(boxed, "1")
    await appears(boxed.workspace("1") / "held")
    await who(boxed, "2")
    starting = asyncio.ensure_future(who(boxed, "3"))
    await asyncio.sleep(0.01)
    monkeypatch.setattr(pool, "CLOSE_SECONDS", 2 * TIMEOUT)  # nothing is left behind because time was up
    async with asyncio.timeout(TIMEOUT):
        await boxed.runtime.close()
    assert boxed.runtime.workers == 0
    outcomes = await asyncio.gather(call, starting, return_exceptions=True)
    assert [getattr(outcome, "code", outcome) for outcome in outcomes] == ["SHUTTING_DOWN"] * 2
    with pytest.raises(Unavailable, match="stopping"):
        await who(boxed, "1")


async def test_two_runtimes_side_by_side_do_not_meet(bench: Bench) -> None:
    bench.write(TOOLS)
    one, two = bench.open(), bench.open()
    first, second = await asyncio.gather(one.call(bench.job("who", {}, "1")), two.call(bench.job("who", {}, "1")))
    assert first != second
    await one.close()
    assert await two.call(bench.job("who", {}, "1")) == second


@pytest.mark.slow
async def test_a_storm_of_calls_cancellations_and_crashes_leaves_all_slots_free(bench: Bench) -> None:
    bench.write(
        """
        import asyncio, os, time

        def ok(n: int):
            return n

        def slow(n: int):
            time.sleep(0.05)
            return n

        async def wait(n: int):
            await asyncio.sleep(0.05)
            return n

        def crash(n: int):
            os._exit(1)
        """
    )
    bench.open(workers=3)

    async def one(n: int) -> Any:
        function = ("ok", "slow", "wait", "ok", "wait", "crash" if n % 60 == 5 else "ok")[n % 6]
        job = bench.job(function, {"n": n}, str(n % 7))
        async with asyncio.timeout(0.02 if n % 10 == 3 else 60):
            return await bench.runtime.call(job)

    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*(one(n) for n in range(400)), return_exceptions=True)
    codes = {getattr(outcome, "code", type(outcome).__name__) for outcome in outcomes}
    assert codes <= {"int", "TimeoutError", "WORKER_DIED"}
    assert all(outcome == n for n, outcome in enumerate(outcomes) if isinstance(outcome, int))
    assert sum(isinstance(outcome, int) for outcome in outcomes) > 20
    assert not [outcome for outcome in outcomes if "in a row" in str(outcome)]
    assert bench.runtime.workers <= 3
    for n in range(6):
        assert await bench.runtime.call(bench.job("ok", {"n": n}, str(n))) == n


class Moody:
    """A sandbox that does not start anything as long as it is `down`."""

    name = "moody"
    weaknesses: tuple[str, ...] = ()
    protects_paths = False

    def __init__(self, within: Sandbox) -> None:
        self.within = within
        self.down = True

    def inside(self, mount: Mount) -> str:
        return self.within.inside(mount)

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        if self.down:
            raise Unavailable("not now", code="SANDBOX_UNAVAILABLE")
        return await self.within.start(program, stdin=stdin)


async def test_a_sandbox_that_fails_is_told_and_costs_no_room(bench: Bench) -> None:
    bench.write(TOOLS)
    bench.sandbox = moody = Moody(bench.sandbox)
    bench.open(workers=1)
    for _ in range(3):
        with pytest.raises(Unavailable) as refused:
            await who(bench, "1")
        assert refused.value.code == "SANDBOX_UNAVAILABLE"
    moody.down = False
    assert await asyncio.wait_for(who(bench, "1"), TIMEOUT)
