"""Tools of installed toolsets on the one road: called, versioned, recorded, shown, and refused."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from shipped import seeds

from gateway import Gateway
from gateway.sandbox import detect
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.landlock import Landlock
from gateway.serve.mcp.handlers import Handlers, McpServer

from .writing import install, require_sandbox, write_toolset

pytestmark = pytest.mark.anyio

MANIFEST = dedent(
    """
    id: lab
    name: Lab
    version: 1.0.0
    tools:
      - {id: first, entrypoint: "code:first"}
      - {id: second, entrypoint: "code:second"}
    """
)
CODE = dedent(
    '''
    from covalt_toolset import get_context, tool

    @tool
    def first(text: str) -> dict:
        """First."""
        context = get_context()
        context.progress(1, 2, "half")
        (context.workspace / "made.txt").write_text(text)
        if text == "fail":
            raise ValueError("no such luck")
        return {"chat": context.chat_id, "call": context.tool_call_id}

    @tool(access="none", requires_confirmation=True)
    def second() -> int:
        """Second."""
        return 2
    '''
)


@pytest.mark.promise("T4")
async def test_the_specifications_own_examples_run_unchanged(gateway: Gateway, tmp_path: Path) -> None:
    await install(gateway, seeds.app_builder(tmp_path / "app-builder"))
    await install(gateway, seeds.my_toolset(tmp_path / "my-toolset"))
    wrote = await gateway.call("app-builder__write_file", {"path": "a/b.txt", "content": "hi"}, chat="c")
    assert wrote.value == {"written": "a/b.txt", "size": 2}
    read = await gateway.call("app-builder:read_file", {"path": "a/b.txt"}, chat="c")
    assert read.value == {"path": "a/b.txt", "content": "hi", "size": 2}
    ran = await gateway.call("app-builder:run_command", {"command": "cat a/b.txt; exit 3"}, chat="c")
    assert ran.value == {"command": "cat a/b.txt; exit 3", "output": "hi", "exit_code": 3}
    await gateway.call("app-builder:write_file", {"path": "data.csv", "content": "1\n2\n"}, chat="c")
    analyzed = await gateway.call("my-toolset:analyze_data", {"filename": "data.csv"}, chat="c")
    assert analyzed.ok, analyzed.error
    assert analyzed.value["output_file"] == "output.json"
    assert analyzed.render_plan is not None
    assert analyzed.render_plan["renderer"] == "html"
    assert analyzed.render_plan["config"]["data"] == analyzed.value


@pytest.mark.promise("T4", "T5")
async def test_a_call_is_versioned_recorded_and_told_of_also_when_it_fails(gateway: Gateway, tmp_path: Path) -> None:
    await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
    reports: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        reports.append((done, total, message))

    outcome = await gateway.call("lab:first", {"text": "x"}, chat="c", progress=progress)
    assert outcome.value["chat"] == "c"
    assert reports == [(1, 2, "half")]
    assert outcome.post_manifest != outcome.pre_manifest
    failed = await gateway.call("lab:first", {"text": "fail"}, chat="c")
    assert failed.error is not None
    assert failed.error.code == "EXECUTION_ERROR"
    assert "no such luck" in failed.error.message
    assert failed.post_manifest not in (None, outcome.post_manifest)
    [last, first] = await gateway.records.list_calls(chat="c")
    assert (first.id, first.status, last.status) == (outcome.value["call"], "success", "error")
    refused = await gateway.call("lab:first", {"text": 1}, chat="c")
    assert refused.error is not None
    assert refused.error.code == "INVALID_ARGUMENTS"


@pytest.mark.promise("B9")
async def test_what_disappears_is_withheld_and_comes_back_as_it_was(gateway: Gateway, tmp_path: Path) -> None:
    folder = write_toolset(tmp_path / "lab", MANIFEST, code=CODE)
    await install(gateway, folder)
    await gateway.toolsets.library.override("lab", "lab:second", {"name_override": "Mine"})
    write_toolset(folder, MANIFEST, code=CODE[: CODE.index("@tool(access")])
    await install(gateway, folder)
    gone = await gateway.call("lab:second")
    assert gone.error is not None
    assert gone.error.code == "TOOL_DISABLED"
    assert "comes back" in gone.error.message
    assert (await gateway.call("lab:first", {"text": "x"})).ok
    write_toolset(folder, MANIFEST, code=CODE)
    await install(gateway, folder)
    assert (await gateway.call("lab:second")).value == 2
    assert gateway.catalog.find("lab:second").tool.title == "Mine"


async def test_switches_are_felt_at_once_and_say_how_to_turn_back(gateway: Gateway, tmp_path: Path) -> None:
    await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
    library = gateway.toolsets.library
    await library.enable("lab", False)
    await gateway.refresh()
    off = await gateway.call("lab__first", {"text": "x"})
    assert off.error is not None
    assert "toolgate toolset enable lab" in off.error.message
    await library.enable("lab", True)
    await library.override("lab", "first", {"enabled": False})
    await gateway.refresh()
    assert [entry.tool.id for entry in gateway.catalog if entry.tool.owner == "lab"] == ["lab:second"]
    await library.uninstall("lab")
    await gateway.refresh()
    assert (await gateway.call("lab:first", {"text": "x"})).error is not None
    assert not list((gateway.settings.data_dir / "toolsets").iterdir())


async def test_a_category_of_its_own_is_read_write_and_no_more(gateway: Gateway, tmp_path: Path) -> None:
    own = MANIFEST.replace("version: 1.0.0", "version: 1.0.0\ncategory: weather")
    await install(gateway, write_toolset(tmp_path / "lab", own, code=CODE))
    assert gateway.catalog.find("lab:first").tool.category == "weather"
    higher = own.replace("id: lab", "id: high").replace("category:", "permission: execute\ncategory:")
    await install(gateway, write_toolset(tmp_path / "high", higher, code=CODE))
    refused = gateway.catalog.refusal("high:first").message
    assert "allows only read-write; give the tool another category, or raise" in refused


async def test_toolset_input_schema_has_its_references_inlined(gateway: Gateway, tmp_path: Path) -> None:
    code = dedent(
        """
        from pydantic import BaseModel

        class Point(BaseModel):
            x: int

        def first(point: Point) -> int:
            return point.x

        def second() -> int:
            return 2
        """
    )
    await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=code))
    schema = gateway.catalog.find("lab:first").tool.input_schema
    assert "$defs" not in schema
    assert schema["properties"]["point"]["properties"] == {"x": {"type": "integer"}}
    assert (await gateway.call("lab:first", {"point": {"x": 3}})).value == 3


@pytest.mark.promise("X4")
async def test_shell_tools_get_arguments_as_data(gateway: Gateway, tmp_path: Path) -> None:
    manifest = dedent(
        """
        id: sh
        name: Shell
        version: 1.0.0
        secrets: [SH_TOKEN]
        tools:
          - {id: print, type: shell, command: [printf, "%s|", "${words}"], input_schema:
              {type: object, properties: {words: {type: array, items: {type: string}}}, required: [words]}}
          - {id: count, type: shell, command: [wc, -c], stdin: "${text}"}
          - {id: json, type: shell, command: [cat, "${path}"], output_schema: {type: object}}
          - {id: save, type: shell, command: [cp, "${source}", "${target}"]}
          - {id: own, type: shell, command: [./bin/own, "${name}"], env: {TOKEN: "${SH_TOKEN}"}, success_codes: [0, 7]}
          - {id: none, type: shell, command: [there-is-no-such-program]}
        """
    )
    folder = write_toolset(tmp_path / "sh", manifest)
    (folder / "bin").mkdir()
    (folder / "bin/own").write_text('#!/bin/sh\necho "$1 $TOKEN $PWD"; exit 7\n')
    (folder / "bin/own").chmod(0o755)
    await install(gateway, folder)
    nasty = ["; touch /tmp/x", "$(id)", "a b", "`id`", "'", "${HOME}"]
    printed = await gateway.call("sh:print", {"words": nasty}, chat="c")
    assert printed.ok, printed.error
    assert printed.value["stdout"] == "".join(f"{word}|" for word in nasty)
    assert (await gateway.call("sh:count", {"text": "12345"}, chat="c")).value["stdout"].split() == ["5"]
    await gateway.call("write_file", {"path": "a.json", "content": '{"a": 1}'}, chat="c")
    assert (await gateway.call("sh:json", {"path": "a.json"}, chat="c")).value == {"a": 1}
    saved = await gateway.call("sh:save", {"source": "a.json", "target": "b.json"}, chat="c")
    assert saved.post_manifest != saved.pre_manifest
    own = await gateway.call("sh:own", {"name": "--x"}, chat="c")
    assert own.error is not None
    assert "for an option" in own.error.message
    own = await gateway.call("sh:own", {"name": "Ann"}, chat="c")
    assert own.value["exitCode"] == 7
    assert own.value["stdout"].startswith("Ann ")
    failed = await gateway.call("sh:save", {"source": "none", "target": "c"}, chat="c")
    assert failed.error is not None
    assert "No such file" in failed.error.message
    missing = await gateway.call("sh:none", {}, chat="c")
    assert missing.error is not None
    assert missing.error.code == "PROGRAM_NOT_FOUND"


@pytest.mark.promise("X4")
async def test_a_shell_tool_of_one_text_with_a_safe_dash_runs_as_written(gateway: Gateway, tmp_path: Path) -> None:
    manifest = dedent(
        """
        id: sh
        name: Shell
        version: 1.0.0
        tools:
          - {id: add, type: shell, command: "expr {left} + {right}", dash_safe: [left]}
          - {id: drop, type: shell, command: "rm {path}"}
        """
    )
    await install(gateway, write_toolset(tmp_path / "sh", manifest))
    assert (await gateway.call("sh:add", {"left": "-1", "right": "3"}, chat="c")).value["stdout"] == "2\n"
    refused = await gateway.call("sh:add", {"left": "1", "right": "-3"}, chat="c")
    assert refused.error is not None and "name it in 'dash_safe'" in refused.error.message
    for name in ("a; rm b", "b"):
        await gateway.call("write_file", {"path": name, "content": ""}, chat="c")
    assert (await gateway.call("sh:drop", {"path": "a; rm b"}, chat="c")).ok
    assert [path.name for path in (gateway.settings.data_dir / "chats/c/workspace").iterdir()] == ["b"]


@pytest.mark.promise("B4")
@pytest.mark.parametrize(("prefix", "name"), [("x", "x__second"), ("", "second")])
async def test_a_toolset_chooses_the_prefix_of_its_tools(
    gateway: Gateway, tmp_path: Path, prefix: str, name: str
) -> None:
    folder = write_toolset(tmp_path / "lab", MANIFEST.replace("tools:", f"prefix: '{prefix}'\ntools:"), code=CODE)
    await install(gateway, folder)
    server = McpServer(Handlers(gateway.executor, gateway.versions, "c"))
    async with Client(server.sdk) as client:
        assert name in {tool.name for tool in (await client.list_tools()).tools}
        [block] = (await client.call_tool(name)).content
        assert isinstance(block, types.TextContent) and block.text == "2"
    assert (await gateway.call("lab:second")).value == 2


LEVELS = dedent(
    """
    id: levels
    name: Levels
    version: 1.0.0
    tools:
      - {id: look, entrypoint: "code:look"}
      - {id: peek, entrypoint: "code:peek"}
      - {id: change, entrypoint: "code:change"}
      - {id: touch, type: shell, command: [cp, kept.txt, "${path}"], permission: read-only, access: read}
    """
)
LEVELS_CODE = dedent(
    '''
    import subprocess, threading
    from covalt_toolset import get_context, tool

    def attempt(what: str) -> str:
        file = get_context().workspace / "kept.txt"
        try:
            if what == "read":
                return file.read_text()
            if what == "write":
                file.write_text("changed")
            elif what == "create":
                (file.parent / "made.txt").write_text("")
            elif what == "delete":
                file.unlink()
            elif what == "thread":
                thread = threading.Thread(target=list)
                thread.start()
                thread.join()
            else:
                subprocess.run([what], check=True)
        except OSError as error:
            return f"refused: {error.strerror}"
        return "done"

    @tool(permission="read-only", access="read")
    def look(what: str) -> str:
        """Look."""
        return attempt(what)

    @tool(access="read")
    def peek(what: str) -> str:
        """Peek: it may start programs, and change nothing."""
        return attempt(what)

    @tool
    def change(what: str) -> str:
        """Change."""
        return attempt(what)
    '''
)


@pytest.mark.promise("P2")
@pytest.mark.parametrize(("backend", "era"), [(Bubblewrap, "auto"), (Landlock, "legacy")])
async def test_toolset_tool_that_declares_to_read_only_can_do_nothing_else(
    backend: type[Bubblewrap] | type[Landlock], era: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await require_sandbox()
    monkeypatch.setattr(detect, "_cached_survey", [detect.Survey(backend())])
    settings = {"data_dir": str(tmp_path / "data"), "approval": {"mode": "never"}}
    async with Gateway.open(settings) as gateway:
        await install(gateway, write_toolset(tmp_path / "levels", LEVELS, code=LEVELS_CODE))
        await gateway.call("write_file", {"path": "kept.txt", "content": "kept"}, chat="c")
        server = McpServer(Handlers(gateway.executor, gateway.versions, "c"))
        async with Client(server.sdk, mode=era, cache=None) as client:

            async def text_of(tool: str, **arguments: str) -> str:
                result = await client.call_tool(f"levels__{tool}", arguments)
                [block] = result.content
                assert isinstance(block, types.TextContent)
                return block.text if result.is_error else str(json.loads(block.text))

            assert await text_of("look", what="read") == "kept"
            assert await text_of("look", what="thread") == "done"
            for tool in ("look", "peek"):
                for what in ("write", "create", "delete"):
                    assert (await text_of(tool, what=what)).startswith("refused"), (tool, what)
            assert await text_of("look", what="/bin/true") == "refused: Operation not permitted"
            assert await text_of("peek", what="/bin/true") == "done"
            assert (await text_of("touch", path="made.txt")).startswith("EXECUTION_ERROR")
            listed = await gateway.call("list_directory", {"path": "."}, chat="c")
            assert [entry["name"] for entry in listed.value["entries"]] == ["kept.txt"]
            history = await gateway.call("workspace_history", {}, chat="c")
            assert len(history.value["versions"]) == 1, history.value
            assert await text_of("change", what="write") == "done"
            assert await text_of("change", what="/bin/true") == "done"
            assert await text_of("look", what="read") == "changed"


PLANTING = dedent(
    '''
    from pathlib import Path
    from covalt_toolset import get_context, tool

    @tool
    def plant(path: str) -> str:
        """Write a file."""
        file = get_context().workspace / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("planted")
        except OSError as error:
            return f"refused: {error.strerror}"
        return "written"
    '''
)
PLANTING_MANIFEST = dedent(
    """
    id: garden
    name: Garden
    version: 1.0.0
    tools:
      - {id: plant, entrypoint: "code:plant"}
      - {id: copy, type: shell, command: [cp, "${source}", "${target}"]}
    """
)
PROTECTED = {
    ".git/hooks/pre-commit": "hook",
    ".git/config": "[core]\n",
    "toolgate.yaml": "{}",
    ".vscode/tasks.json": "{}",
}


@pytest.mark.promise("C5")
async def test_toolset_tools_cannot_change_or_make_protected_files_of_an_attached_folder(tmp_path: Path) -> None:
    await require_sandbox()
    folder = tmp_path / "project"
    for name, content in PROTECTED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    settings = {"data_dir": tmp_path / "data", "workspace": folder, "approval": {"mode": "never"}}
    async with Gateway.open(settings) as gateway:
        await install(gateway, write_toolset(tmp_path / "garden", PLANTING_MANIFEST, code=PLANTING))
        await gateway.call("garden:plant", {"path": "free.txt"})
        for name in PROTECTED:
            planted = await gateway.call("garden:plant", {"path": name})
            assert planted.value == "refused: Read-only file system", planted.error
            copied = await gateway.call("garden:copy", {"source": "free.txt", "target": name})
            assert copied.error is not None
        for tool, arguments in (
            ("garden:plant", {"path": ".envrc"}),
            ("garden:copy", {"source": "free.txt", "target": ".mcp.json"}),
        ):
            made = await gateway.call(tool, arguments)
            assert made.error is not None and made.error.code == "PROTECTED_FILE", made
        assert (await gateway.call("garden:plant", {"path": ".git/info/exclude"})).value == "written"
        # One that came to be since the worker was started is protected too.
        (folder / ".envrc").write_text("mine")
        assert (await gateway.call("garden:plant", {"path": ".envrc"})).value == "refused: Read-only file system"
    assert {name: (folder / name).read_text() for name in PROTECTED} == PROTECTED
    assert (folder / ".envrc").read_text() == "mine"
    assert (folder / ".envrc.toolgate-removed-1").read_text() == "planted"
    assert not (folder / ".mcp.json").exists()
