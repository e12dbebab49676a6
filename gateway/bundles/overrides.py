"""What a person changes about a tool of an installed toolset, checked as the toolset's own overrides are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.bundles import document as yamls
from gateway.bundles.document import Document
from gateway.bundles.installed import Installed, changes_in
from gateway.bundles.kinds import artifact_path
from gateway.bundles.spec import ToolOverride
from gateway.calls import to_json
from gateway.db.toolsets import StoredToolset, UserOverrideRow
from gateway.errors import Invalid, NotFound
from gateway.names import did_you_mean

INVALID_OVERRIDE = "INVALID_OVERRIDE"


def full_id(toolset: Installed, tool_id: str) -> str:
    """The id a change is kept under; refused when neither a tool nor a server of the toolset answers to it."""
    own = {tool.id for tool in toolset.tools}
    wanted = tool_id if ":" in tool_id else f"{toolset.id}:{tool_id}"
    if wanted not in own and wanted.partition(":")[0] not in {server.id for server in toolset.servers}:
        reason = f"{tool_id!r} is no tool or server's tool of toolset {toolset.id!r}{did_you_mean(wanted, own)}"
        raise NotFound(reason, code="UNKNOWN_TOOL")
    return wanted


def change(
    stored: StoredToolset, toolset: Installed, tool_id: str, changes: Mapping[str, Any]
) -> tuple[UserOverrideRow, ToolOverride]:
    """What was changed about a tool before, with `changes` on top, as a row and as an override; None takes a
    change back, and another renderer leaves nothing of the config of the one before."""
    wanted = full_id(toolset, tool_id)
    before = next((changes_in(row) for row in stored.user_overrides if row.tool_id == wanted), {})
    if "renderer" in changes:
        before.pop("renderer_config", None)
    said = {key: value for key, value in (before | dict(changes)).items() if value is not None}
    document = Document(f"the change of {wanted}", INVALID_OVERRIDE, {**said, "tool_id": wanted})
    override = yamls.validate(document, ToolOverride)
    artifact = artifact_path(override.renderer_config or {})
    if artifact is not None and artifact not in {file.path for file in stored.files}:
        near = did_you_mean(artifact, [file.path for file in stored.files])
        raise Invalid(f"there is no {artifact} in toolset {toolset.id!r}{near}", code=INVALID_OVERRIDE)
    return _row(toolset.id, override), override


def _row(toolset_id: str, override: ToolOverride) -> UserOverrideRow:
    config = override.renderer_config
    return UserOverrideRow(
        toolset_id=toolset_id,
        tool_id=override.tool_id,
        renderer=override.renderer,
        renderer_config=None if config is None else to_json(config).decode(),
        name_override=override.name_override,
        description_override=override.description_override,
        requires_confirmation=override.requires_confirmation,
        enabled=override.enabled,
    )
