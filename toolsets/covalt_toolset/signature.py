"""The signature of a function as a tool: its schemas, binding of arguments, and conversion of the result."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typing_extensions
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from . import docstrings
from .context import get_context
from .errors import BadArguments, BadDefinition, BadReturn
from .jsonable import dump_json, to_jsonable
from .problems import sentences
from .schema import Schema, schema_of

Function = Callable[..., Any]
T = TypeVar("T")


@functools.cache
def signature_of(function: Function) -> Signature:
    """Return the cached signature; refuses a function that cannot be a tool."""
    return Signature(function)


class Signature:
    """A function's signature. Annotations are evaluated lazily, since they may name classes defined later."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.where = _where(function)
        self.name: str = function.__name__
        self._all = _parameters(function, self.where)

    @cached_property
    def takes_workspace(self) -> bool:
        """True for the older form: a first parameter `workspace: Path` is filled from the context."""
        first = next(iter(self._all), None)
        return first is not None and first.name == "workspace" and self._types.get("workspace", Path) is Path

    @cached_property
    def input_schema(self) -> Schema:
        schema = self._define(lambda: schema_of(TypeAdapter(self._arguments), "validation"))
        if len(schema["properties"]) < len(self._fields):
            raise BadDefinition(f"{self.where}: two parameters have the same alias")
        return schema

    @cached_property
    def output_schema(self) -> Schema | None:
        """The schema of a returned model, dataclass or TypedDict; None for other types."""
        return None if self._answer is None else schema_of(self._answer, "serialization")

    def bind(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Convert JSON arguments to keyword arguments of the function."""
        try:
            parsed = self._arguments.model_validate_json(self._text(arguments))
        except ValidationError as error:
            known = self.input_schema["properties"]
            raise BadArguments(self.name, sentences(error, arguments, known)) from error
        bound = {parameter.name: getattr(parsed, field) for field, parameter in self._fields.items()}
        return bound | ({"workspace": get_context().workspace} if self.takes_workspace else {})

    def answer(self, value: Any) -> Any:
        """Convert the returned value to JSON; a dict returned for a model must fit it."""
        try:
            return to_jsonable(value) if self._answer is None else _dump_checked(self._answer, value)
        except BadReturn as error:
            raise BadReturn(f"{self.name}: {error}") from error

    def _text(self, arguments: Mapping[str, Any]) -> str:
        try:
            return json.dumps(dict(arguments), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BadArguments(self.name, [f"the arguments are no JSON: {error}"]) from error

    @cached_property
    def _fields(self) -> dict[str, inspect.Parameter]:
        """The parameters a client fills, under field names that cannot clash with pydantic's."""
        filled = self._all[1:] if self.takes_workspace else self._all
        return {f"argument_{index}": parameter for index, parameter in enumerate(filled)}

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        descriptions = docstrings.parameters(self.function.__doc__)
        fields: dict[str, Any] = {
            field: (
                _annotate(self._types.get(parameter.name, Any), parameter.name, descriptions.get(parameter.name)),
                ... if parameter.default is parameter.empty else parameter.default,
            )
            for field, parameter in self._fields.items()
        }
        config = ConfigDict(extra="forbid")
        model: type[BaseModel] = self._define(lambda: create_model(self.name, __config__=config, **fields))
        return model

    @cached_property
    def _answer(self) -> TypeAdapter[Any] | None:
        returned: Any = self._types.get("return")
        return self._define(lambda: _object_adapter(returned)) if _is_object(returned) else None

    @cached_property
    def _types(self) -> dict[str, Any]:
        return self._define(lambda: typing.get_type_hints(self.function, include_extras=True))

    def _define(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except NameError as error:
            hint = "an annotation's names must be importable at run time, from the module itself"
            raise BadDefinition(f"{self.where}: {_first_line(error)}; {hint}") from error
        except PydanticUserError as error:
            raise BadDefinition(f"{self.where}: {_first_line(error)}") from error


def _where(function: Function) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        raise BadDefinition(f"{function!r} is not a function")
    return f"{function.__name__} ({code.co_filename}:{code.co_firstlineno})"


def _parameters(function: Function, where: str) -> list[inspect.Parameter]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadDefinition(
            f"{where}: a tool returns its answer and does not yield; report with get_context().progress"
        )
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadDefinition(f"{where}: '{_star_name(parameter)}' has no JSON schema; name each parameter")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise BadDefinition(
                f"{where}: '{parameter.name}' is positional-only, and arguments are passed by name; remove the '/'"
            )
    return parameters


def _star_name(parameter: inspect.Parameter) -> str:
    return f"{'*' if parameter.kind is parameter.VAR_POSITIONAL else '**'}{parameter.name}"


def _annotate(annotation: Any, name: str, description: str | None) -> Any:
    """Add the parameter's name and description to its annotation; the author's own `Field` comes later and wins."""
    own = Field(alias=name, description=description)
    if typing.get_origin(annotation) is Annotated:
        return Annotated[(annotation.__origin__, own, *annotation.__metadata__)]
    return Annotated[annotation, own]


def _is_object(annotation: Any) -> bool:
    plain = annotation.__origin__ if typing.get_origin(annotation) is Annotated else annotation
    cls = typing.get_origin(plain) or plain
    if typing_extensions.is_typeddict(cls):
        return True
    return isinstance(cls, type) and (issubclass(cls, BaseModel) or dataclasses.is_dataclass(cls))


def _object_adapter(annotation: Any) -> TypeAdapter[Any] | None:
    """Return the adapter, or None for a model that is no object in JSON, such as a `RootModel` of a list."""
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return adapter if schema_of(adapter, "serialization").get("type") == "object" else None


def _dump_checked(answer: TypeAdapter[Any], value: Any) -> Any:
    try:
        valid = answer.validate_python(value)
    except ValidationError as error:
        problems = "; ".join(sentences(error, value))
        raise BadReturn(f"returned a value that does not fit its annotation: {problems}") from error
    return dump_json(lambda: answer.dump_python(valid, mode="json", by_alias=True, warnings="none"))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
