"""Arguments for a tool made from its schema: every argument that can be, and values that can be told apart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import jsonschema_rs

# Private modules of which type checkers know nothing.
sre, _parser = import_module("re._constants"), import_module("re._parser")

FILE = "upload.bin"
_COUNTER = itertools.count(100)


def sample_arguments(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return arguments that the schema takes: all of them if possible, else the required ones; None if none are
    found."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    validator = jsonschema_rs.validator_for(dict(schema))
    arguments: dict[str, Any] = {}
    for name, item in properties.items():
        for value in _candidates(item):
            if jsonschema_rs.validator_for(item).is_valid(value):
                arguments[name] = value
                break
        else:
            if name in required:
                return None
    return arguments if validator.is_valid(arguments) else None


def _candidates(schema: Mapping[str, Any]) -> Iterator[Any]:
    for full in (True, False):
        for choice in range(3):
            yield _sample(schema, full, choice, 0)


def _sample(schema: Any, full: bool, choice: int, depth: int) -> Any:
    if not isinstance(schema, Mapping):
        return "any"
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if choices := schema.get("anyOf"):
        base = _sample({key: value for key, value in schema.items() if key != "anyOf"}, full, choice, depth)
        value = _sample(choices[min(choice, len(choices) - 1)], full, choice, depth + 1)
        return {**base, **value} if isinstance(base, dict) and isinstance(value, dict) else value
    if parts := schema.get("allOf"):
        values = [_sample(part, full, choice, depth + 1) for part in parts]
        if all(isinstance(value, dict) for value in values):
            return {key: item for value in values for key, item in value.items()}
        return values[0]
    kind = schema.get("type")
    kind = next((item for item in kind if item != "null"), "null") if isinstance(kind, list) else kind
    if kind == "object" or (kind is None and "properties" in schema):
        return _sample_object(schema, full, choice, depth)
    if kind == "array":
        count = max(schema.get("minItems", 0), 2 if full and not schema.get("uniqueItems") else 1)
        items = [_sample(schema.get("items", {}), full, choice, depth + 1) for _ in range(min(count, 20))]
        return items if schema.get("maxItems", 2) >= len(items) else items[: schema["maxItems"]]
    if kind in ("integer", "number"):
        return _sample_number(schema)
    if kind == "boolean":
        return True
    return None if kind == "null" else _sample_text(schema)


def _sample_object(schema: Mapping[str, Any], full: bool, choice: int, depth: int) -> dict[str, Any]:
    required = schema.get("required", ())
    wanted = {
        name: item for name, item in schema.get("properties", {}).items() if name in required or (full and depth < 4)
    }
    value = {name: _sample(item, full, choice, depth + 1) for name, item in wanted.items()}
    if not value and isinstance(schema.get("additionalProperties"), Mapping):
        value["key"] = _sample(schema["additionalProperties"], full, choice, depth + 1)
    return value


def _sample_number(schema: Mapping[str, Any]) -> int | float:
    step = schema.get("multipleOf", 1)
    low = schema.get(
        "minimum", schema.get("exclusiveMinimum", 0 if schema.get("maximum", 1) >= 1 else schema["maximum"])
    )
    value = low + step if "exclusiveMinimum" in schema or low == 0 else low
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    value = value if high is None or value <= high else high
    return int(value) if value == int(value) else value


def _sample_text(schema: Mapping[str, Any]) -> str:
    if "file in the workspace" in schema.get("description", "") or "Path of the file" in schema.get("description", ""):
        return FILE
    if pattern := schema.get("pattern"):
        try:
            return _from_pattern(_parser.parse(pattern))
        except (re.error, KeyError, ValueError):
            return "x"
    known = {"date": "2026-01-31", "date-time": "2026-01-31T12:00:00Z", "uuid": "123e4567-e89b-42d3-a456-426614174000"}
    text: str = known.get(schema.get("format", ""), f"val {next(_COUNTER)}/é")
    text = text.ljust(schema.get("minLength", 0), "x")
    return text[: schema["maxLength"]] if "maxLength" in schema else text


def _from_pattern(nodes: Any) -> str:
    """Return a text that a regular expression matches; only what the documents' patterns need."""
    return "".join(_from_node(*node) for node in nodes)


def _from_node(operator: Any, argument: Any) -> str:
    if operator is sre.LITERAL:
        return chr(argument)
    if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, inner = argument
        return str(_from_pattern(inner) * max(low, min(int(high), 1)))
    if operator is sre.SUBPATTERN:
        return _from_pattern(argument[-1])
    if operator is sre.BRANCH:
        return _from_pattern(argument[1][0])
    if operator is sre.IN:
        return _from_set(argument)
    return "a" if operator in (sre.ANY, sre.NOT_LITERAL) else ""


def _from_set(items: Any) -> str:
    operator, argument = items[0]
    if operator is sre.NEGATE:
        return next(char for char in "aA0 _~" if not _in_set(items[1:], char))
    if operator is sre.RANGE:
        return chr(argument[0])
    if operator is sre.LITERAL:
        return chr(argument)
    return {sre.CATEGORY_DIGIT: "1", sre.CATEGORY_SPACE: " "}.get(argument, "a")


def _in_set(items: Any, char: str) -> bool:
    for operator, argument in items:
        if (operator is sre.LITERAL and argument == ord(char)) or (
            operator is sre.RANGE and argument[0] <= ord(char) <= argument[1]
        ):
            return True
        if operator is sre.CATEGORY and argument is sre.CATEGORY_SPACE and char.isspace():
            return True
    return False
