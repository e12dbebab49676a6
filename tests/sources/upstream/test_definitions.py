"""A digest that is the same for the same definition, however it is spelled, and another for any other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Invalid
from gateway.sources.upstreams.definitions import (
    COUNT_LIMIT,
    DEFINITION_LIMIT,
    DEPTH_LIMIT,
    NAME_LIMIT,
    UNPINNED,
    Definition,
    Key,
    Kind,
    canonical,
    define,
    define_all,
)

TOOL: dict[str, Any] = {
    "name": "add",
    "title": "Add",
    "description": "Adds two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "number", "minimum": 0}, "b": {"type": "number", "default": None}},
        "required": ["a", "b"],
    },
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}


def digest(raw: dict[str, Any], kind: Kind = Kind.TOOL) -> str:
    return define(kind, raw).digest


texts = st.text(st.characters(exclude_categories=()), max_size=12)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
json_values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=15
)
json_objects = st.dictionaries(texts, json_values, max_size=5)


def shuffled(value: Any, draw: Any) -> Any:
    if isinstance(value, dict):
        return {key: shuffled(value[key], draw) for key in draw(st.permutations(sorted(value)))}
    if isinstance(value, list):
        return [shuffled(item, draw) for item in value]
    return value


@given(json_objects, st.data())
def test_the_order_of_keys_makes_no_difference(defined: dict[str, Any], data: st.DataObject) -> None:
    assert canonical(shuffled(defined, data.draw)) == canonical(defined)


@given(json_objects)
def test_the_canonical_text_is_ascii_json_of_the_same_value_and_its_own_canon(defined: dict[str, Any]) -> None:
    text = canonical(defined)
    assert text.isascii()
    assert canonical(json.loads(text)) == text
    if not any(isinstance(value, list) for value in defined.values()):  # `required` is sorted
        assert json.loads(text).keys() == defined.keys()


@given(json_objects, json_objects)
def test_different_values_have_different_texts(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert (canonical(one) == canonical(other)) == (json.loads(canonical(one)) == json.loads(canonical(other)))


@pytest.mark.parametrize("key", ["name", "title", "description", "inputSchema", "outputSchema", "annotations"])
def test_everything_a_model_or_a_policy_reads_changes_the_digest(key: str) -> None:
    assert digest({**TOOL, key: {"type": "object", "x": 1} if isinstance(TOOL[key], dict) else "other"}) != digest(TOOL)
    if key != "name":
        assert digest({each: value for each, value in TOOL.items() if each != key}) != digest(TOOL)


def test_a_key_nobody_knows_yet_changes_the_digest_since_it_reaches_the_client() -> None:
    assert digest({**TOOL, "x-hint": "obey"}) != digest(TOOL)


def test_a_schema_is_pinned_to_its_depths() -> None:
    changed = json.loads(json.dumps(TOOL))
    changed["inputSchema"]["properties"]["a"]["description"] = "and the password"
    assert digest(changed) != digest(TOOL)


@pytest.mark.parametrize("key", sorted(UNPINNED))
def test_what_may_be_new_with_every_answer_changes_nothing(key: str) -> None:
    assert digest({**TOOL, key: {"at": "now"}}) == digest(TOOL)


def test_spellings_of_the_same_definition_have_one_digest() -> None:
    schema = {**TOOL["inputSchema"], "required": ["b", "a"]}
    schema["properties"] = {**schema["properties"], "a": {"minimum": 0.0, "type": "number"}}
    defined = {**TOOL, "inputSchema": schema, "icons": None, "vendor": None}
    defined["annotations"] = {"readOnlyHint": True, "destructiveHint": None}
    assert digest(defined) == digest(TOOL)


def test_null_inside_a_schema_means_something() -> None:
    schema = json.loads(json.dumps(TOOL["inputSchema"]))
    del schema["properties"]["b"]["default"]
    assert digest({**TOOL, "inputSchema": schema}) != digest(TOOL)


def test_who_may_see_a_tool_of_an_app_is_pinned_and_the_address_of_its_view_is_not() -> None:
    hidden = {**TOOL, "_meta": {"ui": {"visibility": ["app"], "resourceUri": "ui://a/1"}, "at": 1}}
    renamed = {**TOOL, "_meta": {"ui": {"visibility": ["app"], "resourceUri": "ui://a/2"}, "at": 2}}
    shown = {**TOOL, "_meta": {"ui": {"resourceUri": "ui://a/1"}}}
    stamped = {**TOOL, "_meta": {"ui": {"resourceUri": "ui://a/1", "visibility": ["model"]}}}
    assert digest(hidden) == digest(renamed) != digest(shown)
    assert digest(shown) == digest(stamped) == digest(TOOL)


def test_the_kind_is_part_of_the_digest() -> None:
    assert digest({"name": "a"}, Kind.TOOL) != digest({"name": "a"}, Kind.PROMPT)


def test_all_definitions_of_a_server_are_found_by_their_keys() -> None:
    template = {"uriTemplate": "x://{a}", "name": "x"}
    defined = define_all([TOOL], [{"name": "p"}], [template], "Be kind.")
    assert set(defined.found) == {
        Key(Kind.TOOL, "add"),
        Key(Kind.PROMPT, "p"),
        Key(Kind.TEMPLATE, "x://{a}"),
        Key(Kind.INSTRUCTIONS, "instructions"),
    }
    assert defined.found[Key(Kind.INSTRUCTIONS, "instructions")].value == {"instructions": "Be kind."}
    assert defined.problems == ()
    assert define_all(instructions="").found == {}


DEEP: dict[str, Any] = {}
for _ in range(DEPTH_LIMIT + 1):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        ("add", "INVALID_DEFINITION"),
        ({}, "INVALID_DEFINITION"),
        ({"name": 3}, "INVALID_DEFINITION"),
        ({"name": ""}, "INVALID_DEFINITION"),
        ({"name": "a\nb"}, "INVALID_DEFINITION"),
        ({"name": "a\ud800"}, "INVALID_DEFINITION"),
        ({"name": "a" * (NAME_LIMIT + 1)}, "NAME_TOO_LONG"),
        ({"name": "a", "description": "x" * DEFINITION_LIMIT}, "DEFINITION_TOO_LARGE"),
        ({"name": "a", "inputSchema": DEEP}, "DEFINITION_TOO_DEEP"),
        ({"name": "a", "x": float("nan")}, "INVALID_DEFINITION"),
    ],
)
def test_what_cannot_be_taken_is_refused_and_spoils_no_other(raw: Any, code: str) -> None:
    with pytest.raises(Invalid) as refused:
        define(Kind.TOOL, raw)
    assert refused.value.code == code
    defined = define_all([raw, TOOL])
    assert list(defined.found) == [Key(Kind.TOOL, "add")]
    assert [problem.code for problem in defined.problems] == [code]


def test_of_two_with_one_name_the_first_counts() -> None:
    defined = define_all([TOOL, {**TOOL, "description": "obey"}])
    assert [definition.value["description"] for definition in defined.found.values()] == ["Adds two numbers."]
    assert [problem.code for problem in defined.problems] == ["DUPLICATE"]


def test_a_server_that_lists_without_end_is_cut_off_and_told_once() -> None:
    defined = define_all({"name": f"t{number}"} for number in range(COUNT_LIMIT + 100))
    assert len(defined.found) == COUNT_LIMIT
    assert [problem.code for problem in defined.problems] == ["TOO_MANY"]


def test_text_no_database_holds_is_carried_in_escapes() -> None:
    definition = define(Kind.TOOL, {"name": "a", "description": "\ud800 \x00"})
    assert definition.text.isascii()
    assert Definition(definition.key, definition.text).value["description"] == "\ud800 \x00"
