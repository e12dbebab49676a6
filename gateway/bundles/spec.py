"""The model of `toolset.yaml`: validated as a whole, and written back in one canonical form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Discriminator, Field, Tag, model_validator

from gateway import yamldoc
from gateway.bundles.field_types import (
    AnyTool,
    Category,
    Directory,
    Header,
    Id,
    Line,
    ManifestSection,
    PlainValue,
    Prose,
    Requirement,
    Seconds,
    SemanticVersion,
    Setting,
    Slug,
    Table,
    Variable,
    environment_names,
    error_inside,
    field_error,
    iterate_texts,
)
from gateway.bundles.http_tool import HttpDefaults, HttpTool, check_url
from gateway.bundles.tool_kinds import (
    ARGUMENTS_LIMIT,
    BuiltinTool,
    PythonTool,
    RendererKind,
    ShellTool,
    StepsTool,
    ToolSpec,
    check_artifact,
)
from gateway.document import YamlDocument, validate
from gateway.errors import Invalid
from gateway.names import did_you_mean
from gateway.net.policy import NetworkPolicy
from gateway.tools import Permission

FILE_NAME = "toolset.yaml"
FILE_NAMES = (FILE_NAME, "toolset.yml")
INVALID_TOOLSET = "INVALID_TOOLSET"
TOOLS_LIMIT = 2000
SERVERS_LIMIT = 50
OVERRIDES_LIMIT = 2000
SECRETS_LIMIT = 1000


def _kind(value: Any) -> str | None:
    kind = value.get("type", "python") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{kind}>" if kind in ("python", "shell", "builtin", "http", "steps") else None


AnyToolSpec = Annotated[
    Annotated[PythonTool, Tag(PythonTool.tag)]
    | Annotated[ShellTool, Tag(ShellTool.tag)]
    | Annotated[BuiltinTool, Tag(BuiltinTool.tag)]
    | Annotated[HttpTool, Tag(HttpTool.tag)]
    | Annotated[StepsTool, Tag(StepsTool.tag)],
    Discriminator(
        _kind,
        custom_error_type="unknown_type",
        custom_error_message="unknown tool type; use python, shell, builtin, http or steps",
    ),
]


class ToolOverride(ManifestSection):
    """An override of a tool of the toolset or of one of its servers; None leaves a field unchanged."""

    tool_id: AnyTool
    renderer: RendererKind | None = None
    renderer_config: dict[str, Any] | None = None
    name_override: Line | None = None
    description_override: Prose | None = None
    requires_confirmation: bool | None = None
    enabled: bool | None = None

    @model_validator(mode="after")
    def _check_renderer_config(self) -> ToolOverride:
        if self.renderer_config is not None and self.renderer is None:
            raise field_error("a config needs its 'renderer' beside it", "renderer_config")
        with error_inside("renderer_config"):
            check_artifact(self.renderer_config or {})
        return self


class ServerTools(ManifestSection):
    allow: Annotated[tuple[Line, ...], Field(max_length=TOOLS_LIMIT)] = ()
    deny: Annotated[tuple[Line, ...], Field(max_length=TOOLS_LIMIT)] = ()


def _check_host(text: str) -> str:
    try:
        NetworkPolicy((text,), hosts_setting="network")
    except Invalid as error:
        raise field_error(error.message.removeprefix("network: ")) from None
    return text


def _check_path(text: str) -> str:
    """Refuse a relative path with write access or `..`: it is in the toolset's directory, which is always read-only."""
    is_own = not text.startswith(("/", "~", "${"))
    if is_own and (text.endswith(":rw") or ".." in text.split("/")):
        raise field_error(f"{text!r} is no path inside the toolset to read; a server can write to its HOME")
    return text


class SandboxRights(ManifestSection):
    """Rights of a sandboxed server besides reading the toolset's directory: `paths`, read-only unless one ends in
    `:rw`, and the hosts of `network`."""

    tag: ClassVar[str] = "<rights>"

    paths: Annotated[tuple[Annotated[Setting, AfterValidator(_check_path)], ...], Field(max_length=100)] = ()
    network: Annotated[tuple[Annotated[Line, AfterValidator(_check_host)], ...], Field(max_length=100)] = ()


