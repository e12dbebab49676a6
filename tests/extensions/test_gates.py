"""The gates, one by one: validation, ownership, permissions, rate limits, approval, running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from clock import Clock
from eventually import TIME_LIMITS, TIMEOUT, async_eventually

from gateway.calls import LOCAL, Call, Caller, ClientInfo, Outcome
from gateway.config import Settings
from gateway.config.settings import ApprovalRule
from gateway.errors import Timeout
from gateway.extensions import Extension, concurrency, stack
from gateway.extensions.approval import Approval, Mode
from gateway.extensions.concurrency import Concurrency
from gateway.extensions.permissions import ChatClaim, Ownership, Permissions
from gateway.extensions.rate_limit import RateLimit
from gateway.extensions.validation import Validation
from gateway.tools import Category, Permission, Tool

pytestmark = pytest.mark.anyio

CATEGORIES = Settings().effective_categories()
ECHO = Tool("echo", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, category="upstream")


async def echo(call: Call) -> Outcome:
    return Outcome(value={"confirmed": call.confirmed})


async def through(extension: Extension, call: Call) -> Outcome:
    return await stack([extension], echo)(call)


def code(outcome: Outcome) -> str:
    return "OK" if outcome.error is None else outcome.error.code


def call(tool: Tool = ECHO, chat: str = "c", principal: str = "local", **more: Any) -> Call:
    return Call(
        name=tool.id, arguments=more.pop("arguments", {}), tool=tool, chat=chat, caller=Caller(principal), **more
    )


@pytest.mark.promise("B11", "B6")
async def test_validation_refuses_by_schema_and_by_size_and_names_the_limit() -> None:
    gate = Validation(request_bytes=1000, response_bytes=10)
    assert code(await through(gate, call(arguments={"n": "x"}))) == "INVALID_ARGUMENTS"
    too_large = (await through(gate, call(arguments={"text": "x" * 1000}))).error
    assert too_large is not None
    assert (too_large.code, too_large.details) == ("REQUEST_TOO_LARGE", {"bytes": 1011, "limit": 1000})
    assert code(await through(gate, call())) == "RESPONSE_TOO_LARGE"


def upstream_tool(**schema: Any) -> Tool:
    return Tool("srv:t", "", {"type": "object", **schema}, category="upstream", kind="mcp", wire={})


def deny(arguments: dict[str, str]) -> ApprovalRule:
    return ApprovalRule.model_validate({"tool": "srv:t", "when": {"arguments": arguments}, "then": "deny"})


SHOT = upstream_tool(
    properties={"type": {"type": "string", "default": "png"}, "path": {"type": "string"}}, required=["type"]
)


@pytest.mark.promise("B6")
@pytest.mark.parametrize(
    ("tool", "arguments", "sent"),
    [
        (SHOT, {}, {"type": "png"}),
        (SHOT, {"type": None}, {"type": "png"}),
        (SHOT, {"type": "jpeg", "path": None}, {"type": "jpeg"}),
        (SHOT, {"path": 5}, {"type": "png", "path": 5}),
        (upstream_tool(required=["a"]), {}, {}),
        (upstream_tool(properties={"a": {"type": "string"}}, required=["a"]), {"a": None}, {"a": None}),
        (upstream_tool(properties={"a": {"type": ["string", "null"]}}), {"a": None}, {"a": None}),
        (upstream_tool(properties={"a": {"type": "int"}}), {"a": None}, {"a": None}),
        (upstream_tool(properties=[], required={}), {"a": 1}, {"a": 1}),
    ],
)
async def test_validation_repairs_and_passes_on_what_only_an_upstream_can_judge(
    tool: Tool, arguments: dict[str, Any], sent: dict[str, Any]
) -> None:
    async def run(call: Call) -> Outcome:
        return Outcome(value=call.arguments, wire={})

    outcome = await stack([Validation(1000, 1000, lambda _: False)], run)(call(tool, arguments=arguments))
    assert (outcome.error, outcome.value) == (None, sent)


@pytest.mark.promise("B6")
async def test_validation_refuses_what_it_cannot_repair_where_a_policy_reads_the_arguments() -> None:
    approval = Approval("never", [deny({"path": "x"})])
    gate = Validation(1000, 1000, approval.reads_arguments)
    assert code(await stack([gate, approval], echo)(call(SHOT, arguments={}))) == "OK"
    assert code(await stack([gate, approval], echo)(call(SHOT, arguments={"path": 5}))) == "INVALID_ARGUMENTS"
    odd = upstream_tool(properties={"path": {"type": "int"}})
    refused = (await stack([gate, approval], echo)(call(odd, arguments={"path": "y"}))).error
    assert refused is not None and "its arguments cannot be checked" in refused.message


@pytest.mark.promise("B6")
async def test_policy_sees_the_arguments_that_validation_repaired() -> None:
    approval = Approval("never", [deny({"type": "png"})])
    gate = Validation(1000, 1000, approval.reads_arguments)
    assert code(await stack([gate, approval], echo)(call(SHOT, arguments={}))) == "DENIED_BY_RULE"


@pytest.mark.promise("B6")
async def test_validation_refuses_what_is_no_json() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    gate = Validation(10**6, 10**6)
    assert code(await through(gate, call(arguments=deep))) == "INVALID_JSON"
    assert code(await through(gate, call(arguments={"a": "\ud800"}))) == "INVALID_JSON"
    assert code(await through(gate, call(arguments={"a": 2**80}))) == "OK"


async def test_chat_belongs_to_the_principal_that_first_used_it() -> None:
    chats = KnownOwners()
    gate = Ownership(chats)
    claim = ChatClaim(gate)
    assert code(await through(gate, call(chat="a", principal="bob"))) == "OK"
    for chat, principal, expected in (
        ("a", "ann", "OK"),
        ("a", "bob", "CHAT_FORBIDDEN"),
        ("b", "bob", "OK"),
        ("default", "ann", "CHAT_FORBIDDEN"),
        ("client-cursor-0123abcd", "ann", "CHAT_FORBIDDEN"),
        ("default", LOCAL, "OK"),
        ("default", "ann", "CHAT_FORBIDDEN"),
    ):
        outcome = await through(gate, call(chat=chat, principal=principal))
        if outcome.ok:
            outcome = await through(claim, call(chat=chat, principal=principal))
        assert code(outcome) == expected, (chat, principal)
    assert chats.claimed == ["a", "b", "default"]


class KnownOwners:
    """The owners of chats, in memory."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}
        self.claimed: list[str] = []

    async def owner(self, chat: str) -> str | None:
        return self.owners.get(chat)

    async def claim(self, chat: str, principal: str) -> str:
        self.claimed.append(chat)
        return self.owners.setdefault(chat, principal)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("category", list(Permission))
