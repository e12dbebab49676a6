"""What expressions stand for, and that nothing a call brings is ever read as one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.render import Scope, interpolate
from gateway.render.interpolate import literal_start, roots

from .documents import ARGUMENTS, JSON, TEXTS

VALUE = {"a": [{"b": "deep"}, 7], "text": "hi", "flag": True, "none": None, "with-dash": 1, "0": "zero"}
SCOPE = Scope({"path": "a.txt", "n": 3}, VALUE, chat="c1", workspace="/data/ws", toolset="/data/ts")
EXPRESSIONS = ["$args", "$return", "$chat_id", "$workspace", "$toolset", "$args.x", "$return.x[0].y", "$$"]


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("$args", {"path": "a.txt", "n": 3}),
        ("$args.path", "a.txt"),
        ("$args.n", 3),
        ("$return", VALUE),
        ("$return.a", [{"b": "deep"}, 7]),
        ("$return.a.0.b", "deep"),
        ("$return.a[0].b", "deep"),
        ("$return.a[1]", 7),
        ("$return.flag", True),
        ("$return.0", "zero"),
        ('$return["with-dash"]', 1),
        ("$return['with-dash']", 1),
        ("$chat_id", "c1"),
        ("$workspace", "/data/ws"),
        ("$toolset", "/data/ts"),
    ],
)
def test_a_text_that_is_one_expression_becomes_the_value_itself(template: str, value: Any) -> None:
    assert interpolate(template, SCOPE) == value


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("$args.config.output", "b"),
        ("$args.output", "b"),
        ("$args.nested.x", 1),
        ("$args.config", {"output": "b", "nested": {"x": 1}}),
        ("$args.missing", None),
    ],
)
def test_fields_of_a_single_model_argument_are_found_by_their_own_names(template: str, value: Any) -> None:
    model = {"output": "b", "nested": {"x": 1}}
    assert interpolate(template, Scope({"config": model})) == value
    if template == "$args.output":  # of two arguments, none is the model
        assert interpolate(template, Scope({"config": model, "other": 1})) is None


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("http://localhost:$args.n/x", "http://localhost:3/x"),
        ("[$args.path]", "[a.txt]"),
        ("see $args.path.", "see a.txt."),
        ("$args.path,$args.n", "a.txt,3"),
        ("$args.n$args.n", "33"),
        ("is $return.flag", "is true"),
        ("a: $return.a", 'a: [{"b":"deep"},7]'),
        ("$chat_id.txt", "c1.txt"),
        ("$workspace/out.txt", "/data/ws/out.txt"),
        ("$toolset/a.html", "/data/ts/a.html"),
    ],
)
def test_value_in_a_longer_string_is_inserted_as_text(template: str, text: str) -> None:
    assert interpolate(template, SCOPE) == text


@pytest.mark.parametrize(
    "path",
    [
        "args.nope",
        "args.path.deeper",
        "return.none.x",
        "return.a.9",
        "return.a[99999999999999999999]",
        "return.a." + "9" * 5000,
        "return.a.²",
        "return.a.b",
        "return.text.0",
        'return[""]',
    ],
)
def test_missing_value_is_null_and_empty_in_a_longer_string(path: str) -> None:
    assert interpolate(f"${path}", SCOPE) is None
    assert interpolate(f"<${path}>", SCOPE) == "<>"


def test_a_null_counts_as_missing() -> None:
    assert interpolate("$return.none", SCOPE) is None
    assert interpolate("<$return.none>", SCOPE) == "<>"
    assert interpolate("<$workspace>", Scope({})) == "<>"


@pytest.mark.parametrize(
    "text",
    [
        "$5",
        "costs $5.00",
        "$HOME",
        "${HOME}",
        "$",
        "a$",
        "$Args",
        "$argsx",
        "$args_x",
        "$returned",
        "$chat_ids",
        "$ args",
    ],
)
def test_a_dollar_before_any_other_word_is_left_alone(text: str) -> None:
    assert interpolate(text, SCOPE) == text


@pytest.mark.parametrize(
    ("template", "text"),
    [("$$", "$"), ("$$args.n", "$args.n"), ("$$$args.n", "$3"), ("$$$$", "$$"), ("$$5", "$5"), ("a$$b", "a$b")],
)
def test_two_dollars_are_one(template: str, text: str) -> None:
    assert interpolate(template, SCOPE) == text


def test_configs_are_filled_at_any_depth_and_their_keys_are_not() -> None:
    template = {"$args": ["$args.n", {"x": ("$args.path", 1, None, True)}]}
    assert interpolate(template, SCOPE) == {"$args": [3, {"x": ["a.txt", 1, None, True]}]}


def test_template_has_roots_and_a_literal_start() -> None:
    assert roots("$args.a and $chat_id, $$return, $5") == {"args", "chat_id"}
    assert literal_start("a$$b$HOME/$args.c/d") == "a$b$HOME/"
    assert literal_start("plain") == "plain"


@given(JSON, ARGUMENTS)
def test_any_value_keeps_its_type_and_is_never_interpolated_again(value: Any, arguments: dict[str, Any]) -> None:
    scope = Scope(arguments, value)
    assert interpolate("$return", scope) == value
    assert interpolate("$args", scope) == arguments
    for name, argument in arguments.items():
        assert interpolate(f"$args.{name}", scope) == argument


@given(st.lists(st.sampled_from(EXPRESSIONS) | TEXTS, max_size=4).map("".join))
def test_expressions_in_data_stay_text(data: str) -> None:
    scope = Scope({"x": data}, {"x": [{"y": data}]}, chat="secret")
    assert interpolate("$args.x", scope) == data
    assert interpolate("<$return.x[0].y>", scope) == f"<{data}>"
    assert interpolate("$args.x|$return.x.0.y", scope) == f"{data}|{data}"


@given(TEXTS | st.lists(st.sampled_from(EXPRESSIONS), max_size=4).map("".join))
def test_any_text_can_be_written_with_its_dollars_doubled(text: str) -> None:
    assert interpolate(text.replace("$", "$$"), SCOPE) == text
    assert roots(text.replace("$", "$$")) == set()


@given(JSON)
def test_a_value_in_a_longer_text_reads_back(value: Any) -> None:
    written = interpolate("<$return>", Scope({}, value))[1:-1]
    if value is None or isinstance(value, str):
        assert written == (value or "")
    else:
        assert json.loads(written) == value


@given(JSON, st.text(max_size=40), JSON)
def test_no_template_and_no_path_crashes(template: Any, path: str, value: Any) -> None:
    scope = Scope({"x": value}, value)
    interpolate(template, scope)
    interpolate(f"$return.{path}", scope)
    interpolate(f"$args.x[{path}]", scope)


@given(st.recursive(TEXTS.filter(lambda text: "$" not in text) | st.integers(), lambda inner: st.lists(inner)), JSON)
def test_a_template_without_dollars_is_itself(template: Any, value: Any) -> None:
    assert interpolate(template, Scope({}, value)) == template
