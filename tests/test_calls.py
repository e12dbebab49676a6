"""Calls and outcomes: copies that keep what was worked out, and are changed nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.calls import Call, Caller, ClientInfo, Outcome
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.tools import Tool

TOOL = Tool("echo", "")


def a_call(**more: Any) -> Call:
    return Call(name="echo", arguments={"n": 1}, chat="c", caller=Caller("ada"), **more)


def test_a_call_takes_its_fields_by_name_alone() -> None:
    with pytest.raises(TypeError):
        Call("echo", {})  # type: ignore[call-arg]
    assert a_call().id != a_call().id


def test_but_changes_a_copy_and_nothing_else() -> None:
    call = a_call(message="m")
    before = dict(vars(call))
    other = call.replace(tool=TOOL, public_name="e", confirmed=True)
    assert vars(call) == before
    assert vars(other) == {**before, "tool": TOOL, "public_name": "e", "confirmed": True}
    assert type(other) is Call
    assert (other.id, other.started_at, other.target) == (call.id, call.started_at, TOOL)
    assert call.replace() == call


def test_but_keeps_the_json_of_the_arguments_as_long_as_they_stay() -> None:
    call = a_call()
    assert call.arguments_json == b'{"n":1}'
    assert call.replace(tool=TOOL).arguments_json is call.arguments_json
    changed = call.replace(arguments={"n": 2})
    assert changed.arguments_json == b'{"n":2}'
    assert call.arguments_json == b'{"n":1}'
    assert a_call().replace(tool=TOOL).arguments_json == b'{"n":1}'


def test_a_call_without_a_tool_says_why() -> None:
    with pytest.raises(NotFound, match="no tool is named 'echo'"):
        _ = a_call().target
    refusal = Invalid("it is off")
    with pytest.raises(GatewayError) as refused:
        _ = a_call(refusal=refusal).target
    assert refused.value is refusal


def test_a_plan_is_added_to_a_copy_that_keeps_the_json_of_the_value() -> None:
    outcome = Outcome(value={"n": 1}, pre_manifest="a", post_manifest="b", call_id="id")
    written = outcome.value_json
    planned = outcome.replace(render_plan={"renderer": "code"})
    assert outcome.render_plan is None
    assert planned.value_json is written
    assert type(planned) is Outcome
    expected = Outcome(
        value={"n": 1}, pre_manifest="a", post_manifest="b", call_id="id", render_plan={"renderer": "code"}
    )
    assert planned == expected
    assert planned.replace(render_plan={}).render_plan == {}
    assert Outcome(value=2).replace(render_plan={}).value_json == b"2"


def test_peers_share_nothing_they_were_not_given() -> None:
    one, other = ClientInfo(), ClientInfo()
    assert one == other
    assert one.meta is not other.meta
