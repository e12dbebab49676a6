"""The source of the tools of short lists: `search_tools`, `describe_tool` and, where programs can run, `run_tools`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.calls import Call, Outcome, text_content
from gateway.catalog import Catalog, CatalogEntry, mcp_tool
from gateway.discovery import (
    CATEGORY,
    DESCRIBE_NAME,
    KIND,
    RUN_NAME,
    SEARCH_NAME,
    argument_names,
    caller_of_tool,
    count_tokens,
    find_entry,
)
from gateway.discovery.programs import RUN_TOOLS, ProgramRunner
from gateway.sandbox.monty import is_installed
from gateway.search import CatalogSearch
from gateway.sources.steps import CallStep
from gateway.tools import Permission, Tool

# Tokens of an answer of `search_tools`.
ANSWER_TOKENS = 1150
_RESULTS, _MOST_RESULTS = 8, 20
# Characters of the description and of the signature of a tool in an answer.
_SUMMARY, _SIGNATURE = 160, 200
# Fields of a tool's result in an answer.
_FIELDS = 12

SEARCH_TOOLS = Tool(
    SEARCH_NAME,
    "Find tools by what you want to do, in a few words or a sentence. Each line of the answer has a tool's name and "
    f"arguments (optional ones with ?), what calls it, and what it does. {DESCRIBE_NAME} has the details.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "description": "What you want to do"},
            "limit": {"type": "integer", "minimum": 1, "maximum": _MOST_RESULTS, "default": _RESULTS},
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    kind=KIND,
    title="Search tools",
    category=CATEGORY,
    permission=Permission.READ_ONLY,
    is_tool=False,
)
DESCRIBE_TOOL = Tool(
    DESCRIBE_NAME,
    "Get the whole description of a tool and the schema of its arguments.",
    {
        "type": "object",
        "properties": {"name": {"type": "string", "description": f"A name that {SEARCH_NAME} returned"}},
        "required": ["name"],
        "additionalProperties": False,
    },
    kind=KIND,
    title="Describe a tool",
    category=CATEGORY,
    permission=Permission.READ_ONLY,
    is_tool=False,
)


class DiscoverySource:
    """Tools that find and run the tools of a catalog, each within what its caller may see. `get_catalog` returns the
    catalog of the gateway, `programs` runs programs; None where nothing can run them."""

    name = "discovery"

    def __init__(
        self, get_catalog: Callable[[], Catalog], search: CatalogSearch, programs: ProgramRunner | None
    ) -> None:
        self._get_catalog = get_catalog
        self._search = search
        self._programs = programs

    async def list_tools(self) -> Sequence[Tool]:
        return [SEARCH_TOOLS, DESCRIBE_TOOL, *([] if self._programs is None else [RUN_TOOLS])]

    async def call_tool(self, call: Call) -> Outcome:
        whole = self._get_catalog()
        catalog = whole.for_principal(call.caller.access)
        if call.target.id == RUN_NAME and self._programs is not None:
            return await self._programs.run(call, catalog)
        if call.target.id == DESCRIBE_NAME:
            name = call.arguments["name"]
            return Outcome(describe(find_entry(catalog, name) or catalog.find(name), catalog.output_schemas))
        query, limit = call.arguments["query"], int(call.arguments.get("limit", _RESULTS))
        found = await self._search.find(whole, query, limit, catalog)
        programs = catalog.lists.mode == "code"
        lines = [summarize(entry, programs) for _, entry in found if not entry.tool.app_only]
        return _answer(lines, len(catalog.for_models))

    async def close(self) -> None:
        if self._programs is not None:
            await self._programs.close()


def make_discovery(
    get_catalog: Callable[[], Catalog], search: CatalogSearch, call_step: CallStep, seconds: float
) -> DiscoverySource:
    """Make the source; programs can run where Monty is installed, each for so many seconds."""
    programs = ProgramRunner(call_step, seconds) if is_installed() else None
    return DiscoverySource(get_catalog, search, programs)


def describe(entry: CatalogEntry, output_schemas: bool) -> dict[str, Any]:
    """Return the definition of a tool, and the name by which it is called."""
    shape = mcp_tool(entry.name, entry.tool)
    kept = ("name", "title", "description", "inputSchema", *(("outputSchema",) if output_schemas else ()))
    return {**{key: shape[key] for key in kept if key in shape}, "call": caller_of_tool(entry.tool)}


def summarize(entry: CatalogEntry, programs: bool = False) -> str:
    """Return a tool on one line: how it is called, for programs also the fields of its result, and what it does."""
    text = " ".join(entry.tool.description[: 4 * _SUMMARY].split()) or entry.tool.title or ""
    text = text if len(text) <= _SUMMARY else f"{text[: _SUMMARY - 1]}…"
    fields = argument_names(entry.tool.output_schema or {}) if programs else []
    result = f" -> {{{', '.join(fields[:_FIELDS])}{', …' if len(fields) > _FIELDS else ''}}}" if fields else ""
    return f"{entry.name}({format_signature(entry.tool.input_schema)}){result} [{caller_of_tool(entry.tool)}] {text}"


def format_signature(schema: Mapping[str, Any]) -> str:
    """Return the arguments of a tool as a signature, the required ones first."""
    required = schema.get("required", ())
    parts = [
        f"{name}{'' if name in required else '?'}: {_type_name(schema['properties'][name])}"
        for name in argument_names(schema)
    ]
    kept: list[str] = []
    for part in parts:
        if sum(map(len, kept)) + len(part) > _SIGNATURE:
            kept.append(f"… {len(parts) - len(kept)} more")
            break
        kept.append(part)
    return ", ".join(kept)


_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "array": "list", "object": "dict"}


def _type_name(schema: Any) -> str:
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(kinds, list):
        kinds = next((kind for kind in kinds if kind != "null"), None)
    return _TYPES.get(str(kinds), "any")


def _answer(lines: Sequence[str], total: int) -> Outcome:
    """Return the lines that fit into an answer."""
    room, kept = ANSWER_TOKENS, list[str]()
    for line in lines:
        room -= count_tokens(line)
        if room < 0:
            break
        kept.append(line)
    text = "\n".join(kept) or f"No tool fits; try other words. There are {total} tools."
    return Outcome({"tools": [line.partition("(")[0] for line in kept]}, content=text_content(text))
