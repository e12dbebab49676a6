"""An installed toolset as a value: its declarations with the person's overrides, its files, its servers' consents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from gateway.bundles.spec import AnyToolSpec, SandboxRights, Server, ToolOverride, Toolset
from gateway.bundles.tool_kinds import ToolSpec, artifact_path
from gateway.calls import to_json
from gateway.config import UpstreamSettings
from gateway.db.toolsets import ConsentRow, StoredToolset, ToolRow, UserOverrideRow
from gateway.document import YamlDocument, validate
from gateway.errors import Forbidden, Invalid, NotFound
from gateway.names import derive_id, did_you_mean
from gateway.value import Value

_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_DESCRIBED = frozenset(["id", "command", "args", "env", "url", "headers", "sandbox"])


def server_digest(toolset_id: str, server: Server, content: str) -> str:
    """Digest of every declared field of a server and of the toolset it belongs to.

    Outside the sandbox the server's code is trusted too, so there it covers the digest of the toolset's `content`.
    """
    fields = server.model_dump(mode="json", exclude_defaults=True)
    covered = {"toolset": toolset_id, "server": fields, "content": content if runs_outside(server) else None}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def runs_outside(server: Server | UpstreamSettings) -> bool:
    """Return whether the server is a program that runs outside the sandbox."""
    return server.command is not None and server.sandbox is False


def describe_server(server: Server | UpstreamSettings) -> Iterator[tuple[str, str]]:
    """Everything that is declared about a server, as names and printable ASCII texts, the rights last."""
    if server.command is not None:
        yield "command", " ".join(map(quote, (server.command, *server.args)))
        yield "environment", _table(server.env)
    if server.url is not None:
        yield "url", quote(server.url)
        yield "headers", _table(server.headers)
    for name, value in server.model_dump(mode="json", exclude_defaults=True).items():
        if name not in _DESCRIBED:
            yield name, json.dumps(value)
    yield "rights", _rights(server)


def quote(text: str) -> str:
    """Quote a text as one shell word in printable ASCII; invisible and look-alike characters are escaped."""
    if _SAFE.fullmatch(text):
        return text
    if text.isascii() and text.isprintable() and "  " not in text:
        return "'" + text.replace("'", "'\\''") + "'"
    # Runs of spaces could push what follows to a line of its own on the terminal.
    return "$'" + re.sub(" (?= )", r"\\x20", "".join(map(_escape, text))) + "'"


def _escape(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isascii() and character.isprintable():
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"


def _table(values: Mapping[str, str]) -> str:
    return " ".join(f"{quote(name)}={quote(value)}" for name, value in values.items()) or "none"


def _rights(server: Server | UpstreamSettings) -> str:
    if server.command is None:
        return "runs elsewhere; it is sent the headers above and the arguments of each call"
    if runs_outside(server):
        return "WARNING: outside the sandbox, with all rights of your account"
    rights = SandboxRights() if isinstance(server.sandbox, bool | None) else server.sandbox
    folders = " ".join(map(quote, rights.paths)) or "none"
    return f"in the sandbox; folders: {folders}; hosts: {' '.join(map(quote, rights.network)) or 'none'}"


_TOOL: TypeAdapter[ToolSpec] = TypeAdapter(AnyToolSpec, config=ConfigDict(defer_build=True))
_CHANGES = tuple(name for name in UserOverrideRow.__annotations__ if name not in ("toolset_id", "tool_id"))


class InstalledTool(Value):
    """One tool of an installed toolset.

    `described` has the declarations of its code, for Python tools; `override` those of the toolset's overrides, then
    the person's. A `missing` tool is not offered, even when `enabled`. `confirmation_override` is the person's own
    choice whether to ask first.
    """

    id: str
    spec: ToolSpec
    described: Mapping[str, Any] | None
    override: ToolOverride
    missing: str | None = None
    confirmation_override: bool | None = None
    created_at: str = ""
    modified_at: str = ""

    @property
    def enabled(self) -> bool:
        return self.spec.enabled if self.override.enabled is None else self.override.enabled

    @property
    def name(self) -> str:
        return str(self.override.name_override or self.get_field("name", self.spec.id))

    @property
    def description(self) -> str:
        return str(self.override.description_override or self.get_field("description", ""))

    @property
    def requires_confirmation(self) -> bool:
        """True if a person must agree first. A destructive tool asks unless the person who installed it decides
        otherwise: its author can add the question, but not remove it."""
        if self.confirmation_override is not None:
            return self.confirmation_override
        own = self.override.requires_confirmation
        values = self.get_field("requires_confirmation", False) if own is None else own
        return bool(values or self.get_field("destructive", False))

    def get_field(self, key: str, otherwise: Any = None) -> Any:
        """Return a field as declared in `toolset.yaml`, else in the code."""
        own = getattr(self.spec, key)
        return own if own not in (None, ()) else (self.described or {}).get(key, otherwise)


class InstalledToolset(Value):
    """One installed toolset.

    `spec` is what an export would write: the tools present, with the person's overrides. `tools` includes missing
    ones; `overrides` has every override by full tool id, also for tools of servers. `consents` has the servers a
    person agreed to in their current form. `bundle_id` is its id for REST clients. Only `install` sets `changed`, and
    `masked`: the variables that replaced literal secrets and must be set in the environment.
    """

    spec: Toolset
    directory: Path
    digest: str
    enabled: bool
    live: bool
    source_type: str
    source_ref: str | None
    installed_at: str
    updated_at: str
    tools: tuple[InstalledTool, ...]
    overrides: Mapping[str, ToolOverride]
    consents: Mapping[str, ConsentRow]
    bundle_id: str = ""
    deleted_at: str | None = None
    changed: bool = False
    masked: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def servers(self) -> tuple[Server, ...]:
        return self.spec.mcp_servers

    @property
    def allowed_servers(self) -> tuple[Server, ...]:
        """The servers that may be started or connected to."""
        return tuple(server for server in self.servers if server.id in self.consents)

    @property
    def pending_servers(self) -> tuple[Server, ...]:
        """The servers that wait for a person's consent."""
        return tuple(server for server in self.servers if server.enabled and server.id not in self.consents)

    @property
    def problem(self) -> Forbidden | None:
        """A report of the servers that are held back, with the command that allows them."""
        if not self.enabled or not self.pending_servers:
            return None
        names = ", ".join(server.id for server in self.pending_servers)
        return Forbidden(
            f"MCP servers of the toolset {self.id!r} are held back until a person agrees to them: {names}; "
            f"look at them with: toolgate toolset allow {self.id}",
            code="CONSENT_REQUIRED",
        )

    def server_digest(self, server: Server) -> str:
        """The digest by which a person agrees to a server."""
        return server_digest(self.id, server, self.digest)


