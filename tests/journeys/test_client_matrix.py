"""Client libraries nobody here wrote, from PyPI and npm: each connects, lists, writes, reads and deletes.

The TypeScript SDKs are in `test_node_clients`, the Python SDK 2.x is in `test_python_client`. Heavy libraries run with
TOOLGATE_NIGHTLY=1 only, by `make nightly`.
"""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .processes import Listening, environment, on_http, serve_command
from .test_node_clients import NODE, OFFERED, _absent, _node, _node_22, _run

SCRIPTS = Path(__file__).parent / "clients_matrix"
VENV = Path(__file__).parents[2] / ".venv"
MODULES = NODE / "node_modules"
CONTENT = "from a client\n"
MINUTES = 300.0

# The script of a library, the environment it is installed in, and whether it asks its user.
PYTHON = {
    "python-sdk-1": ("sdk1.py", "clients", True),
    "langchain": ("langchain_client.py", "clients", False),
    "fastmcp": ("fastmcp_client.py", "clients-fastmcp", True),
}
NIGHTLY = {
    "llama-index": ("llama_index_client.py", "clients-nightly", False),
    "openai-agents": ("openai_agents_client.py", "clients-nightly", False),
    "pydantic-ai": ("pydantic_ai_client.py", "clients-nightly", False),
}
if os.environ.get("TOOLGATE_NIGHTLY") == "1":
    PYTHON |= NIGHTLY

# What `sdk1.py` exits with if a message arrived while it closed. The gateway announces a change a tenth of a second
# later, so that this does not happen, but on a busy machine a client may take longer to close.
MESSAGE_WHILE_CLOSING = 75
ATTEMPTS_TO_CLOSE = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.promise("G3")]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """A gateway over HTTP whose chats no other test has used."""
    with on_http(tmp_path_factory.mktemp("matrix")) as listening:
        yield listening


@pytest.fixture
def path() -> str:
    return f"{uuid.uuid4().hex}.txt"


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize("library", PYTHON)
def test_a_python_library_uses_the_gateway(
    library: str, transport: str, gateway: Listening, tmp_path: Path, path: str
) -> None:
    script, venv, asks = PYTHON[library]
    target = {"url": gateway.url} if transport == "http" else _stdio(tmp_path)
    _check(_travel(script, venv, target, path, tmp_path), asks)


def test_mcp_remote_carries_a_stdio_client_to_the_gateway(gateway: Listening, tmp_path: Path, path: str) -> None:
    program = [str(MODULES / "mcp-remote/dist/proxy.js"), gateway.url, "--allow-http", "--silent"]
    target = {"command": _node(), "args": program, "env": environment(tmp_path), "cwd": str(tmp_path)}
    _check(_travel("sdk1.py", "clients", target, path, tmp_path), asks=True)


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_mcporter_uses_the_gateway(transport: str, gateway: Listening, tmp_path: Path, path: str) -> None:
    server = {"baseUrl": gateway.url} if transport == "http" else _stdio(tmp_path)
    config = tmp_path / "mcporter.json"
    config.write_text(json.dumps({"mcpServers": {"toolgate": server}, "imports": []}))

    def mcporter(*arguments: str, refused: bool = False) -> dict[str, Any]:
        command = [_node_22(), str(MODULES / "mcporter/dist/cli.js"), "--config", str(config), *arguments]
        return _run(tmp_path, *command, refused=refused)

    def call(tool: str, refused: bool = False, **arguments: str) -> dict[str, Any]:
        given = ["--args", json.dumps(arguments), "--output", "json"]
        return mcporter("call", f"toolgate.{tool}", *given, refused=refused)

    assert sorted(tool["name"] for tool in mcporter("list", "toolgate", "--json")["tools"]) == OFFERED
    assert call("write_file", path=path, content=CONTENT)["created"]
    assert call("read_file", path=path)["content"] == CONTENT
    uri = f"workspace://default/{path}"
    if transport == "http":
        listed = mcporter("resource", "toolgate", "--json")["resources"]
        [uri] = [resource["uri"] for resource in listed if resource["name"] == path]
    assert mcporter("resource", "toolgate", uri, "--json")["contents"][0]["text"] == CONTENT
    assert "CONFIRMATION_REQUIRED" in call("delete_file", refused=True, path=path)["content"][0]["text"]


def _stdio(home: Path) -> dict[str, Any]:
    command, *arguments = serve_command(home / "data")
    return {"command": command, "args": arguments, "env": environment(home), "cwd": str(home)}


def _travel(script: str, venv: str, target: dict[str, Any], path: str, home: Path) -> dict[str, Any]:
    """What a library saw, as its script says."""
    python = VENV / venv / "bin/python"
    if not (VENV / venv / ".installed").exists():
        _absent(f"the client libraries are not installed: run tests/journeys/clients_matrix/install ({venv})")
    command = [str(python), str(SCRIPTS / script), json.dumps({**target, "path": path})]
    for _ in range(ATTEMPTS_TO_CLOSE):
        finished = subprocess.run(
            command, capture_output=True, text=True, env=environment(home), cwd=home, timeout=MINUTES, check=False
        )
        if finished.returncode != MESSAGE_WHILE_CLOSING:
            break
    assert finished.returncode == 0, f"exit code {finished.returncode}\n{finished.stdout}\n{finished.stderr}"
    seen = json.loads(finished.stdout.splitlines()[-1])
    assert isinstance(seen, dict)
    return seen


def _check(seen: dict[str, Any], asks: bool) -> None:
    """Every tool was listed; the file was read back; it was deleted if the library asks its user, else kept."""
    assert sorted(seen["tools"]) == OFFERED
    assert "created" in seen["written"].lower()
    assert CONTENT.strip() in seen["read"]
    assert seen["resource"] == CONTENT
    if asks:
        assert "CONFIRMATION_REQUIRED" not in seen["deleted"]
        assert "FILE_NOT_FOUND" in seen["after"]
    else:
        assert "CONFIRMATION_REQUIRED" in seen["deleted"]
        assert seen["after"] == seen["read"]
