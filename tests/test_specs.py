"""Tool specifications as a library: `tools.yaml` from a file, an endpoint and the database, and the specification's
own snippets as they stand."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from eventually import async_eventually
from journeys.servers import labs

from gateway import Gateway, specs
from gateway.admin import toolsets
from gateway.approval.question import Answer, Question
from gateway.config import HttpSettings
from gateway.errors import Conflict, Invalid, NotFound
from gateway.specs import (
    DatabaseLoader,
    ExtensionManager,
    FileLoader,
    HttpLoader,
    ToolContext,
    ToolSpecRegistry,
    ToolType,
    UnifiedToolExecutor,
)

SEED = Path(__file__).parent / "shipped/seed/tool-system.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", SEED.read_text(), re.MULTILINE | re.DOTALL)
TOOLS_YAML = next(text for kind, text in BLOCKS if kind == "yaml")
CODE = """
from covalt_toolset import get_context


def read_file(path: str) -> str:
    return (get_context().workspace / path).read_text()
"""

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X1")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application; its origin."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await async_eventually(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True


def write_tools(folder: Path, text: str = TOOLS_YAML) -> FileLoader:
    (folder / "tools.yaml").write_text(text)
    (folder / "file_tools.py").write_text(CODE)
    return FileLoader(folder / "tools.yaml")


async def test_specs_of_the_seed_load_from_a_file_and_are_exported_in_three_shapes(tmp_path: Path) -> None:
    registry = ToolSpecRegistry(write_tools(tmp_path))
    await registry.load_all()
    assert [spec.name for spec in registry.list_specs()] == ["file_reader", "dangerous_delete"]
    assert [spec.name for spec in registry.list_specs(tool_type="shell")] == ["dangerous_delete"]
    assert [spec.name for spec in registry.list_specs(category="filesystem")] == ["file_reader"]
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    assert registry.to_openai_tools()[0] == {
        "type": "function",
        "function": {"name": "file_reader", "description": "Read file contents", "parameters": schema},
    }
    assert registry.to_anthropic_tools()[1]["input_schema"] == schema
    assert registry.to_mcp_tools()[1]["annotations"]["destructiveHint"] is True
    with pytest.raises(NotFound, match="did you mean 'file_reader'"):
        registry.get("file_readr")


async def test_specs_of_the_seed_run_and_the_dangerous_one_asks_first(tmp_path: Path) -> None:
    registry = ToolSpecRegistry(write_tools(tmp_path))
    await registry.load_all()
    asked: list[str] = []

    async def agree(question: Question) -> Answer:
        asked.append(question.tool.id)
        return Answer("once")

    async with UnifiedToolExecutor(registry, settings={"data_dir": tmp_path / "data"}) as executor:
        refused = await executor.execute("dangerous_delete", {"path": "a; touch b"}, ToolContext(session_id="s1"))
        assert refused.error is not None
        assert refused.error.code == "CONFIRMATION_REQUIRED"
        missing = await executor.execute("file_reader", {"path": "keep"}, ToolContext(session_id="s1"))
        assert missing.error is not None
        files = next((tmp_path / "data").glob("*/s1/workspace"))
        for name in ("a; touch b", "keep"):
            (files / name).write_text("text")
        read = await executor.execute("file_reader", {"path": "keep"}, ToolContext(session_id="s1"))
        assert read.value == "text"
        done = await executor.execute("dangerous_delete", {"path": "a; touch b"}, ToolContext("s1", agree))
        assert done.error is None
        assert asked == ["tools:dangerous_delete"]
        assert [path.name for path in files.iterdir()] == ["keep"]


async def test_specs_endpoint_is_pinned_and_a_change_waits_for_review(tmp_path: Path) -> None:
    served = {"text": TOOLS_YAML, "full": 0, "unchanged": 0}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        etag = f'"{hash(served["text"])}"'.encode()
        unchanged = dict(scope["headers"]).get(b"if-none-match") == etag
        served["unchanged" if unchanged else "full"] += 1
        await send({"type": "http.response.start", "status": 304 if unchanged else 200, "headers": [(b"etag", etag)]})
        await send({"type": "http.response.body", "body": b"" if unchanged else str(served["text"]).encode()})

    async with serve(app) as origin:
        url = f"{origin}/tools.yaml"
        loader = HttpLoader(url, HttpSettings(allow_private=True))
        registry = ToolSpecRegistry(loader)
        await registry.load_all()
        assert await registry.refresh() == []
        assert (served["full"], served["unchanged"]) == (1, 1)
        served["text"] = TOOLS_YAML.replace("Read file contents", "Read any file of the machine")
        assert await registry.refresh() == [url]
        await registry.load_all()
        assert registry.get("file_reader").description == "Read file contents"
        pin = loader.pin
        loader.accept()
        await registry.load_all()
        assert registry.get("file_reader").description == "Read any file of the machine"
        other = HttpLoader(url, HttpSettings(allow_private=True), pin)
        for _ in range(2):  # not only the first time
            with pytest.raises(Conflict, match="has changed since it was accepted"):
                await other.load()


async def test_specs_of_the_database_are_those_of_its_catalog(tmp_path: Path) -> None:
    registry = ToolSpecRegistry(DatabaseLoader({"data_dir": tmp_path}))
    await registry.load_all()
    assert {"read_file", "write_file"} <= {spec.name for spec in registry.list_specs(tool_type=ToolType.BUILTIN)}
    assert registry.get("write_file").metadata.category == "editing"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "tools:\n  - name: a\n    tool_typ: shell\n",
            "line 3: 'tools.0.tool_typ': unknown key; did you mean 'tool_type'?",
        ),
        ("tools:\n  - name: a\n    tool_type: shell\n    implementation_config: {command: 'a | b'}\n", "needs a shell"),
        ("tools:\n  - name: a\n    tool_type: robot\n", "line 3: 'tools.0.tool_type'"),
    ],
)
async def test_specs_with_a_mistake_are_refused_with_the_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(Invalid) as refusal:
        await write_tools(tmp_path, text).load()
    assert reason in refusal.value.message


async def test_specs_of_http_and_mcp_tools_run(tmp_path: Path) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": scope["path"].encode() + b"?" + scope["query_string"]})

    async with serve(app) as origin:
        with labs.on_http() as url:
            text = f"""
