"""How a builtin is written: a function whose signature and docstring say all a client is told."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel

from gateway.calls import Call, Outcome, text_content
from gateway.errors import Invalid
from gateway.sources.builtin.ripgrep import Engine
from gateway.tools import Access, Hides, Permission, Tool, hide_nothing
from gateway.workspace import Root
from gateway.workspace.versions import Versions

# Takes a context and the arguments by name; returns a `Shape`, or one and the text a model reads, or these and the
# `Versioned` files. A plain function gets a `Context` and runs in a thread; an `async` one gets what its source works
# with (a `VersionContext` for those on a chat's versions), runs in the event loop and must not block it.
Function = Callable[..., Any]


def _spelled(name: str) -> str:
    return to_camel(name.rstrip("_"))


class Shape(BaseModel):
    """What a builtin takes or returns: snake_case here, camelCase on the wire."""

    model_config = ConfigDict(alias_generator=_spelled, populate_by_name=True, defer_build=True)


@dataclass(frozen=True)
class Context:
    """What a builtin works with besides its arguments. Long loops call `check_cancelled`; what is in files that it
    `hides` is not shown."""

    workspace: Root
    confirmed: bool = False
    engine: Engine = field(default_factory=Engine)
    check_cancelled: Callable[[], None] = lambda: None
    hides: Hides = hide_nothing


@dataclass(frozen=True)
class VersionContext:
    """What a builtin works with that goes through a chat's versions; it takes the chat's lock itself."""

    versions: Versions
    call: Call
    hides: Hides = hide_nothing


class Versioned(NamedTuple):
    """The manifest of the chat's files before a call and after it."""

    before: str | None
    after: str | None


@dataclass(frozen=True)
class Builtin:
    """A function as a tool. `asks` decides per call whether a person must agree first, and why."""

    function: Function
    hints: Mapping[str, Any]
    asks: Callable[..., Any] | None = None

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

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
        return _outcome(self.function(context, **self._coerced(arguments)))

    async def run_async(self, context: object, arguments: Mapping[str, Any]) -> Outcome:
        return _outcome(await self.function(context, **self._coerced(arguments)))

    def ask(self, context: object, arguments: Mapping[str, Any]) -> Any:
        """The reason to ask a person, or None; for an `async` builtin to be awaited."""
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
    requires_confirmation: bool | Callable[..., Any] = False,
    destructive: bool = False,
    idempotent: bool = False,
    path_arguments: tuple[str, ...] | None = None,
    patch_argument: str | None = None,
) -> Callable[[Function], Builtin]:
    """Make a tool of a function; `requires_confirmation` may be a function of the same parameters,
    `async` where the tool is, that returns the reason to ask a person, or None. One that writes says which arguments
    name the files: a protected file among them is asked about."""
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
        "path_arguments": path_arguments,
        "patch_argument": patch_argument,
    }
    return lambda function: Builtin(function, hints, asks)


def left_out(count: int) -> list[str]:
    """The line that says so, where files were hidden."""
    return [f"[{count} {'file' if count == 1 else 'files'} left out by the operator's rules]"] if count else []


def _outcome(answer: Any) -> Outcome:
    shape, text, files = (*answer, None)[:3] if isinstance(answer, tuple) else (answer, None, None)
    before, after = files or (None, None)
    return Outcome(
        value=shape.model_dump(by_alias=True, exclude_none=True),
        content=None if text is None else text_content(text),
        pre_manifest=before,
        post_manifest=after,
    )


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
