"""The API endpoints of the toolset system's specification, section 7: one test for each row and rule."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from .conftest import Rest

pytestmark = [pytest.mark.promise("T7")]

MANIFEST = """manifest_version: "1"
id: {id}
name: Greeter
version: "{version}"
description: Greets
tools:
  - id: greet
    type: shell
    description: Greet somebody
    command: ["echo", "hello {{name}}"]
    input_schema: {{type: object, properties: {{name: {{type: string}}}}, required: [name]}}
    renderer: {{type: code, content: "$return.stdout"}}
"""


def pack(toolset_id: str, version: str = "1.0.0", **files: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("toolset.yaml", MANIFEST.format(id=toolset_id, version=version))
        for name, text in files.items():
            archive.writestr(f"assets/{name}.txt", text)
    return packed.getvalue()


def install(rest: Rest, toolset_id: str, version: str = "1.0.0", dry_run: bool = False, **files: str) -> Any:
    form = {"file": ("greeter.zip", pack(toolset_id, version, **files), "application/zip")}
    return rest.ok("POST", f"/api/toolsets/import?dry_run={str(dry_run).lower()}", files=form)


@pytest.fixture
def toolset(own: Rest, chat: str) -> str:
    toolset_id = f"greeter-{chat[-8:]}"
    install(own, toolset_id, note="one")
    return toolset_id


def events(answer: httpx.Response) -> Iterator[tuple[str, str, Any]]:
    """The id, kind and data of each server-sent event."""
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif "data" in fields:
            yield fields.pop("id"), fields.pop("event"), json.loads(fields.pop("data"))


# 7.1 Toolset management


@pytest.mark.row("000-7.1-list_toolsets")
def test_list_toolsets_lists_installed_ones(own: Rest, toolset: str) -> None:
    [found] = [each for each in own.ok("GET", "/api/toolsets?limit=1000")["items"] if each["id"] == toolset]
    assert (found["name"], found["version"], found["enabled"], found["source_type"]) == (
        "Greeter",
        "1.0.0",
        True,
        "zip",
    )
    assert found["source_ref"] == "greeter.zip"


@pytest.mark.row("000-7.1-get_toolset")
def test_get_toolset_has_details_and_tools(own: Rest, toolset: str) -> None:
    found = own.ok("GET", f"/api/toolsets/{toolset}")
    [tool] = found["tools"]
    assert (tool["id"], tool["renderer"], tool["withheld"]) == (f"{toolset}:greet", "code", None)
    assert own.refused("GET", "/api/toolsets/none-such", 404)["code"] == "UNKNOWN_TOOLSET"


@pytest.mark.row("000-7.1-import_toolset")
def test_import_toolset_takes_a_zip_and_a_dry_run_answers_the_difference(own: Rest, toolset: str) -> None:
    planned = install(own, toolset, "1.1.0", dry_run=True, note="two", more="new")
    assert planned["toolset"] is None
    difference = planned["difference"]
    assert (difference["installed_version"], difference["version"], difference["changed"]) == ("1.0.0", "1.1.0", True)
    assert difference["files"] == {"added": ["assets/more.txt"], "changed": ["assets/note.txt"], "removed": []}
    assert difference["tools"] == {"added": [], "changed": [], "removed": []}
    assert own.ok("GET", f"/api/toolsets/{toolset}")["version"] == "1.0.0"
    assert install(own, toolset, "1.1.0", note="two", more="new")["difference"] == difference
    assert own.ok("GET", f"/api/toolsets/{toolset}")["version"] == "1.1.0"


@pytest.mark.row("000-7.1-import_toolset-refusals")
def test_import_toolset_refuses_what_is_no_bundle_and_changes_nothing(own: Rest) -> None:
    before = own.ok("GET", "/api/toolsets?limit=1000")
    for content in (b"", b"no zip", pack("Not An Id")):
        answer = own.post("/api/toolsets/import", files={"file": ("x.zip", content, "application/zip")})
        assert answer.status_code == 400, answer.text
    assert own.refused("POST", "/api/toolsets/import", 400, files={"other": b"x"})["code"] == "INVALID_FORM"
    assert own.refused("POST", "/api/toolsets/import", 400, json={"url": "/etc/passwd"})["code"] == "INVALID_REQUEST"
    answer = own.post("/api/toolsets/import", json={"url": "http://127.0.0.1:1/x.zip"})
    assert answer.status_code in (403, 422), answer.text
    assert own.ok("GET", "/api/toolsets?limit=1000") == before


@pytest.mark.row("000-7.1-export_toolset")
def test_export_toolset_is_a_zip_that_imports_again(own: Rest, toolset: str) -> None:
    answer = own.get(f"/api/toolsets/{toolset}/export")
    assert answer.headers["content-type"] == "application/zip"
    assert answer.headers["content-disposition"] == f'attachment; filename="{toolset}-1.0.0.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {"toolset.yaml", "assets/note.txt"} <= set(archive.namelist())
    form = {"file": ("again.zip", answer.content, "application/zip")}
    assert own.ok("POST", "/api/toolsets/import?dry_run=true", files=form)["difference"]["changed"] is False


@pytest.mark.row("000-7.1-enable_toolset")
def test_enable_toolset_turns_its_tools_off_and_on_at_once(own: Rest, toolset: str) -> None:
    for enabled in (False, True):
        assert own.ok("POST", f"/api/toolsets/{toolset}/enable", json={"enabled": enabled})["enabled"] is enabled
        listed = {tool["id"] for tool in own.ok("GET", "/api/tools?limit=1000")["items"]}
        assert (f"{toolset}:greet" in listed) is enabled


@pytest.mark.row("000-7.1-uninstall_toolset")
def test_uninstall_toolset_removes_it_and_its_tools(own: Rest, toolset: str) -> None:
    assert own.post(f"/api/toolsets/{toolset}/uninstall").status_code == 204
    own.refused("GET", f"/api/toolsets/{toolset}", 404)
    own.refused("GET", f"/api/tools/{toolset}:greet", 404)
    own.refused("POST", f"/api/toolsets/{toolset}/uninstall", 404)


# 7.2 Tool operations


@pytest.mark.row("000-7.2-list_tools")
def test_list_tools_has_builtins_and_those_of_toolsets(own: Rest, toolset: str) -> None:
    tools = {tool["id"]: tool for tool in own.ok("GET", "/api/tools?limit=1000")["items"]}
    assert (tools["read_file"]["kind"], tools["read_file"]["owner"]) == ("builtin", None)
    assert tools[f"{toolset}:greet"]["owner"] == toolset
    chosen = own.ok("GET", "/api/tools?kind=builtin&category=editing&limit=1000")["items"]
    assert {"write_file"} <= {tool["id"] for tool in chosen} < tools.keys()


@pytest.mark.row("000-7.2-get_tool")
def test_get_tool_has_schema_and_render_config(own: Rest, toolset: str) -> None:
    by_id = own.ok("GET", f"/api/tools/{toolset}:greet")
    assert by_id["input_schema"]["required"] == ["name"]
    assert by_id["render_config"] == {"kind": "code", "config": {"content": "$return.stdout"}}
    assert own.ok("GET", f"/api/tools/{by_id['name']}") == by_id


# 7.3 Workspace operations


@pytest.mark.row("000-7.3-get_workspace_files")
def test_get_workspace_files_lists_now_and_in_a_version(rest: Rest, chat: str) -> None:
    old = rest.ok("PUT", f"/api/chats/{chat}/files/src/a.py", 201, content=b"1")["manifest_id"]
    rest.ok("PUT", f"/api/chats/{chat}/files/src/b.py", 201, content=b"22")
    now = rest.ok("GET", f"/api/chats/{chat}/files")["items"]
    assert [(file["path"], file["kind"], file["size"]) for file in now] == [
        ("src", "directory", None),
        ("src/a.py", "file", 1),
        ("src/b.py", "file", 2),
    ]
    then = rest.ok("GET", f"/api/chats/{chat}/files?manifest={old}")["items"]
    assert [file["path"] for file in then] == ["src", "src/a.py"]
    assert [file["path"] for file in rest.ok("GET", f"/api/chats/{chat}/files?recursive=false")["items"]] == ["src"]
    assert rest.refused("GET", f"/api/chats/{chat}-other/files", 404)["code"] == "CHAT_NOT_FOUND"


@pytest.mark.row("000-7.3-get_workspace_file")
def test_get_workspace_file_has_its_bytes_now_and_in_a_version(rest: Rest, chat: str) -> None:
    path = f"/api/chats/{chat}/files/pages/%C3%BC%20b.html"
    content = b"<script>alert(1)</script>\x00\xff"
    first = rest.put(path, content=content)
    rest.ok("PUT", path, 200, content=b"new")
    answer = rest.get(path)
    assert answer.content == b"new"
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert rest.get(path, params={"manifest": first.json()["manifest_id"]}).content == content
    assert rest.get(path.replace("/pages/", "/pages%2F")).content == b"new"
    for missing in ("none.txt", "pages/none.txt"):
        rest.refused("GET", f"/api/chats/{chat}/files/{missing}", 404)
    for outside in ("..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "a%00b"):
        rest.refused("GET", f"/api/chats/{chat}/files/{outside}", 400)


@pytest.mark.row("000-7.3-get_workspace_file-rules")
def test_get_workspace_file_obeys_the_rules_of_the_tools(rest: Rest, chat: str) -> None:
    rest.ok("PUT", f"/api/chats/{chat}/files/open.txt", 201, content=b"x")
    for method in ("GET", "PUT"):
        error = rest.refused(method, f"/api/chats/{chat}/files/secret/a.txt", 403)
        assert error["code"] == "DENIED_BY_RULE"
    rest.refused("PUT", f"/api/chats/{chat}/files/ask-a.txt", 403, content=b"x")
    [denied, *_] = rest.ok("GET", f"/api/calls?chat={chat}&status=error")["items"]
    assert (denied["surface"], denied["error_code"]) == ("rest", "CONFIRMATION_REQUIRED")


@pytest.mark.row("000-7.3-get_workspace_manifest")
def test_get_workspace_manifest_is_that_of_a_message(rest: Rest, chat: str) -> None:
    def write(message: str, content: str) -> None:
        body = {"args": {"path": "a.txt", "content": content}, "chat": chat, "message_id": message}
        rest.ok("POST", "/api/tools/write_file/invoke", json=body)

    write("m1", "one")
    first = rest.ok("GET", f"/api/chats/{chat}/manifest")
    rest.ok("PUT", f"/api/chats/{chat}/files/b.txt", 201, content=b"two")
    assert rest.ok("GET", f"/api/chats/{chat}/manifest?manifest={first['id']}") == first
    assert first["files"].keys() == {"a.txt"}
    assert (first["chat_id"], first["source"]) == (chat, "tool_run")
    assert first["changes"] == {"added": ["a.txt"], "changed": [], "deleted": []}
    assert rest.ok("GET", f"/api/chats/{chat}/manifest?message_id=m1")["files"].keys() == {"a.txt", "b.txt"}
    assert rest.refused("GET", f"/api/chats/{chat}/manifest?message_id=m9", 404)["code"] == "MESSAGE_NOT_FOUND"


def test_a_parent_message_that_is_null_is_not_named_and_an_empty_one_is_the_beginning(rest: Rest, chat: str) -> None:
    def files(message: str, **parent: str | None) -> set[str]:
        body = {"chat": chat, "message_id": message, **{f"parent_{key}": named for key, named in parent.items()}}
        listed = rest.ok("POST", "/api/tools/list_directory/invoke", json=body)["value"]["entries"]
        return {entry["name"] for entry in listed}

    write = {"args": {"path": "a.txt", "content": "1"}, "chat": chat, "message_id": "m1"}
    rest.ok("POST", "/api/tools/write_file/invoke", json=write)
    assert files("m2", message_id=None) == files("m3", message_id="a question") == {"a.txt"}
    assert files("m1-again", message_id="") == set()
    with rest.stream("POST", f"/api/chats/{chat}/stream", json=write | {"parent_message_id": "", "tool": "read_file"}):
        pass
    assert files("m3") == {"a.txt"}


# 7.4 stream and get_available_tools


@pytest.mark.row("000-7.4-stream")
def test_stream_runs_a_tool_in_the_workspace_and_ends_with_the_result(rest: Rest, chat: str) -> None:
    body = {"tool": "write_file", "args": {"path": "a.txt", "content": "hi"}, "message_id": "m1"}
    with rest.stream("POST", f"/api/chats/{chat}/stream", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = list(events(answer))
    assert [kind for _, kind, _ in found] == ["started", "result"]
    result = found[-1][2]
    assert result["ok"] is True
    assert result["call_id"] == found[0][2]["call_id"]
    record = rest.ok("GET", f"/api/calls/{result['call_id']}")
    assert (record["status"], record["post_manifest_id"]) == ("success", result["post_manifest_id"])
    assert rest.ok("GET", f"/api/chats/{chat}/manifest?message_id=m1")["id"] == result["post_manifest_id"]


@pytest.mark.row("000-7.4-stream-error")
def test_stream_ends_with_the_error_of_a_call(rest: Rest, chat: str) -> None:
    with rest.stream("POST", f"/api/chats/{chat}/stream", json={"tool": "read_file", "args": {"path": "x"}}) as answer:
        *_, (_, kind, data) = events(answer)
    assert (kind, data["ok"], data["error"]["code"]) == ("result", False, "FILE_NOT_FOUND")


@pytest.mark.row("000-7.4-stream-resume")
def test_stream_is_resumed_after_an_event_while_the_call_waits_for_a_person(rest: Rest, chat: str) -> None:
    url = f"/api/chats/{chat}/stream"
    body = {"tool": "write_file", "args": {"path": "ask-a.txt", "content": "one"}}
    with rest.stream("POST", url, json=body) as answer:
        seen = []
        for event in events(answer):
            seen.append(event)
            if event[1] == "approval_required":
                break  # and the connection breaks
    (first, started, _), (_, _, asked) = seen
    assert started == "started"
    assert asked["args"] == body["args"]
    edited = {"decision": "allow", "arguments": {"content": "two"}}
    decided = rest.ok("POST", f"/api/approvals/{asked['approval_id']}", json=edited)
    assert decided["edited_args"] == {"path": "ask-a.txt", "content": "two"}
    with rest.stream("GET", url, headers={"last-event-id": first}) as answer:
        rest_of_it = list(events(answer))
    assert [kind for _, kind, _ in rest_of_it] == ["approval_required", "result"]
    assert rest_of_it[-1][2]["ok"] is True
    assert rest.get(f"/api/chats/{chat}/files/ask-a.txt").content == b"two"
    with rest.stream("GET", url, headers={"last-event-id": rest_of_it[0][0]}) as answer:
        assert [kind for _, kind, _ in events(answer)] == ["result"]
    rest.refused("GET", f"{url}?last_event_id=99999-1", 404)
    rest.refused("GET", url, 400)


@pytest.mark.row("000-7.4-stream-progress")
def test_stream_reports_progress_and_a_running_call_is_cancelled(own: Rest, chat: str) -> None:
    own.ok("PATCH", "/api/categories/development", json={"enabled": True})
    code = "import time\nprint('begun', flush=True)\ntime.sleep(300)"
    body = {"tool": "run_code", "args": {"code": code, "language": "python"}}
    with own.stream("POST", f"/api/chats/{chat}/stream", json=body) as answer:
        course = events(answer)
        _, _, started = next(course)
        call = own.ok("GET", f"/api/calls/{started['call_id']}")  # at once
        assert call["status"] == "running"
        own.ok("POST", f"/api/calls/{call['id']}/cancel", 202)
        *_, (_, kind, data) = course
    assert (kind, data["error"]["code"]) == ("result", "CANCELLED")
    record = own.ok("GET", f"/api/calls/{call['id']}")
    assert (record["status"], record["error_code"]) == ("error", "CANCELLED")
    assert own.refused("POST", f"/api/calls/{call['id']}/cancel", 409)["code"] == "NOT_RUNNING"


@pytest.mark.row("000-7.4-get_available_tools")
def test_available_tools_are_in_the_format_of_each_model_api(own: Rest, toolset: str) -> None:
    shapes = {
        "mcp": lambda tool: (tool["name"], tool["inputSchema"]),
        "openai": lambda tool: (tool["function"]["name"], tool["function"]["parameters"]),
        "anthropic": lambda tool: (tool["name"], tool["input_schema"]),
    }
    lists = {
        name: dict(map(shape, own.ok("GET", f"/api/available-tools?format={name}")["tools"]))
        for name, shape in shapes.items()
    }
    assert lists["mcp"] == lists["openai"] == lists["anthropic"]
    assert {"read_file", f"{toolset}__greet"} <= lists["mcp"].keys()
    assert own.refused("GET", "/api/available-tools?format=xml", 400)["code"] == "INVALID_REQUEST"


def test_every_row_of_section_7_has_a_test() -> None:
    from . import test_journeys  # it holds one of them

    rows = {
        "7.1": (
            *("list_toolsets", "get_toolset", "import_toolset", "export_toolset", "enable_toolset"),
            "uninstall_toolset",
        ),
        "7.2": ("list_tools", "list_tools-servers", "get_tool"),
        "7.3": ("get_workspace_files", "get_workspace_file", "get_workspace_manifest"),
        "7.4": ("stream", "get_available_tools"),
    }
    marked = {
        mark.args[0]
        for test in (*globals().values(), *vars(test_journeys).values())
        for mark in getattr(test, "pytestmark", ())
        if callable(test) and mark.name == "row"
    }
    assert {f"000-{section}-{name}" for section, names in rows.items() for name in names} <= marked
