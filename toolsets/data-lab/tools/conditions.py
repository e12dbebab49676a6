"""Selection of rows by conditions on columns, all of which must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from .values import parse

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "contains", "in", "is missing", "is not missing"]


class Condition(BaseModel, extra="forbid"):
    """One condition on a column, such as {"column": "price", "is": ">=", "value": 10}."""

    column: str
    operator: Operator = Field(alias="is", default="=")
    value: str | float | bool | list[str | float] | None = Field(
        default=None, description="What to compare with; a list for 'in', nothing for 'is missing'"
    )


Where = Annotated[list[Condition], Field(max_length=20)]
Row = Sequence[str]


def holds(where: Sequence[Condition], columns: Mapping[str, int], decimal_comma: bool) -> Callable[[Row], bool]:
    """Return a predicate that is true if all conditions hold for a row; an absent cell counts as missing."""
    tests = [(columns[each.column], _test(each, decimal_comma)) for each in where]
    return lambda row: all(test(row[at] if at < len(row) else "") for at, test in tests)


def _test(condition: Condition, decimal_comma: bool) -> Callable[[str], bool]:
    operator, value = condition.operator, condition.value
    if operator in ("is missing", "is not missing"):
        return lambda cell: (parse(cell)[0] == "missing") == (operator == "is missing")
    if value is None:
        raise ValueError(f"the condition on {condition.column!r} has no 'value'")
    if operator == "in":
        wanted = {_key(_text(each), decimal_comma) for each in (value if isinstance(value, list) else [value])}
        return lambda cell: _key(cell, decimal_comma) in wanted
    if isinstance(value, list):
        raise ValueError(f"the condition on {condition.column!r} has a list; that is for 'in'")
    text = _text(value)
    if operator == "contains":
        return lambda cell: text.casefold() in cell.casefold()
    wanted_key = _key(text, decimal_comma)
    if operator in ("=", "!="):
        return lambda cell: (_key(cell, decimal_comma) == wanted_key) == (operator == "=")
    return lambda cell: _compare_order(_key(cell, decimal_comma), wanted_key, operator)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _key(cell: str, decimal_comma: bool) -> tuple[str, float | str]:
    """Return the key for comparison: the value of numbers and dates, else the text."""
    kind, worth = parse(cell, decimal_comma)
    if kind in ("integer", "number"):
        return "number", worth
    return ("moment", worth) if kind in ("date", "datetime") else (kind, cell.strip())


def _compare_order(cell: tuple[str, float | str], wanted: tuple[str, float | str], operator: str) -> bool:
    if cell[0] != wanted[0]:
        return False
    left, right = cell[1], wanted[1]
    below, same = left < right, left == right  # type: ignore[operator]
    return {"<": below, "<=": below or same, ">": not (below or same), ">=": not below}[operator]
