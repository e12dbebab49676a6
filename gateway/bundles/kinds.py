"""The kinds of tools a `toolset.yaml` declares: what each says, and what it may not say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, ConfigDict, Field, model_validator

from gateway.bundles.field_types import (
    ENTRIES_LIMIT,
    AnyTool,
    Argument,
    Category,
    Content,
    Directory,
    Line,
    Prose,
    Seconds,
    Section,
    Table,
    Template,
    ToolId,
    Variable,
    fault,
    inside,
    path_fault,
    references,
    texts,
)
from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.tools import Access, Permission, Tool

ARGUMENTS_LIMIT = 256
STEPS_LIMIT = 50
_ENTRYPOINT = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_SAVED = re.compile(r"\$steps\.(\w+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OLD_PLACEHOLDER = re.compile(r"\$?\{\s*([A-Za-z_]\w*)\s*\}")

# Programs that run text as code and the option before that text, and programs that hand their arguments to a
# shell: an argument of the call there would be code. The list spares authors a mistake; the wall is the sandbox.
_INTERPRETER = re.compile(
    r"(?:ba|da|z|k|c|tc|fi|a)?sh|busybox|cmd|powershell|pwsh|python|pypy|perl|ruby|node|deno|bun|php|lua|osascript|rscript"
)
_CODE_OPTION = re.compile(
    r"-[a-zA-Z]{0,3}c|-[a-zA-Z]{0,2}[eErp]|--(?:eval|print|command)|/[ck]|-(?:encoded)?command|eval", re.IGNORECASE
)
_ATTACHED_CODE = re.compile(r"-[ceErp].|--(?:eval|print|command)=")
_SPLICER = re.compile(r"ssh|su|watch|eval")

RendererKind = Literal["code", "document", "html", "frame"]


class Renderer(Section):
    """The legacy alias of a renderer override: its type, and its config beside it."""

    model_config = ConfigDict(extra="allow")

    type: RendererKind

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _stays_inside(self) -> Renderer:
        check_artifact(self.config)
        return self


def check_artifact(config: Mapping[str, Any]) -> None:
    """Refuse an `artifact` outside the bundle; all else in a config is the renderers' to judge."""
    if (path := artifact_path(config)) is not None:
        with inside("artifact"):
            path_fault(path)


def artifact_path(config: Mapping[str, Any]) -> str | None:
    artifact = config.get("artifact")
    return artifact.removeprefix("$toolset/").removeprefix("./") if isinstance(artifact, str) else None


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        Tool(id="schema", description="", input_schema=schema).compile()
    except Invalid as error:
        raise fault(error.message.partition("its input ")[2] or error.message) from None
    return schema


def _object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise fault("the arguments of a tool are an object; write 'type: object'", "type")
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_schema)]
ObjectSchema = Annotated[Schema, AfterValidator(_object_schema)]


class ToolSpec(Section):
    """What every kind of tool says. What is left unsaid (None) is decided by the tool's code, or its category."""

    id: ToolId
    name: Line | None = None
    description: Prose | None = None
    input_schema: ObjectSchema | None = None
    output_schema: Schema | None = None
    requires_confirmation: bool | None = None
    enabled: bool = True
    category: Category | None = None
    permission: Permission | None = None
    access: Access | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    tags: Annotated[tuple[Line, ...], Field(max_length=32)] = ()
    timeout: Seconds | None = None
    calls_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    renderer: Renderer | None = None

    def placeholders(self) -> Iterator[tuple[str, str]]:
        """Each `${name}` of the tool with the key it stands under; what fills it is an argument or a secret."""
        yield from ()

    def secret_keys(self) -> frozenset[str]:
        """The keys that take declared secrets and no arguments."""
        return frozenset()

    def open_keys(self) -> frozenset[str]:
        """The keys that take arguments and no secrets: what is written there can be seen by others."""
        return frozenset()

    def check_placeholders(self, secrets: frozenset[str]) -> None:
        """Refuse a placeholder that nothing fills, or that the wrong thing would."""
        properties = (self.input_schema or {}).get("properties", {})
        for shadow in sorted(secrets.intersection(properties)):
            raise fault(f"the argument {shadow!r} has the name of a secret; rename one", "input_schema", "properties")
        for key, name in self.placeholders():
            if name in secrets and key in self.open_keys():
                raise fault(f"${{{name}}} is a secret, and others could read it here; pass it in env", key)
            if name not in secrets and (key in self.secret_keys() or name.isupper()) and name not in properties:
                raise fault(f"${{{name}}} is not among the toolset's 'secrets'{did_you_mean(name, secrets)}", key)
            if name not in secrets and self.input_schema is not None and name not in properties:
                raise fault(f"nothing fills ${{{name}}}{did_you_mean(name, [*properties, *secrets])}", key)