@pytest.mark.parametrize("profile", list(Permission))
@pytest.mark.parametrize("role", list(Permission))
@pytest.mark.parametrize("needed", list(Permission))
async def test_lowest_permission_level_decides(
    category: Permission, profile: Permission, role: Permission, needed: Permission
) -> None:
    gate = Permissions({"k": Category("k", category)}, profile)
    tool = Tool("x", "", category="k", permission=needed)
    outcome = await through(gate, Call(name="x", arguments={}, tool=tool, caller=Caller(permission=role)))
    levels = list(Permission)
    allowed = min(levels.index(level) for level in (category, profile, role)) >= levels.index(needed)
    assert code(outcome) == ("OK" if allowed else "PERMISSION_DENIED")


@pytest.mark.promise("P2")
async def test_disabled_category_refuses_its_tools() -> None:
    gate = Permissions({"k": Category("k", Permission.EXECUTE, enabled=False)})
    assert code(await through(gate, call(Tool("x", "", category="k")))) == "TOOL_DISABLED"


@pytest.mark.promise("B11", "P3")
async def test_rate_limit_refuses_a_call_too_many_and_says_when_to_call_again() -> None:
    now = [0.0]
    gate = RateLimit({"upstream": Category("upstream", Permission.EXECUTE)}, {"echo": 2}, clock=lambda: now[0])
    assert [code(await through(gate, call())) for _ in range(3)] == ["OK", "OK", "RATE_LIMITED"]
    refused = (await through(gate, call())).error
    assert refused is not None
    assert refused.message == "tool echo may be called 2 times a minute; try again in 30 s"
    assert refused.details == {"limit": 2, "scope": "tool echo", "retry_after": 30}
    now[0] = 30.0
    assert [code(await through(gate, call())) for _ in range(2)] == ["OK", "RATE_LIMITED"]


