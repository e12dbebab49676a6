"""`tools.yaml`: tool specifications as data, apart from their implementation, and the toolset that runs them."""

from __future__ import annotations

import enum
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway import yamldoc
from gateway.bundles import spec
from gateway.bundles.field_types import Category, Line, Prose, Seconds
from gateway.bundles.spec import TOOLS_LIMIT, Toolset
from gateway.bundles.tool_kinds import ObjectSchema, Schema
from gateway.calls import to_json
from gateway.document import validate
from gateway.errors import Invalid
from gateway.names import wire_name
from gateway.tools import Permission

INVALID_TOOLS = "INVALID_TOOLS_FILE"
SUFFIXES = (".yaml", ".yml")
_PLACEHOLDER = re.compile(r"(?<!\$)\{\s*([A-Za-z_]\w*)\s*\}")
_HTTP_KEYS = ("method", "query", "headers", "body", "form", "auth", "response", "content_type", "retries")


class ToolType(str, enum.Enum):
    """The kind of implementation a specification names."""

    PYTHON = "python"
    SHELL = "shell"
    SANDBOX = "sandbox"
    HTTP = "http"
    MCP = "mcp"
    STEPS = "steps"
    BUILTIN = "builtin"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class ToolMetadata(_Section):
    """Everything about a tool besides its arguments. A tool that is dangerous asks a person too."""

    version: str = "1.0.0"
    category: Category | None = None
    tags: tuple[Line, ...] = ()
    requires_approval: bool = False
    is_dangerous: bool = False
    permission: Permission | None = None
    timeout: Seconds | None = None


class ToolDefinition(_Section):
    """One specification: what a planner sees, and the configuration of the implementation, which it does not."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    description: Prose = ""
    tool_type: ToolType = ToolType.PYTHON
    input_schema: ObjectSchema = Field(default_factory=lambda: {"type": "object"})
    output_schema: Schema | None = None
    implementation_config: dict[str, Any] = Field(default_factory=dict)
    metadata: ToolMetadata = ToolMetadata.model_construct()

    @property
    def tool_id(self) -> str:
        return wire_name(self.name)

    @property
    def module(self) -> str | None:
        """The module of a Python tool."""
        module = self.implementation_config.get("module")
        return module if self.tool_type is ToolType.PYTHON and isinstance(module, str) else None

    @property
    def permission(self) -> Permission:
        """The declared level, else read-only for a tool that is not dangerous and asks nobody."""
        if self.metadata.permission is not None:
            return self.metadata.permission
        reads = str(self.implementation_config.get("method", "GET")).upper() in ("GET", "HEAD")
        harmless = not (self.metadata.is_dangerous or self.metadata.requires_approval) and reads
        return Permission.READ_ONLY if harmless else Permission.READ_WRITE

    def to_tool(self) -> dict[str, Any]:
        """The tool as in `toolset.yaml`."""
        about = self.metadata
        values: dict[str, Any] = {
            "id": self.tool_id,
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
            "output_schema": self.output_schema,
            "requires_confirmation": about.requires_approval or None,
            "destructive": about.is_dangerous or None,
            "category": about.category,
            "permission": self.permission,
            "tags": about.tags,
            "timeout": about.timeout,
            **self._implement(),
        }
        return {key: value for key, value in values.items() if value is not None}

    def to_server(self) -> dict[str, Any] | None:
        """The MCP server that the specification brings, if it does."""
        config = self.implementation_config
        if self.tool_type is not ToolType.MCP or not ("command" in config or "url" in config):
            return None
        keys = ("command", "args", "env", "url", "headers", "sandbox", "timeout")
        return {"id": self._server, **{key: config[key] for key in keys if key in config}}

    @property
    def _server(self) -> str:
        return str(self.implementation_config.get("server") or re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-"))

    def _implement(self) -> dict[str, Any]:
        config = self.implementation_config
        if self.tool_type is ToolType.PYTHON:
            return {"type": "python", "entrypoint": f"{config.get('module')}:{config.get('function_name', self.name)}"}
        if self.tool_type in (ToolType.SHELL, ToolType.SANDBOX):
            return {"type": "shell", **config}
        if self.tool_type is ToolType.HTTP:
            url = config.get("url_template") or config.get("url", "")
            kept = {key: config[key] for key in _HTTP_KEYS if key in config}
            return {"type": "http", "url_template": _fill(url), **{key: _fill(item) for key, item in kept.items()}}
        if self.tool_type is ToolType.MCP:
            called = config.get("tool") or config.get("tool_name") or self.name
            names = self.input_schema.get("properties", {})
            step = {"tool": f"{self._server}:{called}", "args": {name: f"$args.{name}" for name in names}}
            return {"type": "steps", "steps": [step]}
        return {"type": self.tool_type.value, **config}


def _fill(value: Any) -> Any:
    """`{name}` in texts written as `${name}`."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(r"${\1}", value)
    if isinstance(value, Mapping):
        return {key: _fill(item) for key, item in value.items()}
    return [_fill(item) for item in value] if isinstance(value, list | tuple) else value


class ToolsFile(_Section):
    """A whole `tools.yaml`."""

    id: str = "tools"
    secrets: tuple[str, ...] = ()
    tools: Annotated[tuple[ToolDefinition, ...], Field(max_length=TOOLS_LIMIT)]


def read_tools_file(content: bytes, name: str) -> ToolsFile:
    """Parse a `tools.yaml`; refused with the line, the key and the fix."""
    document = yamldoc.read_plain(content, name, INVALID_TOOLS)
    file = validate(document, ToolsFile)
    for index, definition in enumerate(file.tools):
        try:
            make_toolset([definition], secrets=file.secrets)
        except Invalid as error:
            raise document.refusal(error.message, ("tools", index)) from None
    return file


def make_toolset(
    definitions: Iterable[ToolDefinition], toolset_id: str = "tools", secrets: Sequence[str] = ()
) -> Toolset:
    """The toolset that runs specifications."""
    chosen = list(definitions)
    servers = {server["id"]: server for item in chosen if (server := item.to_server()) is not None}
    values = {
        "id": toolset_id,
        "name": toolset_id,
        "version": "1.0.0",
        "secrets": secrets,
        "tools": [item.to_tool() for item in chosen],
        "mcp_servers": list(servers.values()),
    }
    try:
        return Toolset.model_validate_json(to_json(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = [*first["loc"], *first.get("ctx", {}).get("at", ())]
        where = ".".join(str(part) for part in place[2:] if not str(part).startswith("<"))
        raise Invalid(f"{where}: {first['msg']}", code=INVALID_TOOLS) from None


def write_bundle(
    directory: Path, toolset: Toolset, code: Iterable[Path], definitions: Iterable[ToolDefinition]
) -> None:
    """Write the folder of the toolset, with the modules of its Python tools from the first of `code` that has them."""
    (directory / spec.FILE_NAME).write_text(spec.dump(toolset))
    folders = list(code)
    for module in {item.module.partition(".")[0] for item in definitions if item.module is not None}:
        for folder in folders:
            if (folder / f"{module}.py").is_file():
                shutil.copy(folder / f"{module}.py", directory / f"{module}.py")
                break
            if (folder / module).is_dir():
                shutil.copytree(folder / module, directory / module, ignore=shutil.ignore_patterns("__pycache__"))
                break
