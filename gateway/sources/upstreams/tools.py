"""An upstream's tools as the catalog lists them: its own words, under our terms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.errors import GatewayError, Invalid
from gateway.mcp_client.http_headers import find_invalid_header
from gateway.names import did_you_mean
from gateway.render import declare
from gateway.sources.upstreams.definitions import Kind, define, name_of
from gateway.sources.upstreams.pinning import Verdict
from gateway.tools import Permission, Renderer, Tool

if TYPE_CHECKING:  # a process without toolsets imports none of it
    from gateway.bundles import ToolOverride

KIND = "mcp"

_ANNOTATIONS: Mapping[str, type] = {
    "readOnlyHint": bool,
    "destructiveHint": bool,
    "idempotentHint": bool,
    "openWorldHint": bool,
    "title": str,
}
# What clients take. One definition of another shape makes some of them refuse the whole list.
_SHAPE: Mapping[str, type] = {
    "description": str,
    "title": str,
    "inputSchema": dict,
    "outputSchema": dict,
    "annotations": dict,
    "icons": list,
    "_meta": dict,
}


@dataclass(frozen=True)
class Override:
    """What the operator changes about one tool; None leaves it as it is. `name` is the title it is shown under."""

    name: str | None = None
    description: str | None = None
    requires_confirmation: bool | None = None
    category: str | None = None
    renderer: str | None = None
    renderer_config: Mapping[str, Any] | None = None
    enabled: bool | None = None

    @classmethod
    def of(cls, said: ToolOverride) -> Override:
        return cls(
            name=said.name_override,
            description=said.description_override,
            requires_confirmation=said.requires_confirmation,
            renderer=said.renderer,
            renderer_config=said.renderer_config,
            enabled=said.enabled,
        )


@dataclass(frozen=True)
class Terms:
    """On which terms a server's tools are offered.

    `permission` is the level its tools need, where the operator says so; else a `trusted` server's annotations
    say it, and any other's tools need the highest. `allow` and `deny` take the server's own names, `*` standing
    for anything; without `allow` all are allowed, and `deny` has the last word. `overrides` are by own name,
    and `home` is where the artifacts of their renderers are.
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


@dataclass(frozen=True)
class Listing:
    """The tools, those that are withheld among them, and what an operator should mend."""

    tools: tuple[Tool, ...] = ()
    problems: tuple[GatewayError, ...] = ()

    @property
    def wires(self) -> dict[str, Mapping[str, Any]]:
        """What each tool is on the wire, by its id."""
        return {tool.id: tool.wire for tool in self.tools if tool.wire is not None}


def list_tools(terms: Terms, raw: Iterable[Any], verdict: Verdict) -> Listing:
    """What a server lists, as tools. Only a definition the verdict offers, word for word, is offered; each of
    the others says why it is withheld, and so does a tool the server no longer lists.

    What has no name is left out and reported; of two with one name, the first counts.
    """
    tools: dict[str, Tool] = {}
    problems: list[GatewayError] = []
    for one in raw:
        try:
            name = name_of(Kind.TOOL, one)
            if (tool_id := f"{terms.server}:{name}") in tools:
                raise Invalid(f"it lists two tools named {name!r}; the first counts", code="DUPLICATE_TOOL")
        except Invalid as problem:
            problems.append(Invalid(f"{terms.server}: {problem.message}", code=problem.code))
            continue
        try:
            tools[tool_id] = _tool(terms, name, one)
        except Invalid as problem:
            tools[tool_id] = replace(_unlisted(terms, name), withheld=problem.message)
            problems.append(Invalid(f"{tool_id}: {problem.message}", code=problem.code))
        if reason := _switched_off(terms, name) or tools[tool_id].withheld or _unpinned(terms, verdict, one):
            tools[tool_id] = replace(tools[tool_id], withheld=reason)
    for name, reason in verdict.withheld(Kind.TOOL).items():
        tools.setdefault(f"{terms.server}:{name}", replace(_unlisted(terms, name), withheld=reason))
    return Listing(tuple(tools.values()), (*problems, *_mistakes(terms, tools)))


def wire_of(raw: Mapping[str, Any], override: Override | None = None) -> dict[str, Any]:
    """A tool's definition as the server gave it, unknown keys included, but without its name, and with the
    operator's words in place of its own. Keys without a value go, and a schema without a type gets the only
    one there is: clients refuse a whole list for these. Refused when the shape is not MCP's."""
    wire = {key: value for key, value in raw.items() if value is not None and key != "name"}
    _check_shape(wire, _SHAPE, "")
    if "annotations" in wire:
        wire["annotations"] = {key: value for key, value in wire["annotations"].items() if value is not None}
        _check_shape(wire["annotations"], _ANNOTATIONS, "annotations.")
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
    """Whether a filter lets a name through; a denial has the last word."""
    allowed = list(allow)
    return (not allowed or any(_fits(name, each) for each in allowed)) and not any(_fits(name, each) for each in deny)


