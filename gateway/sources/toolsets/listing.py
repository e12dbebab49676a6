"""Builds catalog tools from an installed toolset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gateway.bundles import BuiltinTool, HttpTool, ShellTool, StepsTool, ToolSpec
from gateway.bundles.field_types import references
from gateway.bundles.installed import InstalledTool, InstalledToolset
from gateway.errors import Invalid
from gateway.render import declare
from gateway.tools import Access, ConfirmationRule, Permission, Renderer, RetryPolicy, Tool, inline_references

# Default category.
CATEGORY = "toolsets"

# Mount points of the chat's files and the toolset's own in the sandbox.
WORKSPACE, HOME = "/workspace", "/toolset"


def build_tools(toolset: InstalledToolset, builtins: Mapping[str, Tool]) -> Iterator[Tool]:
    """Yield every tool of the toolset; one that cannot be called has the reason in `withheld`. `builtins` are those of
    the gateway, by id."""
    for item in toolset.tools:
        if isinstance(item.spec, BuiltinTool) and item.spec.tool in builtins:
            yield _build_alias(toolset, item, builtins[item.spec.tool])
        else:
            yield _build_tool(toolset, item)


def _build_alias(toolset: InstalledToolset, item: InstalledTool, builtin: Tool) -> Tool:
    """Return a builtin as a tool of the toolset. A person may decide whether it asks; the toolset can only add a
    question."""
    asks: bool | ConfirmationRule = builtin.requires_confirmation
    if item.confirmation_override is not None or item.requires_confirmation:
        asks = item.requires_confirmation
    return replace(
        builtin,
        id=item.id,
        alias_of=builtin.id,
        description=item.description or builtin.description,
        input_schema=item.get_field("input_schema") or builtin.input_schema,
        owner=toolset.id,
        title=item.override.name_override or item.get_field("name") or builtin.title,
        requires_confirmation=asks,
        tags=tuple(item.get_field("tags", ())),
        prefix=toolset.spec.prefix,
        calls_per_minute=item.spec.calls_per_minute,
        renderer=_build_renderer(item),
        home=toolset.directory,
        withheld=_reason_withheld(toolset, item, known_builtin=True) or builtin.withheld,
        retry=_build_retry(item.spec, builtin.idempotent or builtin.permission is Permission.READ_ONLY),
    )


def _build_tool(toolset: InstalledToolset, item: InstalledTool) -> Tool:
    field, spec = item.get_field, toolset.spec
    permission = Permission(field("permission") or spec.permission or _default_permission(item.spec))
    idempotent = bool(field("idempotent", isinstance(item.spec, HttpTool) and item.spec.is_idempotent))
    advisory = isinstance(item.spec, HttpTool) and item.spec.response.schema_check == "advisory"
    return Tool(
        id=item.id,
        description=item.description,
        input_schema=_build_input_schema(item),
        output_schema=None if advisory else field("output_schema"),
        kind=item.spec.type,  # type: ignore[attr-defined]  # each kind of tool has one
        owner=toolset.id,
        title=item.name,
        category=field("category") or spec.category or CATEGORY,
        permission=permission,
        access=_access(item),
        requires_confirmation=item.requires_confirmation,
        destructive=bool(field("destructive", isinstance(item.spec, HttpTool) and item.spec.method == "DELETE")),
        idempotent=idempotent,
        open_world=bool(field("open_world", isinstance(item.spec, HttpTool))),
        tags=tuple(field("tags", ())),
        prefix=spec.prefix,
        timeout=field("timeout"),
        calls_per_minute=item.spec.calls_per_minute,
        renderer=_build_renderer(item),
        home=toolset.directory,
        withheld=_reason_withheld(toolset, item),
        retry=_build_retry(item.spec, idempotent or permission is Permission.READ_ONLY),
    )


def _default_permission(spec: ToolSpec) -> Permission:
    reads = isinstance(spec, HttpTool) and spec.method in ("GET", "HEAD", "OPTIONS") and spec.response.output != "file"
    return Permission.READ_ONLY if reads else Permission.READ_WRITE


def _access(item: InstalledTool) -> Access:
    """Return the use a tool makes of the workspace. The steps of a tool, and an HTTP tool that saves a file, take the
    files for themselves when they need them."""
    if isinstance(item.spec, HttpTool):
        return Access.READ if item.spec.reads_files else Access.NONE
    return Access.NONE if isinstance(item.spec, StepsTool) else Access(item.get_field("access") or Access.WRITE)


def _build_retry(spec: ToolSpec, is_harmless: bool) -> RetryPolicy | None:
    """Return the policy that a tool declares; by default an idempotent HTTP request is sent up to three times."""
    declared = spec.retry
    if declared is None:
        if not isinstance(spec, HttpTool) or not is_harmless or spec.retries == 0:
            return None
        return RetryPolicy(1 + (2 if spec.retries is None else spec.retries))
    return declared.policy(is_harmless)


def _build_input_schema(item: InstalledTool) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = item.get_field("input_schema") or {}
    if schema or not isinstance(item.spec, ShellTool | HttpTool):
        return inline_references({"type": "object", **schema})
    placeholders = list(item.spec.placeholders())
    names = sorted({name for _, name in placeholders if not name.isupper()})
    if isinstance(item.spec, HttpTool):  # what is missing is left out of the request, but for its path
        required = {name for name in references(item.spec.url_template.partition("?")[0]) if not name.isupper()}
        return {"type": "object", "properties": {name: {} for name in names}, "required": sorted(required)}
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}, "required": names}


def _build_renderer(item: InstalledTool) -> Renderer | None:
    if item.override.renderer is None:
        return None
    try:
        return declare(item.override.renderer, item.override.renderer_config or {})
    except Invalid:  # checked at install, but a person's override may be older than the renderers
        return None


def _reason_withheld(toolset: InstalledToolset, item: InstalledTool, known_builtin: bool = False) -> str | None:
    if not toolset.enabled:
        return f"the toolset {toolset.id!r} is off; turn it on with: toolgate toolset enable {toolset.id}"
    if item.missing is not None:
        return f"{item.missing}; it comes back when the toolset has it again"
    if not item.enabled:
        return f"it is turned off; turn it on with: toolgate toolset override {item.id} --enable"
    if isinstance(item.spec, BuiltinTool):
        return None if known_builtin else f"the gateway has no builtin tool {item.spec.tool!r}"
    return None
