"""The library for authors of toolsets: turns functions into tools and gives calls their context."""

from .context import Log, Progress, ToolContext, clear_context, context, get_context, set_context
from .errors import BadArguments, BadDefinition, BadEntrypoint, BadReturn, ToolsetError
from .jsonable import to_jsonable
from .loading import load
from .tools import ToolDescription, ToolMetadata, describe, get_tool_metadata, invoke, is_tool, tool

__all__ = [
    "BadArguments",
    "BadDefinition",
    "BadEntrypoint",
    "BadReturn",
    "Log",
    "Progress",
    "ToolContext",
    "ToolDescription",
    "ToolMetadata",
    "ToolsetError",
    "clear_context",
    "context",
    "describe",
    "get_context",
    "get_tool_metadata",
    "invoke",
    "is_tool",
    "load",
    "set_context",
    "to_jsonable",
    "tool",
]