def load_toolset(stored: StoredToolset, directory: Path) -> InstalledToolset:
    """Build a toolset from its rows; `ValueError` when they are invalid, as only another release could write them."""
    row, user = stored.toolset, {change.tool_id: override_fields(change) for change in stored.user_overrides}
    spec = _spec(stored, user)
    overrides = {override.tool_id: override for override in spec.overrides()}
    own = {tool.id: tool for tool in spec.tools}
    digests = {server.id: server_digest(row.id, server, row.digest) for server in spec.mcp_servers}
    return InstalledToolset(
        spec=spec,
        directory=directory,
        digest=row.digest,
        enabled=row.enabled,
        live=row.live,
        source_type=row.source_type,
        source_ref=row.source_ref,
        installed_at=row.installed_at,
        updated_at=row.updated_at,
        tools=tuple(_tool(tool, own, overrides, user) for tool in stored.tools),
        overrides=overrides,
        consents={row.server_id: row for row in stored.consents if digests.get(row.server_id) == row.digest},
        bundle_id=row.bundle_id or derive_id(row.installed_at, row.id),
        deleted_at=row.deleted_at,
    )


def override_fields(row: UserOverrideRow) -> dict[str, Any]:
    """Return the fields a person overrode, as in an entry of `tool_overrides`."""
    values = {key: getattr(row, key) for key in _CHANGES if getattr(row, key) is not None}
    return values | ({"renderer_config": json.loads(row.renderer_config)} if row.renderer_config is not None else {})