class Server(ManifestSection):
    """An MCP server that the toolset brings: a command to start, or a URL to connect to.

    `${NAME}` in args, env, url, headers and the sandbox's paths is an environment variable, resolved when the
    server is started. A command runs in the sandbox unless `sandbox` is false.
    """

    id: Id
    name: Line | None = None
    command: PlainValue | None = None
    args: Annotated[tuple[Setting, ...], Field(max_length=ARGUMENTS_LIMIT)] = ()
    env: Table[Variable, Setting] = Field(default_factory=dict)
    cwd: Directory | None = None
    url: Annotated[Setting, AfterValidator(check_url)] | None = None
    headers: Table[Header, Setting] = Field(default_factory=dict)
    transport: Literal["stdio", "sse", "streamable-http"] | None = Field(
        default=None, validation_alias=AliasChoices("transport", "type", "server_type", "serverType")
    )
    enabled: bool = True
    requires_confirmation: bool | None = None
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,32}$")] | None = None
    category: Category | None = None
    permission: Permission | None = None
    timeout: Seconds | None = None
    lazy: bool | None = None
    sandbox: (
        Annotated[
            Annotated[bool, Tag("<switch>")] | Annotated[SandboxRights, Tag(SandboxRights.tag)],
            Discriminator(lambda value: "<switch>" if isinstance(value, bool) else SandboxRights.tag),
        ]
        | None
    ) = None
    tools: ServerTools = ServerTools.model_construct()

    @model_validator(mode="after")
    def _check_connection(self) -> Server:
        if (self.command is None) == (self.url is None):
            raise field_error("a server has either a 'command' to start or a 'url' to reach")
        started = ("url", "headers") if self.command is not None else ("args", "env", "cwd", "sandbox")
        for key in started:
            if getattr(self, key) not in (None, (), {}):
                raise field_error(f"this belongs to a server with a {'url' if self.command else 'command'!r}", key)
        if self.transport is not None and (self.transport == "stdio") != (self.command is not None):
            raise field_error(
                "a server with a 'command' speaks stdio, one with a 'url' sse or streamable-http", "transport"
            )
        return self

    def variables(self) -> frozenset[str]:
        """The environment variables it needs."""
        paths = self.sandbox.paths if isinstance(self.sandbox, SandboxRights) else ()
        values = (self.args, self.env, self.url, self.headers, paths)
        return frozenset(name for text in iterate_texts(values) for name in environment_names(text))


class Toolset(ManifestSection):
    """A whole `toolset.yaml`, immutable. `prefix` replaces the id in the names of its tools; an empty one leaves the
    tools' own names. `slug` is its name for REST clients, where it is not the id."""

    manifest_version: Annotated[Literal["1"], BeforeValidator(lambda version: "1" if version == 1 else version)] = "1"
    id: Id
    slug: Slug | None = None
    name: Line
    version: SemanticVersion
    description: Prose = ""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,32}$")] | None = None
    category: Category | None = None
    permission: Permission | None = None
    secrets: Annotated[tuple[Variable, ...], Field(max_length=SECRETS_LIMIT)] = ()
    dependencies: Annotated[tuple[Requirement, ...], Field(max_length=100)] = ()
    http: HttpDefaults | None = None
    tools: Annotated[tuple[AnyToolSpec, ...], Field(max_length=TOOLS_LIMIT)] = ()
    tool_overrides: Annotated[tuple[ToolOverride, ...], Field(max_length=OVERRIDES_LIMIT)] = ()
    mcp_servers: Annotated[tuple[Server, ...], Field(max_length=SERVERS_LIMIT)] = ()

    @model_validator(mode="after")
    def _check_consistency(self) -> Toolset:
        _check_unique("secrets", self.secrets)
        _check_unique("tools", [tool.id for tool in self.tools], "id")
        _check_unique("mcp_servers", [server.id for server in self.mcp_servers], "id")
        _check_unique("tool_overrides", [self.full_id(item.tool_id) for item in self.tool_overrides], "tool_id")
        self._check_servers()
        self._check_overrides()
        self._check_placeholders()
        _check_cycles([tool for tool in self.tools if isinstance(tool, StepsTool)], self.full_id)
        return self

    def full_id(self, tool_id: str) -> str:
        """Return `toolset:tool` for a tool of this toolset, and other ids unchanged."""
        return f"{self.id}:{tool_id}" if tool_id in {tool.id for tool in self.tools} else tool_id

    def overrides(self) -> tuple[ToolOverride, ...]:
        """Return every override under its full id, including the tools' legacy `renderer` fields; `tool_overrides`
        wins over these."""
        overrides = {self.full_id(item.tool_id): item for item in self.tool_overrides}
        for tool in self.tools:
            if tool.renderer is not None:
                own = overrides.get(self.full_id(tool.id), ToolOverride(tool_id=tool.id))
                legacy = {"renderer": tool.renderer.type, "renderer_config": tool.renderer.config}
                overrides[self.full_id(tool.id)] = own.model_copy(update={} if own.renderer else legacy)
        return tuple(item.model_copy(update={"tool_id": tool_id}) for tool_id, item in overrides.items())

    def variables(self) -> frozenset[str]:
        """Every environment variable the toolset needs: its secrets, and its servers' variables."""
        return frozenset(self.secrets).union(*(server.variables() for server in self.mcp_servers))

    def _check_servers(self) -> None:
        for index, server in enumerate(self.mcp_servers):
            if server.id == self.id and self.tools:
                reason = "a toolset with tools cannot have the id of a server: their tools would have the same names"
                raise field_error(reason, "mcp_servers", index, "id")

    def _check_overrides(self) -> None:
        own = {f"{self.id}:{tool.id}" for tool in self.tools}
        servers = {server.id for server in self.mcp_servers}
        for index, override in enumerate(self.tool_overrides):
            tool_id = self.full_id(override.tool_id)
            if tool_id not in own and tool_id.partition(":")[0] not in servers:
                near = did_you_mean(tool_id, [*own, *(tool.id for tool in self.tools)])
                reason = f"{override.tool_id!r} is no tool or server of this toolset{near}"
                raise field_error(reason, "tool_overrides", index, "tool_id")

    def _check_placeholders(self) -> None:
        secrets = frozenset(self.secrets)
        for key, name in self.http.placeholders() if self.http is not None else ():
            if name not in secrets:
                near = did_you_mean(name, secrets)
                raise field_error(f"${{{name}}} is not among the toolset's 'secrets'{near}", "http", key)
        for index, tool in enumerate(self.tools):
            with error_inside("tools", index):
                tool.check_placeholders(secrets)
                if isinstance(tool, HttpTool):
                    tool.check_defaults(self.http)
                _check_retry(tool, self.permission)