def _tool(terms: Terms, name: str, raw: Mapping[str, Any]) -> Tool:
    override = terms.overrides.get(name, Override())
    wire = wire_of(raw, override)
    hints = wire.get("annotations", {})
    read_only = bool(hints.get("readOnlyHint"))
    said = terms.requires_confirmation if override.requires_confirmation is None else override.requires_confirmation
    tool = replace(
        _unlisted(terms, name),
        description=wire.get("description", ""),
        input_schema=wire["inputSchema"],
        output_schema=wire.get("outputSchema"),
        title=wire.get("title") or hints.get("title"),
        permission=_permission(terms, hints),
        # Nobody need believe a server's reassurances, but its warnings: those a person hears, unless you say otherwise.
        requires_confirmation=hints.get("destructiveHint") is True if said is None else said,
        destructive=bool(hints.get("destructiveHint", not read_only)),  # what is not said, MCP takes for true
        idempotent=bool(hints.get("idempotentHint", False)),
        open_world=bool(hints.get("openWorldHint", True)),
        renderer=_renderer(override),
        wire=wire,
        meta=wire.get("_meta", {}),
    )
    if fault := find_invalid_header(tool.input_schema):
        raise Invalid(f"its input schema has a header clients must refuse: {fault}", code="INVALID_SCHEMA")
    tool.compile()
    return tool


def _unlisted(terms: Terms, name: str) -> Tool:
    """What is known of a tool before its definition is read."""
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
    """Annotations are a server's own word: they count when the operator trusts it, and only as far as they say
    something. No annotation says that a tool runs no code, so what may destroy counts as running it."""
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
    except Invalid:  # among the mistakes; the tool does its work without being shown
        return None


def _switched_off(terms: Terms, name: str) -> str | None:
    if terms.overrides.get(name, Override()).enabled is False:
        return "it is turned off by an override"
    if not is_allowed(name, terms.allow, terms.deny):
        return f"the filter of {terms.server!r} leaves it out (its tools.allow and tools.deny)"
    return None


def _unpinned(terms: Terms, verdict: Verdict, raw: Any) -> str | None:
    """Why the definition is not offered: nobody accepted it, or another of the same name is what was accepted."""
    try:
        definition = define(Kind.TOOL, raw)
    except Invalid as problem:
        return problem.message
    decision = verdict.decisions.get(definition.key)
    if decision is None or decision.definition.text != definition.text:
        return f"its definition was not looked at; ask the server again with: toolgate upstream test {terms.server}"
    return decision.reason


def _check_shape(said: Mapping[str, Any], shape: Mapping[str, type], where: str) -> None:
    for key, kind in shape.items():
        if not isinstance(said.get(key, kind()), kind):
            raise Invalid(f"the server lists it with a {where + key!r} of the wrong type", code="INVALID_DEFINITION")


def _fits(name: str, pattern: str) -> bool:
    """Whether `pattern`, in which `*` stands for anything, is the name; in time linear in the name."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    place = len(first)
    for part in rest[:-1]:
        place = name.find(part, place) + len(part)
        if place < len(part):
            return False
    return name.endswith(rest[-1]) and len(name) - len(rest[-1]) >= place


def _mistakes(terms: Terms, tools: Iterable[str]) -> Iterator[GatewayError]:
    """What the terms say in vain. A filter that fits nothing is likely misspelt, and leaves open what it was
    meant to close."""
    names = [tool_id.removeprefix(f"{terms.server}:") for tool_id in tools]
    for key, patterns in (("allow", terms.allow), ("deny", terms.deny)):
        for pattern in patterns:
            if names and not any(_fits(name, pattern) for name in names):
                message = (
                    f"{terms.server}: tools.{key} {pattern!r} fits none of its tools{did_you_mean(pattern, names)}"
                )
                yield Invalid(message, code="NO_SUCH_TOOL")
    for name, override in terms.overrides.items():
        try:
            if override.renderer is not None:
                declare(override.renderer, override.renderer_config or {})
        except Invalid as problem:
            yield Invalid(f"{terms.server}:{name}: {problem.message}", code=problem.code)
