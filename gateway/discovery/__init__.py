"""Short lists: a few tools that find, describe and call all others, in place of a list that fills a model's context.

`search_tools` and `describe_tool` are tools like any other. `call_read`, `call_write` and `call_dangerous` are other
names for the tool that they call: permission, approval, record and result are those of that tool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import orjson

from gateway.calls import to_json
from gateway.catalog import Catalog, CatalogEntry, mcp_tool
from gateway.errors import Forbidden, GatewayError, Invalid, NotFound
from gateway.tools import Permission, Tool

KIND = "discovery"
CATEGORY = "discovery"

SEARCH_NAME, DESCRIBE_NAME, RUN_NAME = "search_tools", "describe_tool", "run_tools"

# The names under which tools are called from a short list, the harmless one first. A person who always allows one of
# them allows no tool that does more than it says.
CALLERS: Mapping[str, int] = {"call_read": 0, "call_write": 1, "call_dangerous": 2}
_CALLER_TEXTS = {
    "call_read": ("Call a reading tool", "Call a tool that only reads."),
    "call_write": ("Call a writing tool", "Call a tool that changes something and destroys nothing."),
    "call_dangerous": ("Call a dangerous tool", "Call a tool that may delete, run code or do what nobody vouches for."),
}

# Clients that load definitions of tools themselves when they need them, by the beginning of their name.
DEFERRING_CLIENTS = ("claude-code", "visual studio code", "vscode")
# A list up to this size is given whole in the mode `auto`.
AUTO_TOOLS, AUTO_TOKENS = 40, 10_000

# Characters of a description: some clients cut longer ones.
DESCRIPTION_LIMIT = 2048
# Characters of the description of a server in that of `search_tools`.
_ABOUT_LIMIT = 90
_LEAST_ABOUT = 16


def count_tokens(value: Any) -> int:
    """Return about how many tokens a value takes as JSON: four bytes are one."""
    return (len(to_json(value)) + 3) // 4


def argument_names(schema: Mapping[str, Any]) -> list[str]:
    """Return the names of a tool's arguments, the required ones first."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, Mapping):
        return []
    needed = [name for name in properties if isinstance(required, list) and name in required]
    return [*needed, *(name for name in properties if name not in needed)]


def caller_of_tool(tool: Tool) -> str:
    """Return the name by which a tool is called from a short list. It follows from the level that the operator gave the
    tool, not from what an untrusted server says of it."""
    if tool.destructive or tool.permission is Permission.EXECUTE:
        return "call_dangerous"
    return "call_read" if tool.permission is Permission.READ_ONLY else "call_write"


def find_entry(catalog: Catalog, name: str) -> CatalogEntry | None:
    """Return the entry of a name that a model wrote; None if there is none. A tool that only views may call is refused
    like one that does not exist."""
    entry = catalog.get(name)
    if entry is not None and entry.tool.app_only:
        raise NotFound(f"no tool is named {name!r}; {SEARCH_NAME} finds tools by what they do", code="UNKNOWN_TOOL")
    return entry


def is_caller(catalog: Catalog, name: str) -> bool:
    """Return whether a name of `CALLERS` calls other tools here; else no tool has it."""
    return catalog.lists.mode != "full" and not catalog.denies(name)


def redirect(
    catalog: Catalog, caller: str, given: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any], GatewayError | None]:
    """Return the name and the arguments of the call that `call_read`, `call_write` or `call_dangerous` stands for, and
    why it is refused. A name that the catalog does not have is left to the executor."""
    name, arguments = given.get("tool"), given.get("arguments")
    if not isinstance(name, str):
        return caller, given, Invalid(f"{caller}: 'tool' is required: a name that {SEARCH_NAME} returned")
    if isinstance(arguments, str):  # clients that allow no open objects send JSON
        try:
            arguments = orjson.loads(arguments or "{}")
        except ValueError as error:
            return name, {}, Invalid(f"{caller}: 'arguments' of {name} is no JSON: {error}", code="INVALID_JSON")
    elif arguments is None:  # or the arguments stand beside the name
        arguments = {key: value for key, value in given.items() if key not in ("tool", "arguments")}
    if not isinstance(arguments, dict):
        return name, {}, Invalid(f"{caller}: 'arguments' of {name} must be an object")
    try:
        entry = find_entry(catalog, name)
    except NotFound as unknown:
        return name, arguments, unknown
    if entry is not None:
        needed = caller_of_tool(entry.tool)
        if CALLERS[caller] < CALLERS[needed]:
            reason = f"{entry.name} may do more than {caller} allows; call it with {needed}"
            return name, arguments, Forbidden(reason, code="WRONG_CALLER", caller=needed)
    return name, arguments, None


