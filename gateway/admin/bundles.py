"""Bundles and their tools as REST clients see them: toolsets, and the builtins of each category, by UUIDv7, slug and
version. A bundle that a client creates is a toolset like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import names
from gateway.access import AccessPolicy
from gateway.admin import switches
from gateway.bundles import ToolSpec
from gateway.bundles.field_types import RESERVED, ManifestSection
from gateway.bundles.installed import InstalledTool, InstalledToolset
from gateway.bundles.secret_references import mask_url
from gateway.bundles.spec import AnyToolSpec, Toolset
from gateway.document import YamlDocument, validate
from gateway.errors import Conflict, Forbidden, NotFound
from gateway.tools import Tool
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway

INVALID_TOOL = "INVALID_TOOL"
# Builtins have the same ids in every gateway: those of this moment. They have one version, whatever the release.
_BUILTIN_MOMENT = "2026-01-01T00:00:00.000+00:00"
BUILTIN_VERSION = "1"
FIRST_VERSION = "1.0.0"
# A process that loses more races than this against others gives up.
_ATTEMPTS = 20


class BundleInfo(Value):
    """A bundle: the toolset `toolset`, or the builtins of the category `category`."""

    id: str
    slug: str
    display_name: str
    description: str
    is_enabled: bool
    created_at: str
    modified_at: str
    soft_deleted_at: str | None = None
    toolset: InstalledToolset | None = None
    category: str | None = None
    builtins: tuple[Tool, ...] = ()

    @property
    def is_built_in(self) -> bool:
        return self.toolset is None


class BundleTool(Value):
    """One tool of a bundle, `tool_id` for the gateway. `spec` is its declaration, None for a builtin."""

    id: str
    slug: str
    version: str
    bundle_id: str
    tool_id: str
    is_enabled: bool
    is_built_in: bool
    created_at: str
    modified_at: str
    call_count: int
    last_called_at: str | None
    tool: Tool
    spec: ToolSpec | None = None

    @property
    def display_name(self) -> str:
        return self.tool.title or self.slug


async def list_bundles(gateway: Gateway) -> list[BundleInfo]:
    """Return every bundle that is not soft-deleted, builtins first."""
    toolsets = await gateway.installed_toolsets()
    return [*await _list_builtin_bundles(gateway), *map(_describe_toolset, toolsets)]


async def find_bundle(gateway: Gateway, bundle_id: str) -> BundleInfo:
    for bundle in await list_bundles(gateway):
        if bundle.id == bundle_id:
            return bundle
    raise _unknown_bundle(bundle_id)


async def put_bundle(
    gateway: Gateway, bundle_id: str, slug: str, display_name: str, description: str, enabled: bool
) -> tuple[BundleInfo, bool]:
    """Create a bundle, or replace its slug, name and description; its tools stay. A soft-deleted one comes back.
    Return the bundle, and whether it is new."""
    library, created = gateway.toolsets.library, False
    fields = {"slug": slug, "name": display_name, "description": description}
    if any(bundle.id == bundle_id for bundle in await _list_builtin_bundles(gateway)):
        raise _immutable()
    for attempt in range(_ATTEMPTS):
        existing = await _find_toolset(gateway, bundle_id)
        try:
            if existing is not None:
                _check_own(gateway, existing)
                installed = await library.edit(existing.id, lambda now: _validate(_dump(now.spec) | fields))
            else:
                taken = {toolset.id for toolset in await library.list_all()}
                toolset_id = _choose_toolset_id(slug, bundle_id, taken)
                values = {"id": toolset_id, "version": FIRST_VERSION, **fields}
                installed, created = await library.create(_validate(values), bundle_id), True
        except Conflict as conflict:  # another process created it, or took its name
            if attempt == _ATTEMPTS - 1 or conflict.code not in ("CONFLICT", "TOOLSET_CHANGED"):
                raise
            continue
        break
    if installed.enabled != enabled:
        installed = await library.enable(installed.id, enabled)
    await gateway.reload()
    return _describe_toolset(installed), created


async def enable_bundle(gateway: Gateway, bundle_id: str, enabled: bool) -> BundleInfo:
    """Turn a bundle on or off: of builtins, their category."""
    bundle = await find_bundle(gateway, bundle_id)
    if bundle.toolset is not None:
        await gateway.toolsets.library.enable(bundle.toolset.id, enabled)
        await gateway.reload()
    else:
        await switches.change_category(gateway, bundle.category or "", {"enabled": enabled})
    return await find_bundle(gateway, bundle_id)


async def delete_bundle(gateway: Gateway, bundle_id: str) -> BundleInfo:
    """Soft-delete a bundle: it and its tools are gone for clients, and come back when it is put again. An empty one is
    removed after two days."""
    bundle = await find_bundle(gateway, bundle_id)
    if bundle.toolset is None:
        raise _immutable()
    if _is_configured(gateway, bundle.toolset):
        raise Conflict("the bundle is named in 'toolsets' of the settings; remove it there", code="BUNDLE_CONFIGURED")
    moment = await gateway.toolsets.library.soft_delete(bundle.toolset.id)
    await gateway.reload()
    return replace(bundle, soft_deleted_at=moment)


async def list_tools(gateway: Gateway, bundles: Iterable[BundleInfo] | None = None) -> list[BundleTool]:
    """Return the tools of the bundles, by default of all."""
    usage = await gateway.toolsets.library.usage()
    states = await gateway.switches.load_builtin_states()
    found: list[BundleTool] = []
    for bundle in await list_bundles(gateway) if bundles is None else bundles:
        if bundle.toolset is None:
            found += [_describe_builtin(bundle, tool, states, usage) for tool in bundle.builtins]
            continue
        described = await gateway.toolsets.source.describe_tools(bundle.toolset)
        labels = _label_tools(bundle.toolset.tools, bundle.toolset.spec)
        for item, tool in zip(bundle.toolset.tools, described, strict=True):
            found.append(_describe_tool(bundle, item, tool, labels[item.id], usage))
    return found


async def find_tool(
    gateway: Gateway, bundle_id: str, slug: str, version: str, access: AccessPolicy | None = None
) -> BundleTool:
    """Return a tool. One that `access` does not allow cannot be told from one that does not exist, nor can a bundle
    without a tool that it allows."""
    bundle = await find_bundle(gateway, bundle_id)
    tools = choose_visible(await list_tools(gateway, [bundle]), access)
    if access is not None and not tools:
        raise _unknown_bundle(bundle_id)
    for tool in tools:
        if (tool.slug, tool.version) == (slug, version):
            return tool
    near = names.did_you_mean(slug, {tool.slug for tool in tools} - {slug})
    raise NotFound(f"bundle {bundle.slug!r} has no tool {slug!r} of version {version!r}{near}", code="UNKNOWN_TOOL")


def choose_visible(tools: Iterable[BundleTool], access: AccessPolicy | None) -> list[BundleTool]:
    """Return the tools that somebody may see and call, whether or not they are on."""
    if access is None:
        return list(tools)
    return [item for item in tools if access.allows(names.wire_name(item.tool_id, item.tool.prefix), item.tool)]


async def find_tool_id(
    gateway: Gateway, bundle_id: str, slug: str, version: str, access: AccessPolicy | None = None
) -> str:
    """Return the gateway's id of a tool as `find_tool` finds it, without describing one that is offered."""
    bundle = await find_bundle(gateway, bundle_id)
    if bundle.toolset is not None:
        labels = _label_tools(bundle.toolset.tools, bundle.toolset.spec)
        matches = [tool_id for tool_id, label in labels.items() if label == (slug, version)]
        if matches and (access is None or gateway.catalog.for_principal(access).get(matches[0]) is not None):
            return matches[0]
    return (await find_tool(gateway, bundle_id, slug, version, access)).tool_id


