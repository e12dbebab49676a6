"""What a schema allows, a call accepts and hands back unchanged."""

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, model_serializer
from typing_extensions import TypedDict

from covalt_toolset import describe, invoke


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    y: float


@dataclass
class Box:
    corners: list[Point]
    color: Color


class Node(BaseModel):
    name: str
    left: "Node | None"
    right: "Node | None"


class Kept(BaseModel):
    value: int = Field(alias="theValue", ge=-5, le=5)

    @model_serializer
    def _back(self) -> dict[str, int]:
        return {"theValue": self.value}


def everything(
    text: Annotated[str, Field(min_length=1, max_length=9, examples=["a", "βγ"])],
    number: Annotated[int, Field(ge=-9, le=9, examples=[0, 9])],
    flag: bool,
    mode: Literal["fast", 3, None],
    either: int | str | list[bool],
    box: Box,
    tree: Node,
    kept: Annotated[Kept, Field(alias="from")],
    when: Annotated[datetime, Field(examples=["2026-01-02T03:04:05Z"])],
    which: UUID,
    *,
    scores: dict[str, float] | None = None,
) -> Any:
    return dict(locals())


SCHEMA = describe(everything).input_schema
VALID = jsonschema_rs.validator_for(SCHEMA)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


def values(schema: Any) -> st.SearchStrategy[Any]:
    """JSON that fits the schema, for the keywords these schemas use."""
    if "$ref" in schema:
        return named(schema["$ref"].removeprefix("#/$defs/"))
    if "anyOf" in schema:
        return st.one_of(*map(values, schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "null": lambda: st.none(),
        "boolean": lambda: st.booleans(),
        "integer": lambda: st.integers(schema.get("minimum", -(10**12)), schema.get("maximum", 10**12)),
        "number": lambda: st.floats(allow_nan=False, allow_infinity=False),
        "string": lambda: strings(schema),
        "array": lambda: st.lists(values(schema["items"]), max_size=3),
        "object": lambda: objects(schema),
    }
    return kinds[schema["type"]]()


@functools.cache
def named(definition: str) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: values(SCHEMA["$defs"][definition]))


def strings(schema: Any) -> st.SearchStrategy[str]:
    if schema.get("format") == "uuid":
        return st.uuids().map(str)
    if schema.get("format") == "date-time":
        return st.datetimes(timezones=st.just(UTC)).map(lambda when: when.isoformat().replace("+00:00", "Z"))
    return st.text(st.characters(exclude_categories=["Cs"]), min_size=schema.get("minLength", 0), max_size=9)


def objects(schema: Any) -> st.SearchStrategy[dict[str, Any]]:
    if "properties" not in schema:
        return st.dictionaries(texts, values(schema["additionalProperties"]), max_size=3)
    required = {name: values(each) for name, each in schema["properties"].items() if name in schema["required"]}
    optional = {name: values(each) for name, each in schema["properties"].items() if name not in schema["required"]}
    return st.fixed_dictionaries(required, optional=optional)


@given(values(SCHEMA))
def test_whatever_the_schema_allows_is_accepted_and_comes_back(arguments: dict[str, Any]) -> None:
    VALID.validate(arguments)
    sent = {**arguments, "scores": arguments.get("scores"), "kept": arguments["from"]}
    del sent["from"]
    came = invoke(everything, arguments)
    assert instant(came.pop("when")) == instant(sent.pop("when"))
    assert came == sent


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.mark.parametrize("name", ["text", "number", "when"])
def test_the_schemas_own_examples_are_accepted(name: str) -> None:
    arguments: dict[str, Any] = {
        "text": "a",
        "number": 1,
        "flag": True,
        "mode": None,
        "either": "x",
        "box": {"corners": [{"x": 1, "y": 0.5}], "color": "blue"},
        "tree": {"name": "a", "left": {"name": "b", "left": None, "right": None}, "right": None},
        "from": {"theValue": 5},
        "when": "2026-01-02T03:04:05Z",
        "which": "12345678-1234-5678-1234-567812345678",
    }
    for example in SCHEMA["properties"][name]["examples"]:
        assert invoke(everything, {**arguments, name: example})[name] == example
