"""A document that a person writes: its value, the line of each key, and errors in the words of that person, without any
parser."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from gateway.calls import to_json
from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.secrets import show_value
from gateway.value import Value

PROBLEM_LIMIT = 20
_KEY_SHOWN = 200

Place = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


class YamlDocument(Value):
    """The value of a file, the line of each key, and the code of its errors. Without a name it is no file."""

    name: str
    code: str
    value: Any = None
    lines: dict[Place, int] = field(default_factory=dict)

    def refusal(self, reason: str, place: Place = (), line: int | None = None, **details: Any) -> Invalid:
        """An error to raise: `file line N: 'key.path': reason`."""
        line = line or self.line(place)
        where = f"{self.name}{f' line {line}' if line else ''}: " if self.name else ""
        key = join_place(place)[:_KEY_SHOWN]
        message = f"{where}{f'{key!r}: ' if key else ''}{reason}"
        return Invalid(message, code=self.code, file=self.name, line=line, key=key, **details)

    def line(self, place: Place) -> int | None:
        """The line of a place, or of the nearest one around it that is in the file."""
        line: int | None = None
        path: Place = ()
        for part in place:
            spellings: tuple[str | int, ...] = (part, to_camel(part)) if isinstance(part, str) else (part,)
            written = next((spelling for spelling in spellings if (*path, spelling) in self.lines), None)
            if written is None:
                return line
            path = (*path, written)
            line = self.lines[path]
        return line

    def add_key(self, place: Place, line: int) -> None:
        """Store the line of a key; a key that occurs twice is refused, since one of the two would be lost."""
        if place in self.lines:
            key = join_place(place)[:_KEY_SHOWN]
            raise self.refusal(f"{key!r} occurs twice (first in line {self.lines[place]})", line=line)
        self.lines[place] = line


def validate(document: YamlDocument, model: type[Model]) -> Model:
    """The document as a model; `Invalid` as `validation_error` has it."""
    try:
        return model.model_validate_json(to_json(document.value))
    except ValidationError as error:
        raise validation_error(document, model, error) from None


def validation_error(document: YamlDocument, model: type[BaseModel], error: ValidationError) -> Invalid:
    """The errors of a model as one. Its message is the first by line; a missing key comes last, since a misspelt one
    is the likelier mistake, and is left out if a misspelt one was recognised. `details.problems` has them all."""
    details = error.errors(include_url=False, include_input=False)[: 10 * PROBLEM_LIMIT]
    ranked = [(each["type"] == "missing", _convert(document, model, each)) for each in details]
    messages = [invalid.message for _, invalid in ranked]
    errors = [
        invalid
        for missing, invalid in sorted(ranked, key=lambda pair: (pair[0], pair[1].details["line"] or 0))
        if not (missing and any(_is_suggested(str(invalid.details["key"]), message) for message in messages))
    ]
    problems = [invalid.message for invalid in errors[:PROBLEM_LIMIT]]
    return Invalid(errors[0].message, code=document.code, **errors[0].details, problems=problems)


def _is_suggested(key: str, message: str) -> bool:
    """Return whether a message about an unknown key beside `key` suggests it."""
    above, dot, name = key.rpartition(".")
    return f"'{above}{dot}" in message and message.endswith(f"did you mean {name!r}?")


def join_place(place: Place) -> str:
    return ".".join(str(part) for part in place)


def _convert(document: YamlDocument, model: type[BaseModel], error: ErrorDetails) -> Invalid:
    inner = ("type",) if error["type"] == "unknown_type" else error.get("ctx", {}).get("at", ())
    # The tags of a union are no keys of the file.
    place = (*(part for part in error["loc"] if not _is_tag(part)), *inner)
    if error["type"] != "extra_forbidden":
        return document.refusal(_reword(error, document, place), place)
    key, keys = str(place[-1]), _keys(model, error["loc"][:-1])
    if key in keys:
        return document.refusal(f"this key occurs twice, once as {to_camel(key)!r}", place)
    if advice := getattr(model, "elsewhere", {}).get(join_place(place)):
        return document.refusal(advice, place)
    sections = {} if error["loc"][:-1] else {name: kind for name, kind in _fields(model).items() if _is_model(kind)}
    if inside := [f"'{name}.{key}'" for name, kind in sections.items() if key in _fields(kind)]:
        return document.refusal(f"unknown key; did you mean {' or '.join(inside)}?", place)
    hint = did_you_mean(key, keys) or f"; the keys here are {', '.join(sorted(set(keys)))}"
    return document.refusal(f"unknown key{hint}", place)


# The beginnings of pydantic's messages, and its names of types with ours.
_MESSAGE_START = re.compile(r"^(?:Input|String|List|Dictionary|Value) should ")
_TYPE_NAMES = {
    "a valid string": "text",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid list": "a list",
    "a valid array": "a list",
    "a valid dictionary": "keys and values",
    "an object": "keys and values",
}

# A duration with its unit. Numbers that may have a fraction, and whole numbers named so, are seconds.
_DURATION = re.compile(r"(\d{1,9}) ?(s|secs?|seconds?|m|mins?|minutes?|h|hours?)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600}


def reword_message(message: str) -> str:
    """A message of pydantic in the words of somebody who writes JSON or YAML."""
    message = re.sub(r", unable to .*$| or instance of .*$", "", message.removeprefix("Value error, "))
    message = _MESSAGE_START.sub("must ", message)
    for name, ours in _TYPE_NAMES.items():
        message = message.replace(name, ours)
    return message


def _reword(error: ErrorDetails, document: YamlDocument, place: Place) -> str:
    """The message of a validation error in the words of someone who writes the file."""
    if error["type"] == "missing":
        return "this key is missing"
    message = reword_message(error["msg"])
    value, is_choice = _value_at(document.value, place), error["type"] in ("literal_error", "enum")
    if is_choice and isinstance(value, bool):
        return f"{message}; YAML reads on, off, yes and no as true or false, so put such a word in quotes"
    if isinstance(value, str) and len(place) == 2 and place[0] in ("mcpServers", "upstreams"):
        return f"{message}: {{command: PROGRAM, args: [ARGUMENT]}}, or {{url: ADDRESS}}"
    if error["type"] == "float_parsing" or (error["type"] == "int_parsing" and "seconds" in str(place[-1])):
        message += _suggest_seconds(str(value))
    shown = show_value([part for part in place if isinstance(part, str)], value)
    if not shown or not message.startswith("must be "):
        return message
    hint = did_you_mean(str(value), re.findall("'([^']*)'", message)) if is_choice else ""
    advice = {"list_type": f": write [{value}]", "string_type": f', not {shown}; write it in quotes: "{value}"'}
    return message + advice.get(error["type"], f", not {shown}{hint}")


def _suggest_seconds(text: str) -> str:
    match = _DURATION.fullmatch(text)
    return f" of seconds, such as {int(match[1]) * _UNIT_SECONDS[match[2][0]]}" if match else ""


def _value_at(value: Any, place: Place) -> Any:
    with suppress(KeyError, IndexError, TypeError):
        for part in place:
            value = value[part]
        return value
    return None


def _is_tag(part: str | int) -> bool:
    return isinstance(part, str) and part.startswith("<")


def _keys(model: type[BaseModel], place: Place) -> list[str]:
    """The keys valid at a place, found by walking the models along it."""
    models = [model]
    for part in place:
        if _is_tag(part):
            models = [kind for kind in models if getattr(kind, "tag", part) == part]
        elif annotations := [fields[part] for kind in models if part in (fields := _fields(kind, by_name=True))]:
            models = [kind for annotation in annotations for kind in _models(annotation)]
    return [str(key) for kind in models for key in _fields(kind)]


def _fields(model: type[BaseModel], by_name: bool = False) -> dict[str | int, Any]:
    """The types of a model's fields by their keys in a file, which are snake_case unless a field has its own alias.
    With `by_name` they are also found by their names."""
    generated = model.model_config.get("alias_generator") is not None
    fields = model.model_fields.items()
    names: dict[str | int, Any] = {name: field.annotation for name, field in fields} if by_name else {}
    return names | {name if generated else field.alias or name: field.annotation for name, field in fields}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if _is_model(annotation):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
