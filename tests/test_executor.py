"""The one road: what a call passes on its way, and what comes back whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT

from gateway.calls import Call, Outcome, Proceed
from gateway.catalog import Catalog, CatalogEntry
from gateway.errors import Forbidden, GatewayError, ToolFailed
from gateway.executor import Executor
from gateway.extensions import Extension
from gateway.tools import Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X2")]

Body = Callable[[Call], Awaitable[Outcome]]


class Box:
    name = "box"

    def __init__(self, body: Body) -> None:
        self.tool = Tool("box:it", "")
        self._body = body
        self.calls: list[Call] = []

    async def list_tools(self) -> Sequence[Tool]:
        return [self.tool]

    async def call_tool(self, call: Call) -> Outcome:
        self.calls.append(call)
        return await self._body(call)


async def echo(call: Call) -> Outcome:
    return Outcome(value=dict(call.arguments))


def road(body: Body, *extensions: Extension) -> tuple[Executor, Box]:
    box = Box(body)
    return Executor(extensions, Catalog([CatalogEntry("box__it", box.tool, box)])), box


def a_call(**arguments: Any) -> Call:
    return Call(name="box__it", arguments=arguments)


class Deny(Extension):
    async def before_execute(self, call: Call) -> None:
        raise Forbidden("no")


class Broken(Extension):
    """Fails where it is told to, as a gate or as an observer."""

    def __init__(self, where: str) -> None:
        self._where = where

    async def before_execute(self, call: Call) -> None:
        if self._where == "before":
            raise ZeroDivisionError

    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        if self._where == "after":
            raise ZeroDivisionError
        return outcome


class BrokenObserver(Broken):
    mode = "observer"


class Seen(Extension):
    mode = "observer"

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        self.outcomes.append(outcome)
        return outcome


async def test_a_source_is_handed_its_own_tool_and_the_outcome_comes_back() -> None:
    executor, box = road(echo)
    assert (await executor.call_tool(a_call(a=1))).value == {"a": 1}
    assert box.calls[0].tool is box.tool


async def test_a_tool_is_called_by_its_id_as_well() -> None:
    executor, _ = road(echo)
    assert (await executor.call_tool(replace(a_call(), name="box:it"))).ok


@pytest.mark.promise("X3")
async def test_an_unknown_name_is_an_outcome_which_observers_see() -> None:
    seen = Seen()

    class Gate(Extension):
        async def before_execute(self, call: Call) -> None:
            assert call.target

    executor, box = road(echo, seen, Gate())
    outcome = await executor.call_tool(replace(a_call(), name="box__ti"))
    assert str(outcome.error) == "UNKNOWN_TOOL: no tool is named 'box__ti'; did you mean 'box__it'?"
    assert seen.outcomes == [outcome]
    assert box.calls == []


@pytest.mark.promise("X3")
async def test_a_gate_that_refuses_keeps_the_call_from_its_source_and_observers_see_it() -> None:
    seen = Seen()
    executor, box = road(echo, seen, Deny())
    outcome = await executor.call_tool(a_call())
    assert str(outcome.error) == "PERMISSION_DENIED: no"
    assert (seen.outcomes, box.calls) == ([outcome], [])


@pytest.mark.promise("X3")
@pytest.mark.parametrize("where", ["before", "after"])
async def test_a_custom_gate_that_fails_denies_and_is_named_without_the_reason(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    executor, box = road(echo, Broken(where))
    call = a_call()
    outcome = await executor.call_tool(call)
    assert outcome.error is not None and outcome.error.code == "EXTENSION_FAILED"
    assert outcome.error.message.startswith("the extension Broken failed, so the call was denied;")
    assert call.id in outcome.error.message and "ZeroDivision" not in outcome.error.message
    assert "ZeroDivisionError" in caplog.text and "test_executor:Broken failed" in caplog.text
    assert len(box.calls) == (where == "after")


@pytest.mark.promise("X3")
@pytest.mark.parametrize("where", ["before", "after"])
async def test_an_observer_that_fails_is_passed_by_and_the_tool_runs_once(where: str) -> None:
    executor, box = road(echo, BrokenObserver(where))
    assert (await executor.call_tool(a_call(a=1))).value == {"a": 1}
    assert len(box.calls) == 1


async def test_extensions_stand_outermost_first_and_may_change_the_call_or_answer_for_the_tool() -> None:
    class Add(Extension):
        def __init__(self, letter: str) -> None:
            self._letter = letter

        async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
            changed = call.replace(arguments={"word": call.arguments["word"] + self._letter})
            outcome = await proceed(changed)
            return replace(outcome, value=outcome.value["word"] + self._letter)

    class Answer(Extension):
        async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
            return Outcome(value=call.arguments)

    executor, box = road(echo, Add("a"), Answer())
    assert (await executor.call_tool(a_call(word="_"))).value == "_aa"
    assert box.calls == []


async def test_a_tools_no_is_an_outcome_and_a_tools_bug_does_not_leak() -> None:
    async def refuse(_: Call) -> Outcome:
        raise ToolFailed("the file is locked")

    async def crash(_: Call) -> Outcome:
        raise RuntimeError("password=hunter2")

    executor, _ = road(refuse)
    assert str((await executor.call_tool(a_call())).error) == "EXECUTION_ERROR: the file is locked"
    executor, _ = road(crash)
    error = (await executor.call_tool(a_call())).error
    assert isinstance(error, GatewayError) and "hunter2" not in str(error)


async def test_cancellation_passes_through_and_ends_the_tool() -> None:
    started, ended = anyio.Event(), anyio.Event()

    async def wait(_: Call) -> Outcome:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    executor, _ = road(wait)
    task = asyncio.ensure_future(executor.call_tool(a_call()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_idle_waits_for_the_calls_under_way() -> None:
    release = anyio.Event()

    async def wait(_: Call) -> Outcome:
        await release.wait()
        return Outcome()

    executor, _ = road(wait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(executor.call_tool, a_call())
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0.01) as waited:
            await executor.idle()
        assert waited.cancelled_caught
        release.set()
        with anyio.fail_after(TIMEOUT):
            await executor.idle()


async def test_watchers_hear_of_a_changed_catalog_and_not_of_an_equal_one() -> None:
    executor, box = road(echo)
    received: list[int] = []
    stop = executor.watch(lambda catalog: received.append(len(catalog)))
    executor.swap(Catalog([CatalogEntry("box__it", box.tool, box)]))
    executor.swap(Catalog())
    stop()
    executor.swap(Catalog([CatalogEntry("box__it", box.tool, box)]))
    assert received == [0]


class Picky(Extension):
    """Stands in the way of the tools it names, or fails to say of which."""

    def __init__(self, *names: str, broken: bool = False) -> None:
        self._names = names
        self._broken = broken
        self.asked = 0

    def applies_to(self, tool: Tool) -> bool:
        self.asked += 1
        if self._broken:
            raise RuntimeError("who knows")
        return tool.id in self._names

    async def before_execute(self, call: Call) -> None:
        raise Forbidden("not this one")


async def test_an_extension_meets_only_the_tools_that_concern_it() -> None:
    picky = Picky("box:other")
    executor, box = road(echo, picky)
    assert [(await executor.call_tool(a_call(n=n))).ok for n in range(3)] == [True] * 3
    assert picky.asked == 1  # of each tool once, not of each call
    other = Tool("box:other", "")
    executor.swap(Catalog([CatalogEntry("box__it", other, box)]))
    assert str((await executor.call_tool(a_call())).error) == "PERMISSION_DENIED: not this one"
    unknown = await executor.call_tool(Call(name="nobody", arguments={}))
    assert unknown.error is not None and unknown.error.code == "PERMISSION_DENIED"  # whom it may concern, nobody knows


async def test_one_that_cannot_say_what_concerns_it_stands_in_every_way() -> None:
    executor, box = road(echo, Picky(broken=True))
    assert not (await executor.call_tool(a_call())).ok
    assert box.calls == []
