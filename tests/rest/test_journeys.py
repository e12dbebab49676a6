"""REST beside MCP and the command line: one record, one queue of approvals, one catalog, in every process."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from click.testing import CliRunner
from eventually import async_eventually, eventually
from journeys.clients import call, over_http, over_stdio, refusal, value
from journeys.wire import ERAS

from gateway.cli import toolgate

from .conftest import Rest
from .test_section7 import install

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T7")]

# What differs between two calls of the same tool by different people at different times.
OWN = {"id", "surface", "client", "started_at", "finished_at", "duration_ms", "process"}


def command(data: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(toolgate, [*arguments, "--data-dir", str(data), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.promise("B6")
@pytest.mark.parametrize("era", ERAS)
async def test_rest_and_mcp_and_cli_calls_leave_the_same_record(rest: Rest, chat: str, era: str) -> None:
    rest.ok("PUT", f"/api/chats/{chat}/files/a.txt", 201, content=b"hello\n")
    arguments = {"path": "a.txt"}
    answer = rest.ok("POST", "/api/tools/read_file/invoke", json={"args": arguments, "chat": chat})
    async with over_http(rest.gateway.url, era) as client:
        assert await value(client, "read_file", arguments, chat) == answer["value"]
    line = ["tool", "call", "read_file", "path=a.txt", "--chat", chat]
    assert (await anyio.to_thread.run_sync(command, rest.data, *line))["value"] == answer["value"]
    calls = rest.ok("GET", f"/api/calls?chat={chat}&tool=read_file")["items"]
    records = [rest.ok("GET", f"/api/calls/{each['id']}") for each in calls if each["tool_name"] == "read_file"]
    assert {record["surface"] for record in records} == {"rest", "mcp", "cli"}
    same = [{key: value for key, value in record.items() if key not in OWN} for record in records]
    assert same[0] == same[1] == same[2]
    assert same[0]["args"] == arguments


@pytest.mark.promise("C5")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_rest_decides_an_approval_asked_over_mcp_while_the_client_waits(
    waiting: Rest, chat: str, era: str, decision: str
) -> None:
    arguments = {"path": "ask-a.txt", "content": "one"}
    results: list[Any] = []

    async def ask() -> None:
        async with over_http(waiting.gateway.url, era) as client:
            results.append(await call(client, "write_file", arguments, chat))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)

        async def find() -> Any:
            items = (await anyio.to_thread.run_sync(waiting.ok, "GET", "/api/approvals"))["items"]
            return [item for item in items if item["chat_id"] == chat]

        [asked] = await async_eventually(find)
        assert asked["args"] == arguments
        body = {"decision": decision, **({"arguments": {"content": "two"}} if decision == "allow" else {})}
        decided = await anyio.to_thread.run_sync(lambda: waiting.ok("POST", f"/api/approvals/{asked['id']}", json=body))
        assert decided["status"] in ("allowed", "used", "denied")
    [result] = results
    assert result.is_error is (decision == "deny")
    if decision == "allow":
        assert waiting.get(f"/api/chats/{chat}/files/ask-a.txt").content == b"two"
    error = waiting.refused("POST", f"/api/approvals/{asked['id']}", 409, json={"decision": "allow"})
    assert error["code"] == "NOT_WAITING"


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway whose callers wait for a person."""
    from .conftest import SETTINGS, serve

    approval = SETTINGS["approval"] | {"queue_wait": 60}
    with serve(tmp_path_factory.mktemp("rest-waiting"), approval=approval) as served:
        yield served