class PythonTool(ToolSpec):
    """A function of the bundle's own code; its schema comes from there unless it is said here."""

    tag: ClassVar[str] = "<python>"

    type: Literal["python"] = "python"
    entrypoint: Annotated[str, Field(max_length=256)]

    @model_validator(mode="after")
    def _names_a_function(self) -> PythonTool:
        if not _ENTRYPOINT.fullmatch(self.entrypoint):
            raise fault(f"{self.entrypoint!r} is not of the form 'module.path:function'", "entrypoint")
        return self


def _argv(command: Any) -> Any:
    """A string would have to be taken apart by a shell, and an argument in it could become a command."""
    if not isinstance(command, str):
        return tuple(command) if isinstance(command, list) else command
    try:
        words = [_OLD_PLACEHOLDER.sub(r"${\1}", word) for word in shlex.split(command[:200])]
    except ValueError:
        words = ["program", "${argument}"]
    raise fault(f"write the command as a list, one argument each: {words}")


class ShellTool(ToolSpec):
    """A program and its arguments, one list element each. An argument of the call fills its place in
    one element and is never taken apart; no shell reads it."""

    tag: ClassVar[str] = "<shell>"

    type: Literal["shell"]
    command: Annotated[
        tuple[Argument, ...],
        Field(min_length=1, max_length=ARGUMENTS_LIMIT),
        BeforeValidator(_argv),
    ]
    env: Table[Variable, Template] = Field(default_factory=dict)
    cwd: Directory | None = None
    stdin: Content | None = None
    success_codes: Annotated[tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(max_length=256)] = (0,)

    @model_validator(mode="after")
    def _runs_one_program(self) -> ShellTool:
        for index, element in enumerate(self.command):
            if "\0" in element:
                raise fault("an argument cannot hold a NUL character", "command", index)
            if references(element):
                self._check_place(index)
        return self

    def _check_place(self, index: int) -> None:
        if index == 0:
            raise fault("the program is fixed; an argument of the call cannot choose it", "command", 0)
        before = self.command[:index]
        if _is_code(self.command[index], before):
            fix = 'refer to it as "$1" and pass it in an element of its own, after the code and a name for $0'
            raise fault(f"a reference in code that {before[0]!r} runs would become code; {fix}", "command", index)

    def placeholders(self) -> Iterator[tuple[str, str]]:
        for key, value in (("command", self.command), ("env", self.env), ("stdin", self.stdin)):
            yield from ((key, name) for text in texts(value) for name in references(text))

    def open_keys(self) -> frozenset[str]:
        return frozenset(["command"])


def _is_code(element: str, before: tuple[str, ...]) -> bool:
    programs = [re.split(r"[/\\]", word)[-1].lower().removesuffix(".exe").rstrip("0123456789.") for word in before]
    if any(_SPLICER.fullmatch(program) for program in programs):
        return True
    is_option = _CODE_OPTION.fullmatch(before[-1]) or _ATTACHED_CODE.match(element)
    return bool(is_option) and any(_INTERPRETER.fullmatch(program) for program in programs)


class Step(Section):
    """One call of another tool. In its args, `$args.x` is an argument of the whole tool and
    `$steps.name.x` the value an earlier step saved."""

    tool: AnyTool
    args: Annotated[dict[str, Any], Field(max_length=ENTRIES_LIMIT)] = Field(default_factory=dict)
    save_as: Annotated[str, Field(pattern=rf"^{_NAME.pattern}$")] | None = Field(
        default=None, validation_alias=AliasChoices("save_as", "saveAs", "save-as")
    )


class StepsTool(ToolSpec):
    """Several calls shown as one tool. Its value is `result`, or the last step's."""

    tag: ClassVar[str] = "<steps>"

    type: Literal["steps"]
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=STEPS_LIMIT)]
    result: Any = None

    @model_validator(mode="after")
    def _refers_back_only(self) -> StepsTool:
        saved: list[str] = []
        for index, step in enumerate(self.steps):
            _check_saved(step.args, saved, "steps", index, "args")
            if step.save_as in saved:
                raise fault(f"{step.save_as!r} is saved twice", "steps", index, "save_as")
            saved += [step.save_as] if step.save_as else []
        _check_saved(self.result, saved, "result")
        return self


def _check_saved(value: Any, saved: list[str], *at: str | int) -> None:
    for name in (name for text in texts(value) for name in _SAVED.findall(text)):
        if name not in saved:
            raise fault(f"no earlier step saves {name!r}{did_you_mean(name, saved)}", *at)