async def put_tool(gateway: Gateway, bundle_id: str, slug: str, version: str, values: Mapping[str, Any]) -> BundleTool:
    """Add a tool, declared as in `toolset.yaml`, to a bundle; `Conflict` when the bundle has that slug and version, or
    the gateway as many tools as it may. Variables it refers to besides its arguments become secrets of the toolset."""
    toolset = await _open_bundle(gateway, bundle_id)

    def add(now: InstalledToolset) -> Toolset:
        if (slug, version) in _label_tools(now.tools, now.spec).values():
            raise Conflict(f"the bundle has version {version!r} of {slug!r} already", code="TOOL_EXISTS")
        tool_id = _choose_tool_id(slug, version, {item.id.partition(":")[2] for item in now.tools})
        document = YamlDocument("", INVALID_TOOL, {"tool": {**values, "id": tool_id, "slug": slug, "version": version}})
        tool = validate(document, _ToolDocument).tool
        properties = (tool.input_schema or {}).get("properties", {})
        variables = {name for _, name in tool.placeholders() if name.isupper() and name not in properties}
        declared = _dump(now.spec)
        declared["secrets"] = [*now.spec.secrets, *sorted(variables - {*now.spec.secrets})]
        declared["tools"] = [*declared.get("tools", ()), tool.model_dump(mode="json", exclude_defaults=True)]
        return _validate(declared)

    if values.get("enabled", True):
        _require_room(gateway)
    await gateway.toolsets.library.edit(toolset.id, add)
    await gateway.reload()
    return await find_tool(gateway, bundle_id, slug, version)


