"""Servers nobody here wrote, as people put them behind a gateway, all over stdio: from npm, from PyPI, on four SDKs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Where `install` puts them.
THERE = Path(__file__).parents[4] / ".venv/wild"

INSTALLED = THERE / ".installed"

# The conformance server of FastMCP; the Python SDK's is the module `mcp_everything_server` beside it.
SOURCES = THERE / "sources"
FASTMCP = SOURCES / "conformance/server.py"


def behind_a_gateway(node: str, files: Path, repository: Path, memory: Path) -> dict[str, dict[str, Any]]:
    """What `mcpServers` says of the six best known; the paths are what each may see."""
    return {
        "everything": _from_npm(node, "everything"),
        "filesystem": _from_npm(node, "filesystem", str(files)),
        "memory": {**_from_npm(node, "memory"), "env": {"MEMORY_FILE_PATH": str(memory)}},
        "time": _from_pypi("time", "--local-timezone", "UTC"),
        "git": _from_pypi("git", "--repository", str(repository)),
        "fetch": _from_pypi("fetch", "--allow-private-ips", "--ignore-robots-txt"),
    }


def six_more(node: str, database: Path) -> dict[str, dict[str, Any]]:
    """What `mcpServers` says of others: an MCP App, one on the first TypeScript SDK, two on the Python SDK 1.x."""
    older = THERE / "older/bin"
    return {
        "thinking": {**_from_npm(node, "sequential-thinking"), "env": {"DISABLE_THOUGHT_LOGGING": "true"}},
        "github": _from_npm(node, "github"),
        "budget": _from_npm(node, "budget-allocator", "--stdio"),
        "excel": {"command": str(THERE / "bin/excel-mcp-server"), "args": ["stdio"]},
        "sqlite": {"command": str(older / "mcp-server-sqlite"), "args": ["--db-path", str(database)]},
        "calculator": {"command": str(older / "mcp-server-calculator"), "args": []},
    }


def example_apps(node: str) -> dict[str, dict[str, Any]]:
    """What `mcpServers` says of three examples of MCP Apps, whose tools are theirs alone."""
    named = {"clock": "basic-vanillajs", "budget": "budget-allocator", "cohorts": "cohort-heatmap"}
    return {server: _from_npm(node, name, "--stdio") for server, name in named.items()}


def conformance_servers(node: str) -> dict[str, dict[str, Any]]:
    """What `mcpServers` says of servers that have everything: the Python SDK's, FastMCP's, and the reference one."""
    python = str(THERE / "bin/python")
    sdk = "from mcp_everything_server.server import mcp; mcp.run('stdio')"
    fastmcp = f"import runpy; runpy.run_path({str(FASTMCP)!r})['server'].run(show_banner=False)"
    return {
        "everything": _from_npm(node, "everything"),
        "sdk": {"command": python, "args": ["-c", sdk], "env": {"PYTHONPATH": str(SOURCES)}},
        "fastmcp": {"command": python, "args": ["-c", fastmcp]},
    }


def _from_npm(node: str, name: str, *arguments: str) -> dict[str, Any]:
    script = THERE / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js"
    return {"command": node, "args": [str(script), *arguments]}


def _from_pypi(name: str, *arguments: str) -> dict[str, Any]:
    return {"command": str(THERE / f"bin/mcp-server-{name}"), "args": list(arguments)}
