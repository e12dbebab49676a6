"""Database rows of a toolset version, built when it is installed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from gateway.bundles.archive import Bundle
from gateway.bundles.spec import Server, Toolset
from gateway.bundles.tool_kinds import PythonTool, ToolSpec
from gateway.calls import to_json
from gateway.db.toolsets import FileRow, OverrideRow, ServerRow, StoredToolset, ToolRow, ToolsetRow
from gateway.errors import Conflict
from gateway.names import new_id
from gateway.value import Value

SourceType = Literal["zip", "local", "url", "rest"]
# Limit of missing tools kept per toolset, the latest first.
MISSING_LIMIT = 1000


class BundleOrigin(Value):
    """The origin of a bundle; `live` if edits in its folder are installed as they happen."""

    source_type: SourceType
    source_ref: str | None
    live: bool = False


class PreparedVersion(Value):
    """A bundle ready to be stored, with the descriptions from its code, and the reason for each missing tool."""

    bundle: Bundle
    described: Mapping[str, Mapping[str, Any]]
    missing: Mapping[str, str]
    origin: BundleOrigin
    directory: Path
    moment: str
    bundle_id: str | None = None


class ToolsetEdit(Value):
    """A change of declarations alone: the rows it is based on, None for a new toolset, and the tools it removes."""

    stored: StoredToolset | None
    bundle_id: str | None = None
    removed: tuple[str, ...] = ()

    def check_current(self, previous: StoredToolset | None) -> None:
        """Refuse with `Conflict` when another version is there by now."""
        based_on = self.stored.toolset.digest if self.stored else None
        if based_on != (previous.toolset.digest if previous else None):
            raise Conflict("the toolset was changed at the same moment; try again", code="TOOLSET_CHANGED")

    def descriptions(self) -> dict[str, dict[str, Any]]:
        """Return what the unchanged code says of its tools, by id."""
        rows = self.stored.tools if self.stored else ()
        return {row.tool_id.partition(":")[2]: json.loads(row.described) for row in rows if row.described is not None}


def build_rows(version: PreparedVersion, previous: StoredToolset | None) -> StoredToolset:
    """Build the rows of a version. Tools that only the previous version declared are kept as missing."""
    spec = version.bundle.spec
    known = {row.tool_id: row for row in previous.tools} if previous else {}
    enabled = _find_switches(spec, previous)
    tools = [_tool(spec, tool, index, version, known, enabled) for index, tool in enumerate(spec.tools)]
    kept = list(_list_missing_tools(spec, known, len(tools)))[:MISSING_LIMIT]
    return StoredToolset(
        _toolset(version, previous),
        tuple(_files(version)),
        (*tools, *kept),
        tuple(_overrides(spec)),
        tuple(_server(spec.id, server, index, version.moment) for index, server in enumerate(spec.mcp_servers)),
    )


def _toolset(version: PreparedVersion, previous: StoredToolset | None) -> ToolsetRow:
    spec, origin = version.bundle.spec, version.origin
    return ToolsetRow(
        id=spec.id,
        name=spec.name,
        version=spec.version,
        description=spec.description,
        enabled=previous.toolset.enabled if previous else True,
        installed_at=previous.toolset.installed_at if previous else version.moment,
        source_type=origin.source_type,
        source_ref=origin.source_ref,
        manifest_version=spec.manifest_version,
        digest=version.bundle.digest,
        live=origin.live,
        updated_at=version.moment,
        spec=_dump_section(spec, "tools", "tool_overrides", "mcp_servers"),
        bundle_id=previous.toolset.bundle_id if previous else version.bundle_id,
    )


def _files(version: PreparedVersion) -> Iterator[FileRow]:
    toolset_id = version.bundle.spec.id
    for path, file in version.bundle.files.items():
        stored_path = str(version.directory / path)
        yield FileRow(toolset_id, path, file.kind, file.sha256, file.size, stored_path, file.executable)


def _find_switches(spec: Toolset, previous: StoredToolset | None) -> dict[str, bool]:
    """The tools that an override, of the toolset or on top of that of the person, turns on or off."""
    overrides = [(spec.full_id(item.tool_id), item.enabled) for item in spec.tool_overrides]
    overrides += [(row.tool_id, row.enabled) for row in (previous.user_overrides if previous else ())]
    return {tool_id: enabled for tool_id, enabled in overrides if enabled is not None}


def _tool(
    spec: Toolset,
    tool: ToolSpec,
    position: int,
    version: PreparedVersion,
    known: Mapping[str, ToolRow],
    enabled: Mapping[str, bool],
) -> ToolRow:
    tool_id = f"{spec.id}:{tool.id}"
    described = version.described.get(tool.id, {})
    earlier = known.get(tool_id)
    before = earlier if tool.id in version.missing else None
    confirmed = tool.requires_confirmation
    row = ToolRow(
        tool_id=tool_id,
        toolset_id=spec.id,
        name=tool.name or described.get("name") or tool.id,
        description=tool.description if tool.description is not None else described.get("description"),
        input_schema=_json(tool.input_schema),
        requires_confirmation=bool(described.get("requires_confirmation") if confirmed is None else confirmed),
        enabled=enabled.get(tool_id, tool.enabled),
        entrypoint=tool.entrypoint if isinstance(tool, PythonTool) else None,
        kind=getattr(tool, "type"),  # noqa: B009 - every kind has one, the base has none
        position=position,
        spec=_dump_section(tool),
        described=before.described if before else _json(version.described.get(tool.id)),
        missing=version.missing.get(tool.id),
        created_at=earlier.created_at if earlier else version.moment,
        modified_at=version.moment,
    )
    if earlier is not None and (row.spec, row.described) == (earlier.spec, earlier.described):
        return replace(row, modified_at=earlier.modified_at)
    return row


def _list_missing_tools(spec: Toolset, known: Mapping[str, ToolRow], position: int) -> Iterator[ToolRow]:
    named = {f"{spec.id}:{tool.id}" for tool in spec.tools}
    for number, row in enumerate(row for tool_id, row in known.items() if tool_id not in named):
        reason = row.missing or f"the toolset.yaml of version {spec.version} no longer declares it"
        yield replace(row, missing=reason, position=position + number)


def _overrides(spec: Toolset) -> Iterator[OverrideRow]:
    written = {spec.full_id(override.tool_id): override for override in spec.tool_overrides}
    for position, override in enumerate(spec.overrides()):
        own = written.get(override.tool_id)
        yield OverrideRow(
            id=new_id(),
            toolset_id=spec.id,
            tool_id=override.tool_id,
            renderer=override.renderer,
            renderer_config=_json(override.renderer_config),
            name_override=override.name_override,
            description_override=override.description_override,
            requires_confirmation=override.requires_confirmation,
            enabled=override.enabled is not False,
            position=position,
            spec=_dump_section(own) if own is not None else None,
        )


def _server(toolset_id: str, server: Server, position: int, moment: str) -> ServerRow:
    return ServerRow(
        id=server.id,
        toolset_id=toolset_id,
        server_type=server.transport or ("stdio" if server.command is not None else "streamable-http"),
        enabled=server.enabled,
        command=server.command,
        args=_json(server.args),
        cwd=server.cwd,
        url=server.url,
        headers=_json(server.headers),
        env=_json(server.env),
        requires_confirmation=bool(server.requires_confirmation),
        created_at=moment,
        position=position,
        spec=_dump_section(server),
    )


def _dump_section(section: BaseModel, *without: str) -> str:
    """A section of toolset.yaml as JSON, without defaults."""
    return to_json(section.model_dump(mode="json", exclude_defaults=True, exclude=set(without))).decode()


def _json(value: Any) -> str | None:
    return None if value is None else to_json(value).decode()
