"""What a tool takes and gives: checked against its schemas, complaints that name the fix."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import Invalid, ToolFailed
from gateway.tools import Permission, Tool

SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "encoding": {"enum": ["utf-8", "base64"]}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOL = Tool("box:read", "", SCHEMA, {"type": "object", "required": ["n"]})


@pytest.mark.promise("B6")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "box:read: 'path' is required"),
        ({"path": 1}, "box:read: 'path' must be a string"),
        ({"path": "a", "encodng": "x"}, "box:read: 'encodng' is not an argument; did you mean 'encoding'?"),
        ({"path": "a", "encoding": "x"}, "box:read: 'encoding' must be one of utf-8, base64"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_mend(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Invalid) as refused:
        TOOL.check_arguments(arguments)
    assert refused.value.message.startswith(complaint)


@pytest.mark.promise("B6")
def test_an_output_against_the_tools_own_schema_is_its_failure() -> None:
    TOOL.check_output({"n": 1})
    with pytest.raises(ToolFailed) as refused:
        TOOL.check_output({})
    assert (refused.value.code, refused.value.message) == (
        "INVALID_OUTPUT",
        "box:read answered against its output schema: 'n' is required",
    )


@pytest.mark.parametrize("schema", [{"type": "objct"}, {"$ref": "https://host/schema"}, {"pattern": "("}])
def test_a_schema_that_is_none_or_reaches_outside_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as refused:
        Tool("x", "", schema).compile()
    assert refused.value.code == "INVALID_SCHEMA"


def test_a_pattern_that_backtracks_without_end_is_bounded() -> None:
    tool = Tool("x", "", {"properties": {"a": {"pattern": r"^(a+)+$(?=b)"}}})
    with pytest.raises(Invalid):
        tool.check_arguments({"a": "a" * 40 + "!"})


def test_levels_include_the_lower_ones() -> None:
    assert [(have.value, need.value) for have in Permission for need in Permission if not have.allows(need)] == [
        ("read-only", "read-write"),
        ("read-only", "execute"),
        ("read-write", "execute"),
    ]