async def enable_tool(gateway: Gateway, bundle_id: str, slug: str, version: str, enabled: bool) -> BundleTool:
    """Turn one tool on or off; all that may change of a builtin."""
    _require_enabled(await find_bundle(gateway, bundle_id))
    tool_id = await find_tool_id(gateway, bundle_id, slug, version)
    if enabled and gateway.catalog.get(tool_id) is None:
        _require_room(gateway)
    await switches.enable_tool(gateway, tool_id, enabled)
    await gateway.reload()
    return await find_tool(gateway, bundle_id, slug, version)


async def delete_tool(gateway: Gateway, bundle_id: str, slug: str, version: str) -> None:
    """Remove a tool for good, with its counters and what people changed about it."""
    toolset = await _open_bundle(gateway, bundle_id)
    tool_id = await find_tool_id(gateway, bundle_id, slug, version)

    def remove(now: InstalledToolset) -> Toolset:
        if tool_id not in {item.id for item in now.tools}:
            raise NotFound(f"{slug!r} was deleted at the same moment", code="UNKNOWN_TOOL")
        declared, own = _dump(now.spec), tool_id.partition(":")[2]
        kept = [tool for tool in now.spec.tools if tool.id != own]
        used = {name for tool in kept for _, name in tool.placeholders()}
        freed = {name for tool in now.spec.tools if tool.id == own for _, name in tool.placeholders()} - used
        overrides = declared.get("tool_overrides", ())
        declared["tools"] = [tool for tool in declared.get("tools", ()) if tool["id"] != own]
        declared["tool_overrides"] = [item for item in overrides if now.spec.full_id(item["tool_id"]) != tool_id]
        declared["secrets"] = [name for name in now.spec.secrets if name not in freed]
        return _validate(declared)

    await gateway.toolsets.library.edit(toolset.id, remove, [tool_id])
    await gateway.reload()


async def rank_tools(gateway: Gateway, tools: Iterable[BundleTool], query: str) -> list[BundleTool]:
    """Return the tools that match, best first."""
    by_id = {tool.id: tool for tool in tools}
    recency = {tool.id: (tool.modified_at, tool.last_called_at or "") for tool in by_id.values()}
    searched = {tool.id: tool.tool for tool in by_id.values()}
    found = await gateway.searches.bundles.find(searched, query, len(by_id), recency=recency)
    return [by_id[match.key] for match in found]


class _ToolDocument(ManifestSection):
    tool: AnyToolSpec


async def _list_builtin_bundles(gateway: Gateway) -> list[BundleInfo]:
    tools = await gateway.builtins.list_tools()
    states = await gateway.switches.load_builtin_states()
    by_category: dict[str, list[Tool]] = {}
    for tool in tools:
        if tool.id in states:
            by_category.setdefault(tool.category, []).append(tool)
    bundles = []
    for name, members in by_category.items():
        category = gateway.categories[name]
        bundles.append(
            BundleInfo(
                id=names.derive_id(_BUILTIN_MOMENT, name),
                slug=_to_slug(name),
                display_name=category.title,
                description=category.description,
                is_enabled=category.enabled,
                created_at=min(states[tool.id].created_at for tool in members),
                modified_at=max(states[tool.id].modified_at for tool in members),
                category=name,
                builtins=tuple(members),
            )
        )
    return bundles


def _describe_toolset(toolset: InstalledToolset) -> BundleInfo:
    return BundleInfo(
        id=toolset.bundle_id,
        slug=toolset.spec.slug or _to_slug(toolset.id),
        display_name=toolset.spec.name,
        description=toolset.spec.description,
        is_enabled=toolset.enabled,
        created_at=toolset.installed_at,
        modified_at=toolset.updated_at,
        soft_deleted_at=toolset.deleted_at,
        toolset=toolset,
    )


def _describe_tool(
    bundle: BundleInfo,
    item: InstalledTool,
    tool: Tool,
    label: tuple[str, str],
    usage: Mapping[str, tuple[int, str]],
) -> BundleTool:
    calls, last = usage.get(item.id, (0, None))
    return BundleTool(
        id=names.derive_id(item.created_at, item.id),
        slug=label[0],
        version=label[1],
        bundle_id=bundle.id,
        tool_id=item.id,
        is_enabled=item.enabled and item.missing is None,
        is_built_in=False,
        created_at=item.created_at,
        modified_at=item.modified_at,
        call_count=calls,
        last_called_at=last,
        tool=tool,
        spec=item.spec,
    )