@pytest.mark.parametrize("era", ERAS)
async def test_rest_change_is_announced_to_mcp_clients_and_seen_by_other_processes(
    own: Rest, tmp_path: Path, chat: str, era: str
) -> None:
    events: list[str] = []

    async def hear(message: Any) -> None:
        events.append(type(getattr(message, "root", message)).__name__)

    toolset = f"greeter-{chat[-8:]}"
    name = f"{toolset}__greet"
    (tmp_path / "data").symlink_to(own.data)
    async with over_http(own.gateway.url, era, hear) as near, over_stdio(tmp_path, era) as far:

        async def has(client: Any) -> bool:
            return name in {tool.name for tool in (await client.list_tools()).tools}

        assert not await has(near)
        events.clear()
        await anyio.to_thread.run_sync(install, own, toolset)
        assert await has(near)
        if era == ERAS[-1]:  # a modern client has to listen first
            await async_eventually(lambda: any("ToolListChanged" in each for each in events))
        await async_eventually(lambda: has(far))
        await anyio.to_thread.run_sync(
            lambda: own.ok("POST", f"/api/toolsets/{toolset}/enable", json={"enabled": False})
        )
        assert not await has(near)
        await refusal(near, name, {"name": "x"})


async def test_rest_invoke_that_needs_consent_waits_in_the_queue_and_is_remembered(rest: Rest, chat: str) -> None:
    body = {"args": {"path": "ask-a.txt", "content": "x"}, "chat": chat}
    error = rest.refused("POST", "/api/tools/write_file/invoke", 428, json=body)
    approval = error["details"]["approval"]
    assert rest.ok("GET", f"/api/approvals/{approval}")["status"] == "waiting"
    rest.ok("POST", f"/api/approvals/{approval}", json={"decision": "allow", "remember": "chat"})
    rest.ok("POST", "/api/tools/write_file/invoke", json=body)
    rest.ok("POST", "/api/tools/write_file/invoke", json=body | {"args": {"path": "ask-b.txt", "content": "y"}})
    [remembered] = [each for each in rest.ok("GET", "/api/approvals/remembered")["items"] if each["chat_id"] == chat]
    assert rest.delete(f"/api/approvals/remembered/{remembered['id']}").status_code == 204
    rest.refused(
        "POST", "/api/tools/write_file/invoke", 428, json=body | {"args": {"path": "ask-c.txt", "content": "z"}}
    )


def test_rest_cancel_of_a_call_that_waits_for_a_person_ends_it(waiting: Rest, chat: str) -> None:
    body = {"tool": "write_file", "args": {"path": "ask-a.txt", "content": "x"}}
    with waiting.stream("POST", f"/api/chats/{chat}/stream", json=body) as answer:
        lines = answer.iter_lines()
        asked = next(line for line in lines if '"approval_id"' in line)
        call_id = json.loads(asked.removeprefix("data: "))["call_id"]
        assert waiting.ok("POST", f"/api/calls/{call_id}/cancel", 202)["error_code"] == "CANCELLED"
        assert any("CANCELLED" in line for line in lines)


@pytest.mark.promise("B10")
def test_rest_asks_about_a_step_as_about_any_call(own: Rest, chat: str) -> None:
    bundle = "/tools/bundles/01890000-0000-7000-8000-0000000000aa"
    own.ok("PUT", bundle, 201, json={"slug": "paper", "displayName": "Paper"})
    write = {"tool": "write_file", "args": {"path": "ask-$args.name", "content": "$args.name"}}
    steps = [{"tool": "list_directory", "args": {}}, write, {"tool": "read_file", "args": {"path": "ask-$args.name"}}]
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    tool = {"displayName": "File", "type": "steps", "argSchema": schema, "stepsImpl": {"steps": steps}}
    own.ok("PUT", f"{bundle}/tools/file/version/1", 201, json=tool)
    invoke, body = "/api/tools/paper:file/invoke", {"args": {"name": "a"}, "chat": chat}
    error = own.refused("POST", invoke, 428, json=body)
    assert (error["code"], error["details"]["step"]) == ("CONFIRMATION_REQUIRED", "2 (write_file)")
    own.ok("POST", f"/api/approvals/{error['details']['approval']}", json={"decision": "allow"})
    assert own.ok("POST", invoke, json=body)["value"]["content"] == "a"
    for name, decision in (("b", "allow"), ("c", "deny")):
        stream = {"tool": "paper:file", "args": {"name": name}}
        with own.stream("POST", f"/api/chats/{chat}/stream", json=stream) as answer:
            lines = answer.iter_lines()
            asked = json.loads(next(line for line in lines if '"approval_id"' in line).removeprefix("data: "))
            step = own.ok("GET", f"/api/calls/{asked['call_id']}")
            assert (step["tool_id"], step["surface"]) == ("write_file", "rest") and step["parent_call_id"]
            own.ok("POST", f"/api/approvals/{asked['approval_id']}", json={"decision": decision})
            result = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
        assert result["ok"] == (decision == "allow"), result
        assert decision == "allow" or result["error"]["code"] == "DECLINED"


