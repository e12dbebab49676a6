"""JSON arguments in, what the signature says, JSON out."""

import enum
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import anyio
import anyio.lowlevel
import pytest
from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator
from typing_extensions import TypedDict

from covalt_toolset import BadArguments, BadReturn, invoke, to_jsonable, tool


class Color(enum.Enum):
    RED = "red"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str]


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")

    even: int = 0

    @field_validator("even")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("an odd number is not welcome")
        return value


class Point(TypedDict):
    x: int


@dataclass
class Box:
    corner: Point


def problems(function: Any, arguments: dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(BadArguments) as refused:
        invoke(function, arguments)
    return refused.value.problems


def test_a_function_receives_what_its_signature_says() -> None:
    seen: dict[str, Any] = {}

    @tool
    def take(
        cat: Cat,
        box: Box,
        color: Color,
        when: datetime,
        where: Path,
        which: UUID,
        numbers: set[int],
        pair: tuple[int, str],
        price: Decimal,
        pets: list[Cat | Dog],
        strict: Annotated[date, Strict()],
        nothing: int | None,
    ) -> None:
        seen.update(locals())

    invoke(
        take,
        {
            "cat": {"lives": 9},
            "box": {"corner": {"x": 1}},
            "color": "red",
            "when": "2026-01-02T03:04:05Z",
            "where": "a/b",
            "which": "12345678-1234-5678-1234-567812345678",
            "numbers": [1, 2, 2],
            "pair": [1, "a"],
            "price": 0.1,
            "pets": [{"lives": 1}, {"tricks": []}],
            "strict": "2026-01-02",
            "nothing": None,
        },
    )
    assert {name: seen[name] for name in seen if name != "seen"} == {
        "cat": Cat(lives=9),
        "box": Box(corner={"x": 1}),
        "color": Color.RED,
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "where": Path("a/b"),
        "which": UUID("12345678-1234-5678-1234-567812345678"),
        "numbers": {1, 2},
        "pair": (1, "a"),
        "price": Decimal("0.1"),
        "pets": [Cat(lives=1), Dog(tricks=[])],
        "strict": date(2026, 1, 2),
        "nothing": None,
    }


MISSING = object()


def test_a_default_is_the_very_object_the_author_wrote() -> None:
    def take(value: Any = MISSING) -> bool:
        return value is MISSING

    assert invoke(take, {}) is True
    assert invoke(take, {"value": 1}) is False


def test_a_mutable_default_remembers_nothing() -> None:
    def collect(item: str, items: list[str] = []) -> list[str]:  # noqa: B006 - the mistake is the point
        items.append(item)
        return items

    assert invoke(collect, {"item": "a"}) == ["a"]
    assert invoke(collect, {"item": "b"}) == ["b"]


def test_each_problem_is_one_sentence_with_its_path() -> None:
    def write(path: str, size: int, cats: list[Cat], mode: Literal["a", "b"] = "a") -> None: ...

    with pytest.raises(BadArguments) as refused:
        invoke(write, {"size": "big", "cats": [{"lives": 1}, {}], "mode": "c", "pth": "x"})
    assert refused.value.problems == (
        "'path' is required",
        "'size' should be a valid integer, unable to parse string as an integer",
        "'cats.1.lives' is required",
        "'mode' should be 'a' or 'b'",
        "'pth' is not an argument; did you mean 'path'?",
    )
    assert str(refused.value) == f"write: {'; '.join(refused.value.problems)}"


def test_limits_and_validators_speak_plainly() -> None:
    def write(closed: Closed, name: Annotated[str, Field(min_length=3)]) -> None: ...

    assert problems(write, {"closed": {"even": 3, "odd": 1}, "name": "ab"}) == (
        "'closed.even': an odd number is not welcome",
        "'closed.odd' is not expected",
        "'name': string should have at least 3 characters",
    )


def test_a_value_that_fits_no_form_of_a_union_is_one_problem() -> None:
    def take(value: int | list[int]) -> None: ...

    assert problems(take, {"value": "x"}) == (
        "'value' should be a valid integer, unable to parse string as an integer or should be a valid array",
    )


def test_a_problem_inside_one_form_of_a_union_names_the_form() -> None:
    def take(pet: Cat | Dog) -> None: ...

    assert problems(take, {"pet": {"lives": "many"}}) == (
        "'pet.lives' should be a valid integer, unable to parse string as an integer (as Cat)",
        "'pet.tricks' is required (as Dog)",
    )


def test_a_discriminated_union_names_the_chosen_form() -> None:
    def take(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> None: ...

    assert problems(take, {"pet": {"kind": "dog"}}) == ("'pet.tricks' is required (as dog)",)


def test_a_problem_in_an_argument_named_by_alias_uses_the_alias() -> None:
    def move(source: Annotated[int, Field(alias="from")]) -> None: ...

    assert problems(move, {"from": []}) == ("'from' should be a valid integer",)
    assert problems(move, {"source": 1}) == ("'from' is required", "'source' is not an argument")


def test_what_is_no_json_is_refused() -> None:
    def take(value: Any) -> None: ...

    [nan] = problems(take, {"value": math.nan})
    assert nan.startswith("the arguments are no JSON: Out of range float values are not JSON compliant")
    assert problems(take, {"value": object}) == (
        "the arguments are no JSON: Object of type type is not JSON serializable",
    )
    [half] = problems(take, {"value": "\ud800"})
    assert half.startswith("the arguments cannot be read: ")


def test_arguments_that_do_not_fit_never_reach_an_async_function() -> None:
    async def take(value: int) -> None: ...

    assert problems(take, {}) == ("'value' is required",)


def test_an_async_function_answers_when_awaited() -> None:
    async def take(cat: Cat) -> Cat:
        await anyio.lowlevel.checkpoint()
        return cat

    async def call() -> Any:
        return await invoke(take, {"cat": {"lives": 3}})

    assert anyio.run(call) == {"kind": "cat", "lives": 3}


def test_what_a_tool_raises_passes_through() -> None:
    def fail() -> None:
        raise FileNotFoundError("no such file: a.txt")

    with pytest.raises(FileNotFoundError, match=r"^no such file: a.txt$"):
        invoke(fail, {})


def test_a_returned_value_becomes_json() -> None:
    value = {
        "cat": Cat(lives=1),
        "box": Box(corner={"x": 1}),
        "path": Path("a"),
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "took": timedelta(seconds=90),
        "color": Color.RED,
        "set": {1},
        "tuple": (1, None),
        "bytes": b"abc",
        3: "number",
    }
    assert to_jsonable(value) == {
        "cat": {"kind": "cat", "lives": 1},
        "box": {"corner": {"x": 1}},
        "path": "a",
        "when": "2026-01-02T00:00:00Z",
        "took": "PT1M30S",
        "color": "red",
        "set": [1],
        "tuple": [1, None],
        "bytes": "abc",
        "3": "number",
    }


def test_an_alias_is_spoken_on_the_way_out() -> None:
    class Moved(BaseModel):
        source: str = Field(serialization_alias="from")

    def move() -> Moved:
        return Moved(source="a")

    assert invoke(move, {}) == {"from": "a"}


def test_a_dict_returned_for_a_model_is_read_as_that_model() -> None:
    def adopt() -> Cat:
        return {"lives": "7", "name": "Tom"}  # type: ignore[return-value]

    assert invoke(adopt, {}) == {"kind": "cat", "lives": 7}


def test_a_value_that_breaks_its_annotation_is_refused() -> None:
    def adopt() -> Cat:
        return {"kind": "dog"}  # type: ignore[return-value]

    with pytest.raises(BadReturn) as refused:
        invoke(adopt, {})
    assert str(refused.value) == (
        "adopt: returned a value that does not fit its annotation: 'kind' should be 'cat'; 'lives' is required"
    )


def cycle() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (math.nan, "returned nan, and JSON has no such number; return None or a text instead"),
        (
            {"stats": [{"mean": -math.inf}]},
            "returned -inf at 'stats.0.mean', and JSON has no such number; return None or a text instead",
        ),
        ({"file": "\udcff"}, "returned '\\udcff' at 'file', which is no Unicode text"),
        ({"\udcff": 1}, "returned '\\udcff', which is no Unicode text"),
        (b"\xff", "returned bytes that are no UTF-8; write them to a file, or encode them as base64"),
        ([object], "returned what JSON cannot represent: unable to serialize unknown type: <class 'type'>"),
        (cycle(), "returned what JSON cannot represent: circular reference detected (id repeated)"),
    ],
)
def test_what_json_cannot_carry_is_refused(value: Any, complaint: str) -> None:
    def answer() -> Any:
        return value

    with pytest.raises(BadReturn) as refused:
        invoke(answer, {})
    assert str(refused.value) == f"answer: {complaint}"


def test_nan_inside_a_promised_object_is_refused_too() -> None:
    @dataclass
    class Stats:
        mean: float

    def stats() -> Stats:
        return Stats(math.nan)

    with pytest.raises(BadReturn) as refused:
        invoke(stats, {})
    assert str(refused.value) == (
        "stats: returned nan at 'mean', and JSON has no such number; return None or a text instead"
    )
