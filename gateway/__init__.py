"""Toolgate: one MCP server in front of every tool you have."""

__version__ = "0.1.0"