@pytest.mark.parametrize("way", ["rest", "command"])
async def test_rest_cancels_a_call_that_runs_in_another_process(own: Rest, tmp_path: Path, chat: str, way: str) -> None:
    own.ok("PATCH", "/api/categories/development", json={"enabled": True})
    (tmp_path / "data").symlink_to(own.data)
    errors: list[Any] = []

    async def run() -> None:
        async with over_stdio(tmp_path, ERAS[0]) as client:
            code = {"code": "import time; time.sleep(300)", "language": "python"}
            errors.append(await refusal(client, "run_code", code, chat))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)

        async def find() -> Any:
            return (await anyio.to_thread.run_sync(own.ok, "GET", f"/api/calls?chat={chat}&status=running"))["items"]

        [running] = await async_eventually(find)
        if way == "rest":
            await anyio.to_thread.run_sync(own.ok, "POST", f"/api/calls/{running['id']}/cancel", 202)
        else:
            line = ["call", "cancel", running["id"], "--data-dir", str(own.data)]
            done = await anyio.to_thread.run_sync(CliRunner().invoke, toolgate, line)
            assert done.exit_code == 0, done.output
    assert errors[0]["code"] == "CANCELLED"


def test_rest_write_with_a_stale_entity_tag_is_refused(rest: Rest, chat: str) -> None:
    url = f"/api/chats/{chat}/files/a.txt"
    first = rest.put(url, content=b"1", headers={"if-none-match": "*"})
    assert first.status_code == 201
    assert rest.refused("PUT", url, 412, content=b"2", headers={"if-none-match": "*"})["code"] == "PRECONDITION_FAILED"
    etag = rest.get(url).headers["etag"]
    assert first.headers["etag"] == etag
    assert rest.put(url, content=b"2", headers={"if-match": etag}).status_code == 200
    rest.refused("PUT", url, 412, content=b"3", headers={"if-match": etag})
    assert rest.get(url).content == b"2"
    rest.refused("PUT", f"{url}.gone", 412, content=b"3", headers={"if-match": etag})