def _describe_builtin(
    bundle: BundleInfo, tool: Tool, states: Mapping[str, Any], usage: Mapping[str, tuple[int, str]]
) -> BundleTool:
    calls, last = usage.get(tool.id, (0, None))
    state = states[tool.id]
    return BundleTool(
        id=names.derive_id(_BUILTIN_MOMENT, tool.id),
        slug=_to_slug(tool.id),
        version=BUILTIN_VERSION,
        bundle_id=bundle.id,
        tool_id=tool.id,
        is_enabled=state.enabled,
        is_built_in=True,
        created_at=state.created_at,
        modified_at=state.modified_at,
        call_count=calls,
        last_called_at=last,
        tool=tool,
    )


def _label_tools(tools: Iterable[InstalledTool], spec: Toolset) -> dict[str, tuple[str, str]]:
    """Return slug and version of each tool by id: its own, else made of its id and the toolset's version."""
    labels: dict[str, tuple[str, str]] = {}
    taken: set[tuple[str, str]] = set()
    for item in sorted(tools, key=lambda item: item.spec.slug is None):  # those that name themselves come first
        own = item.spec
        label = (own.slug or _to_slug(own.id), own.version or spec.version.replace("+", "-"))
        if label in taken:  # a_b and a-b
            label = (f"{label[0][:55]}-{_digest(item.id)}", label[1])
        taken.add(label)
        labels[item.id] = label
    return labels


def _to_slug(name: str) -> str:
    return name.replace("_", "-")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _choose_tool_id(slug: str, version: str, taken: set[str]) -> str:
    """Return the id of a new tool: its slug, with the version beside another version of it."""
    for candidate in (slug, f"{slug}-{version.replace('.', '-')}"):
        own = names.wire_name(candidate).lstrip("_-")
        if own and own not in taken:
            return own
    return f"{names.wire_name(slug).lstrip('_-')[:55] or 'tool'}-{_digest(f'{slug} {version}')}"


def _choose_toolset_id(slug: str, bundle_id: str, taken: set[str]) -> str:
    """Return the id of a new toolset: its slug in lower case, with a digest if that is taken."""
    own = names.wire_name(slug.lower()).lower().lstrip("_-")
    if own and own not in taken and own not in RESERVED:
        return own
    return f"{own[:55] or 'bundle'}-{_digest(bundle_id)}"


def _dump(spec: Toolset) -> dict[str, Any]:
    return spec.model_dump(mode="json", exclude_defaults=True)


def _validate(values: Mapping[str, Any]) -> Toolset:
    return validate(YamlDocument("", INVALID_TOOL, dict(values)), Toolset)


async def _find_toolset(gateway: Gateway, bundle_id: str) -> InstalledToolset | None:
    """Return the toolset of a bundle, also of a soft-deleted one."""
    toolsets = await gateway.toolsets.library.list_all()
    return next((toolset for toolset in toolsets if toolset.bundle_id == bundle_id), None)


async def _open_bundle(gateway: Gateway, bundle_id: str) -> InstalledToolset:
    """Return the toolset of a bundle whose tools may change."""
    bundle = await find_bundle(gateway, bundle_id)
    if bundle.toolset is None:
        raise _immutable()
    _require_enabled(bundle)
    _check_own(gateway, bundle.toolset)
    return bundle.toolset


def _require_enabled(bundle: BundleInfo) -> None:
    if not bundle.is_enabled:
        raise Conflict(f"the bundle {bundle.slug!r} is off; turn it on first", code="BUNDLE_DISABLED")


def _require_room(gateway: Gateway) -> None:
    limit = gateway.settings.limits.tools
    if len(gateway.catalog) >= limit:
        message = (
            f"the gateway has {limit} tools, as many as limits.tools allows; turn one off first, or raise the limit"
        )
        raise Conflict(message, code="TOO_MANY_TOOLS", limit=limit)


def _check_own(gateway: Gateway, toolset: InstalledToolset) -> None:
    """Refuse to change what a folder or the settings would change back."""
    if toolset.live or _is_configured(gateway, toolset):
        where = toolset.source_ref or "its source"
        raise Conflict(f"the bundle is installed from {where}; change it there", code="BUNDLE_CONFIGURED")


def _is_configured(gateway: Gateway, toolset: InstalledToolset) -> bool:
    sources = gateway.settings.toolsets
    known = {mask_url(source) if "://" in source else str(Path(source).expanduser().resolve()) for source in sources}
    return toolset.source_ref in known or toolset.id in sources


def _unknown_bundle(bundle_id: str) -> NotFound:
    return NotFound(f"there is no bundle {bundle_id}", code="UNKNOWN_BUNDLE")


def _immutable() -> Forbidden:
    return Forbidden("the bundle is builtin: it can only be turned off and on", code="BUILTIN_IMMUTABLE")
