"""A tool in the shapes clients and model APIs take: MCP, OpenAI, Anthropic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.tools import Permission, Tool

# In the `_meta` of a tool and of what links to a plan: the renderer that shows the outcome.
RENDERER = "dev.toolgate/renderer"


def mcp_tool(name: str, tool: Tool) -> dict[str, Any]:
    """As MCP lists it. The hints follow from what the tool declares; they grant nothing. An upstream's tool is
    listed as that upstream lists it."""
    if tool.wire is not None:
        return _rename(name, tool, tool.wire)
    read_only = tool.permission is Permission.READ_ONLY
    shape: dict[str, Any] = {
        "name": name,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
        "annotations": {
            "readOnlyHint": read_only,
            "destructiveHint": tool.destructive and not read_only,
            "idempotentHint": tool.idempotent or read_only,
            "openWorldHint": tool.open_world,
        },
    }
    if tool.title is not None:
        shape["title"] = tool.title
    if tool.output_schema is not None:
        shape["outputSchema"] = dict(tool.output_schema)
    meta = dict(tool.meta) if tool.renderer is None else {**tool.meta, RENDERER: tool.renderer.kind}
    if meta:
        shape["_meta"] = meta
    return shape


def _rename(name: str, tool: Tool, wire: Mapping[str, Any]) -> dict[str, Any]:
    shape = {"name": name, **wire}
    if tool.renderer is not None:
        shape["_meta"] = {**shape.get("_meta", {}), RENDERER: tool.renderer.kind}
    return shape


def openai_tool(name: str, tool: Tool) -> dict[str, Any]:
    """The tool in the form of OpenAI's chat completions API."""
    function = {"name": name, "description": tool.description, "parameters": dict(tool.input_schema)}
    return {"type": "function", "function": function}


def anthropic_tool(name: str, tool: Tool) -> dict[str, Any]:
    """The tool in the form of Anthropic's messages API."""
    return {"name": name, "description": tool.description, "input_schema": dict(tool.input_schema)}
