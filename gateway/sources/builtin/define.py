"""How a builtin is written: a plain function whose signature and docstring say all a client is told."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel

from ...calls import Outcome, text_content
from ...errors import Invalid
from ...tools import Access, Permission, Tool
from ...workspace import Root
from .engines import Engine

Function = Callable[..., Any]
"""Takes a `Context` and the arguments by name; returns a `Shape`, or one and the text a model reads."""


def _spelled(name: str) -> str:
    return to_camel(name.rstrip("_"))


class Shape(BaseModel):
    """What a builtin takes or returns: snake_case here, camelCase on the wire."""

    model_config = ConfigDict(alias_generator=_spelled, populate_by_name=True, defer_build=True)


@dataclass(frozen=True)
class Context:
    """What a builtin works with besides its arguments. Long loops call `check_cancelled`."""

    workspace: Root
    confirmed: bool = False
    engine: Engine = field(default_factory=Engine)
    check_cancelled: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Builtin:
    """A function as a tool. `asks` decides per call whether a person must agree first, and why."""

    function: Function
    hints: Mapping[str, Any]
    asks: Callable[..., str | None] | None = None

    @cached_property
    def tool(self) -> Tool:
        """The tool as data. Its rule, if any, is bound by the source, which has the workspaces."""
        return Tool(
            id=self.function.__name__,
            description=inspect.cleandoc(self.function.__doc__ or ""),
            input_schema=_untitled(self._arguments.model_json_schema()),
            output_schema=_untitled(self._answer.model_json_schema()),
            **self.hints,
        )

    def run(self, context: Context, arguments: Mapping[str, Any]) -> Outcome:
        answer = self.function(context, **self._coerced(arguments))
        shape, text = answer if isinstance(answer, tuple) else (answer, None)
        value = shape.model_dump(by_alias=True, exclude_none=True)
        return Outcome(value=value, content=None if text is None else text_content(text))

    def ask(self, context: Context, arguments: Mapping[str, Any]) -> str | None:
        return self.asks(context, **self._coerced(arguments)) if self.asks else None

    def _coerced(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._arguments.model_validate(arguments))
        except ValidationError as error:  # what the schema cannot say, such as half a surrogate pair
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise Invalid(f"{self.function.__name__}: '{where}': {first['msg']}") from error

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        fields: dict[str, Any] = {
            each.name: (self._types[each.name], ... if each.default is each.empty else each.default)
            for each in parameters
        }
        config = ConfigDict(alias_generator=_spelled, extra="forbid")
        return create_model(self.function.__name__, __config__=config, **fields)

    @cached_property
    def _answer(self) -> type[Shape]:
        returned = self._types["return"]
        shape: type[Shape] = typing.get_args(returned)[0] if typing.get_origin(returned) is tuple else returned
        return shape

    @cached_property
    def _types(self) -> dict[str, Any]:
        return typing.get_type_hints(self.function, include_extras=True)


def builtin(
    *,
    title: str,
    category: str,
    permission: Permission,
    access: Access,
    requires_confirmation: bool | Callable[..., str | None] = False,
    destructive: bool = False,
    idempotent: bool = False,
) -> Callable[[Function], Builtin]:
    """Make a tool of a function; `requires_confirmation` may be a function of the same parameters
    that returns the reason to ask a person, or None."""
    static = requires_confirmation if isinstance(requires_confirmation, bool) else False
    asks = None if isinstance(requires_confirmation, bool) else requires_confirmation
    hints = {
        "title": title,
        "category": category,
        "permission": permission,
        "access": access,
        "requires_confirmation": static,
        "destructive": destructive,
        "idempotent": idempotent,
    }
    return lambda function: Builtin(function, hints, asks)


def _untitled(schema: Any) -> Any:
    """The schema without the titles pydantic makes up from names."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _untitled(each) for name, each in value.items()} if key in _NAMED else _untitled(value)
        for key, value in schema.items()
        if key != "title"
    }


_NAMED = ("properties", "$defs")
