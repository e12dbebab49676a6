"""The `builtin` decorator: makes a tool of a function, from its signature and docstring."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel

from gateway.calls import Call, Outcome, text_content
from gateway.errors import Invalid
from gateway.sources.builtin.ripgrep import SearchEngine
from gateway.sources.builtin.word_index import WordIndex
from gateway.tools import Access, FilePreview, Hides, Permission, Tool, hide_nothing, inline_references
from gateway.value import Value
from gateway.workspace import Root
from gateway.workspace.versions import Versions

# Takes a context and the arguments by name. Returns a `Shape`; or a `Shape` and the text for the model; or these and
# the `Versioned` files. A plain function runs in a thread, with a `FileContext`. An `async` one runs in the event loop,
# with the context of its kind, and must not block.
Function = Callable[..., Any]


# In the `_meta` of a tool: Claude Code stores longer results than usual in a file unless it allows them.
LONGEST_RESULT = "anthropic/maxResultSizeChars"

# The schemas of every builtin by its id, since to derive them takes a fifth of a start. `make schemas` writes the file.
SCHEMAS = Path(__file__).with_name("schemas.json")


def _alias(name: str) -> str:
    return to_camel(name.rstrip("_"))


class Shape(BaseModel):
    """An argument or result of a builtin: snake_case in Python, camelCase on the wire."""

    model_config = ConfigDict(alias_generator=_alias, populate_by_name=True, defer_build=True)


class FileContext(Value):
    """The context of a file tool. Long loops call `check_cancelled`; files that it `hides` are not shown. `words` is
    the index of the workspace's words."""

    workspace: Root
    confirmed: bool = False
    engine: SearchEngine = field(default_factory=SearchEngine)
    check_cancelled: Callable[[], None] = lambda: None
    hides: Hides = hide_nothing
    words: WordIndex | None = None


class VersionContext(Value):
    """The context of a tool on a chat's versions. The tool takes the chat's lock itself."""

    versions: Versions
    call: Call
    hides: Hides = hide_nothing


class Versioned(NamedTuple):
    """The manifests of the chat's files before and after a call."""

    before: str | None
    after: str | None


class Builtin(Value):
    """A function as a tool. `asks` returns the reason to ask a person before a call, or None; `requires` names what the
    tool needs to be offered, such as "git"."""

    function: Function
    hints: Mapping[str, Any]
    asks: Callable[..., Any] | None = None
    requires: tuple[str, ...] = ()

    @cached_property
    def tool(self) -> Tool:
        """The tool as data. The source adds its rule for asking."""
        name = self.function.__name__
        schemas = _read_schemas().get(name) or self.derive_schemas()
        return Tool(id=name, description=inspect.cleandoc(self.function.__doc__ or ""), **schemas, **self.hints)

    def derive_schemas(self) -> dict[str, Any]:
        """Return the schemas of arguments and result, from the function's signature."""
        return {
            "input_schema": inline_references(_remove_titles(self._arguments.model_json_schema())),
            "output_schema": _compact(_remove_titles(self._result.model_json_schema())),
        }

    def run(self, context: FileContext, arguments: Mapping[str, Any]) -> Outcome:
        return _outcome(self.function(context, **self._parse(arguments)))

    async def run_async(self, context: object, arguments: Mapping[str, Any]) -> Outcome:
        return _outcome(await self.function(context, **self._parse(arguments)))

    def ask(self, context: object, arguments: Mapping[str, Any]) -> Any:
        """Return the reason to ask a person, or None; an awaitable of it for an `async` builtin."""
        return self.asks(context, **self._parse(arguments)) if self.asks else None

    def _parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._arguments.model_validate(arguments))
        except ValidationError as error:  # what the schema cannot express, such as a lone surrogate
            first = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(str(part) for part in first["loc"])
            raise Invalid(f"{self.function.__name__}: '{location}': {first['msg']}") from error

    @cached_property
    def _arguments(self) -> type[BaseModel]:
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        fields: dict[str, Any] = {
            parameter.name: (
                self._types[parameter.name],
                ... if parameter.default is parameter.empty else parameter.default,
            )
            for parameter in parameters
        }
        config = ConfigDict(alias_generator=_alias, extra="forbid")
        return create_model(self.function.__name__, __config__=config, **fields)

    @cached_property
    def _result(self) -> type[Shape]:
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
    open_world: bool = False,
    requires: tuple[str, ...] = (),
    path_arguments: tuple[str, ...] | None = None,
    patch_argument: str | None = None,
    preview: FilePreview | None = None,
    longest_result: int | None = None,
) -> Callable[[Function], Builtin]:
    """Make a tool of a function.

    `longest_result` is the number of characters of a result that clients should not cut or store in a file.

    `requires_confirmation` may be a function of the same parameters, `async` if the tool is, that returns the reason to
    ask a person, or None. A tool that writes declares which arguments are paths: protected files among them need
    consent."""
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
        "open_world": open_world,
        "path_arguments": path_arguments,
        "patch_argument": patch_argument,
        "preview": preview,
        "meta": {} if longest_result is None else {LONGEST_RESULT: longest_result},
    }
    return lambda function: Builtin(function, hints, asks, requires)


def hidden_files_note(count: int) -> list[str]:
    """Return the line for the model about files left out of a result, if there are any."""
    return [f"[{count} {'file' if count == 1 else 'files'} left out by the operator's rules]"] if count else []


@cache
def _read_schemas() -> Mapping[str, dict[str, Any]]:
    return orjson.loads(SCHEMAS.read_bytes())  # type: ignore[no-any-return]


def _outcome(returned: Any) -> Outcome:
    shape, text, files = (*returned, None)[:3] if isinstance(returned, tuple) else (returned, None, None)
    before, after = files or (None, None)
    return Outcome(
        value=shape.model_dump(by_alias=True, exclude_none=True),
        content=None if text is None else text_content(text),
        pre_manifest=before,
        post_manifest=after,
    )


def _compact(schema: Any) -> Any:
    """Return the schema of a result in fewer characters: a simple type or null as a list of types, and no null as the
    default of what may be missing."""
    if isinstance(schema, list):
        return [_compact(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    compact = {key: _compact(value) for key, value in schema.items() if not (key == "default" and value is None)}
    match compact.get("anyOf"):
        case [{"type": str(kind), **rest}, {"type": "null"}] if not rest:
            del compact["anyOf"]
            compact["type"] = [kind, "null"]
    return compact


# Keywords whose value maps names to schemas; "title" may be one of the names.
_BY_NAME = ("properties", "$defs")


def _remove_titles(schema: Any) -> Any:
    """Return the schema without the titles that pydantic derives from names."""
    if isinstance(schema, list):
        return [_remove_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _remove_titles(item) for name, item in value.items()} if key in _BY_NAME else _remove_titles(value)
        for key, value in schema.items()
        if key != "title"
    }