def is_deferring(client: str | None) -> bool:
    """Return whether a client loads the definitions of tools when it needs them."""
    return client is not None and client.lower().startswith(DEFERRING_CLIENTS)


def shorten(tool: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """Return a listed tool without what the list of a catalog leaves out."""
    limit = catalog.lists.description_limit
    if not catalog.output_schemas:
        tool = {key: tool[key] for key in tool if key != "outputSchema"}
    if limit is not None and len(tool.get("description", "")) > limit:
        tool = {**tool, "description": _cut_text(tool["description"], limit)}
    return tool


def short_list(catalog: Catalog) -> list[dict[str, Any]]:
    """Return the list of a catalog in search or code mode: the tools of discovery, then those with a view of their own
    and those that are pinned."""
    own = [mcp_tool(entry.name, entry.tool) for entry in catalog.offered_discovery]
    for tool in own:
        if tool["name"] == SEARCH_NAME:
            tool["description"] = _describe_servers(tool["description"], catalog)
        elif tool["name"] == RUN_NAME:
            tool["annotations"] = _annotations(2, catalog)
    needed = {caller_of_tool(entry.tool) for entry in catalog.for_models}
    callers = [_caller_shape(name, catalog) for name in CALLERS if name in needed and not catalog.denies(name)]
    kept = [entry for entry in catalog if _stays(entry, catalog.lists.pinned)]
    kept.sort(key=lambda entry: (entry.rank, entry.name))
    return [*own, *callers, *(shorten(mcp_tool(entry.name, entry.tool), catalog) for entry in kept)]


def _stays(entry: CatalogEntry, pinned: Sequence[str]) -> bool:
    """Return whether a tool stays in a short list. Clients show a view only for a tool that they list."""
    tool = entry.tool
    if tool.renderer is not None or "ui" in tool.meta or "ui/resourceUri" in tool.meta:
        return True
    return any(fnmatchcase(text, pattern) for pattern in pinned for text in (entry.name, tool.id))


def _caller_shape(name: str, catalog: Catalog) -> dict[str, Any]:
    title, description = _CALLER_TEXTS[name]
    properties = {
        "tool": {"type": "string", "description": f"A name that {SEARCH_NAME} returned"},
        "arguments": {
            "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "string"}],
            "description": "The tool's arguments: an object, or one as JSON text",
        },
    }
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties, "required": ["tool"]},
        "annotations": _annotations(CALLERS[name], catalog),
    }


def _annotations(danger: int, catalog: Catalog) -> dict[str, bool]:
    """Return the hints of a tool that calls others: those of the most dangerous one that it may call."""
    tools = [entry.tool for entry in catalog.for_models if CALLERS[caller_of_tool(entry.tool)] <= danger]
    highest = max((CALLERS[caller_of_tool(tool)] for tool in tools), default=0)
    return {
        "readOnlyHint": highest == 0,
        "destructiveHint": highest == 2,
        "idempotentHint": highest == 0,
        "openWorldHint": any(tool.open_world for tool in tools),
    }


def _describe_servers(text: str, catalog: Catalog) -> str:
    """Return the description of `search_tools`: what is behind it, as far as a description may be long."""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in catalog.for_models:
        tool = entry.tool
        group = ("", tool.owner) if tool.owner else ("builtin ", tool.category)
        groups.setdefault(group, []).append(tool.id.partition(":")[2] or tool.id)
    heads = [f"{kind}{name} ({len(tools)})" for (kind, name), tools in groups.items()]
    begin = f"{text}\n{len(catalog.for_models)} tools are here, by what they belong to:"
    room = DESCRIPTION_LIMIT - len(begin) - sum(len(head) + 2 for head in heads)
    share = min(_ABOUT_LIMIT, room // max(1, len(heads)) - 2)
    if share >= _LEAST_ABOUT:
        abouts = [_cut(catalog.about.get(name) or ", ".join(tools), share) for (_, name), tools in groups.items()]
        return "\n".join([begin, *(f"{head}: {about}" for head, about in zip(heads, abouts, strict=True))])
    return _cut(f"{begin} {', '.join(heads)}", DESCRIPTION_LIMIT)


def _cut(text: str, limit: int) -> str:
    """Return the beginning of a text on one line."""
    return _cut_text(" ".join(text[: 4 * limit].split()), limit)


def _cut_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
