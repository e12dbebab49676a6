"""Tool specifications as a library, without a server: load them, filter them, export them, and run them.

A registry holds what a planner sees. An executor runs the same specifications through a gateway, with all its checks.
"""

from __future__ import annotations

import enum
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import anyio.to_thread

from gateway.admin import toolsets
from gateway.approval.question import Approver
from gateway.bundles.tools_file import (
    ToolDefinition,
    ToolMetadata,
    ToolType,
    make_toolset,
    read_tools_file,
    write_bundle,
)
from gateway.calls import Outcome
from gateway.catalog import anthropic_tool, mcp_tool, openai_tool
from gateway.config import HttpSettings, Settings
from gateway.errors import Conflict, NotFound
from gateway.extensions import Extension, ExtensionPriority
from gateway.gateway import Gateway
from gateway.names import did_you_mean
from gateway.net.client import GuardedClient
from gateway.net.policy import NetworkPolicy, RequestLimits
from gateway.tools import Tool
from gateway.value import Value
from gateway.yamldoc import BYTES_LIMIT

__all__ = [
    "ApprovalExtension",
    "ApprovalMode",
    "AuthExtension",
    "DatabaseLoader",
    "Extension",
    "ExtensionManager",
    "ExtensionPriority",
    "FileLoader",
    "HttpLoader",
    "LoggingExtension",
    "MetricsExtension",
    "SpecLoader",
    "ToolContext",
    "ToolMetadata",
    "ToolSpec",
    "ToolSpecRegistry",
    "ToolType",
    "UnifiedToolExecutor",
]

ToolSpec = ToolDefinition
DEFAULT_FILE = Path("tools.yaml")


class SpecLoader(Protocol):
    """A place that specifications come from."""

    async def load(self) -> Sequence[ToolSpec]: ...


class FileLoader(Value):
    """A `tools.yaml` on disk. The code of its Python tools stands beside it."""

    path: Path | str = DEFAULT_FILE

    async def load(self) -> Sequence[ToolSpec]:
        path = Path(self.path)
        try:
            content = await anyio.to_thread.run_sync(path.read_bytes)
        except OSError as error:
            raise NotFound(
                f"there is no file {str(path)!r} to read: {error.strerror}", code="SPECS_NOT_FOUND"
            ) from None
        return read_tools_file(content, path.name).tools


@dataclass
class HttpLoader:
    """A `tools.yaml` at a URL. The first content is pinned: a later one is fetched by `refresh` and waits in `pending`
    until `accept`. `pin` is the SHA-256 of content that was accepted before; other content is refused at `load`."""

    url: str
    http: HttpSettings = field(default_factory=HttpSettings)
    pin: str | None = None
    pending: tuple[ToolSpec, ...] | None = None
    _etag: str | None = None
    _specs: tuple[ToolSpec, ...] | None = None
    _pending_pin: str | None = None

    async def load(self) -> Sequence[ToolSpec]:
        if self._specs is None:
            content, etag = await self._fetch()
            digest = hashlib.sha256(content or b"").hexdigest()
            if self.pin not in (None, digest):
                raise Conflict(
                    f"{self.url} has changed since it was accepted; review it, then accept its digest {digest}"
                )
            self.pin, self._specs, self._etag = digest, read_tools_file(content or b"", self.url).tools, etag
        return self._specs

    async def refresh(self) -> bool:
        """Ask whether the content has changed, with its ETag; True if other content now waits for review."""
        content, etag = await self._fetch(self._etag)
        if content is not None:
            digest = hashlib.sha256(content).hexdigest()
            changed = digest != self.pin
            self.pending = read_tools_file(content, self.url).tools if changed else None
            self._pending_pin, self._etag = digest if changed else None, etag
        return self.pending is not None

    def accept(self) -> None:
        """Take over what waits for review."""
        if self.pending is not None:
            self._specs, self.pin, self.pending = self.pending, self._pending_pin, None

    async def _fetch(self, known: str | None = None) -> tuple[bytes | None, str | None]:
        """The content with its ETag; no content if it is still that of the `known` one."""
        policy = NetworkPolicy(any_host=True, allow_private=self.http.allow_private, https_only=True)
        headers = {"if-none-match": known} if known else {}
        limits = RequestLimits(bytes=BYTES_LIMIT)
        async with (
            GuardedClient(policy) as client,
            client.request("GET", self.url, headers=headers, limits=limits) as response,
        ):
            if known and response.status == 304:
                return None, known
            if response.status != 200:
                raise NotFound(f"{self.url} answered with status {response.status}", code="SPECS_NOT_FOUND")
            return await response.read(), response.headers.get("etag")


