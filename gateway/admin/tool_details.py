"""Descriptions of tools for administrators and REST clients."""

from __future__ import annotations

from typing import Any

from gateway.catalog import CatalogEntry, mcp_tool
from gateway.discovery import count_tokens
from gateway.tools import Tool


def summarize_tool(name: str, tool: Tool) -> dict[str, Any]:
    """Return what a list shows of a tool."""
    return {
        "id": tool.id,
        "name": name,
        "title": tool.title,
        "description": tool.description,
        "kind": tool.kind,
        "owner": tool.owner,
        "category": tool.category,
        "permission": tool.permission.value,
        "requires_confirmation": bool(tool.requires_confirmation),
        "renderer": None if tool.renderer is None else tool.renderer.kind,
        "tags": list(tool.tags),
        "origin": "builtin" if tool.owner is None else "server" if tool.kind == "mcp" else "toolset",
        "destructive": tool.destructive and tool.permission.value != "read-only",
        "app_only": tool.app_only,
        "tokens": count_tokens(mcp_tool(name, tool)),
    }


def describe_tool(entry: CatalogEntry) -> dict[str, Any]:
    """Return a tool with its schemas and how its outcomes are shown."""
    listed, tool = mcp_tool(entry.name, entry.tool), entry.tool
    return {
        **summarize_tool(entry.name, tool),
        "input_schema": listed["inputSchema"],
        "output_schema": listed.get("outputSchema"),
        "annotations": listed.get("annotations"),
        "render_config": None if tool.renderer is None else tool.renderer,
    }
