"""Six servers nobody here wrote behind one gateway, listed and called by a client nobody here wrote: the Inspector."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from amounts import NIGHTLY

from .processes import environment, on_http, serve_command
from .servers import wild
from .test_node_clients import Road, _absent, _calling, _inspect, _node_22
from .wire import HANDSHAKE, MODERN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.promise("G1", "G3")]

AS_DEFINED = ("title", "description", "inputSchema", "outputSchema", "annotations")
# What `everything` offers only to a client that can be asked: the gateway can, the Inspector's command line cannot.
TO_WHOM_CAN_ASK = {
    f"everything__trigger-{what}" for what in ("elicitation-request", "sampling-request", "url-elicitation")
}


@dataclass(frozen=True)
class Wild:
    """The six servers, what they are shown, and the configuration that names them."""

    home: Path
    page: str
    servers: dict[str, dict[str, Any]]

    @property
    def options(self) -> list[str]:
        return ["--config", str(self.home / "toolgate.yaml")]

    def calls(self, entity: str) -> dict[str, tuple[dict[str, Any], str]]:
        """One call to each server: the arguments, and what its answer must say."""
        facts = {"name": entity, "entityType": "client", "observations": ["it came by"]}
        return {
            "everything__echo": ({"message": "grüße"}, "Echo: grüße"),
            "filesystem__read_text_file": ({"path": str(self.home / "files/a.txt")}, "from a file"),
            "memory__create_entities": ({"entities": [facts]}, entity),
            "time__convert_time": (
                {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
                "T21:00:00+09:00",
            ),
            "git__git_log": ({"repo_path": str(self.home / "repository")}, "the first of all"),
            "fetch__fetch": ({"url": self.page}, "from a page"),
        }


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """A page on the loopback, for the server that fetches."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, page: str) -> Wild:
    node = _node_22()
    if not wild.INSTALLED.exists():
        _absent("the servers are not installed: run tests/journeys/servers/wild/install")
    home = tmp_path_factory.mktemp("wild")
    files, repository = home / "files", home / "repository"
    files.mkdir()
    (files / "a.txt").write_text("from a file\n")
    _commit(home, repository)
    behind = wild.behind_a_gateway(node, files, repository, home / "memory.jsonl")
    settings = {"approval": {"mode": "never"}, "mcpServers": behind}
    (home / "toolgate.yaml").write_text(json.dumps(settings))
    return Wild(home, page, behind)


@pytest.fixture(scope="module")
def over_stdio(servers: Wild) -> Road:
    # A gateway that nobody has used yet answers before the slowest of them has said what it has.
    listing = [sys.executable, "-m", "gateway", "tool", "list", "--data-dir", str(servers.home / "data")]
    subprocess.run([*listing, *servers.options], env=environment(servers.home), check=True, timeout=120)
    command, *arguments = serve_command(servers.home / "data", *servers.options)
    target = {"command": command, "args": arguments, "env": environment(servers.home), "cwd": str(servers.home)}
    return Road(servers.home, target)


@pytest.fixture(scope="module")
def over_http(servers: Wild, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Road]:
    with on_http(tmp_path_factory.mktemp("wild-http"), *servers.options) as gateway:
        yield Road(servers.home, {"url": gateway.url})


@pytest.mark.parametrize("era", ["legacy", "modern"], ids=[HANDSHAKE, MODERN])
@pytest.mark.parametrize("road", ["over_stdio", "over_http"])
def test_inspector_calls_published_servers_through_the_gateway(
    road: str, era: str, servers: Wild, request: pytest.FixtureRequest
) -> None:
    way = request.getfixturevalue(road)

    # --strict makes the Inspector itself object to a schema that some client would not take.
    listed = {tool["name"] for tool in _inspect(way, era, "--method", "tools/list", "--strict")["tools"]}
    calls = servers.calls(entity=f"inspector {road} {era}")
    assert set(calls) <= listed

    if road == "over_stdio" and not NIGHTLY:  # each call starts the gateway and six servers
        calls = {"memory__create_entities": calls["memory__create_entities"]}
    for tool, (arguments, expected) in calls.items():
        result = _inspect(way, era, *_calling(tool, arguments))
        assert not result.get("isError"), (tool, result)
        assert expected in json.dumps(result["content"], ensure_ascii=False), (tool, result)


def test_each_server_is_listed_as_it_lists_itself(servers: Wild, over_http: Road) -> None:
    through = {tool["name"]: tool for tool in _inspect(over_http, "modern", "--method", "tools/list")["tools"]}

    for name, server in servers.servers.items():
        environ = {**environment(servers.home), **server.get("env", {})}
        direct = Road(servers.home, {**server, "env": environ, "cwd": str(servers.home)})
        itself = {
            f"{name}__{tool['name']}": tool for tool in _inspect(direct, "auto", "--method", "tools/list")["tools"]
        }
        assert {each for each in through if each.startswith(f"{name}__")} - TO_WHOM_CAN_ASK == set(itself)
        for each, tool in itself.items():
            assert _defined(through[each]) == _defined(tool)
    assert set(through) >= TO_WHOM_CAN_ASK


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><article><h1>Wild</h1><p>Greetings from a page.</p></article></body></html>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


def _defined(tool: dict[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in AS_DEFINED if key in tool}


def _commit(home: Path, repository: Path) -> None:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    commit = ["git", "-C", str(repository), *who, "commit", "-q", "--allow-empty", "-m", "the first of all"]
    for command in (["git", "init", "-q", str(repository)], commit):
        subprocess.run(command, env=environment(home), check=True)