@pytest.mark.promise("P3")
async def test_rate_limit_of_a_category_is_shared_by_its_tools_and_separate_for_each_caller() -> None:
    limited = {"upstream": Category("upstream", Permission.EXECUTE, calls_per_minute=2)}
    gate = RateLimit(limited, {"echo": 1}, clock=lambda: 0.0)
    other = Tool("other", "", category="upstream")
    assert [code(await through(gate, call())) for _ in range(3)] == ["OK", "RATE_LIMITED", "RATE_LIMITED"]
    # A refused call used up nothing of the category's two.
    assert [code(await through(gate, call(other))) for _ in range(2)] == ["OK", "RATE_LIMITED"]
    assert code(await through(gate, call(principal="bob"))) == "OK"


async def overwrites(call: Call) -> str | None:
    return "it overwrites a file" if call.arguments.get("n") else None


@pytest.mark.promise("C5")
@pytest.mark.parametrize(
    ("mode", "rule", "arguments", "confirmed", "expected"),
    [
        ("unsafe_only", False, {}, False, False),
        ("unsafe_only", True, {}, False, "CONFIRMATION_REQUIRED"),
        ("unsafe_only", True, {}, True, True),
        ("unsafe_only", overwrites, {}, False, False),
        ("unsafe_only", overwrites, {"n": 1}, False, "CONFIRMATION_REQUIRED"),
        ("unsafe_only", overwrites, {"n": 1}, True, True),
        ("never", overwrites, {"n": 1}, False, True),
        ("always", False, {}, False, "CONFIRMATION_REQUIRED"),
        ("always", False, {}, True, True),
    ],
)
async def test_dangerous_call_is_refused_until_somebody_agrees(
    mode: Mode, rule: Any, arguments: dict[str, Any], confirmed: bool, expected: bool | str
) -> None:
    tool = Tool("rm", "", requires_confirmation=rule)
    outcome = await through(Approval(mode), call(tool, arguments=arguments, confirmed=confirmed))
    assert (outcome.value["confirmed"] if outcome.ok else code(outcome)) == expected


@pytest.mark.promise("C5")
async def test_confirmation_rule_that_fails_denies_the_call() -> None:
    async def broken(_: Call) -> str | None:
        raise ZeroDivisionError

    assert (
        code(await through(Approval("unsafe_only"), call(Tool("rm", "", requires_confirmation=broken)))) == "INTERNAL"
    )


def holding(running: Concurrency, release: anyio.Event) -> Callable[[Call], Any]:
    async def wait(_: Call) -> Outcome:
        await release.wait()
        return Outcome(value="done")

    return stack([running], wait)


@pytest.mark.promise("X2")
async def test_call_that_exceeds_its_timeout_ends_with_an_error_that_names_the_setting() -> None:
    run = holding(Concurrency(1, timeout=0.01), anyio.Event())

    async def error(tool: Tool) -> str:
        return str((await run(call(tool))).error)

    limit = "took longer than 0.01 s without a progress report; raise"
    assert await error(Tool("echo", "")) == f"TIMEOUT: echo {limit} limits.timeout"
    upstream = Tool("web:fetch", "", owner="web", timeout=0.01)
    assert await error(upstream) == f"TIMEOUT: web:fetch {limit} mcpServers.web.timeout"
    toolset = Tool("git:log", "", owner="git", timeout=0.01, home=Path("/toolset"))
    assert await error(toolset) == f"TIMEOUT: git:log {limit} the tool's own timeout"
    other = Tool("web:prompts/get", "", owner="web", timeout=0.01, is_tool=False)
    assert await error(other) == "TIMEOUT: web:prompts/get took longer than 0.01 s"