def test_rest_history_diff_restore_undo_branch_and_download(rest: Rest, chat: str) -> None:
    files = f"/api/chats/{chat}/files"
    one = rest.ok("PUT", f"{files}/a.txt", 201, content=b"1\n")["manifest_id"]
    two = rest.ok("PUT", f"{files}/a.txt", 200, content=b"2\n")["manifest_id"]
    first = rest.ok("GET", f"/api/chats/{chat}/versions?limit=1")
    rest.ok("PUT", f"{files}/b.txt", 201, content=b"3\n")
    second = rest.ok("GET", f"/api/chats/{chat}/versions?limit=1&page_token={first['next_page_token']}")
    assert [page["items"][0]["id"] for page in (first, second)] == [two, one]
    difference = rest.ok("GET", f"/api/chats/{chat}/diff?from={one}&to={two}&path=a.txt")
    assert "-1\n+2" in difference["diff"]
    restored = rest.ok("POST", f"/api/chats/{chat}/restore", json={"manifest": one})
    assert restored["changes"] == {"added": [], "changed": ["a.txt"], "deleted": ["b.txt"]}
    assert rest.get(f"{files}/a.txt").content == b"1\n"
    rest.ok("POST", f"/api/chats/{chat}/branch", json={"manifest": two, "message_id": "m2"})
    assert rest.get(f"{files}/a.txt").content == b"2\n"
    assert rest.ok("GET", f"/api/chats/{chat}/manifest?message_id=m2")["files"].keys() == {"a.txt"}
    rest.ok("PUT", f"{files}/a.txt", 200, content=b"4\n")
    rest.ok("POST", f"/api/chats/{chat}/undo")
    assert rest.get(f"{files}/a.txt").content == b"2\n"
    form = {"file": ("c.txt", b"uploaded", "text/plain")}
    uploaded = rest.ok("POST", f"/api/chats/{chat}/upload", files=form, data={"directory": "in"})
    assert uploaded["changes"]["added"] == ["in/c.txt"]
    with zipfile.ZipFile(io.BytesIO(rest.get(f"/api/chats/{chat}/archive").content)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {"a.txt": b"2\n", "in/c.txt": b"uploaded"}
    with zipfile.ZipFile(io.BytesIO(rest.get(f"/api/chats/{chat}/archive?manifest={one}").content)) as archive:
        assert archive.namelist() == ["a.txt"]


def test_rest_adds_tests_switches_and_removes_an_upstream(own: Rest) -> None:
    program = "import sys; print('hello log', file=sys.stderr, flush=True); from mcp_server_time import main; main()"
    settings = {"command": sys.executable, "args": ["-c", program]}
    added = own.ok("POST", "/api/upstreams", 201, json={"name": "clock", "settings": settings})
    assert added["probe"]["ok"] is True
    assert {"get_current_time"} <= {tool["name"] for tool in added["upstream"]["tools"]}

    def offered() -> bool:
        return own.get("/api/tools/clock__get_current_time").status_code == 200

    eventually(offered)
    assert own.refused("POST", "/api/upstreams", 409, json={"name": "clock", "settings": settings})["code"]
    own.ok("POST", "/api/upstreams/clock/enable", json={"enabled": False})
    assert not offered()
    own.ok("POST", "/api/upstreams/clock/enable", json={"enabled": True})
    assert own.ok("POST", "/api/upstreams/clock/test")["ok"] is True
    assert own.ok("POST", "/api/upstreams/clock/restart")["state"] == "ok"
    assert "hello log" in " ".join(own.ok("GET", "/api/upstreams/clock/logs")["lines"])
    assert own.ok("GET", "/api/upstreams/clock/review") == {"items": [], "next_page_token": None}
    [clock] = [each for each in own.ok("GET", "/api/upstreams")["items"] if each["name"] == "clock"]
    assert (clock["transport"], clock["tool_count"], clock["offered"]) == ("stdio", 2, 2)
    assert own.delete("/api/upstreams/clock").status_code == 204
    own.refused("GET", "/api/upstreams/clock", 404)
    unreachable = {"name": "gone", "settings": {"command": sys.executable, "args": ["-c", "raise SystemExit('no')"]}}
    assert "nothing was added" in own.refused("POST", "/api/upstreams", 422, json=unreachable)["message"]


@pytest.mark.row("000-7.2-list_tools-servers")
def test_rest_switches_and_overrides_and_measures_tools_of_a_pasted_server(own: Rest) -> None:
    token = "ghp_" + "Ab1" * 12
    program = ["-c", "from mcp_server_time import main; main()"]
    entry = {"command": sys.executable, "args": program, "env": {"API_TOKEN": token}}
    pasted = {"text": json.dumps({"mcpServers": {"pasted": entry}})}
    [tried] = own.ok("POST", "/api/upstream-imports", json=pasted | {"dry_run": True})["items"]
    assert (tried["outcome"], tried["missing"]) == ("would be imported", [])
    assert token not in json.dumps(tried)
    own.refused("GET", "/api/upstreams/pasted", 404)
    assert own.ok("POST", "/api/upstream-imports", json=pasted)["items"][0]["outcome"] == "imported"
    tool = "pasted__get_current_time"
    eventually(lambda: own.get(f"/api/tools/{tool}").status_code == 200)
    listed = {each["name"]: each for each in own.ok("GET", "/api/tools?limit=1000")["items"]}
    assert (listed[tool]["origin"], listed[tool]["owner"]) == ("server", "pasted")
    available = own.ok("GET", "/api/available-tools?format=openai")["tools"]
    assert tool in {each["function"]["name"] for each in available}

    both = own.ok("PATCH", "/api/tools", json={"tools": [tool, "read_file", "no_such_tool"], "enabled": False})["items"]
    assert [(each["id"], each["offered"]) for each in both] == [
        ("pasted:get_current_time", False),
        ("read_file", False),
        ("no_such_tool", False),
    ]
    withheld = {each["id"]: each for each in own.ok("GET", "/api/withheld-tools")["items"]}
    assert withheld["pasted:get_current_time"]["name"] == tool
    assert "turned off" in withheld["pasted:get_current_time"]["reason"]
    back = own.ok("PATCH", "/api/tools", json={"tools": [each["id"] for each in both[:2]], "enabled": True})["items"]
    assert all(each["offered"] for each in back)

    changes = {
        "name_override": "The time",
        "description_override": "Says what time it is.",
        "requires_confirmation": True,
    }
    own.ok("PATCH", f"/api/tools/{tool}", json=changes)
    shown = own.ok("GET", f"/api/tools/{tool}")
    assert (shown["title"], shown["description"], shown["requires_confirmation"]) == tuple(changes.values())
    assert shown["original"]["description"] != shown["description"]
    assert (shown["origin"], shown["tokens"] > 20) == ("server", True)
    own.ok("PATCH", f"/api/tools/{tool}", json=dict.fromkeys(changes))
    shown = own.ok("GET", f"/api/tools/{tool}")
    assert shown["original"]["description"] == shown["description"]

    call = own.ok("POST", f"/api/tools/{tool}/invoke", json={"args": {"timezone": "UTC"}})
    own.refused("POST", f"/api/tools/{tool}/invoke", 422, json={"args": {}})
    usage = own.ok("GET", f"/api/tools/{tool}/usage")
    assert (call["ok"], usage["calls"], usage["errors"], usage["callers"][0]["calls"]) == (True, 2, 1, 2)
    assert 0 <= usage["median_ms"] <= usage["p95_ms"]
    assert own.delete("/api/upstreams/pasted").status_code == 204


def test_rest_imports_an_openapi_document_and_names_the_lines_of_problems(own: Rest) -> None:
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Pets", "version": "1"},
        "servers": [{"url": "https://pets.example"}],
        "paths": {
            "/pets": {
                "get": {"operationId": "listPets", "summary": "List pets", "responses": {"200": {"description": "ok"}}}
            }
        },
    }
    body = {"document": json.dumps(document), "id": "pets"}
    tried = own.ok("POST", "/api/openapi-imports?dry_run=true", json=body)
    assert (tried["installed"], len(tried["tools"]), tried["hosts"]) == (False, 1, ["pets.example"])
    own.refused("GET", "/api/toolsets/pets", 404)
    assert own.ok("POST", "/api/openapi-imports", json=body)["installed"] is True
    assert own.refused("POST", "/api/toolsets/pets/update", 409)["code"] in ("NO_SOURCE", "OPENAPI_SOURCE")
    own.ok("POST", "/api/toolsets/pets/uninstall", 204)

    manifest = """id: untidy
name: Untidy
version: 1.0.0
secrets: [API_KEY]
tools:
  - id: tidy
    type: shell
    description: Says hello.
    command: [echo, hello]
  - id: silent
    type: shell
    permission: execute
    command: [echo, hello]
    env: {API_KEY: "${API_KEY}"}
"""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("toolset.yaml", manifest)
    upload = {"file": ("untidy.zip", archive.getvalue(), "application/zip")}
    difference = own.ok("POST", "/api/toolsets/import?dry_run=true", files=upload)["difference"]
    assert difference["levels"] == {"tidy": None, "silent": "execute"}
    assert difference["variables"] == ["API_KEY"]
    own.ok("POST", "/api/toolsets/import", files=upload)
    shown = own.ok("GET", "/api/toolsets/untidy")
    [silent] = [each for each in shown["problems"] if each["message"].startswith("silent:")]
    assert "id: silent" in shown["manifest"].splitlines()[silent["line"] - 1]
    [listed] = [each for each in own.ok("GET", "/api/toolsets")["items"] if each["id"] == "untidy"]
    assert (listed["permission"], listed["tool_count"], listed["problem_count"]) == (
        "execute",
        2,
        len(shown["problems"]),
    )
    own.ok("POST", "/api/toolsets/untidy/uninstall", 204)


