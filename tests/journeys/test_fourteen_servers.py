"""Fourteen servers nobody here wrote behind one gateway: every list and every call is the JSON that the servers answer
directly, but for the changes in `rewrites`."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import TIMEOUT, eventually

from . import rewrites
from .processes import LOGS, Process, environment, on_http
from .rewrites import Json
from .servers import wild
from .test_node_clients import _absent, _node_22
from .wire import ERAS, HANDSHAKE, INITIALIZE, INITIALIZED, MODERN, open_session, post, request

pytestmark = [pytest.mark.slow, pytest.mark.promise("G1", "G2")]

# What the gateway tells a server it can be asked: some servers offer more to such a client.
CAPABILITIES: Json = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}

TOOL, PROMPT, READ, COMPLETE = "tools/call", "prompts/get", "resources/read", "completion/complete"


def _calls(home: Path) -> dict[str, list[tuple[str, Json]]]:
    """The calls to each server, in order: no answer depends on the time, on chance or on the network."""
    files, repository, book = str(home / "filesystem"), str(home / "git"), str(home / "excel/book.xlsx")

    def tool(name: str, **arguments: Any) -> tuple[str, Json]:
        return TOOL, {"name": name, "arguments": arguments}

    def prompt(name: str, **arguments: str) -> tuple[str, Json]:
        return PROMPT, {"name": name, "arguments": arguments}

    def read(uri: str) -> tuple[str, Json]:
        return READ, {"uri": uri}

    return {
        "everything": [
            tool("echo", message="grüße"),
            tool("get-sum", a=1, b=2.5),
            tool("get-tiny-image"),
            tool("get-annotated-message", messageType="error", includeImage=True),
            tool("get-resource-links", count=3),
            tool("get-structured-content", location="New York"),
            prompt("simple-prompt"),
            prompt("args-prompt", city="Oslo"),
            read("demo://resource/static/document/features.md"),
        ],
        "filesystem": [
            tool("read_text_file", path=f"{files}/a.txt"),
            tool("list_directory", path=files),
            tool("directory_tree", path=files),
            tool("write_file", path=f"{files}/b.txt", content="two\n"),
            tool("edit_file", path=f"{files}/b.txt", edits=[{"oldText": "two", "newText": "three"}]),
            tool("read_multiple_files", paths=[f"{files}/b.txt", f"{files}/none"]),
            tool("read_media_file", path=f"{files}/a.png"),
            tool("read_text_file", path="/etc/hostname"),
        ],
        "memory": [
            tool(
                "create_entities",
                entities=[{"name": "Ann", "entityType": "person", "observations": ["likes tea"]}],
            ),
            tool("add_observations", observations=[{"entityName": "Ann", "contents": ["reads"]}]),
            tool("read_graph"),
            tool("search_nodes", query="tea"),
        ],
        "thinking": [tool("sequentialthinking", thought="first")],
        "github": [tool("get_issue", owner="a", repo="b", issue_number="one")],
        "budget": [tool("get-budget-data"), read("ui://budget-allocator/mcp-app.html")],
        "time": [
            tool("convert_time", source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo"),
            tool("convert_time", source_timezone="Nowhere", time="12:00", target_timezone="UTC"),
        ],
        "git": [
            tool("git_log", repo_path=repository),
            tool("git_status", repo_path=repository),
            tool("git_show", repo_path=repository, revision="HEAD"),
            tool("git_show", repo_path=repository, revision="none"),
        ],
        "fetch": [tool("fetch", url="http://127.0.0.1:1/"), prompt("fetch", url="http://127.0.0.1:1/")],
        "excel": [
            tool("create_workbook", path=book),
            tool("write_range", path=book, sheet="Sheet1", at="A1", rows=[["a", 1], ["b", None]]),
            tool("read_range", path=book, sheet="Sheet1"),
            tool("read_range", path=book),
        ],
        "sqlite": [
            tool("list_tables"),
            tool("describe_table", table_name="people"),
            tool("read_query", query="SELECT * FROM people"),
            tool("read_query", query="SELECT * FROM nobody"),
            prompt("mcp-demo", topic="tea"),
            read("memo://insights"),
        ],
        "calculator": [tool("calculate", expression="6 * 7"), tool("calculate", expression="1 / 0")],
        "sdk": [
            tool("test_multiple_content_types"),
            tool("test_embedded_resource"),
            tool("test_audio_content"),
            tool("test_error_handling"),
            prompt("test_prompt_with_embedded_resource", resourceUri="test://here"),
            read("test://static-binary"),
            read("test://template/7/data"),
        ],
        "fastmcp": [
            tool("test_multiple_content_types"),
            tool("test_error_handling"),
            prompt("test_prompt_with_image"),
            read("test://static-text"),
            read("test://none"),
        ],
    }


class _Client:
    """One client in one era: asks, and reads whole lists."""

    era: str

    def message(self, method: str, params: Json) -> Json:
        """The answer to one request."""
        raise NotImplementedError

    def listed(self, method: str) -> list[Json]:
        """Every page of a list; nothing if the server has no such list."""
        found: list[Json] = []
        cursor: Json = {}
        while True:
            answer = self.message(method, cursor)
            if "error" in answer:
                return found
            found += answer["result"][rewrites.LISTS[method][0]]
            if "nextCursor" not in answer["result"]:
                return found
            cursor = {"cursor": answer["result"]["nextCursor"]}

    def request(self, method: str, params: Json) -> Json:
        meta = {"io.modelcontextprotocol/clientCapabilities": CAPABILITIES} if self.era == MODERN else {}
        return request(self.era, 7, method, {**params, "_meta": meta} if meta else params)


class _Direct(_Client):
    """A server without a gateway."""

    def __init__(self, process: Process, era: str) -> None:
        self.era = era
        self._process = process

    @property
    def is_modern(self) -> bool:
        return "result" in self.message("server/discover", {})

    def shake_hands(self) -> None:
        self.era = HANDSHAKE
        self._ask({**INITIALIZE, "params": {**INITIALIZE["params"], "capabilities": CAPABILITIES}})
        self._process.send(INITIALIZED)

    def message(self, method: str, params: Json) -> Json:
        return self._ask(self.request(method, params))

    def _ask(self, message: Json) -> Json:
        self._process.send(message)
        while "method" in (answer := self._process.receive_any(4 * TIMEOUT)):
            if "id" in answer:  # a question out of the blue, for example for roots: nobody is there
                nobody = {"code": -32601, "message": "nobody is there"}
                self._process.send({"jsonrpc": "2.0", "id": answer["id"], "error": nobody})
        return answer


class _Through(_Client):
    """The gateway, over HTTP."""

    def __init__(self, url: str, era: str) -> None:
        self.era = era
        self._url = url
        self._headers: dict[str, str] = open_session(url, capabilities=CAPABILITIES) if era == HANDSHAKE else {}

    def message(self, method: str, params: Json) -> Json:
        about = {"mcp-name": params["uri"]} if self.era == MODERN and method == READ else {}
        return post(self._url, self.request(method, params), {**self._headers, **about}).message


def test_every_list_and_call_is_what_the_server_answers_directly(tmp_path: Path) -> None:
    node, home = _node_22(), tmp_path / "home"
    if not wild.INSTALLED.exists():
        _absent("the servers are not installed: run tests/journeys/servers/wild/install")
    entries = {
        **wild.behind_a_gateway(node, home / "filesystem", home / "git", home / "memory/graph.jsonl"),
        **wild.six_more(node, home / "sqlite/people.db"),
        **wild.conformance_servers(node),
    }
    calls = _calls(home)
    assert entries.keys() == calls.keys()
    assert sum(map(len, calls.values())) >= 40
    before = tmp_path / "before"
    _make(before)

    with ThreadPoolExecutor(4) as pool:
        _restore(home, before)
        asked = pool.map(lambda name: _directly(entries[name], calls[name], home / name, before / name), entries)
        direct = dict(zip(entries, asked, strict=True))
    _restore(home, before)
    (tmp_path / "toolgate.yaml").write_text(json.dumps({"mcpServers": entries, "approval": {"mode": "never"}}))
    differences: list[str] = []
    with on_http(tmp_path, "--config", str(tmp_path / "toolgate.yaml")) as gateway:
        for era in ERAS:
            client = _Through(gateway.url, era)
            expected = sum(len(answers[era]["resources/list"]) for answers in direct.values())
            # A server that is still starting is left out of a list.
            eventually(lambda: entries.keys() <= _servers(client))  # noqa: B023 - awaited here
            eventually(lambda: len(_resources(client)) >= expected)  # noqa: B023 - awaited here
            through = {method: client.listed(method) for method in rewrites.LISTS}
            for name in entries:
                differences += _compare_lists(name, direct[name][era], through)
                differences += _compare_calls(name, direct[name][era], calls[name], client)
            _restore(home, before)
    assert not differences, "\n\n".join(differences)


def _servers(client: _Client) -> set[str]:
    return {tool["name"].partition("__")[0] for tool in client.listed("tools/list")}


def _resources(client: _Client) -> list[Json]:
    return [each for each in client.listed("resources/list") if each["uri"].startswith(("mcp+", "ui://"))]


def _directly(entry: Json, calls: Sequence[tuple[str, Json]], home: Path, before: Path) -> dict[str, Json]:
    """By era, what the server itself lists, by method, and its answers under `calls`. One that knows only the handshake
    answers the same in both."""
    with _running(entry, home.with_suffix(".modern")) as process:
        client = _Direct(process, MODERN)
        if not client.is_modern:
            client.shake_hands()
            answers = _collect(client, calls)
            return dict.fromkeys(ERAS, answers)
        modern = _collect(client, calls)
    _restore(home, before)
    with _running(entry, home.with_suffix(".handshake")) as process:
        client = _Direct(process, HANDSHAKE)
        client.shake_hands()
        return {MODERN: modern, HANDSHAKE: _collect(client, calls)}


def _collect(client: _Client, calls: Sequence[tuple[str, Json]]) -> Json:
    lists: Json = {method: client.listed(method) for method in rewrites.LISTS}
    return {**lists, "calls": [client.message(method, params) for method, params in calls]}


@contextmanager
def _running(entry: Json, directory: Path) -> Iterator[Process]:
    directory.mkdir()
    variables = [f"{key}={value}" for key, value in entry.get("env", {}).items()]
    process = Process(["env", *variables, entry["command"], *entry["args"]], directory)
    try:
        yield process
    finally:
        process.end()
        LOGS.remove(process.log)  # it is no gateway's


def _compare_lists(server: str, direct: Json, through: dict[str, list[Json]]) -> Iterator[str]:
    for method, (_, key, rewrite) in rewrites.LISTS.items():
        expected = {item[key]: item for item in (rewrite(server, own) for own in direct[method])}
        starts = (f"{server}__", f"mcp+{server}:", f"ui://{server}/")
        found = {item[key]: item for item in through[method] if item[key].startswith(starts)}
        yield from (
            f"{server}, {method}, {each}:\n  direct  {json.dumps(expected.get(each), sort_keys=True)}\n"
            f"  through {json.dumps(found.get(each), sort_keys=True)}"
            for each in sorted(expected.keys() | found.keys())
            if expected.get(each) != found.get(each)
        )


def _compare_calls(server: str, direct: Json, calls: Sequence[tuple[str, Json]], client: _Client) -> Iterator[str]:
    for (method, params), answer in zip(calls, direct["calls"], strict=True):
        asked = rewrites.prompt(server, params) if "name" in params else rewrites.resource(server, params)
        message = client.message(method, asked)
        expected: Any = answer.get("error")
        found: Any = message.get("error")
        if "result" in answer and "result" in message:
            expected = rewrites.result(server, answer["result"])
            found = rewrites.without_own(message["result"])
            parts = rewrites.own_parts(message["result"])
            if parts != rewrites.expected_parts(method, client.era):
                yield f"{server}, {method} {params}: the gateway's own parts are {sorted(parts)}"
        if expected != found or ("result" in answer) != ("result" in message):
            yield (
                f"{server}, {method} {params}:\n  direct  {json.dumps(expected or answer, sort_keys=True)}\n"
                f"  through {json.dumps(found or message, sort_keys=True)}"
            )


def _make(before: Path) -> None:
    """Everything the servers work on, a folder for each."""
    for server in ("filesystem", "memory", "git", "excel", "sqlite"):
        (before / server).mkdir(parents=True)
    (before / "filesystem/a.txt").write_text("from a file\n")
    (before / "filesystem/a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with closing(sqlite3.connect(before / "sqlite/people.db")) as db:
        db.executescript("CREATE TABLE people (name TEXT, born INTEGER); INSERT INTO people VALUES ('Ann', 1990)")
    by = {"NAME": "Ann", "EMAIL": "ann@example.org", "DATE": "2026-01-01T00:00:00Z"}
    identity = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in by.items()}
    for command in ("init -q -b main .", "commit -q --allow-empty -m first"):
        environ = {**environment(before), **identity}
        subprocess.run(["git", *command.split()], cwd=before / "git", env=environ, check=True)


def _restore(home: Path, before: Path) -> None:
    """As it was before anybody used it."""
    if before.exists():
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(before, home)
