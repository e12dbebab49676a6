"""The gates, one by one: validation, ownership, permissions, rate limits, approval, running."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from gateway.calls import Call, Caller, Outcome
from gateway.config import Settings
from gateway.extensions import Extension, stack
from gateway.extensions.approval import Approval, Mode
from gateway.extensions.ownership import Ownership
from gateway.extensions.permissions import Permissions
from gateway.extensions.rate_limit import RateLimit
from gateway.extensions.running import Running
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


@pytest.mark.promise("B6")
async def test_validation_refuses_what_is_no_json() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"a": deep}
    gate = Validation(10**6, 10**6)
    assert code(await through(gate, call(arguments=deep))) == "INVALID_JSON"
    assert code(await through(gate, call(arguments={"a": "\ud800"}))) == "INVALID_JSON"
    assert code(await through(gate, call(arguments={"a": 2**80}))) == "OK"


async def test_a_chat_belongs_to_whoever_used_it_first() -> None:
    owners: dict[str, str] = {}
    asked: list[str] = []

    async def claim(chat: str, principal: str) -> str:
        asked.append(chat)
        return owners.setdefault(chat, principal)

    gate = Ownership(claim)
    assert code(await through(gate, call(chat="a", principal="ann"))) == "OK"
    assert code(await through(gate, call(chat="a", principal="bob"))) == "CHAT_FORBIDDEN"
    assert code(await through(gate, call(chat="b", principal="bob"))) == "OK"
    assert asked == ["a", "b"]


@pytest.mark.promise("P2")
@pytest.mark.parametrize("category", list(Permission))
@pytest.mark.parametrize("profile", list(Permission))
@pytest.mark.parametrize("role", list(Permission))
@pytest.mark.parametrize("needed", list(Permission))
async def test_the_least_of_all_levels_decides(
    category: Permission, profile: Permission, role: Permission, needed: Permission
) -> None:
    gate = Permissions({"k": Category("k", category)}, profile)
    tool = Tool("x", "", category="k", permission=needed)
    outcome = await through(gate, Call(name="x", arguments={}, tool=tool, caller=Caller(permission=role)))
    levels = list(Permission)
    allowed = min(levels.index(level) for level in (category, profile, role)) >= levels.index(needed)
    assert code(outcome) == ("OK" if allowed else "PERMISSION_DENIED")


@pytest.mark.promise("P2")
async def test_a_category_that_is_off_refuses_its_tools_however_they_are_reached() -> None:
    gate = Permissions({"k": Category("k", Permission.EXECUTE, enabled=False)})
    assert code(await through(gate, call(Tool("x", "", category="k")))) == "TOOL_DISABLED"


@pytest.mark.promise("B11", "P3")
async def test_a_rate_limit_refuses_the_call_too_many_and_says_when_to_come_back() -> None:
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
async def test_a_category_has_its_own_limit_shared_by_its_tools_and_apart_for_each_caller() -> None:
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
async def test_a_dangerous_call_is_refused_until_somebody_agrees(
    mode: Mode, rule: Any, arguments: dict[str, Any], confirmed: bool, expected: bool | str
) -> None:
    tool = Tool("rm", "", requires_confirmation=rule)
    outcome = await through(Approval(mode), call(tool, arguments=arguments, confirmed=confirmed))
    assert (outcome.value["confirmed"] if outcome.ok else code(outcome)) == expected


@pytest.mark.promise("C5")
async def test_a_confirmation_rule_that_fails_denies() -> None:
    async def broken(_: Call) -> str | None:
        raise ZeroDivisionError

    assert (
        code(await through(Approval("unsafe_only"), call(Tool("rm", "", requires_confirmation=broken)))) == "INTERNAL"
    )


def holding(running: Running, release: anyio.Event) -> Callable[[Call], Any]:
    async def wait(_: Call) -> Outcome:
        await release.wait()
        return Outcome(value="done")

    return stack([running], wait)


@pytest.mark.promise("X2")
async def test_a_call_over_its_time_is_ended_and_told_so() -> None:
    run = holding(Running(1, timeout=0.01), anyio.Event())
    outcome = await run(call())
    assert str(outcome.error) == "TIMEOUT: echo took longer than 0.01 s"
    slower = Tool("slow", "", timeout=0.02)
    assert str((await run(call(slower))).error) == "TIMEOUT: slow took longer than 0.02 s"


@pytest.mark.promise("X2")
async def test_a_slow_owner_fills_its_own_slots_and_nobody_elses() -> None:
    release = anyio.Event()
    run = holding(Running(1, timeout=5), release)
    slow, quick = Tool("a:x", "", owner="a"), Tool("b:x", "", owner="b")
    outcomes: list[str] = []

    async def go(tool: Tool) -> None:
        outcomes.append(code(await run(call(tool))))

    async with anyio.create_task_group() as tasks:
        for _ in range(19):  # one runs, sixteen wait, two are told to come back
            tasks.start_soon(go, slow)
        await anyio.wait_all_tasks_blocked()
        assert outcomes == ["OVERLOADED"] * 2
        tasks.start_soon(go, quick)
        await anyio.wait_all_tasks_blocked()
        release.set()
    assert sorted(outcomes) == ["OK"] * 18 + ["OVERLOADED"] * 2


@pytest.mark.promise("X2")
async def test_draining_lets_calls_finish_then_ends_them_and_lets_no_new_one_run() -> None:
    running, release = Running(4, timeout=5), anyio.Event()
    run = holding(running, release)
    outcomes: list[str] = []

    async def go() -> None:
        outcomes.append(code(await run(call())))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(go)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await running.drain(grace=0.01)
        await go()
    assert outcomes == ["SHUTTING_DOWN", "SHUTTING_DOWN"]