def _tool(
    row: ToolRow,
    own: Mapping[str, ToolSpec],
    overrides: Mapping[str, ToolOverride],
    user: Mapping[str, Mapping[str, Any]],
) -> InstalledTool:
    spec = own.get(row.tool_id.partition(":")[2]) if row.missing is None else None
    if spec is None:
        spec = _TOOL.validate_json(row.spec)
    override = overrides.get(row.tool_id) or _override(row.tool_id, user.get(row.tool_id, {}))
    described = None if row.described is None else json.loads(row.described)
    confirmation_override = user.get(row.tool_id, {}).get("requires_confirmation")
    times = row.created_at, row.modified_at
    return InstalledTool(row.tool_id, spec, described, override, row.missing, confirmation_override, *times)


def _spec(stored: StoredToolset, user: Mapping[str, Mapping[str, Any]]) -> Toolset:
    values = json.loads(stored.toolset.spec)
    values["tools"] = [json.loads(row.spec) for row in stored.tools if row.missing is None]
    values["tool_overrides"] = list(_overrides(stored, user))
    values["mcp_servers"] = [json.loads(row.spec) for row in stored.servers]
    return Toolset.model_validate_json(to_json(values))


def _overrides(stored: StoredToolset, user: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The toolset's overrides in their order, each with the person's merged in, then those of the person alone."""
    present = {row.tool_id: row.tool_id.partition(":")[2] for row in stored.tools if row.missing is None}
    servers = {row.id for row in stored.servers}
    written = {row.tool_id: json.loads(row.spec) for row in stored.overrides if row.spec is not None}
    for tool_id in [*written, *(tool_id for tool_id in user if tool_id not in written)]:
        if tool_id in present or tool_id.partition(":")[0] in servers:
            values, own = written.get(tool_id, {"tool_id": present.get(tool_id, tool_id)}), user.get(tool_id, {})
            if "renderer" in own:
                values.pop("renderer_config", None)
            yield values | own


def _override(tool_id: str, values: Mapping[str, Any]) -> ToolOverride:
    return ToolOverride.model_validate_json(to_json({"tool_id": tool_id, **values}))


INVALID_OVERRIDE = "INVALID_OVERRIDE"


def resolve_tool_id(toolset: InstalledToolset, tool_id: str) -> str:
    """Return the full id of a tool; refused when neither a tool nor a server of the toolset has it."""
    own = {tool.id for tool in toolset.tools}
    wanted = tool_id if ":" in tool_id else f"{toolset.id}:{tool_id}"
    if wanted not in own and wanted.partition(":")[0] not in {server.id for server in toolset.servers}:
        reason = f"{tool_id!r} is no tool of the toolset {toolset.id!r} or of its servers{did_you_mean(wanted, own)}"
        raise NotFound(reason, code="UNKNOWN_TOOL")
    return wanted


def merge_override(
    stored: StoredToolset, toolset: InstalledToolset, tool_id: str, changes: Mapping[str, Any]
) -> tuple[UserOverrideRow, ToolOverride]:
    """Merge `changes` into a person's override of a tool; return it as a row and as an override.

    None removes a change. Another renderer discards the config of the previous one.
    """
    wanted = resolve_tool_id(toolset, tool_id)
    before = next((override_fields(row) for row in stored.user_overrides if row.tool_id == wanted), {})
    if "renderer" in changes:
        before.pop("renderer_config", None)
    merged = {key: value for key, value in (before | dict(changes)).items() if value is not None}
    document = YamlDocument(f"the change of {wanted}", INVALID_OVERRIDE, {**merged, "tool_id": wanted})
    override = validate(document, ToolOverride)
    artifact = artifact_path(override.renderer_config or {})
    if artifact is not None and artifact not in {file.path for file in stored.files}:
        near = did_you_mean(artifact, [file.path for file in stored.files])
        raise Invalid(f"there is no {artifact} in toolset {toolset.id!r}{near}", code=INVALID_OVERRIDE)
    return _override_row(toolset.id, override), override


def _override_row(toolset_id: str, override: ToolOverride) -> UserOverrideRow:
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