class DatabaseLoader(Value):
    """The tools that a gateway's database has: builtins, and those of installed toolsets and upstreams."""

    settings: str | Path | Mapping[str, Any] | Settings | None = None

    async def load(self) -> Sequence[ToolSpec]:
        async with Gateway.open(self.settings, connect="none") as gateway:
            return [_describe(entry.name, entry.tool) for entry in gateway.catalog.for_models]


def _describe(name: str, tool: Tool) -> ToolSpec:
    known = {kind.value for kind in ToolType}
    metadata = ToolMetadata(
        category=tool.category,
        tags=tool.tags,
        requires_approval=bool(tool.requires_confirmation),
        is_dangerous=tool.destructive,
        permission=tool.permission,
        timeout=tool.timeout,
    )
    kind = ToolType(tool.kind) if tool.kind in known else ToolType.BUILTIN
    return ToolDefinition.model_construct(
        name=name,
        description=tool.description,
        tool_type=kind,
        input_schema=dict(tool.input_schema),
        output_schema=None if tool.output_schema is None else dict(tool.output_schema),
        implementation_config={"tool": tool.id},
        metadata=metadata,
    )


class ToolSpecRegistry:
    """Specifications by name. Without loaders, `load_all` reads `tools.yaml` in the current folder, if there is one."""

    def __init__(self, *loaders: SpecLoader) -> None:
        self.loaders = list(loaders)
        self._own: dict[str, ToolSpec] = {}
        self._loaded: dict[str, ToolSpec] = {}

    def register(self, spec: ToolSpec) -> None:
        self._own[spec.name] = spec

    async def load_all(self) -> None:
        """Load from every loader; of two specifications of one name the later is taken."""
        if not self.loaders and DEFAULT_FILE.exists():
            self.loaders.append(FileLoader())
        self._loaded = {spec.name: spec for loader in self.loaders for spec in await loader.load()}

    async def refresh(self) -> list[str]:
        """Ask every endpoint for changes; the URLs whose changes wait for review."""
        found = [loader for loader in self.loaders if isinstance(loader, HttpLoader)]
        return [loader.url for loader in found if await loader.refresh()]

    def get(self, name: str) -> ToolSpec:
        specs = {**self._loaded, **self._own}
        if name not in specs:
            raise NotFound(f"no specification is named {name!r}{did_you_mean(name, specs)}", code="UNKNOWN_TOOL")
        return specs[name]

    def list_specs(
        self, tool_type: ToolType | str | None = None, category: str | None = None, tag: str | None = None
    ) -> list[ToolSpec]:
        """The specifications that fit all that is given."""
        kind = None if tool_type is None else ToolType(tool_type)
        return [
            spec
            for spec in {**self._loaded, **self._own}.values()
            if (kind is None or spec.tool_type is kind)
            and (category is None or spec.metadata.category == category)
            and (tag is None or tag in spec.metadata.tags)
        ]

    def to_openai_tools(self) -> list[dict[str, Any]]:
        return [openai_tool(spec.tool_id, _make_tool(spec)) for spec in self.list_specs()]

    def to_anthropic_tools(self) -> list[dict[str, Any]]:
        return [anthropic_tool(spec.tool_id, _make_tool(spec)) for spec in self.list_specs()]

    def to_mcp_tools(self) -> list[dict[str, Any]]:
        return [mcp_tool(spec.tool_id, _make_tool(spec)) for spec in self.list_specs()]


def _make_tool(spec: ToolSpec) -> Tool:
    return Tool(
        id=spec.tool_id,
        description=spec.description,
        input_schema=spec.input_schema,
        output_schema=spec.output_schema,
        title=spec.name,
        permission=spec.permission,
        destructive=spec.metadata.is_dangerous,
    )


