"""Convert the tools an upstream lists into tools of the catalog, under the operator's terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.errors import GatewayError, Invalid
from gateway.mcp_client.http_headers import find_invalid_header
from gateway.names import did_you_mean
from gateway.render import declare
from gateway.sources.upstreams.definitions import Kind, define, name_of
from gateway.sources.upstreams.pinning import Verdict
from gateway.tools import Permission, Renderer, Tool
from gateway.value import Value

if TYPE_CHECKING:  # a process without toolsets imports none of it
    from gateway.bundles import ToolOverride

KIND = "mcp"

_UNLISTED = ("name", "execution")
# The code of a problem that a person solves with `toolgate upstream review`.
HELD = "HELD"

_ANNOTATION_TYPES: Mapping[str, type] = {
    "readOnlyHint": bool,
    "destructiveHint": bool,
    "idempotentHint": bool,
    "openWorldHint": bool,
    "title": str,
}
# The types clients require. Some refuse the whole list for one definition with another type.
_FIELD_TYPES: Mapping[str, type] = {
    "description": str,
    "title": str,
    "inputSchema": dict,
    "outputSchema": dict,
    "annotations": dict,
    "icons": list,
    "_meta": dict,
}


class Override(Value):
    """The operator's changes to one tool; None keeps the server's value. `name` is the title it is shown under."""

    name: str | None = None
    description: str | None = None
    requires_confirmation: bool | None = None
    category: str | None = None
    renderer: str | None = None
    renderer_config: Mapping[str, Any] | None = None
    enabled: bool | None = None

    @classmethod
    def of(cls, override: ToolOverride) -> Override:
        return cls(
            name=override.name_override,
            description=override.description_override,
            requires_confirmation=override.requires_confirmation,
            renderer=override.renderer,
            renderer_config=override.renderer_config,
            enabled=override.enabled,
        )


class Terms(Value):
    """The operator's terms for a server's tools.

    `permission` is the level its tools need. Without it, the annotations of a `trusted` server decide, and tools of any
    other server need the highest. `allow` and `deny` are patterns over the server's own names, `*` matching anything;
    without `allow` all are allowed, and `deny` wins. `overrides` are by the server's own name; `home` is the folder of
    their renderers' artifacts.
    """

    server: str
    prefix: str | None = None
    category: str = "upstream"
    permission: Permission | None = None
    trusted: bool = False
    requires_confirmation: bool | None = None
    timeout: float | None = None
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    home: Path | None = None


class Listing(Value):
    """The tools, including withheld ones, and the problems an operator should fix."""

    tools: tuple[Tool, ...] = ()
    problems: tuple[GatewayError, ...] = ()


def list_tools(terms: Terms, raw: Iterable[Any], verdict: Verdict) -> Listing:
    """Convert what a server lists. Only definitions that the verdict offers, word for word, are offered; the others,
    and tools the server no longer lists, are withheld with a reason.

    A definition without a name is reported and left out; of two with the same name, the first counts. A tool whose
    schema cannot be compiled is offered: its server checks the arguments.
    """
    tools: dict[str, Tool] = {}
    problems: list[GatewayError] = []
    held = 0
    for definition in raw:
        try:
            name = name_of(Kind.TOOL, definition)
            if (tool_id := f"{terms.server}:{name}") in tools:
                raise Invalid(f"two tools are named {name!r}; the first is used", code="DUPLICATE_TOOL")
        except Invalid as problem:
            problems.append(Invalid(f"{terms.server}: {problem.message}", code=problem.code))
            continue
        try:
            tools[tool_id] = _make_tool(terms, name, definition)
        except Invalid as problem:
            tools[tool_id] = replace(_bare_tool(terms, name), withheld=problem.message)
            problems.append(Invalid(f"{tool_id} is left out: {problem.message}", code=problem.code))
        if reason := _disabled_reason(terms, name) or tools[tool_id].withheld:
            tools[tool_id] = replace(tools[tool_id], withheld=reason)
        elif reason := _pin_reason(terms, verdict, definition):
            tools[tool_id] = replace(tools[tool_id], withheld=reason)
            held += 1
        else:
            tools[tool_id], faults = _compile(tools[tool_id])
            problems += faults
    for name, reason in verdict.reasons_withheld(Kind.TOOL).items():
        tools.setdefault(f"{terms.server}:{name}", replace(_bare_tool(terms, name), withheld=reason))
    if held:
        advice = f"until they are accepted; look at them with: toolgate upstream review {terms.server}"
        problems.append(Invalid(f"{terms.server}: {held} tools are left out {advice}", code=HELD))
    return Listing(tuple(tools.values()), (*problems, *_find_mistakes(terms, tools)))


def wire_of(raw: Mapping[str, Any], override: Override | None = None) -> dict[str, Any]:
    """A tool's definition as the server sent it, unknown keys included, without its name and with the operator's
    overrides. `execution`, which tells how to run it as a task, is removed: tasks are not relayed. Null values are
    removed and a schema without a type gets `object`: clients refuse a whole list for these. Refused when a type is not
    what MCP requires."""
    wire = {key: value for key, value in raw.items() if value is not None and key not in _UNLISTED}
    _check_types(wire, _FIELD_TYPES, "")
    if "annotations" in wire:
        wire["annotations"] = {key: value for key, value in wire["annotations"].items() if value is not None}
        _check_types(wire["annotations"], _ANNOTATION_TYPES, "annotations.")
    if "inputSchema" not in wire:
        raise Invalid("the server lists it without an input schema", code="INVALID_DEFINITION")
    wire["inputSchema"] = {"type": "object", **wire["inputSchema"]}
    if wire["inputSchema"]["type"] != "object":
        raise Invalid("its input schema is not that of an object", code="INVALID_SCHEMA")
    if override is not None and override.name is not None:
        wire["title"] = override.name
    if override is not None and override.description is not None:
        wire["description"] = override.description
    return wire


def is_allowed(name: str, allow: Iterable[str], deny: Iterable[str]) -> bool:
    """Return whether a filter allows a name; `deny` wins."""
    allowed = list(allow)
    return (not allowed or any(_matches(name, pattern) for pattern in allowed)) and not any(
        _matches(name, pattern) for pattern in deny
    )


def _make_tool(terms: Terms, name: str, raw: Mapping[str, Any]) -> Tool:
    define(Kind.TOOL, raw)  # refuses what is too large or nested too deep
    override = terms.overrides.get(name, Override())
    wire = wire_of(raw, override)
    hints = wire.get("annotations", {})
    read_only = bool(hints.get("readOnlyHint"))
    confirmation = (
        terms.requires_confirmation if override.requires_confirmation is None else override.requires_confirmation
    )
    tool = replace(
        _bare_tool(terms, name),
        description=wire.get("description", ""),
        input_schema=wire["inputSchema"],
        output_schema=wire.get("outputSchema"),
        title=wire.get("title") or hints.get("title"),
        permission=_permission(terms, hints),
        # A server's reassurances are not believed, its warnings are: a person is asked unless the operator decides.
        requires_confirmation=hints.get("destructiveHint") is True if confirmation is None else confirmation,
        destructive=bool(hints.get("destructiveHint", not read_only)),  # true by default in MCP
        idempotent=bool(hints.get("idempotentHint", read_only)),
        open_world=bool(hints.get("openWorldHint", True)),
        renderer=_renderer(override),
        wire=wire,
        meta=wire.get("_meta", {}),
    )
    if fault := find_invalid_header(tool.input_schema):
        raise Invalid(f"its input schema has a header clients must refuse: {fault}", code="INVALID_SCHEMA")
    return tool


def _compile(tool: Tool) -> tuple[Tool, list[Invalid]]:
    """The tool with its schemas compiled, and the schemas that cannot be. An output schema that cannot be is removed:
    clients that compile those of a whole list fail for one."""
    faults: list[Invalid] = []
    if tool.schema_problem is not None:
        message = f"{tool.schema_problem.message}; its arguments are sent unchecked"
        faults.append(Invalid(message, code="UNCHECKED_SCHEMA"))
    try:
        tool.compile()
    except Invalid as problem:
        wire = {key: value for key, value in (tool.wire or {}).items() if key != "outputSchema"}
        tool = replace(tool, output_schema=None, wire=wire)
        faults.append(Invalid(f"{problem.message}; it is listed without", code="UNCHECKED_SCHEMA"))
    return tool, faults


def _bare_tool(terms: Terms, name: str) -> Tool:
    """The tool without its definition."""
    override = terms.overrides.get(name, Override())
    return Tool(
        id=f"{terms.server}:{name}",
        description="",
        kind=KIND,
        owner=terms.server,
        category=override.category or terms.category,
        prefix=terms.prefix,
        timeout=terms.timeout,
        home=terms.home,
    )


def _permission(terms: Terms, hints: Mapping[str, Any]) -> Permission:
    """The level a tool needs. Annotations count only when the operator trusts the server. No annotation says that a
    tool runs no code, so a destructive tool counts as running code."""
    if terms.permission is not None:
        return terms.permission
    if not terms.trusted:
        return Permission.EXECUTE
    if hints.get("readOnlyHint"):
        return Permission.READ_ONLY
    return Permission.READ_WRITE if hints.get("destructiveHint") is False else Permission.EXECUTE


def _renderer(override: Override) -> Renderer | None:
    if override.renderer is None:
        return None
    try:
        return declare(override.renderer, override.renderer_config or {})
    except Invalid:  # reported by `_find_mistakes`; the tool works without its renderer
        return None


def _disabled_reason(terms: Terms, name: str) -> str | None:
    if terms.overrides.get(name, Override()).enabled is False:
        return "it is turned off by an override"
    if not is_allowed(name, terms.allow, terms.deny):
        return f"the filter of {terms.server!r} excludes it (its tools.allow and tools.deny)"
    return None


def _pin_reason(terms: Terms, verdict: Verdict, raw: Any) -> str | None:
    """The reason why a definition is not offered: it was not accepted, or another of the same name was."""
    definition = define(Kind.TOOL, raw)
    decision = verdict.decisions.get(definition.key)
    if decision is None or decision.definition.text != definition.text:
        return f"its definition was not checked; check it with: toolgate upstream test {terms.server}"
    return decision.reason


def _check_types(value: Mapping[str, Any], types: Mapping[str, type], prefix: str) -> None:
    for key, kind in types.items():
        if not isinstance(value.get(key, kind()), kind):
            raise Invalid(f"the server lists it with a {prefix + key!r} of the wrong type", code="INVALID_DEFINITION")


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern with `*` wildcards matches the name, in time linear in the name."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    position = len(first)
    for part in rest[:-1]:
        position = name.find(part, position) + len(part)
        if position < len(part):
            return False
    return name.endswith(rest[-1]) and len(name) - len(rest[-1]) >= position


def _find_mistakes(terms: Terms, tools: Iterable[str]) -> Iterator[GatewayError]:
    """Mistakes in the terms. A filter that matches nothing is probably misspelt, and allows what it should exclude."""
    names = [tool_id.removeprefix(f"{terms.server}:") for tool_id in tools]
    for key, patterns in (("allow", terms.allow), ("deny", terms.deny)):
        for pattern in patterns:
            if names and not any(_matches(name, pattern) for name in names):
                message = (
                    f"{terms.server}: tools.{key} {pattern!r} matches none of its tools{did_you_mean(pattern, names)}"
                )
                place = ("mcpServers", terms.server, "tools", key)
                yield Invalid(message, code="NO_SUCH_TOOL", place=place)
    for name, override in terms.overrides.items():
        try:
            if override.renderer is not None:
                declare(override.renderer, override.renderer_config or {})
        except Invalid as problem:
            yield Invalid(f"{terms.server}:{name}: {problem.message}", code=problem.code)
