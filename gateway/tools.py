"""Tools as data: what a client can list, the permission a tool needs, and the arguments it takes."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jsonschema_rs

from gateway.errors import Invalid, ToolFailed
from gateway.names import did_you_mean
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.calls import Call
    from gateway.workspace import Root


class Hides(Protocol):
    """Returns why the file of that path is to be left out of what a tool returns or sees, and None where it is not.
    `agreed` are paths that a person agreed to for this call."""

    def __call__(self, path: str, agreed: frozenset[str] = frozenset()) -> str | None: ...


# Returns for a tool which files it must not show or see.
HidesFor = Callable[["Tool"], Hides]

# Describes what a call with these arguments would do to the files of a workspace; None if that is unknown.
FilePreview = Callable[["Root", Mapping[str, Any]], str | None]

# Decides per call whether a person must agree first: the reason, or None to go on.
ConfirmationRule = Callable[["Call"], Awaitable[str | None]]


class Permission(str, enum.Enum):
    """The level a tool needs, and the level a category, profile or caller is allowed."""

    READ_ONLY = "read-only"
    READ_WRITE = "read-write"
    EXECUTE = "execute"

    def allows(self, needed: Permission) -> bool:
        return _LEVELS[needed] <= _LEVELS[self]


# Nodes that a schema may have once its references are inlined; definitions of definitions could grow without end.
_INLINED_NODES = 10_000

# The category of the tools that change the gateway itself, which only roles with `admin` may see.
ADMIN_CATEGORY = "administration"

_LEVELS = {level: rank for rank, level in enumerate(Permission)}


class Access(str, enum.Enum):
    """The use a tool makes of the chat's workspace; a tool that makes none pays nothing for it."""

    NONE = "none"
    READ = "read"
    WRITE = "write"


class Category(Value):
    """A label with a permission level and a switch. `name` is its id; `title` and `description` are for people."""

    name: str
    permission: Permission
    enabled: bool = True
    calls_per_minute: int | None = None
    title: str = ""
    description: str = ""


DEFAULT_CATEGORIES = {
    category.name: category
    for category in (
        Category(
            "filesystem", Permission.READ_ONLY, title="Filesystem", description="Reads and searches a chat's files"
        ),
        Category("editing", Permission.READ_WRITE, title="Editing", description="Changes and restores a chat's files"),
        Category("web", Permission.READ_ONLY, title="Web", description="Reads and searches the web"),
        Category(
            "development",
            Permission.EXECUTE,
            enabled=False,
            title="Development",
            description="Runs code, git, tests and formatters in the sandbox",
        ),
        Category(
            "customer_support",
            Permission.READ_WRITE,
            enabled=False,
            title="Customer support",
            description="Works with users, tenants and tickets",
        ),
        Category(
            "toolsets", Permission.READ_WRITE, title="Toolsets", description="Tools of toolsets that name no category"
        ),
        Category("upstream", Permission.EXECUTE, title="Upstream servers", description="Tools of other MCP servers"),
        Category(
            ADMIN_CATEGORY,
            Permission.EXECUTE,
            enabled=False,
            title="Administration",
            description="Changes the gateway itself, for roles with admin: true",
        ),
    )
}


class Renderer(Value):
    """The view of a tool's outcomes: its kind, and its config as declared, validated, its expressions not yet
    filled in."""

    kind: str
    config: Mapping[str, Any]


class RetryPolicy(Value):
    """The number of attempts of a call, the error codes after which there is another, and the pauses in between.
    Without codes those count that stand for a server or network that does not answer."""

    attempts: int
    codes: frozenset[str] = frozenset()
    first_seconds: float = 0.5
    longest_seconds: float = 10.0


