"""Schemas from a toolset's code: loaded in a worker that is thrown away, whatever the code does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from eventually import async_eventually

from gateway.errors import Invalid
from gateway.runtime import start

from .conftest import Bench

pytestmark = pytest.mark.anyio


async def test_each_python_tool_is_described_or_its_error_told(boxed: Bench) -> None:
    boxed.write("""
        from pydantic import BaseModel
        from covalt_toolset import tool

        class Sum(BaseModel):
            total: int

        @tool(name="Add Up", description="Add two numbers", permission="read-only")
        async def add(a: int, b: int = 2) -> Sum:
            return Sum(total=a + b)
    """)
    boxed.write("import nothing_of_that_name\n", "tools/broken.py")
    boxed.write("def star(*args):\n    pass\n", "tools/star.py")
    described = await boxed.describe(
        "tools.it:add", "tools.it:ad", "tools.broken:run", "tools.star:star", "tools.missing:gone"
    )
    add = described["add"]
    assert (add["name"], add["description"], add["permission"], add["is_async"]) == (
        "Add Up",
        "Add two numbers",
        "read-only",
        True,
    )
    assert add["input_schema"]["properties"]["b"] == {"default": 2, "type": "integer"}
    assert add["output_schema"]["properties"] == {"total": {"type": "integer"}}
    assert {name for name, said in described.items() if isinstance(said, str)} == {"ad", "run", "star", "gone"}
    assert "did you mean 'add'?" in described["ad"]
    assert "No module named 'nothing_of_that_name'" in described["run"]
    assert "tools/star.py:1" in described["star"]
    assert str(boxed.folder) not in str(described)
    assert boxed.runtime.workers == 0


async def test_a_declared_schema_stands_in_for_the_inferred_one(bench: Bench) -> None:
    bench.write("def run(path: str):\n    pass\n")
    schema = {"type": "object", "properties": {"path": {"type": "string", "description": "Where"}}}
    described = await bench.describe("tools.it:run", input_schema=schema)
    assert described["run"]["input_schema"] == schema


async def test_a_toolset_without_python_starts_nothing(bench: Bench) -> None:
    tool = {"id": "ls", "type": "shell", "command": ["ls"], "description": "List"}
    assert await bench.runtime.describe(bench.spec([tool]), bench.directory) == start.Descriptions()
    assert not (bench.folder / "runtime").exists()


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import os\nos._exit(4)", "exited with code 4"),
        ("import ctypes\nctypes.string_at(0)", "crashed (SIGSEGV"),
        pytest.param("import os\nos.kill(os.getpid(), 9)", "crashed (SIGKILL", marks=pytest.mark.slow),
        ("print('x' * 20_000_000, flush=True)\nimport time\ntime.sleep(30)", "printed more than 16 MiB"),
    ],
    ids=["exit", "segfault", "kill", "output"],
)
async def test_code_that_ends_its_process_is_refused_with_the_cause(boxed: Bench, source: str, cause: str) -> None:
    boxed.write(f"{source}\ndef run():\n    pass\n")
    with pytest.raises(Invalid) as refused:
        await boxed.describe("tools.it:run")
    assert refused.value.code == "INVALID_TOOLSET"
    assert refused.value.message.startswith("tool 'run' (tools.it:run): ")
    assert cause in refused.value.message


async def test_code_that_hangs_is_refused_in_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "DESCRIBE_SECONDS", 1.0)
    bench.write("while True:\n    pass\n")
    with pytest.raises(Invalid, match="not loaded within 1 s"):
        await bench.describe("tools.it:run")


async def test_code_that_exits_raises_or_forks_while_it_is_imported(bench: Bench) -> None:
    bench.write("import sys\nsys.exit(3)\n", "tools/leaving.py")
    bench.write("raise RuntimeError('not today')\n", "tools/raising.py")
    bench.write("import os\nos.fork()\ndef fork():\n    pass\n", "tools/forking.py")
    described = await bench.describe("tools.leaving:leave", "tools.raising:rise", "tools.forking:fork")
    assert "SystemExit: 3" in described["leave"]
    assert "tools/raising.py line 1: RuntimeError: not today" in described["rise"]
    assert described["fork"]["name"] == "fork"


async def test_code_that_calls_home_while_it_is_imported_reaches_nobody(boxed: Bench) -> None:
    if boxed.sandbox.name == "unconfined":
        pytest.skip("without a sandbox nothing stops it")
    called = asyncio.Event()
    server = await asyncio.start_server(lambda reader, writer: called.set(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    boxed.write(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)\ndef run():\n    pass\n")
    described = await boxed.describe("tools.it:run")
    server.close()
    assert "tools/it.py line 1" in described["run"] or "tools/it.py line 2" in described["run"]
    assert not called.is_set()


async def test_nothing_is_left_of_a_description(boxed: Bench, tmp_path: Path) -> None:
    boxed.write("open('planted.txt', 'w').write('x')\ndef run():\n    pass\n")
    assert (await boxed.describe("tools.it:run"))["run"]["name"] == "run"
    assert list((boxed.folder / "runtime" / "scratch").iterdir()) == []
    assert not (boxed.directory / "planted.txt").exists()


async def test_a_cancelled_description_cleans_up(bench: Bench) -> None:
    bench.write("import time\ntime.sleep(600)\n")
    scratch = bench.folder / "runtime" / "scratch"
    task = asyncio.ensure_future(bench.describe("tools.it:run"))
    await async_eventually(lambda: scratch.exists() and list(scratch.iterdir()))
    await asyncio.sleep(0.3)  # time for the process to start
    task.cancel()
    await asyncio.wait([task])
    assert list((bench.folder / "runtime" / "scratch").iterdir()) == []