class ToolContext(Value):
    """The session of a call, which has files of its own. `approver` is asked where a person must agree."""

    session_id: str | None = None
    approver: Approver | None = None


class ApprovalMode(str, enum.Enum):
    NEVER = "never"
    UNSAFE_ONLY = "unsafe_only"
    ALWAYS = "always"


@dataclass
class ApprovalExtension:
    """The mode of the approval extension that every gateway has."""

    approval_mode: ApprovalMode = ApprovalMode.UNSAFE_ONLY
    priority: int = ExtensionPriority.HIGH


class _Always(Extension):
    """Part of every gateway, registered for readers of the code; it adds nothing."""

    def __init__(self, priority: int = ExtensionPriority.NORMAL) -> None:
        self.priority = priority


class AuthExtension(_Always):
    """Permissions and roles."""


class LoggingExtension(_Always):
    """The record of every call."""


class MetricsExtension(_Always):
    """Counters and durations."""


class ExtensionManager:
    """Extensions to put around every call, each at its priority."""

    def __init__(self) -> None:
        self.extensions: list[Extension] = []
        self.approval: ApprovalExtension | None = None

    def register(self, extension: Extension | ApprovalExtension) -> None:
        if isinstance(extension, ApprovalExtension):
            self.approval = extension
        elif not isinstance(extension, _Always):
            self.extensions.append(extension)


class UnifiedToolExecutor:
    """Runs the specifications of a registry, of any kind, through one gateway. It opens at the first call; close it,
    or use it with `async with`. Without settings everything it stores is temporary. MCP servers that specifications
    bring are used only with `allow_servers`: whoever writes them chooses what they start."""

    def __init__(
        self,
        spec_registry: ToolSpecRegistry,
        extension_manager: ExtensionManager | None = None,
        settings: Mapping[str, Any] | None = None,
        allow_servers: bool = False,
    ) -> None:
        self._allow_servers = allow_servers
        self._registry = spec_registry
        self._extensions = extension_manager or ExtensionManager()
        self._settings = dict(settings or {})
        self._stack = AsyncExitStack()
        self._gateway: Gateway | None = None

    async def __aenter__(self) -> UnifiedToolExecutor:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def execute(
        self, tool_name: str, args: Mapping[str, Any] | None = None, context: ToolContext | None = None
    ) -> Outcome:
        """Call a tool; what it refuses or a person declines is an outcome with an error."""
        gateway = self._gateway or await self._open()
        context = context or ToolContext()
        try:
            name = f"tools:{self._registry.get(tool_name).tool_id}"
        except NotFound as unknown:
            return Outcome(error=unknown)
        return await gateway.call(name, dict(args or {}), chat=context.session_id, approver=context.approver)

    async def close(self) -> None:
        self._gateway = None
        await self._stack.aclose()

    async def _open(self) -> Gateway:
        scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="toolgate-specs-")))
        settings = {"data_dir": scratch / "data", **self._settings}
        if self._extensions.approval is not None:
            settings["approval"] = {
                **settings.get("approval", {}),
                "mode": self._extensions.approval.approval_mode.value,
            }
        gateway = await self._stack.enter_async_context(Gateway.open(settings, extensions=self._extensions.extensions))
        specs = self._registry.list_specs()
        files = [loader for loader in self._registry.loaders if isinstance(loader, FileLoader)]
        code = [*(Path(loader.path).parent for loader in files), Path.cwd()]
        bundle = scratch / "tools"
        bundle.mkdir()
        await anyio.to_thread.run_sync(write_bundle, bundle, make_toolset(specs), code, specs)
        await gateway.toolsets.library.install(bundle, source_type="local", source_ref="tools.yaml", live=False)
        await gateway.refresh()
        if self._allow_servers:
            pending = (await toolsets.show_toolset(gateway, "tools")).pending_servers
            await toolsets.allow_servers(gateway, "tools", {each.server.id: each.digest for each in pending}, "program")
        self._gateway = gateway
        return gateway