def load(content: bytes | str, name: str = FILE_NAME) -> Toolset:
    """Parse a `toolset.yaml`. Refused with `INVALID_TOOLSET`, the file, the line, the key and the fix."""
    return read(content, name)[0]


def read(content: bytes | str, name: str = FILE_NAME) -> tuple[Toolset, YamlDocument]:
    """Like `load`, but also return the document, which has the line of every key."""
    document = yamldoc.read_plain(content.encode() if isinstance(content, str) else content, name, INVALID_TOOLSET)
    if not isinstance(document.value, dict):
        raise document.refusal("the file must hold keys and values at its top level")
    toolset = validate(document, Toolset)
    if len(dump(toolset).encode()) > yamldoc.BYTES_LIMIT:
        raise document.refusal(f"written out, the file is larger than {yamldoc.BYTES_LIMIT // 1024} KiB")
    return toolset, document


def dump(toolset: Toolset) -> str:
    """Write the toolset as YAML: fields in model order without defaults, entries of mappings in their own order."""
    values = toolset.model_dump(mode="json", exclude_defaults=True)
    if toolset.tools:
        values["tools"] = [{"id": tool["id"], **_only(tool, "type"), **tool} for tool in values["tools"]]
    return yamldoc.write({"manifest_version": toolset.manifest_version, **values})


def _only(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {key: values[key]} if key in values else {}


def _check_retry(tool: ToolSpec, permission: Permission | None) -> None:
    """Refuse to call a tool again that may do something twice. The code of a Python tool may say that it does not."""
    idempotent = tool.is_idempotent if isinstance(tool, HttpTool) else tool.idempotent
    reads_only = (tool.permission or permission) is Permission.READ_ONLY
    if tool.retry is not None and not (
        tool.retry.repeatable or idempotent or reads_only or isinstance(tool, PythonTool)
    ):
        reason = "a second call may do it twice; declare 'idempotent: true' or, here, 'repeatable: true'"
        raise field_error(reason, "retry")


def _check_unique(key: str, words: Sequence[str], *at: str) -> None:
    first: dict[str, int] = {}
    for index, word in enumerate(words):
        if first.setdefault(word, index) != index:
            raise field_error(f"{word!r} occurs twice, as number {first[word] + 1} and {index + 1}", key, index, *at)


def _check_cycles(tools: Sequence[StepsTool], full_id: Callable[[str], str]) -> None:
    """Refuse a tool of steps that calls itself, directly or through others: it would never end."""
    calls = {
        full_id(tool.id): [full_id(call.tool) for step in tool.steps for call in step.calls() if call.tool]
        for tool in tools
    }
    done: set[str] = set()

    def visit(tool_id: str, above: tuple[str, ...]) -> None:
        if tool_id in above:
            raise field_error(f"its steps form a cycle: {' → '.join([*above, tool_id])}", "tools")
        if tool_id in calls and tool_id not in done:
            for called in calls[tool_id]:
                visit(called, (*above, tool_id))
            done.add(tool_id)

    for tool_id in calls:
        visit(tool_id, ())