def test_rest_changes_categories_and_tools_and_finds_them(own: Rest) -> None:
    changed = own.ok("PATCH", "/api/categories/web", json={"enabled": False, "calls_per_minute": 7})
    assert (changed["enabled"], changed["calls_per_minute"], changed["tools"]) == (False, 7, 0)
    assert own.ok("DELETE", "/api/categories/web")["enabled"] is True
    own.refused("PATCH", "/api/categories/none", 404, json={"enabled": True})
    off = own.ok("PATCH", "/api/tools/delete_file", json={"enabled": False})
    assert (off["offered"], "turned off" in off["withheld"]) == (False, True)
    own.refused("POST", "/api/tools/delete_file/invoke", 403, json={})
    [withheld] = [each for each in own.ok("GET", "/api/withheld-tools")["items"] if each["id"] == "delete_file"]
    assert "turned off" in withheld["reason"]
    assert "delete_file" not in [each["name"] for each in own.ok("GET", "/api/search?q=delete_file")["items"]]
    asked = own.ok("GET", "/api/search?q=delete_file&include_disabled=true")["items"][0]
    assert (asked["name"], asked["enabled"]) == ("delete_file", False)
    assert own.ok("PATCH", "/api/tools/delete_file", json={"enabled": True})["offered"] is True
    error = own.refused("PATCH", "/api/tools/delete_file", 403, json={"name_override": "x"})
    assert error["code"] == "BUILTIN_IMMUTABLE"
    found = own.ok("GET", "/api/search?q=read")["items"]
    assert found[0]["name"].startswith("read")
    assert {"kind": "category", "id": "web"}.items() <= own.ok("GET", "/api/search?q=web")["items"][0].items()
    assert own.ok("GET", "/api/search?q=raed_file")["items"][0]["name"] == "read_file"


