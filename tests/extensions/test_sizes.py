"""The size of a result: everything in it counts, and a result above the limit is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call, Outcome, RawResult, to_json, value_size
from gateway.errors import ToolFailed
from gateway.extensions import stack
from gateway.extensions.validation import Validation
from gateway.tools import Tool

BULK = "x" * 5000
LARGE: dict[str, dict[str, Any]] = {
    "content": {"content": [{"type": "text", "text": BULK}]},
    "content beside a small value": {"content": [{"type": "text", "text": BULK}], "structuredContent": {"a": 1}},
    "value": {"content": [], "structuredContent": {"a": BULK}},
    "embedded": {"content": [{"type": "resource", "resource": {"uri": "x://y", "blob": BULK}}]},
    "meta": {"content": [], "_meta": {"x": BULK}},
    "unknown": {"content": [], "tomorrow": [BULK]},
    "failure": {"content": [{"type": "text", "text": BULK}], "isError": True},
    "value of a failure": {"content": [], "structuredContent": {"a": BULK}, "isError": True},
}


def outcome_of(wire: dict[str, Any]) -> Outcome:
    error = ToolFailed("no") if wire.get("isError") else None
    value = None if error else wire.get("structuredContent", wire["content"])
    return Outcome(value=value, error=error, content=wire["content"], wire=wire)


@pytest.mark.anyio
@pytest.mark.promise("B6")
@pytest.mark.parametrize("kind", LARGE)
async def test_result_size_counts_the_whole_result_of_an_upstream(kind: str) -> None:
    tool = Tool("lab:x", "", {"type": "object"}, kind="mcp")

    async def run(_: Call) -> Outcome:
        return outcome_of(LARGE[kind])

    async def under(limit: int) -> str | None:
        call = Call(name="x", arguments={}, tool=tool)
        error = (await stack([Validation(1000, limit)], run)(call)).error
        return None if error is None else error.code

    assert await under(5000) == "RESPONSE_TOO_LARGE"
    assert await under(6000) == ("EXECUTION_ERROR" if LARGE[kind].get("isError") else None)


def test_result_size_of_a_raw_result_is_that_of_its_bytes() -> None:
    wire = {"content": [{"type": "text", "text": "ü"}]}
    message = json.dumps({"result": wire}).encode()
    outcome = Outcome(value=wire["content"], content=wire["content"], wire=RawResult(wire, message))
    assert outcome.size == len(message)
    assert "value_json" not in outcome.__dict__


def test_result_size_encodes_a_value_only_once() -> None:
    outcome = outcome_of(LARGE["value"])
    assert outcome.size > len(BULK)
    assert "value_json" in outcome.__dict__


@given(
    st.recursive(
        st.text(st.characters(exclude_characters='"\\\x7f', min_codepoint=32, exclude_categories=["Cs"])),
        lambda each: st.dictionaries(st.sampled_from("abc"), each) | st.lists(each),
    )
)
def test_result_size_is_that_of_the_json_without_escapes(value: Any) -> None:
    assert value_size(value) == len(to_json(value))
