"""Servers nobody here wrote, as people put them behind a gateway: three from npm, three from PyPI, all over stdio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Where `install` puts them.
THERE = Path(__file__).parents[4] / ".venv/wild"

INSTALLED = THERE / ".installed"


def behind_a_gateway(node: str, files: Path, repository: Path, memory: Path) -> dict[str, dict[str, Any]]:
    """What `mcpServers` says of them; the paths are what each may see."""
    return {
        "everything": _from_npm(node, "everything"),
        "filesystem": _from_npm(node, "filesystem", str(files)),
        "memory": {**_from_npm(node, "memory"), "env": {"MEMORY_FILE_PATH": str(memory)}},
        "time": _from_pypi("time", "--local-timezone", "UTC"),
        "git": _from_pypi("git", "--repository", str(repository)),
        "fetch": _from_pypi("fetch", "--allow-private-ips", "--ignore-robots-txt"),
    }


def _from_npm(node: str, name: str, *arguments: str) -> dict[str, Any]:
    script = THERE / f"node_modules/@modelcontextprotocol/server-{name}/dist/index.js"
    return {"command": node, "args": [str(script), *arguments]}


def _from_pypi(name: str, *arguments: str) -> dict[str, Any]:
    return {"command": str(THERE / f"bin/mcp-server-{name}"), "args": list(arguments)}