tools:
  - name: get_item
    tool_type: http
    input_schema: {{type: object, properties: {{id: {{type: integer}}, full: {{type: boolean}}}}}}
    implementation_config: {{url: "{origin}/items/{{id}}", query: {{full: "{{full}}"}}}}
  - name: repeat
    tool_type: mcp
    input_schema: {{type: object, properties: {{text: {{type: string}}}}}}
    implementation_config: {{server: lab, tool: echo, url: "{url}"}}
"""
            registry = ToolSpecRegistry(write_tools(tmp_path, text))
            await registry.load_all()
            http = {"allowed_hosts": [origin.partition("://")[2]], "allow_private": True}
            for allowed in (False, True):
                settings = {"data_dir": tmp_path / f"data-{allowed}", "http": http}
                async with UnifiedToolExecutor(registry, settings=settings, allow_servers=allowed) as executor:
                    got = await executor.execute("get_item", {"id": 3, "full": True})
                    assert got.value == "/items/3?full=true"
                    repeated = await executor.execute("repeat", {"text": "hello"})
                    assert (repeated.error is None, "hello" in str(repeated.value)) == (allowed, allowed)


def python_blocks() -> Iterator[str]:
    return (text for kind, text in BLOCKS if kind == "python")


async def test_specs_snippets_of_the_seed_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"any_tool": "python", "python_function": "python", "mcp_tool": "python", "shell_command": "shell"}
    text = TOOLS_YAML
    for name, kind in kinds.items():
        config = "{module: math_tools, function_name: add}" if kind == "python" else "{command: 'echo {a}'}"
        text += f"  - name: {name}\n    tool_type: {kind}\n    implementation_config: {config}\n"
        text += "    input_schema: {type: object, properties: {a: {type: number}, b: {type: number}}}\n"
    write_tools(tmp_path, text)
    (tmp_path / "math_tools.py").write_text("def add(a: float, b: float) -> float:\n    return a + b\n")
    monkeypatch.chdir(tmp_path)
    registry = ToolSpecRegistry()
    await registry.load_all()
    seen: list[str] = []

    class MyCustomExtension(specs.Extension):
        async def before_execute(self, call: Any) -> None:
            seen.append(call.name)

    names: dict[str, Any] = {
        **{name: getattr(specs, name) for name in specs.__all__},
        "MyCustomExtension": MyCustomExtension,
        "spec_registry": registry,
        "executor": UnifiedToolExecutor(registry, ExtensionManager()),
        "args": {"a": 1, "b": 2},
    }
    opened = []
    for text in python_blocks():
        code = compile(text, "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result
        opened.append(names["executor"])
    assert names["tool_spec"].name == "calculate_sum"
    assert {tool["function"]["name"] for tool in names["openai_tools"]} >= {"file_reader", "dangerous_delete"}
    summed = await opened[-1].execute("python_function", {"a": 1, "b": 2}, ToolContext("one"))
    assert (summed.value, seen) == (3, ["tools:python_function"])
    echoed = await opened[-1].execute("shell_command", {"a": 7}, ToolContext("one"))
    assert "7" in str(echoed.value)
    for executor in set(opened):
        await executor.close()


async def test_specs_file_is_installed_like_a_toolset(tmp_path: Path) -> None:
    write_tools(tmp_path)
    settings = {"data_dir": tmp_path / "data", "toolsets": [str(tmp_path / "tools.yaml")]}
    async with Gateway.open(settings) as gateway:
        assert {entry.tool.id for entry in gateway.catalog} >= {"tools:file_reader", "tools:dangerous_delete"}
        refused = await gateway.call("dangerous_delete", {"path": "x"})
        assert refused.error is not None and refused.error.code == "CONFIRMATION_REQUIRED"


async def test_specs_of_a_configured_url_that_change_stay_as_they_were(tmp_path: Path) -> None:
    shell_only = (
        "tools:\n  - {name: greet, tool_type: shell, description: One, implementation_config: {command: echo hi}}\n"
    )
    served = {"text": shell_only}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": served["text"].encode()})

    async with serve(app) as origin:
        url = f"{origin}/tools.yaml"
        settings = {"data_dir": tmp_path / "data", "toolsets": [url], "http": {"allow_private": True}}
        descriptions = []
        for text in (shell_only, shell_only.replace("One", "Two")):
            served["text"] = text
            async with Gateway.open(settings) as gateway:
                descriptions.append(gateway.catalog.find("greet").tool.description)
        assert descriptions == ["One", "One"]
        async with Gateway.open({**settings, "toolsets": []}) as gateway:
            await toolsets.install_toolset(gateway, url)
            assert gateway.catalog.find("greet").tool.description == "Two"