@pytest.mark.promise("X2")
@pytest.mark.parametrize("asked", [True, False], ids=["asked", "toolset"])
async def test_progress_puts_the_deadline_of_a_call_off_up_to_the_total(
    monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    clock, reports = Clock(monkeypatch), []
    running: list[Call] = []

    async def wait(call: Call) -> Outcome:
        running.append(call)
        await asyncio.Event().wait()
        return Outcome()

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        reports.append((done, total, message))

    run = stack([Concurrency(4, timeout=120, total=3600)], wait)
    tool = Tool("echo", "", home=None if asked else Path("/toolset"))
    given: dict[str, Any] = {"progress": progress} if asked else {}
    silent = asyncio.ensure_future(run(call(tool, **given)))
    working = asyncio.ensure_future(run(call(tool, **given)))
    await async_eventually(lambda: len(running) == 2)
    for minute in range(59):
        await clock.move(60)
        await running[1].progress(minute, 60, "on")
        if minute == 10:  # a call of ten minutes
            assert str((await silent).error).startswith("TIMEOUT: echo took longer than 120 s without a progress")
        assert not working.done()
    await clock.move(61)
    assert str((await working).error) == "TIMEOUT: echo took longer than 3600 s; raise limits.total_timeout"
    assert reports == ([(minute, 60, "on") for minute in range(59)] if asked else [])


@pytest.mark.promise("X2")
async def test_call_that_waits_too_long_for_a_slot_ends_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, release, gate = Clock(monkeypatch), anyio.Event(), Concurrency(1, timeout=120, total=3600)
    run = holding(gate, release)
    first = asyncio.ensure_future(run(call(Tool("echo", "", timeout=7200))))
    second = asyncio.ensure_future(run(call(Tool("echo", ""))))
    await async_eventually(lambda: gate.queued == 1)
    await clock.move(3500)
    assert not second.done()
    await clock.move(200)
    assert str((await second).error) == (
        "TIMEOUT: echo waited 3600 s for one of the 1 slots of limits.concurrency; call again later"
    )
    release.set()
    assert code(await first) == "OK"
    assert await all_slots_are_free(gate, 1)


@pytest.mark.promise("X2")
async def test_deadline_of_a_call_stands_still_while_its_questions_wait_for_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, answers = Clock(monkeypatch), [anyio.Event(), anyio.Event()]
    waiting: list[str] = []

    async def ask(method: str, _: Mapping[str, Any]) -> dict[str, Any]:
        waiting.append(method)
        await answers[int(method)].wait()
        return {}

    async def tool(call: Call) -> Outcome:
        assert call.client is not None and call.client.ask is not None
        await asyncio.gather(*(call.client.ask(method, {}) for method in ("0", "1")))
        waiting.append("answered")
        await asyncio.Event().wait()
        return Outcome()

    run = stack([Concurrency(4, timeout=120, total=3600)], tool)
    asking = Tool("web:ask", "", owner="web")

    async def begin() -> asyncio.Future[Outcome]:
        waiting.clear()
        started = asyncio.ensure_future(run(call(asking, client=ClientInfo(ask=ask))))
        await async_eventually(lambda: len(waiting) == 2)
        return started

    silent = await begin()
    await clock.move(500)
    answers[0].set()
    await clock.move(90)  # the other question still waits
    assert not silent.done()
    answers[1].set()
    await async_eventually(lambda: waiting[-1] == "answered")
    await clock.move(119)
    assert not silent.done()
    await clock.move(2)
    assert str((await silent).error).startswith("TIMEOUT: web:ask took longer than 120 s without a progress report")

    answers[1] = anyio.Event()
    unanswered = await begin()
    await clock.move(601)
    assert str((await unanswered).error) == "TIMEOUT: web:ask: a question was not answered within 600 s"


@pytest.mark.promise("X2")
async def test_slow_owner_uses_up_only_its_own_slots() -> None:
    release = anyio.Event()
    run = holding(Concurrency(1, timeout=TIMEOUT), release)
    slow, quick = Tool("a:x", "", owner="a"), Tool("b:x", "", owner="b")
    outcomes: list[str] = []

    async def go(tool: Tool) -> None:
        outcomes.append(code(await run(call(tool))))

    async with anyio.create_task_group() as tasks:
        for _ in range(19):  # one runs, sixteen wait, two are cancelled to come back
            tasks.start_soon(go, slow)
        await anyio.wait_all_tasks_blocked()
        assert outcomes == ["OVERLOADED"] * 2
        tasks.start_soon(go, quick)
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert sorted(outcomes) == ["OK"] * 18 + ["OVERLOADED"] * 2


@pytest.mark.promise("X2")
async def test_drain_lets_calls_finish_then_cancels_them_and_refuses_new_ones() -> None:
    running, release = Concurrency(4, timeout=TIMEOUT), anyio.Event()
    run = holding(running, release)
    outcomes: list[str] = []

    async def go() -> None:
        outcomes.append(code(await run(call())))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(TIMEOUT):
            await running.drain(grace=0.01)
        await go()
    assert outcomes == ["SHUTTING_DOWN", "SHUTTING_DOWN"]


def around(running: Concurrency, tool: Callable[[], Awaitable[Any]]) -> Callable[[Call], Coroutine[Any, Any, Outcome]]:
    async def run(_: Call) -> Outcome:
        return Outcome(value=await tool())

    proceed = stack([running], run)

    async def call_tool(call: Call) -> Outcome:
        return await proceed(call)

    return call_tool


async def all_slots_are_free(gate: Concurrency, number: int) -> bool:
    """Return whether exactly so many calls run at once."""
    release = asyncio.Event()
    under_way: list[int] = []

    async def hold() -> None:
        under_way.append(1)
        await release.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(number + 1):
            tasks.create_task(around(gate, hold)(call(Tool("probe", "", timeout=TIMEOUT))))
        await anyio.wait_all_tasks_blocked()
        found = len(under_way)
        release.set()
    return found == number


@pytest.mark.promise("X2")
async def test_call_that_swallows_its_cancellation_is_cancelled_again_until_it_ends() -> None:
    gate, cancelled = Concurrency(1, timeout=0.01), []

    async def stubborn() -> None:
        for _ in range(3):
            try:
                await anyio.sleep_forever()
            except asyncio.CancelledError:
                cancelled.append(1)
        await anyio.sleep_forever()

    with anyio.fail_after(TIMEOUT):
        assert code(await around(gate, stubborn)(call())) == "TIMEOUT"
    assert len(cancelled) == 3
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0.05)  # nobody is cancelled once it is over
    assert await all_slots_are_free(gate, 1)


