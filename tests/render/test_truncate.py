"""What is cut from a section that is too large, and that the rest is what it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import to_json
from gateway.render.plan import Cut, fit

from .documents import ARGUMENTS, TEXTS


@given(ARGUMENTS, st.integers(0, 300))
def test_a_section_fits_and_keeps_what_was_not_cut(section: dict[str, Any], limit: int) -> None:
    fitted, cuts = fit(section, limit, "at")
    assert len(to_json(fitted)) <= max(limit, 2)
    cut = {entry.at.removeprefix("at.") for entry in cuts}
    if "at" in cut:
        assert fitted == {}
        return
    for key, value in section.items():
        if key not in cut:
            assert fitted[key] == value
        elif isinstance(value, str):
            assert value.startswith(fitted[key]) and fitted[key] != value
        else:
            assert fitted[key] is None


@given(ARGUMENTS)
def test_a_section_that_fits_is_left_alone(section: dict[str, Any]) -> None:
    assert fit(section, 10**6, "at") == (section, ())


@given(TEXTS | st.text("\x00é\n😀", min_size=40, max_size=400), st.integers(30, 200))
def test_a_text_keeps_as_much_as_fits(text: str, limit: int) -> None:
    fitted, cuts = fit({"text": text}, limit, "at")
    if cuts:
        longer = text[: len(fitted["text"]) + 1]
        assert len(to_json({"text": fitted["text"]})) <= limit
        assert len(to_json({"text": longer})) > limit - 4


def test_largest_values_are_cut_first() -> None:
    section = {"small": "s" * 50, "large": "l" * 1000, "list": list(range(500))}
    fitted, cuts = fit(section, 800, "input")
    assert fitted["small"] == "s" * 50
    assert [cut.at for cut in cuts] == ["input.list", "input.large"]
    assert cuts[1] == Cut("input.large", 1012)


def test_section_of_many_large_values_is_left_empty_in_one_cut() -> None:
    section = {str(number): "x" * 100 for number in range(10_000)}
    assert fit(section, 64_000, "input") == ({}, (Cut("input", len(to_json(section))),))