def test_rest_chats_are_listed_newest_first(rest: Rest, chat: str) -> None:
    for number in range(3):
        rest.ok("PUT", f"/api/chats/{chat}-{number}/files/a", 201, content=b"x")
    first = rest.ok("GET", "/api/chats?limit=2")
    second = rest.ok("GET", f"/api/chats?limit=1&page_token={first['next_page_token']}")
    assert [each["id"] for each in (*first["items"], *second["items"])] == [f"{chat}-2", f"{chat}-1", f"{chat}-0"]
    assert first["items"][0]["manifest_id"] == rest.ok("GET", f"/api/chats/{chat}-2/manifest")["id"]


def test_rest_health_has_checks_and_problems(own: Rest) -> None:
    health = own.ok("GET", "/api/health")
    assert {"store", "journal", "sandbox", "tools", "toolgate"} <= {check["subject"] for check in health["checks"]}
    assert health["events"] == [] or health["events"][0]["subject"] == "sandbox"
    assert own.ok("GET", "/api/problems")["next_page_token"] is None


def test_rest_calls_are_filtered_by_words_kind_client_and_time(rest: Rest, chat: str) -> None:
    rest.ok("PUT", f"/api/chats/{chat}/files/a.txt", 201, content=b"hello\n")
    rest.ok("POST", "/api/tools/read_file/invoke", json={"args": {"path": "a.txt"}, "chat": chat})

    def names(**query: str) -> list[str]:
        calls = rest.ok("GET", "/api/calls", params={"chat": chat, **query})["items"]
        return [call["tool_name"] for call in calls]

    assert names() == ["read_file", "files/write"]
    assert names(kind="tools") == names(text="EAD_F") == ["read_file"]
    assert names(kind="requests") == ["files/write"]
    assert names(text="r%d") == names(client="nobody") == []  # no pattern
    moment = rest.ok("GET", "/api/calls", params={"chat": chat, "kind": "tools"})["items"][0]["started_at"]
    assert names(since=moment) == ["read_file"]
    assert names(until=moment) == ["files/write"]