@pytest.mark.promise("X2")
async def test_call_that_returns_despite_its_cancellation_keeps_its_outcome() -> None:
    async def late() -> str:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return "what I have so far"
        raise AssertionError

    assert (await around(Concurrency(1, timeout=0.01), late)(call())).value == "what I have so far"


@pytest.mark.promise("X2")
async def test_timeout_does_not_interrupt_a_shielded_block() -> None:
    saved: list[str] = []
    release = threading.Event()

    async def saves_at_the_end() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await asyncio.sleep(0.1)
                saved.append("version")

    async def writes_in_a_thread() -> str:
        asyncio.get_running_loop().call_later(0.1, release.set)
        await anyio.to_thread.run_sync(release.wait, 5)
        saved.append("thread")
        await anyio.sleep_forever()
        raise AssertionError

    gate = Concurrency(1, timeout=0.02)
    assert code(await around(gate, saves_at_the_end)(call())) == "TIMEOUT"
    assert code(await around(gate, writes_in_a_thread)(call())) == "TIMEOUT"
    assert saved == ["version", "thread"]
    with anyio.fail_after(TIMEOUT), anyio.CancelScope(shield=True):  # the caller's own shield is not the call's
        assert code(await around(gate, asyncio.Event().wait)(call())) == "TIMEOUT"
    assert await all_slots_are_free(gate, 1)


