"""Functions as tools: marked with `tool`, described to clients by `describe`, called by `invoke`."""

from __future__ import annotations

import inspect
import os
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, overload

from . import docstrings
from .errors import BadDefinition, did_you_mean
from .schema import Schema
from .signature import Function, Signature, signature_of

Permission = Literal["read-only", "read-write", "execute"]
Access = Literal["none", "read", "write"]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True, kw_only=True)
class ToolMetadata:
    """The metadata that an author declares for a tool. For None, the manifest or the gateway decides.

    `permission` is the level the tool needs, `access` what it does to the chat's workspace,
    `timeout` its limit in seconds. A person must agree to a `destructive` tool, regardless of
    `requires_confirmation`; `idempotent` and `open_world` are hints for clients.
    """

    name: str
    description: str = ""
    requires_confirmation: bool = False
    category: str | None = None
    permission: Permission | None = None
    timeout: float | None = None
    access: Access | None = None
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToolDescription(ToolMetadata):
    """Everything a gateway needs to list a tool and to run it."""

    input_schema: Schema = field(default_factory=dict)
    output_schema: Schema | None = None
    is_async: bool = False


@overload
def tool(name: F, /) -> F: ...


@overload
def tool(
    name: str | None = None,
    description: str | None = None,
    requires_confirmation: bool = False,
    category: str | None = None,
    permission: Permission | None = None,
    timeout: float | None = None,
    *,
    access: Access | None = None,
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
    tags: Sequence[str] = (),
) -> Callable[[F], F]: ...


def tool(
    name: Any = None,
    description: str | None = None,
    requires_confirmation: bool = False,
    category: str | None = None,
    permission: Permission | None = None,
    timeout: float | None = None,
    *,
    access: Access | None = None,
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
    tags: Sequence[str] = (),
    **unknown: Any,
) -> Any:
    """Mark a function as a tool, as `@tool` or `@tool(name=…, …)`; the function itself is unchanged.

    The name and description default to the function's name and its docstring's first paragraph. A
    function that cannot be a tool is refused here, with its file and line.
    """
    if callable(name):
        return _mark(name, {})
    metadata = {
        "name": name,
        "description": description,
        "requires_confirmation": requires_confirmation,
        "category": category,
        "permission": permission,
        "timeout": timeout,
        "access": access,
        "destructive": destructive,
        "idempotent": idempotent,
        "open_world": open_world,
        "tags": tuple(tags),
        **unknown,
    }
    return lambda function: _mark(function, metadata)


def is_tool(function: object) -> bool:
    """Return whether the function is marked with `tool`."""
    return get_tool_metadata(function) is not None


def get_tool_metadata(function: object) -> ToolMetadata | None:
    """Return the metadata of a marked function, or None."""
    return getattr(function, _METADATA, None)


def describe(function: Function, input_schema: Mapping[str, Any] | None = None) -> ToolDescription:
    """Describe a function, marked or not; `input_schema` replaces the inferred one.

    Refuses annotations without a JSON schema, and an `input_schema` that does not fit the function.
    """
    signature = signature_of(function)
    if input_schema is not None:
        _check_schema(signature, input_schema)
    return ToolDescription(
        **vars(get_tool_metadata(function) or _metadata(function, {})),
        input_schema=signature.input_schema if input_schema is None else dict(input_schema),
        output_schema=signature.output_schema,
        is_async=inspect.iscoroutinefunction(function),
    )


def invoke(function: Function, arguments: Mapping[str, Any]) -> Any:
    """Call the function with JSON arguments and return JSON; for an `async` function, an awaitable of it.

    Arguments that do not fit raise `BadArguments` before the function runs. Its own exceptions pass through. A
    fork of the process that returns from the function ends here: it has no other threads, which may hold locks,
    and must not answer.
    """
    signature = signature_of(function)
    process = os.getpid()
    result = function(**signature.bind(arguments))
    if os.getpid() != process:
        os._exit(0)
    return _await_answer(signature, result) if inspect.isawaitable(result) else signature.answer(result)


_METADATA = "__tool_metadata__"


async def _await_answer(signature: Signature, result: Awaitable[Any]) -> Any:
    return signature.answer(await result)


def _mark(function: F, declared: Mapping[str, Any]) -> F:
    signature = signature_of(function)
    known = [item.name for item in fields(ToolMetadata)]
    for unknown in declared.keys() - set(known):
        hint = did_you_mean(unknown, known) or f"; there are {', '.join(known)}"
        raise BadDefinition(f"{signature.where}: @tool has no argument {unknown!r}{hint}")
    metadata = _metadata(function, declared)
    _check_choice(signature, "permission", metadata.permission, typing.get_args(Permission))
    _check_choice(signature, "access", metadata.access, typing.get_args(Access))
    if metadata.timeout is not None and not metadata.timeout > 0:
        raise BadDefinition(f"{signature.where}: timeout is {metadata.timeout}; give seconds above zero")
    setattr(function, _METADATA, metadata)
    return function


def _metadata(function: Function, declared: Mapping[str, Any]) -> ToolMetadata:
    given = {key: value for key, value in declared.items() if value is not None}
    defaults = {"name": function.__name__, "description": docstrings.summary(function.__doc__)}
    return ToolMetadata(**(defaults | given))


def _check_choice(signature: Signature, what: str, chosen: str | None, choices: tuple[str, ...]) -> None:
    if chosen is not None and chosen not in choices:
        raise BadDefinition(f"{signature.where}: {what} {chosen!r} is none of {', '.join(choices)}")


def _check_schema(signature: Signature, schema: Mapping[str, Any]) -> None:
    """Refuse a schema that lacks a required argument, or has one that the function does not take."""
    if schema.get("type") != "object":
        raise BadDefinition(f"{signature.where}: input_schema must have 'type: object'")
    if "properties" not in schema:
        return
    own, given = signature.input_schema, schema["properties"]
    for name in given:
        if name not in own["properties"]:
            hint = did_you_mean(name, own["properties"])
            raise BadDefinition(
                f"{signature.where}: input_schema has '{name}', which is no argument of the function{hint}"
            )
    for name in own.get("required", ()):
        if name not in given:
            raise BadDefinition(f"{signature.where}: input_schema lacks '{name}', which the function requires")
