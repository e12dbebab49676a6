"""Tools of steps: values between steps, conditions, lists, groups, failures, consent, limits and cancellation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.access import AccessLimits, AccessPolicy, AccessRule
from gateway.approval.question import Answer, Question
from gateway.calls import Call, Caller, Outcome
from gateway.errors import ToolFailed, Unavailable
from gateway.sources.steps import CALLS_LIMIT
from gateway.tools import Permission, RetryPolicy, Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("B10")]


class Lab:
    """A source with tools that echo, fail, wait for a person or for ever; `running` counts calls in progress."""

    name = "lab"

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.running = self.most = 0
        self.begun = asyncio.Event()

    async def list_tools(self) -> list[Tool]:
        def tool(name: str, **more: Any) -> Tool:
            options = {"permission": Permission.READ_ONLY, "category": "filesystem", "input_schema": {}, **more}
            return Tool(id=f"lab:{name}", description=name, owner="lab", **options)

        return [
            tool("echo"),
            tool("fail"),
            tool("hang"),
            tool("write", permission=Permission.READ_WRITE, category="editing"),
            tool("ask", requires_confirmation=True),
            tool("flaky", retry=RetryPolicy(3, frozenset({"FLAKY"}), 0.0)),
        ]

    async def call_tool(self, call: Call) -> Outcome:
        self.calls.append(call)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            match call.target.id.partition(":")[2]:
                case "fail":
                    raise ToolFailed("it broke", code="BROKEN")
                case "hang":
                    self.begun.set()
                    await asyncio.Event().wait()
                case "flaky" if len(self.calls) % 3:
                    raise Unavailable("again", code="FLAKY")
            await asyncio.sleep(0)
            return Outcome(dict(call.arguments))
        finally:
            self.running -= 1


@asynccontextmanager
async def gateway_with(tmp_path: Path, tools: Mapping[str, Any], **settings: Any) -> AsyncIterator[tuple[Gateway, Lab]]:
    """A gateway with tools of these steps, by name; a mapping has other fields of the tool beside its steps."""
    folder = tmp_path / "toolset"
    folder.mkdir()
    listed = [
        {"id": name, "type": "steps", **(spec if isinstance(spec, Mapping) else {"steps": list(spec)})}
        for name, spec in tools.items()
    ]
    manifest = {"id": "demo", "name": "Demo", "version": "1.0.0", "tools": listed}
    (folder / "toolset.yaml").write_text(json.dumps(manifest))
    lab = Lab()
    base = {"data_dir": str(tmp_path / "data"), "toolsets": [str(folder)]}
    async with Gateway.open({**base, **settings}, sources=[lab]) as gateway:
        yield gateway, lab


async def test_values_pass_between_steps_and_keep_their_types(tmp_path: Path) -> None:
    steps = [
        {
            "tool": "lab:echo",
            "args": {"list": "$args.list", "text": "n is $args.n", "dollar": "$$args"},
            "save_as": "a",
        },
        {"tool": "lab:echo", "args": {"first": "$steps.a.list[0]", "none": "$steps.a.nothing", "chat": "$chat_id"}},
    ]
    tools = {"plain": steps, "shaped": {"steps": steps, "result": {"of": "$steps.a.text", "all": "$steps.a.list"}}}
    async with gateway_with(tmp_path, tools) as (gateway, lab):
        arguments = {"list": [{"x": 1}, 2], "n": 3}
        plain = await gateway.call("demo:plain", arguments, chat="c1")
        assert plain.value == {"first": {"x": 1}, "none": None, "chat": "c1"}
        assert lab.calls[0].arguments == {"list": [{"x": 1}, 2], "text": "n is 3", "dollar": "$args"}
        assert (await gateway.call("demo:shaped", arguments)).value == {"of": "n is 3", "all": [{"x": 1}, 2]}


async def test_conditions_lists_and_groups(tmp_path: Path) -> None:
    tools = {
        "t": {
            "steps": [
                {"tool": "lab:echo", "args": {"v": 1}, "when": "args.n > `10`", "save_as": "large"},
                {
                    "tool": "lab:echo",
                    "for_each": "$args.items",
                    "when": "item.ok",
                    "args": {"v": "$item.v", "i": "$index"},
                    "at_once": 2,
                    "save_as": "each",
                },
                {
                    "parallel": [
                        {"tool": "lab:echo", "args": {"v": "$steps.each[0].v"}, "save_as": "left"},
                        {"tool": "lab:echo", "args": {"v": "right"}, "save_as": "right", "when": "steps.large"},
                        {"tool": "lab:fail", "save_as": "broken", "on_error": "continue"},
                    ]
                },
            ],
            "result": "$steps",
        }
    }
    async with gateway_with(tmp_path, tools) as (gateway, lab):
        items = [{"ok": index != 1, "v": index} for index in range(5)]
        outcome = await gateway.call("demo:t", {"n": 5, "items": items})
        assert outcome.value == {
            "large": None,
            "each": [{"v": 0, "i": 0}, {"v": 2, "i": 1}, {"v": 3, "i": 2}, {"v": 4, "i": 3}],
            "left": {"v": 0},
            "right": None,
            "broken": None,
        }
        assert lab.most == 2
        outcome = await gateway.call("demo:t", {"n": 11, "items": []})
        assert (outcome.value["large"], outcome.value["each"], outcome.value["right"]) == ({"v": 1}, [], {"v": "right"})


async def test_each_step_has_its_own_record_under_the_whole_call(tmp_path: Path) -> None:
    tools = {
        "t": [
            {"tool": "lab:echo"},
            {"tool": "write_file", "args": {"path": "a.txt", "content": "x"}},
            {"tool": "lab:fail"},
        ]
    }
    async with gateway_with(tmp_path, tools) as (gateway, _):
        outcome = await gateway.call("demo:t")
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.message) == ("BROKEN", "step 3 (lab:fail): it broke")
        whole, *steps = reversed(await gateway.records.list_calls())
        assert (whole.tool_id, whole.status, whole.parent_call_id) == ("demo:t", "error", None)
        assert {step.parent_call_id for step in steps} == {whole.id}
        assert [(step.tool_id, step.status) for step in steps] == [
            ("lab:echo", "success"),
            ("write_file", "success"),
            ("lab:fail", "error"),
        ]
        assert outcome.error.details["call_id"] == steps[2].id
        assert steps[1].post_manifest_id != steps[1].pre_manifest_id
        assert [record.id for record in await gateway.records.list_calls(parent=whole.id)] == [
            record.id for record in reversed(steps)
        ]


async def test_step_needs_the_permission_and_consent_of_its_own_tool(tmp_path: Path) -> None:
    tools = {
        "reads": {"steps": [{"tool": "lab:write"}], "permission": "read-only"},
        "asks": [{"tool": "lab:echo"}, {"tool": "lab:ask", "args": {"x": 1}}, {"tool": "lab:echo"}],
    }
    async with gateway_with(tmp_path, tools) as (gateway, lab):
        reader = Caller(permission=Permission.READ_ONLY)
        refused = await gateway.call("demo:reads", caller=reader)
        assert refused.error is not None
        assert (refused.error.code, lab.calls) == ("PERMISSION_DENIED", [])
        refused = await gateway.call("demo:asks")
        assert refused.error is not None
        assert (refused.error.code, len(lab.calls)) == ("CONFIRMATION_REQUIRED", 1)
        assert refused.error.message.startswith("step 2 (lab:ask): ")
        questions: list[Question] = []

        async def approve(question: Question) -> Answer:
            questions.append(question)
            return Answer("once", {"x": 2})

        outcome = await gateway.call("demo:asks", approver=approve)
        assert outcome.ok, outcome.error
        assert [question.tool.id for question in questions] == ["lab:ask"]
        assert lab.calls[-2].arguments == {"x": 2}
        assert (await gateway.call("demo:asks", confirmed=True)).ok


async def test_steps_that_call_themselves_or_too_much_are_refused(tmp_path: Path) -> None:
    many = [{"tool": "lab:echo", "for_each": "$args.items"}]
    deep = {f"d{n}": [{"tool": f"demo:d{n + 1}"}] for n in range(8)}
    tools: dict[str, Any] = {"many": many, "wrong": [{"tool": "lab:echo", "for_each": "$args.n"}], **deep, "d8": many}
    async with gateway_with(tmp_path, tools) as (gateway, lab):
        outcome = await gateway.call("demo:many", {"items": [0] * (CALLS_LIMIT + 1)})
        assert outcome.error is not None
        assert (outcome.error.code, lab.calls) == ("TOO_MANY_STEPS", [])
        outcome = await gateway.call("demo:d0", {"items": []})
        assert outcome.error is not None
        assert "is a step inside 5 others" in outcome.error.message
        outcome = await gateway.call("demo:wrong", {"n": 3})
        assert outcome.error is not None
        assert outcome.error.message == "step 1 (lab:echo): its for_each is not a list"


async def test_steps_of_two_toolsets_that_call_each_other_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    tool = {"id": "t", "type": "steps", "steps": [{"tool": "demo:t"}]}
    manifest = {"id": "other", "name": "Other", "version": "1.0.0", "tools": [tool]}
    (other / "toolset.yaml").write_text(json.dumps(manifest))
    async with gateway_with(tmp_path, {"t": [{"tool": "other:t"}]}) as (gateway, _):
        await gateway.toolsets.library.install(other, source_type="local", source_ref=str(other))
        await gateway.refresh()
        outcome = await gateway.call("demo:t")
        assert outcome.error is not None
        assert outcome.error.code == "RECURSIVE_STEPS"


async def test_cancelling_stops_every_step_that_runs(tmp_path: Path) -> None:
    group = {"parallel": [{"tool": "lab:hang"}, {"tool": "lab:hang"}]}
    tools: dict[str, Any] = {"t": [group, {"tool": "lab:echo"}]}
    async with gateway_with(tmp_path, tools) as (gateway, lab):
        call = asyncio.create_task(gateway.call("demo:t"))
        await asyncio.wait_for(lab.begun.wait(), 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert lab.running == 0
        records = await gateway.records.list_calls()
        assert [record.error_code for record in records] == ["CANCELLED"] * 3


async def test_first_failure_of_a_group_cancels_the_rest(tmp_path: Path) -> None:
    tools = {"t": [{"parallel": [{"tool": "lab:hang", "save_as": "h"}, {"tool": "lab:fail", "save_as": "f"}]}]}
    async with gateway_with(tmp_path, tools) as (gateway, lab):
        outcome = await gateway.call("demo:t")
        assert outcome.error is not None
        assert outcome.error.message == "step 1 (parallel), f: it broke"
        assert lab.running == 0


async def test_calls_of_steps_take_no_slot_from_their_own_steps(tmp_path: Path) -> None:
    tools = {"inner": [{"tool": "lab:echo"}], "t": [{"tool": "inner"}, {"tool": "inner"}]}
    async with gateway_with(tmp_path, tools, limits={"concurrency": 1}) as (gateway, _):
        outcomes = await asyncio.wait_for(asyncio.gather(*(gateway.call("demo:t") for _ in range(5))), 60)
        assert all(outcome.ok for outcome in outcomes)


async def test_progress_goes_forward_step_by_step(tmp_path: Path) -> None:
    reports: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        reports.append((done, total, message))

    tools = {"t": [{"tool": "lab:echo", "save_as": "one"}, {"tool": "lab:echo", "save_as": "two"}]}
    async with gateway_with(tmp_path, tools) as (gateway, _):
        assert (await gateway.call("demo:t", progress=progress)).ok
    assert reports == [(0, 2, "one"), (1, 2, "two")]


async def test_one_render_plan_shows_the_whole_call(tmp_path: Path) -> None:
    renderer = {"type": "code", "content": "$return.v", "language": "text"}
    tools = {"t": {"steps": [{"tool": "lab:echo", "args": {"v": "shown"}}], "renderer": renderer}}
    async with gateway_with(tmp_path, tools) as (gateway, _):
        outcome = await gateway.call("demo:t")
        assert outcome.render_plan is not None
        assert "shown" in json.dumps(outcome.render_plan)
        plans = [record.render_plan for record in await gateway.records.list_calls()]
        assert sum(plan is not None for plan in plans) == 1


@pytest.mark.promise("X2")
async def test_step_is_retried_by_its_own_policy_and_recorded(tmp_path: Path) -> None:
    async with gateway_with(tmp_path, {"t": [{"tool": "lab:flaky"}]}) as (gateway, lab):
        assert (await gateway.call("demo:t")).ok
        step, whole = await gateway.records.list_calls()
        assert (step.attempts, whole.attempts, len(lab.calls)) == (3, 1, 3)


async def test_step_is_refused_where_the_role_of_the_caller_does_not_have_its_tool(tmp_path: Path) -> None:
    policy = AccessPolicy([AccessRule(denied=("lab:write",))], AccessLimits(concurrent_calls=1))
    caller = Caller(access=policy)
    tools = {"t": [{"tool": "lab:echo"}, {"tool": "lab:write"}], "fine": [{"tool": "lab:echo"}]}
    async with gateway_with(tmp_path, tools, roles={"one": {"limits": {"concurrent_calls": 1}}}) as (gateway, lab):
        refused = await gateway.call("demo:t", caller=caller)
        assert refused.error is not None
        assert (refused.error.code, [call.target.id for call in lab.calls]) == ("UNKNOWN_TOOL", ["lab:echo"])
        assert (await gateway.call("demo:fine", caller=caller)).ok  # its step is not another call at once
