"""A command template and a call's arguments as the list a program is started with: every value arrives as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.bundles import ShellTool
from gateway.bundles.field_types import REFERENCE
from gateway.calls import to_json
from gateway.errors import Invalid

Values = Mapping[str, Any]

ARGUMENT_LIMIT = 128 * 1024  # what Linux takes for one element
TOTAL_LIMIT = 1024 * 1024


def arguments_of(tool: ShellTool, values: Values) -> list[str]:
    """The program and its arguments. An element that is one reference to a list becomes one element for each
    item, and to nothing, none; no value becomes an option where the template did not make it an option's value."""
    found = [argument for index in range(len(tool.command)) for argument in _element(tool, index, values)]
    if sum(len(argument.encode()) for argument in found) > TOTAL_LIMIT:
        raise Invalid(f"the arguments are longer than {TOTAL_LIMIT} bytes together; put large texts in a file")
    return found


def filled(text: str, values: Values) -> str:
    """`text` with each `${name}` and `${name.path[0]}` replaced; what is missing is nothing."""
    return REFERENCE.sub(lambda match: _text(_value(match["whole"], values)), text)


def _element(tool: ShellTool, index: int, values: Values) -> Iterator[str]:
    element = tool.command[index]
    whole = REFERENCE.fullmatch(element)
    if whole is None:
        yield _checked(filled(element, values), element)
        return
    value = _value(whole["whole"], values)
    for item in [] if value is None else value if isinstance(value, list) else [value]:
        text = _checked(_text(item), whole["name"])
        if isinstance(item, str) and text.startswith("-") and not _takes_anything(tool.command[:index]):
            raise Invalid(
                f"{whole['name']!r} begins with '-', which {tool.command[0]!r} would take for an option; "
                "write a path as './-name'"
            )
        yield text


def _takes_anything(before: tuple[str, ...]) -> bool:
    """After `--` nothing is an option any more, and right after an option stands its value."""
    return "--" in before or (len(before) > 1 and before[-1].startswith("-") and not REFERENCE.search(before[-1]))


def _value(reference: str, values: Values) -> Any:
    """What `name.path[0]` leads to; None where it leads nowhere."""
    found: Any = values
    for step in reference.replace("[", ".").replace("]", "").split("."):
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else to_json(value).decode()


def _checked(text: str, name: str) -> str:
    if "\0" in text:
        raise Invalid(f"{name!r} holds a NUL character, which no program takes as an argument")
    if len(text.encode("utf-8", "replace")) > ARGUMENT_LIMIT:
        raise Invalid(f"{name!r} is longer than {ARGUMENT_LIMIT} bytes; put it in a file and pass its path")
    return text
