"""Kinds of tools that a toolset.yaml can declare: Python, shell, builtin and steps. `http_tool` has the HTTP tools."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from gateway.bundles.field_types import (
    ENTRIES_LIMIT,
    AnyTool,
    Argument,
    Category,
    Content,
    Directory,
    Expression,
    Line,
    ManifestSection,
    Prose,
    Seconds,
    Slug,
    Table,
    Template,
    ToolId,
    Variable,
    VersionLabel,
    check_path,
    error_inside,
    field_error,
    iterate_texts,
    references,
)
from gateway.config import RetrySettings
from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.tools import Access, Permission, Tool

ARGUMENTS_LIMIT = 256
STEPS_LIMIT = 50
_ENTRYPOINT = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*")
_SAVED = re.compile(r"(?<!\$)\$steps\.(\w+)")
_CONDITION = re.compile(r"\bsteps\.(\w+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PLACEHOLDER = re.compile(r"\$?\{\s*([A-Za-z_]\w*)\s*\}")

# Programs that run text as code, the options before that text, and programs that pass their arguments to a shell:
# an argument of the call there would be code. The list catches authors' mistakes; the sandbox is the protection.
_INTERPRETER = re.compile(
    r"(?:ba|da|z|k|c|tc|fi|a)?sh|busybox|cmd|powershell|pwsh|python|pypy|perl|ruby|node|deno|bun|php|lua|osascript|rscript"
)
_CODE_OPTION = re.compile(
    r"-[a-zA-Z]{0,3}c|-[a-zA-Z]{0,2}[eErp]|--(?:eval|print|command)|/[ck]|-(?:encoded)?command|eval", re.IGNORECASE
)
_ATTACHED_CODE = re.compile(r"-[ceErp].|--(?:eval|print|command)=")
_SPLICER = re.compile(r"ssh|su|watch|eval")

RendererKind = Literal["code", "document", "html", "frame"]


class RendererSpec(ManifestSection):
    """The legacy form of a renderer override: its type, with its config beside it."""

    model_config = ConfigDict(extra="allow")

    type: RendererKind

    @property
    def config(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _check_artifact(self) -> RendererSpec:
        check_artifact(self.config)
        return self


def check_artifact(config: Mapping[str, Any]) -> None:
    """Refuse an `artifact` outside the bundle; the renderers check the rest of a config."""
    if (path := artifact_path(config)) is not None:
        with error_inside("artifact"):
            check_path(path)


def artifact_path(config: Mapping[str, Any]) -> str | None:
    artifact = config.get("artifact")
    return artifact.removeprefix("$toolset/").removeprefix("./") if isinstance(artifact, str) else None


def _check_schema(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        Tool(id="schema", description="", input_schema=schema).compile()
    except Invalid as error:
        raise field_error(error.message.partition("its input ")[2] or error.message) from None
    return schema


def _check_object_schema(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise field_error("the arguments of a tool are an object; write 'type: object'", "type")
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_check_schema)]
ObjectSchema = Annotated[Schema, AfterValidator(_check_object_schema)]


class RetrySpec(RetrySettings, ManifestSection):
    """The `retry` of a tool, as an operator may set it for any tool."""


class ToolSpec(ManifestSection):
    """Fields of every kind of tool. A field that is None is decided by the tool's code, or its category. `slug` and
    `version` name it to REST clients; without them its id and the toolset's version do."""

    id: ToolId
    slug: Slug | None = None
    version: VersionLabel | None = None
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
    renderer: RendererSpec | None = None
    retry: RetrySpec | None = None

    def placeholders(self) -> Iterator[tuple[str, str]]:
        """Yield each `${name}` of the tool with its key; it is filled by an argument or a secret."""
        yield from ()

    def secret_keys(self) -> frozenset[str]:
        """Keys in which only declared secrets are allowed."""
        return frozenset()

    def open_keys(self) -> frozenset[str]:
        """Keys in which only arguments are allowed, since other users of the machine can see their values."""
        return frozenset()

    def check_placeholders(self, secrets: frozenset[str]) -> None:
        """Refuse a placeholder that nothing fills, or that is filled by the wrong kind of value."""
        properties = (self.input_schema or {}).get("properties", {})
        for shadow in sorted(secrets.intersection(properties)):
            raise field_error(
                f"the argument {shadow!r} has the name of a secret; rename one", "input_schema", "properties"
            )
        for key, name in self.placeholders():
            if name in secrets and key in self.open_keys():
                raise field_error(f"${{{name}}} is a secret, and others could read it here; pass it in env", key)
            if name not in secrets and (key in self.secret_keys() or name.isupper()) and name not in properties:
                raise field_error(f"${{{name}}} is not among the toolset's 'secrets'{did_you_mean(name, secrets)}", key)
            if name not in secrets and self.input_schema is not None and name not in properties:
                near = did_you_mean(name, [*properties, *secrets])
                raise field_error(f"no argument or secret provides ${{{name}}}{near}", key)


