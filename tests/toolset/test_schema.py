"""Schemas from signatures; the annotations of this module are text, as `from __future__` makes them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, get_type_hints
from uuid import UUID

import jsonschema_rs
import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel
from typing_extensions import TypedDict

from covalt_toolset import BadDefinition, describe, invoke, tool


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    y: int


@dataclass
class Box:
    corner: Point
    color: Color = Color.RED


class Node(BaseModel):
    """A node of a tree."""

    name: str
    children: list[Node] = []


class Titled(BaseModel):
    model_config = ConfigDict(title="A Given Title")

    title: str = Field(title="Shown above")


def properties(function: Any) -> dict[str, Any]:
    schema = describe(function).input_schema
    jsonschema_rs.validator_for(schema)
    found: dict[str, Any] = schema["properties"]
    return found


def test_a_signature_becomes_a_whole_schema() -> None:
    def search(pattern: str, limit: int = 10, *, exact: bool = False) -> None: ...

    assert describe(search).input_schema == {
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "limit": {"type": "integer", "default": 10},
            "exact": {"type": "boolean", "default": False},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    }


def test_a_function_without_parameters_takes_nothing() -> None:
    def look() -> None: ...

    assert describe(look).input_schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_null_is_kept_where_it_is_allowed() -> None:
    def find(a: str | None, b: Optional[int] = None) -> None: ...  # noqa: UP045 - the older spelling is the point

    assert properties(find) == {
        "a": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
    }


def test_choices_are_told() -> None:
    def paint(mode: Literal["fast", "slow"], color: Color, number: int | str) -> None: ...

    schema = describe(paint).input_schema
    assert schema["properties"] == {
        "mode": {"enum": ["fast", "slow"], "type": "string"},
        "color": {"$ref": "#/$defs/Color"},
        "number": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    }
    assert schema["$defs"] == {"Color": {"enum": ["red", "blue"], "type": "string"}}


def test_formats_are_told() -> None:
    def keep(when: datetime, where: Path, which: UUID) -> None: ...

    assert properties(keep) == {
        "when": {"type": "string", "format": "date-time"},
        "where": {"type": "string", "format": "path"},
        "which": {"type": "string", "format": "uuid"},
    }


def test_models_dataclasses_and_typed_dicts_nest_and_recur() -> None:
    def plant(tree: Node, box: Box) -> None: ...

    schema = describe(plant).input_schema
    assert schema["$defs"] == {
        "Box": {
            "type": "object",
            "properties": {
                "corner": {"$ref": "#/$defs/Point"},
                "color": {"$ref": "#/$defs/Color", "default": "red"},
            },
            "required": ["corner"],
            "additionalProperties": False,
        },
        "Color": {"enum": ["red", "blue"], "type": "string"},
        "Node": {
            "type": "object",
            "description": "A node of a tree.",
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
            },
            "required": ["name"],
        },
        "Point": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
    }


def test_a_fields_limits_words_and_examples_are_told() -> None:
    def limit(
        top: Annotated[int, Field(ge=1, le=9, description="How many", examples=[3])] = 3,
        size: float = Field(default=0.5, gt=0),
    ) -> None: ...

    assert properties(limit) == {
        "top": {
            "type": "integer",
            "minimum": 1,
            "maximum": 9,
            "description": "How many",
            "examples": [3],
            "default": 3,
        },
        "size": {"type": "number", "exclusiveMinimum": 0, "default": 0.5},
    }


def test_a_field_as_default_gives_its_own_default() -> None:
    def size(size: float = Field(default=0.5, gt=0)) -> float:
        return size

    assert invoke(size, {}) == 0.5


def test_only_titles_an_author_wrote_are_kept() -> None:
    def write(note: Titled) -> None: ...

    assert describe(write).input_schema["$defs"] == {
        "Titled": {
            "type": "object",
            "title": "A Given Title",
            "properties": {"title": {"type": "string", "title": "Shown above"}},
            "required": ["title"],
        }
    }


def test_a_default_that_json_cannot_carry_is_left_out() -> None:
    def wait(seconds: float = float("inf"), key: object = object()) -> None: ...

    assert properties(wait) == {"seconds": {"type": "number"}, "key": {}}


def test_names_that_pydantic_uses_itself_are_fine() -> None:
    def dump(
        schema: str, json: int, copy: bool, model_config: str, model_fields: str, _hidden: str, self_: int = 1
    ) -> list[Any]:
        return [schema, json, copy, model_config, model_fields, _hidden, self_]

    arguments = {"schema": "s", "json": 1, "copy": True, "model_config": "c", "model_fields": "f", "_hidden": "h"}
    assert list(properties(dump)) == [*arguments, "self_"]
    assert invoke(dump, arguments) == ["s", 1, True, "c", "f", "h", 1]


def test_an_argument_may_be_named_by_alias() -> None:
    def move(
        source: Annotated[str, Field(alias="from")], target: Annotated[str, Field(validation_alias="to")]
    ) -> list[str]:
        return [source, target]

    assert list(properties(move)) == ["from", "to"]
    assert invoke(move, {"from": "a", "to": "b"}) == ["a", "b"]


def test_one_alias_for_two_parameters_is_refused() -> None:
    def move(source: str, target: Annotated[str, Field(alias="source")]) -> None: ...

    with pytest.raises(BadDefinition) as refused:
        describe(move)
    where = f"move ({__file__}:{move.__code__.co_firstlineno})"
    assert str(refused.value) == f"{where}: two parameters have the same alias"


@tool
def early(thing: Later) -> None:
    """Names a class that stands further down."""


class Later(BaseModel):
    size: int


def test_a_class_may_stand_below_the_tool_that_takes_it() -> None:
    assert get_type_hints(early)["thing"] is Later
    assert properties(early) == {"thing": {"$ref": "#/$defs/Later"}}


def test_a_name_that_cannot_be_resolved_is_refused_where_it_stands() -> None:
    def lost(thing: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(BadDefinition) as refused:
        describe(lost)
    assert str(refused.value) == (
        f"lost ({__file__}:{lost.__code__.co_firstlineno}): name 'Nowhere' is not defined; "
        "an annotation's names must be importable at run time, from the module itself"
    )


class Opaque: ...


def test_a_type_no_client_can_send_is_refused() -> None:
    def take(thing: Opaque) -> None: ...

    with pytest.raises(BadDefinition) as refused:
        describe(take)
    assert str(refused.value).startswith(
        f"take ({__file__}:{take.__code__.co_firstlineno}): Unable to generate pydantic-core schema for {Opaque!r}."
    )


def test_an_object_that_is_returned_has_an_output_schema() -> None:
    def model() -> Later: ...  # type: ignore[empty-body]
    def data() -> Box: ...  # type: ignore[empty-body]
    def typed() -> Point: ...  # type: ignore[empty-body]
    def annotated() -> Annotated[Later, "words"]: ...  # type: ignore[empty-body]

    later = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    assert describe(model).output_schema == later
    assert describe(annotated).output_schema == later
    assert describe(typed).output_schema == {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
        "required": ["x", "y"],
    }
    box = describe(data).output_schema
    assert box is not None
    assert list(box["properties"]) == ["corner", "color"]


def test_a_recursive_output_says_object_at_its_top() -> None:
    def tree() -> Node: ...  # type: ignore[empty-body]

    schema = describe(tree).output_schema
    assert schema is not None
    assert schema["type"] == "object"
    assert "$ref" not in schema
    jsonschema_rs.validator_for(schema).validate({"name": "a", "children": [{"name": "b"}]})


class Numbers(RootModel[list[int]]): ...


@pytest.mark.parametrize(
    "returned", [None, int, str, dict, dict[str, int], list[Later], Later | None, Any, Numbers, Opaque]
)
def test_anything_else_promises_nothing(returned: Any) -> None:
    def something() -> Any: ...

    something.__annotations__["return"] = returned
    assert describe(something).output_schema is None


def test_no_return_annotation_promises_nothing() -> None:
    def something():  # type: ignore[no-untyped-def]
        return {"a": 1}

    assert describe(something).output_schema is None
    assert invoke(something, {}) == {"a": 1}