class Tool(Value):
    """One callable, as data. The source that listed it is handed back this very object.

    `id` is the stable name: `tool` for builtins, `owner:tool` otherwise, where the owner is a
    toolset or an upstream. `kind` names the backend that runs it. `destructive`, `idempotent` and
    `open_world` are hints for clients; what a tool may do is its `permission`. `home` is the
    directory of the toolset that owns it, where its artifacts are. `withheld` is the reason why a
    known tool cannot be called now. `wire` is an upstream's own definition of it, all but its name.
    `path_arguments` are the arguments that name the files it changes, `patch_argument` the one that is a patch of them;
    None stands for any argument of a tool that writes, when none is declared. `preview` describes what a call would do
    to the files, for the person who is asked.
    `alias_of` is the builtin that a toolset offers under this id; it is off while that one is.
    `is_tool` is False for what stands for a resource or a prompt: rules, permissions, limits and the
    record take it for a tool, but it is not listed, and nobody can be asked about it.
    """

    id: str
    description: str
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    output_schema: Mapping[str, Any] | None = None
    kind: str = "builtin"
    owner: str | None = None
    title: str | None = None
    category: str = "toolsets"
    permission: Permission = Permission.EXECUTE
    access: Access = Access.NONE
    requires_confirmation: bool | ConfirmationRule = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False
    tags: tuple[str, ...] = ()
    prefix: str | None = None
    timeout: float | None = None
    calls_per_minute: int | None = None
    renderer: Renderer | None = None
    home: Path | None = None
    withheld: str | None = None
    wire: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    path_arguments: tuple[str, ...] | None = None
    patch_argument: str | None = None
    preview: FilePreview | None = None
    alias_of: str | None = None
    retry: RetryPolicy | None = None
    is_tool: bool = True

    def accepts(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the schema takes the arguments."""
        return self._arguments.is_valid(arguments)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids by which rules name it: a builtin also under its own, whatever a toolset calls it."""
        return (self.id,) if self.alias_of is None else (self.id, self.alias_of)

    @cached_property
    def has_own_view(self) -> bool:
        """True if its server has a view of MCP Apps for it."""
        match self.meta:
            case {"ui": {"resourceUri": str()}} | {"ui/resourceUri": str()}:
                return True
        return False

    @cached_property
    def app_only(self) -> bool:
        """True if its server offers it to views alone: no model may see it."""
        match self.meta:
            case {"ui": {"visibility": list(visibility)}}:
                return "app" in visibility and "model" not in visibility
        return False

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments the schema does not take, naming the first thing to fix."""
        if not self._arguments.is_valid(arguments):
            if self.schema_problem is not None:
                raise Invalid(f"{self.schema_problem.message}; its arguments cannot be checked")
            raise Invalid(f"{self.id}: {_complaint(self._arguments, arguments, self.input_schema)}")

    def repair_arguments(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments as an upstream gets them. Its schema may refuse what its code takes: a missing argument
        that is required and has a default gets it, and null for an argument that may be absent is dropped."""
        if self.wire is None or self._arguments.is_valid(arguments):
            return arguments
        properties, required = self.input_schema.get("properties"), self.input_schema.get("required")
        repaired = dict(arguments)
        for error in self._arguments.iter_errors(arguments):
            name = _blamed_argument(error, arguments)
            if name is None:
                continue
            schema = properties.get(name) if isinstance(properties, Mapping) else None
            if isinstance(required, list) and name in required:
                if isinstance(schema, Mapping) and "default" in schema:
                    repaired[name] = schema["default"]
            else:
                repaired.pop(name, None)
        return repaired

    def check_output(self, value: Any) -> None:
        """Refuse an output the tool itself promised not to give."""
        if self._output is not None and not self._output.is_valid(value):
            complaint = _complaint(self._output, value, self.output_schema or {})
            raise ToolFailed(f"{self.id} answered against its output schema: {complaint}", code="INVALID_OUTPUT")

    def compile(self) -> None:
        """Compile the schemas now; refuses a schema that is none, but for an upstream's input schema."""
        self._arguments  # noqa: B018 - a cached property is compiled by reading it
        self._output  # noqa: B018

    @property
    def schema_problem(self) -> Invalid | None:
        """The reason why an upstream's input schema cannot be compiled; no arguments satisfy it."""
        return self._compiled[1]

    @cached_property
    def _arguments(self) -> jsonschema_rs.Validator:
        return self._compiled[0]

    @cached_property
    def _compiled(self) -> tuple[jsonschema_rs.Validator, Invalid | None]:
        try:
            return _validator(self.id, "input", self.input_schema), None
        except Invalid as problem:
            if self.wire is None:
                raise
            return _NOTHING, problem

    @cached_property
    def _output(self) -> jsonschema_rs.Validator | None:
        return None if self.output_schema is None else _validator(self.id, "output", self.output_schema)


_NOTHING = jsonschema_rs.validator_for(False)


READ_RESOURCE = Tool(
    "read_file",
    "Read a file of a chat as a resource",
    category="filesystem",
    permission=Permission.READ_ONLY,
    is_tool=False,
)
LIST_RESOURCES = Tool(
    "list_directory",
    "List the files of a chat, or of a version of it, as resources",
    category="filesystem",
    permission=Permission.READ_ONLY,
    is_tool=False,
)
WRITE_RESOURCE = Tool(
    "write_file",
    "Change the files of a chat by hand",
    category="editing",
    permission=Permission.READ_WRITE,
    is_tool=False,
)
# In the category of the tool whose call is shown.
READ_RENDER = Tool(
    "read_render", "Read how the outcome of a call is shown", permission=Permission.READ_ONLY, is_tool=False
)


# Requests to an upstream besides its tools; in rules and limits it has the id `server:method`.
REQUESTS = ("resources/list", "resources/read", "resources/subscribe", "prompts/get", "completion/complete")


def hide_nothing_for(_: Tool) -> Hides:
    return hide_nothing


def hide_nothing(path: str, agreed: frozenset[str] = frozenset()) -> str | None:  # noqa: ARG001 - as `Hides` has them
    return None


def denied_only(hides: Hides) -> Hides:
    """Return a predicate for the files that rules deny, without those that they would ask about."""
    if hides is hide_nothing:
        return hides
    return lambda path, agreed=frozenset(): hides(path, agreed | {path})


def inline_references(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with every reference to its `$defs` replaced by the definition: some clients do not resolve
    references. One that refers to itself, or would grow beyond a limit, is returned unchanged. (The order of properties
    is kept, which `jsonschema_rs.dereference` does not do.)"""
    definitions, size = schema.get("$defs", {}), 0

    def inline(node: Any, enclosing: tuple[str, ...]) -> Any:
        nonlocal size
        size += 1
        if size > _INLINED_NODES:
            raise RecursionError
        if isinstance(node, list):
            return [inline(item, enclosing) for item in node]
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        if not isinstance(reference, str):
            return {key: inline(value, enclosing) for key, value in node.items()}
        name = reference.removeprefix("#/$defs/")
        if name not in definitions or name in enclosing:
            raise RecursionError
        rest = {key: inline(value, enclosing) for key, value in node.items() if key != "$ref"}
        return {**inline(definitions[name], (*enclosing, name)), **rest}

    try:
        return inline({key: value for key, value in schema.items() if key != "$defs"}, ())  # type: ignore[no-any-return]
    except (RecursionError, TypeError):
        return schema


def _validator(tool_id: str, which: str, schema: Mapping[str, Any]) -> jsonschema_rs.Validator:
    try:
        return jsonschema_rs.validator_for(dict(schema), retriever=_refuse_reference)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise Invalid(f"{tool_id}: its {which} schema is no JSON Schema: {error}", code="INVALID_SCHEMA") from error


def _refuse_reference(uri: str) -> Any:
    """A schema is data from strangers: it must not make us fetch anything."""
    raise ValueError(f"reference to {uri} is outside the schema")


def _blamed_argument(error: jsonschema_rs.ValidationError, arguments: Mapping[str, Any]) -> str | None:
    """Return the argument that is missing, or null against the schema."""
    path = error.instance_path
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Required):
        return None if path else error.kind.property
    return str(path[0]) if len(path) == 1 and arguments[str(path[0])] is None else None


def _complaint(validator: jsonschema_rs.Validator, value: Any, schema: Mapping[str, Any]) -> str:
    """Return the first few things that are wrong, in plain words."""
    errors = list(itertools.islice(validator.iter_errors(value), _COMPLAINTS + 1))
    complaints = list(dict.fromkeys(_describe_error(error, schema) for error in errors[:_COMPLAINTS]))
    return "; ".join([*complaints, "and more"] if len(errors) > _COMPLAINTS else complaints)


def _describe_error(error: jsonschema_rs.ValidationError, schema: Mapping[str, Any]) -> str:
    where, kind = ".".join(str(part) for part in error.instance_path), error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        return f"'{where}.{kind.property}' is required" if where else f"'{kind.property}' is required"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.AdditionalProperties):
        unknown = kind.unexpected[0]
        known = list(schema.get("properties", {})) if not where else []
        listed = f"; the arguments are {', '.join(known[:_NAMED])}" if known else ""
        return f"'{unknown}' is not an argument{did_you_mean(unknown, known)}{listed}"
    if types := _accepted_types([error]):
        return f"'{where}' must be {' or '.join(_TYPE_NAMES.get(each, each) for each in types)}"
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Enum):
        return f"'{where}' must be one of {', '.join(map(str, kind.options))}"[:300]
    message = error.message if len(error.message) <= 300 else f"{error.message[:300]}…"
    return f"'{where}': {message}" if where else message


def _accepted_types(errors: Sequence[jsonschema_rs.ValidationError]) -> list[str]:
    """Return the types that a value may have, if its type is all that is wrong in every alternative."""
    types: list[str] = []
    for error in errors:
        kind = error.kind
        if isinstance(kind, jsonschema_rs.ValidationErrorKind.Type) and error.instance_path:
            types += kind.types
        elif isinstance(kind, _ALTERNATIVES):
            inner = [_accepted_types(alternative) for alternative in kind.context]
            if not all(inner):
                return []
            types += [each for found in inner for each in found]
        else:
            return []
    return list(dict.fromkeys(types))


_ALTERNATIVES = (jsonschema_rs.ValidationErrorKind.AnyOf, jsonschema_rs.ValidationErrorKind.OneOfNotValid)
# Complaints about one call, and arguments that are named to whoever used another.
_COMPLAINTS = 3
_NAMED = 20
_TYPE_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