def test_rest_call_events_tell_of_calls_of_every_process(rest: Rest, chat: str) -> None:
    with rest.stream("GET", "/api/calls/events", params={"chat": chat, "kind": "tools"}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = response.iter_lines()
        assert next(lines) == "event: ready"
        command(rest.data, "tool", "call", "list_directory", "--chat", chat)
        data = next(line for line in lines if line.startswith("data: ") and line != "data: {}")
    call = json.loads(data.removeprefix("data: "))
    assert (call["tool_name"], call["chat_id"], call["status"]) == ("list_directory", chat, "success")
    assert "args" not in call


def test_rest_steps_of_a_call_are_measured_while_calls_are_followed(rest: Rest, chat: str) -> None:
    def steps(path: str) -> tuple[bool, dict[str, Any]]:
        rest.post("/api/tools/read_file/invoke", json={"args": {"path": path}, "chat": chat})
        [call, *_] = rest.ok("GET", f"/api/calls?chat={chat}")["items"]
        found = rest.ok("GET", f"/api/calls/{call['id']}/steps")
        return found["measured"], {step["name"]: step for step in found["steps"]}

    with rest.stream("GET", "/api/calls/events", params={"chat": chat}) as response:
        lines = response.iter_lines()  # kept: without it the response is closed
        assert next(lines) == "event: ready"
        measured, denied = steps("secret/a.txt")
        assert measured
        assert [name for name, step in denied.items() if step["failed"]] == ["Approval"]
        assert denied["read_file"]["duration_ms"] is None
        assert denied["Validation"]["duration_ms"] >= 0
        _, missing = steps("missing.txt")
        assert missing["read_file"]["failed"]
        assert missing["read_file"]["start_ms"] >= missing["Approval"]["start_ms"] > 0

    def is_measured_no_more() -> bool:
        measured, unmeasured = steps("missing.txt")
        return not measured and {step["duration_ms"] for step in unmeasured.values()} == {None}

    eventually(is_measured_no_more)


def test_rest_preview_is_safe_html_of_code_and_documents(rest: Rest, chat: str) -> None:
    hostile = b"<script>alert(1)</script>"
    for name, content in {
        "a.py": b"x = 1 # " + hostile,
        "b.md": b"# T\n" + hostile,
        "c.bin": b"\0",
        "d.png": b"",
    }.items():
        rest.ok("PUT", f"/api/chats/{chat}/files/{name}", 201, content=content)

    def preview(path: str) -> Any:
        return rest.ok("GET", f"/api/chats/{chat}/preview/{path}")

    code, document = preview("a.py"), preview("b.md")
    assert (code["kind"], code["language"], code["truncated"]) == ("code", "python", False)
    assert "&lt;script&gt;" in code["html"]
    assert document["html"].startswith("<h1>T</h1>")
    assert "script" not in document["html"]
    assert preview("b.md?source=true")["kind"] == "code"
    assert (preview("c.bin")["kind"], preview("d.png")["kind"]) == ("binary", "image")
    assert preview("c.bin")["html"] is None
    assert rest.refused("GET", f"/api/chats/{chat}/preview/no.txt", 404)["code"] == "FILE_NOT_FOUND"