@pytest.mark.promise("X2")
async def test_call_cancelled_while_it_waits_passes_its_slot_to_the_next() -> None:
    gate, release = Concurrency(1, timeout=TIMEOUT), asyncio.Event()
    run = around(gate, release.wait)
    first, second, third = [asyncio.create_task(run(call())) for _ in range(3)]
    await anyio.wait_all_tasks_blocked()
    second.cancel()
    await anyio.wait_all_tasks_blocked()
    assert second.cancelled() and not third.done()
    for _ in range(concurrency.QUEUE_FACTOR + 1):  # nor does it keep its place among those who wait
        gone = asyncio.create_task(run(call()))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
    release.set()
    assert [code(await first), code(await third)] == ["OK", "OK"]

    # By its id, as over REST.
    release.clear()
    first, second = [asyncio.create_task(run(call(id=f"c{number}"))) for number in range(2)]
    await anyio.wait_all_tasks_blocked()
    assert gate.cancel("c1", "ann")
    with anyio.fail_after(TIMEOUT):
        assert code(await second) == "CANCELLED"
    assert not first.done() and not gate.cancel("c1", "ann")
    release.set()
    assert code(await first) == "OK"

    # Cancelled in the very turn in which the slot is given to it.
    release.clear()
    first, second, third = [asyncio.create_task(run(call())) for _ in range(3)]
    await anyio.wait_all_tasks_blocked()
    first.add_done_callback(lambda _: second.cancel())
    first.cancel()
    await anyio.wait_all_tasks_blocked()
    release.set()
    with anyio.fail_after(TIMEOUT):
        assert code(await third) == "OK"
    assert second.cancelled()
    assert await all_slots_are_free(gate, 1)


@pytest.mark.promise("X2")
@pytest.mark.parametrize("first", ["timeout", "outside", "outside long before"])
async def test_cancellation_from_outside_is_not_reported_as_a_timeout(first: str) -> None:
    gate = Concurrency(1, timeout=TIMEOUT)
    task = asyncio.create_task(around(gate, asyncio.Event().wait)(call()))
    await anyio.wait_all_tasks_blocked()
    [run] = gate._runs.values()
    if first == "timeout":  # both in one turn
        run.time_out()
        task.cancel()
    elif first == "outside":
        task.cancel()
        run.time_out()
    else:
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await all_slots_are_free(gate, 1)


@pytest.mark.promise("X2")
async def test_timeout_is_not_reported_as_a_cancellation_from_outside() -> None:
    gate = Concurrency(1, timeout=0.01)

    async def caller() -> str:
        outcome = code(await around(gate, asyncio.Event().wait)(call()))
        await asyncio.sleep(0)  # nothing is left to strike here
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        return outcome

    async with asyncio.timeout(TIMEOUT):  # which tells its own cancellation from others by their number
        assert await asyncio.create_task(caller()) == "TIMEOUT"

    with anyio.move_on_after(0.01) as outside:
        await around(Concurrency(1, timeout=TIMEOUT), asyncio.Event().wait)(call())
    assert outside.cancelled_caught