class PythonTool(ToolSpec):
    """A function of the bundle's code; its schema comes from the code unless declared here."""

    tag: ClassVar[str] = "<python>"

    type: Literal["python"] = "python"
    entrypoint: Annotated[str, Field(max_length=256)]

    @model_validator(mode="after")
    def _check_entrypoint(self) -> PythonTool:
        if not _ENTRYPOINT.fullmatch(self.entrypoint):
            meant = ":".join(self.entrypoint.rsplit(".", 1))
            hint = f"; did you mean {meant!r}?" if _ENTRYPOINT.fullmatch(meant) else ""
            raise field_error(f"{self.entrypoint!r} is not of the form 'module.path:function'{hint}", "entrypoint")
        return self


def _to_argv(command: Any) -> Any:
    """Return the command as a tuple. A text of words with `{name}` or `${name}` in them is split as a shell would split
    it; one that only a shell could run is refused, since there is none."""
    if not isinstance(command, str):
        return tuple(command) if isinstance(command, list) else command
    if (syntax := _find_shell_syntax(command)) is not None:
        raise field_error(
            f"{syntax!r} needs a shell, and none is used: quote it, or write the command as a list, one argument each, "
            "such as [sh, -c, 'sort \"$1\" | uniq', sh, '${file}']"
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise field_error(f"{command[:80]!r} cannot be split into words: {str(error).lower()}") from None
    return tuple(_PLACEHOLDER.sub(r"${\1}", word) for word in words)


def _find_shell_syntax(command: str) -> str | None:
    """Return the first character that means something to a shell where it stands, other than quotes."""
    quote, skip = "", False
    for index, character in enumerate(command):
        following = command[index + 1 : index + 2]
        if skip:
            skip = False
        elif character == "\\" and quote != "'":
            skip = True
        elif character in ("'", '"') and quote in ("", character):
            quote = "" if quote else character
        elif quote != "'" and (character == "`" or (character == "$" and following not in ("", "{", " "))):
            return character + following
        elif not quote and character in "|&;<>()*?~\n":
            return character
    return None


SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"  # of programs that are not the toolset's own


class ShellTool(ToolSpec):
    """A program and its arguments, one list element each, or a text that is split into them when the toolset is read.
    An argument of the call fills one element and is never split; no shell is involved. A value that begins with `-` is
    refused, since the program would take it for an option, unless it follows `--` or `dash_safe` names its argument."""

    tag: ClassVar[str] = "<shell>"

    type: Literal["shell"]
    command: Annotated[
        tuple[Argument, ...],
        Field(min_length=1, max_length=ARGUMENTS_LIMIT),
        BeforeValidator(_to_argv),
    ]
    env: Table[Variable, Template] = Field(default_factory=dict)
    cwd: Directory | None = None
    stdin: Content | None = None
    dash_safe: Annotated[tuple[Annotated[str, Field(pattern=rf"^{_NAME.pattern}$")], ...], Field(max_length=64)] = ()
    success_codes: Annotated[tuple[Annotated[int, Field(ge=0, le=255)], ...], Field(max_length=256)] = (0,)

    @model_validator(mode="after")
    def _check_command(self) -> ShellTool:
        for index, element in enumerate(self.command):
            if "\0" in element:
                raise field_error("an argument cannot hold a NUL character", "command", index)
            if references(element):
                self._check_element(index)
        filled = {name for element in self.command for name in references(element)}
        for index, name in enumerate(self.dash_safe):
            if name not in filled:
                raise field_error(f"no ${{{name}}} in 'command'{did_you_mean(name, filled)}", "dash_safe", index)
        return self

    def _check_element(self, index: int) -> None:
        if index == 0:
            raise field_error("the program is fixed; an argument of the call cannot choose it", "command", 0)
        before = self.command[:index]
        if _is_code(self.command[index], before):
            fix = 'refer to it as "$1" and pass it in an element of its own, after the code and a name for $0'
            raise field_error(f"a reference in code that {before[0]!r} runs would become code; {fix}", "command", index)

    def placeholders(self) -> Iterator[tuple[str, str]]:
        for key, value in (("command", self.command), ("env", self.env), ("stdin", self.stdin)):
            yield from ((key, name) for text in iterate_texts(value) for name in references(text))

    def open_keys(self) -> frozenset[str]:
        return frozenset(["command"])


class BuiltinTool(ToolSpec):
    """A builtin of the gateway under the toolset's own name, with its own texts, arguments and renderer. Its category,
    level and questions stay those of the builtin: a toolset cannot lower them."""

    tag: ClassVar[str] = "<builtin>"

    type: Literal["builtin"]
    tool: ToolId


def _is_code(element: str, before: tuple[str, ...]) -> bool:
    programs = [re.split(r"[/\\]", word)[-1].lower().removesuffix(".exe").rstrip("0123456789.") for word in before]
    if any(_SPLICER.fullmatch(program) for program in programs):
        return True
    is_option = _CODE_OPTION.fullmatch(before[-1]) or _ATTACHED_CODE.match(element)
    return bool(is_option) and any(_INTERPRETER.fullmatch(program) for program in programs)


StepName = Annotated[str, Field(pattern=rf"^{_NAME.pattern}$")]


class Step(ManifestSection):
    """One call of another tool, or a group of them that run at the same time.

    In `args` and `for_each`, `$args.x` is an argument of the whole tool, `$steps.name.x` a value that an earlier step
    saved, and `$item` the item of `for_each`, a list, for each of which the tool is called. `when` is a JMESPath
    condition over `args`, `steps` and `item`. A step for which it does not hold is skipped and saves null; of a
    `for_each` the items are left out for which it does not hold.
    """

    tool: AnyTool | None = None
    args: Annotated[dict[str, Any], Field(max_length=ENTRIES_LIMIT)] = Field(default_factory=dict)
    save_as: StepName | None = Field(default=None, validation_alias=AliasChoices("save_as", "saveAs", "save-as"))
    when: Expression | None = None
    for_each: Any = None
    at_once: Annotated[int, Field(ge=1, le=16)] = 1
    on_error: Literal["fail", "continue"] = "fail"
    parallel: Annotated[tuple[Step, ...], Field(min_length=1, max_length=16)] | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Step:
        if (self.tool is None) == (self.parallel is None):
            raise field_error("a step has either a 'tool' to call or 'parallel' steps")
        if self.parallel is not None and (self.args or self.save_as or self.for_each is not None):
            raise field_error("'args', 'save_as' and 'for_each' belong to the steps of the group", "parallel")
        if self.for_each is not None and not isinstance(self.for_each, str | list):
            raise field_error("this must be a list, or an expression such as $steps.found.items", "for_each")
        return self

    @property
    def label(self) -> str:
        return self.save_as or self.tool or "parallel"

    def calls(self) -> Iterator[Step]:
        """Yield the steps that call a tool: itself, or those of the group."""
        for step in self.parallel or ():
            yield from step.calls()
        if self.tool is not None:
            yield self


class StepsTool(ToolSpec):
    """Several calls offered as one tool. Its value is `result`, or that of the last step."""

    tag: ClassVar[str] = "<steps>"

    type: Literal["steps"]
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=STEPS_LIMIT)]
    result: Any = None

    @model_validator(mode="after")
    def _check_references(self) -> StepsTool:
        saved: list[str] = []
        for index, step in enumerate(self.steps):
            _check_step(step, tuple(saved), "steps", index)
            for call in step.calls():
                if call.save_as in saved:
                    raise field_error(f"{call.save_as!r} is saved twice", "steps", index, "save_as")
                saved += [call.save_as] if call.save_as else []
        _check_saved(self.result, saved, "result")
        return self


def _check_step(step: Step, saved: tuple[str, ...], *at: str | int) -> None:
    """Refuse a reference to a value that no earlier step saves; the steps of a group do not see each other's."""
    _check_saved(step.args, saved, *at, "args")
    _check_saved(step.for_each, saved, *at, "for_each")
    for name in _CONDITION.findall(step.when or ""):
        if name not in saved:
            raise field_error(f"no earlier step saves {name!r}{did_you_mean(name, saved)}", *at, "when")
    for index, inner in enumerate(step.parallel or ()):
        if inner.parallel is not None:
            raise field_error("a group has steps, not groups", *at, "parallel", index)
        _check_step(inner, saved, *at, "parallel", index)


def _check_saved(value: Any, saved: Sequence[str], *at: str | int) -> None:
    for name in (name for text in iterate_texts(value) for name in _SAVED.findall(text)):
        if name not in saved:
            raise field_error(f"no earlier step saves {name!r}{did_you_mean(name, saved)}", *at)
