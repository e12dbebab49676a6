"""Frozen dataclasses whose methods are made at the first use."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, field
from pathlib import Path

import pytest

from gateway.value import Value

ROOT = Path(__file__).parents[1] / "gateway"


def make_classes() -> tuple[type[Value], type[Value]]:
    class Point(Value):
        x: int
        tags: list[str] = field(default_factory=list, compare=False)

    class Labelled(Point):
        label: str = "none"

        def __post_init__(self) -> None:
            object.__setattr__(self, "label", self.label.upper())

    return Point, Labelled


def test_value_is_a_frozen_dataclass() -> None:
    point, _ = make_classes()
    made = point(1, tags=["a"])
    assert made == point(x=1) != point(2)
    assert hash(made) == hash(point(1))
    assert repr(made).endswith("Point(x=1, tags=['a'])")
    assert dataclasses.replace(made, x=3) == point(3)
    assert dataclasses.asdict(made) == {"x": 1, "tags": ["a"]}
    with pytest.raises(FrozenInstanceError):
        made.x = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="unexpected keyword argument 'y'"):
        point(1, y=2)


def test_value_can_be_asked_for_its_fields_before_there_is_one() -> None:
    point, labelled = make_classes()
    assert [each.name for each in dataclasses.fields(point)] == ["x", "tags"]
    assert [each.name for each in dataclasses.fields(labelled)] == ["x", "tags", "label"]
    assert not dataclasses.is_dataclass(Value)


@pytest.mark.parametrize("first", ["base", "derived"])
def test_value_derived_from_another_has_the_fields_of_both(first: str) -> None:
    point, labelled = make_classes()
    if first == "base":
        point(1)
    assert dataclasses.asdict(labelled(1, label="b")) == {"x": 1, "tags": [], "label": "B"}
    assert point(1) == point(1)


def test_value_is_processed_once_by_threads_that_meet() -> None:
    with ThreadPoolExecutor(16) as threads:
        for _ in range(50):
            point, _ = make_classes()
            made = list(threads.map(point, range(16)))
            assert [dataclasses.astuple(each) for each in made] == [(number, []) for number in range(16)]


def test_classes_of_values_import_without_being_processed() -> None:
    program = (
        "import sys, gateway.app; from gateway.value import Value\n"
        "print(*(kind.__qualname__ for kind in Value.__subclasses__() if '__dataclass_params__' in vars(kind)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert len(done.stdout.split()) < 20