@pytest.mark.promise("X2")
async def test_slots_are_released_however_a_call_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "CANCEL_SECONDS", 0.01)
    gate = Concurrency(2, timeout=0.01)

    async def fails() -> None:
        raise ZeroDivisionError

    async def succeeds() -> int:
        return 1

    async def calls_itself_off() -> None:
        raise asyncio.CancelledError

    for tool, expected in [(fails, "INTERNAL"), (succeeds, "OK"), (asyncio.Event().wait, "TIMEOUT")]:
        for _ in range(3):
            assert code(await around(gate, tool)(call())) == expected
    for _ in range(3):
        with pytest.raises(asyncio.CancelledError):
            await around(gate, calls_itself_off)(call())
    for _ in range(3):
        task = asyncio.create_task(around(gate, asyncio.Event().wait)(call()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await all_slots_are_free(gate, 2)
    assert not gate._runs


@pytest.mark.promise("X2")
async def test_timeout_of_one_call_does_not_affect_others() -> None:
    gate, release = Concurrency(8, timeout=TIMEOUT), asyncio.Event()
    run = around(gate, release.wait)
    short, long = Tool("short", "", timeout=0.02), Tool("long", "", timeout=TIMEOUT)
    others = [asyncio.create_task(run(call(tool))) for tool in (long, ECHO, long)]
    outcome = await run(call(short))
    assert isinstance(outcome.error, Timeout)
    assert outcome.error.details == {"limit": 0.02, "setting": "the tool's own timeout"}
    release.set()
    assert [code(await task) for task in others] == ["OK"] * 3


class ManualClock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still until the test moves it."""

    now = 0.0

    def time(self) -> float:
        return self.now


@pytest.mark.promise("X2")
def test_call_that_starts_later_has_its_own_deadline_in_the_shared_timer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ManualClock)
        run = around(Concurrency(8, timeout=10), asyncio.Event().wait)
        early = asyncio.create_task(run(call()))
        await asyncio.sleep(0)
        loop.now = 6
        late = asyncio.create_task(run(call()))
        await asyncio.sleep(0)
        loop.now = 11
        assert code(await early) == "TIMEOUT"
        assert not late.done()
        loop.now = 17
        assert code(await late) == "TIMEOUT"

    with asyncio.Runner(loop_factory=ManualClock) as runner:
        runner.run(main())


@pytest.mark.promise("X2")
async def test_drain_returns_when_all_calls_ended_and_refuses_those_that_wait_for_a_slot() -> None:
    gate, release = Concurrency(1, timeout=TIMEOUT), asyncio.Event()
    started: list[str] = []

    async def tool() -> None:
        started.append("one")
        await release.wait()

    first, waiting = [asyncio.create_task(around(gate, tool)(call())) for _ in range(2)]
    await anyio.wait_all_tasks_blocked()
    draining = asyncio.create_task(gate.drain(grace=2 * TIMEOUT))
    await anyio.wait_all_tasks_blocked()
    assert not draining.done()
    release.set()
    with anyio.fail_after(TIMEOUT):
        await draining
        assert [code(await first), code(await waiting)] == ["OK", "SHUTTING_DOWN"]
    assert started == ["one"]


@pytest.mark.promise("X2")
async def test_drain_returns_although_a_call_ignores_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "CANCEL_SECONDS", 0.05)

    async def stubborn(cancelled: asyncio.Event, let_go: asyncio.Event) -> None:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            cancelled.set()
            with anyio.CancelScope(shield=True):
                await let_go.wait()
            raise

    loop = asyncio.get_running_loop()
    for seconds in TIME_LIMITS:
        gate, cancelled, let_go = Concurrency(1, timeout=seconds), asyncio.Event(), asyncio.Event()
        began = loop.time()
        task = asyncio.create_task(around(gate, partial(stubborn, cancelled, let_go))(call()))
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(TIMEOUT):
            await gate.drain(grace=0)
            assert cancelled.is_set() and not task.done()
            in_time = loop.time() < began + seconds
            await asyncio.sleep(seconds)  # its time is up too, before it lets go
            let_go.set()
            ended = code(await task)
        if in_time:
            break
    assert ended == "SHUTTING_DOWN"
