"""run_code where no sandbox works: Monty runs Python, a part of it, and nothing else runs."""

from __future__ import annotations

import asyncio
import os
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIME_LIMITS, TIMEOUT, async_eventually

from gateway import Gateway
from gateway.admin.health import check_machine
from gateway.calls import Call
from gateway.config import Settings
from gateway.errors import GatewayError, Unavailable
from gateway.sandbox import Limits, Sandbox
from gateway.sandbox.detect import Survey
from gateway.sandbox.monty import MODULES, is_installed
from gateway.sources.builtin.code.tools import CodeTools
from gateway.sources.builtin.source import BUILTINS, BuiltinSource
from gateway.workspace import Workspaces

from .tool_client import ON, ToolClient, settings

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.promise("C2"),
    pytest.mark.skipif(not is_installed(), reason="Monty is not installed"),
]

LACK = "this machine offers no sandbox"


async def refused() -> Sandbox:
    raise Unavailable(LACK, code="SANDBOX_UNAVAILABLE")


async def opened(place: Path, **more: Any) -> ToolClient:
    folder = place / "ws"
    folder.mkdir(exist_ok=True)
    tools = CodeTools(Workspaces(place / "data", {"demo": folder}), settings(place, **more), refused)
    source = BuiltinSource([tools])
    return ToolClient(tools, source, folder, {tool.id: tool for tool in await source.list_tools()})


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[ToolClient]:
    """A client on a machine where no sandbox works."""
    client = await opened(tmp_path)
    yield client
    await client.source.close()


async def python(client: ToolClient, code: str, **more: Any) -> Any:
    return await client.value("run_code", language="python", code=code, **more)


async def test_code_is_offered_as_the_subset_it_is_and_all_else_is_withheld(bare: ToolClient) -> None:
    tool = bare.tools["run_code"]
    assert tool.withheld is None
    assert tool.input_schema["properties"]["language"]["enum"] == ["python"]
    assert "subset of Python" in tool.description and len(tool.description) < 600
    assert {bare.tools[name].withheld for name in BUILTINS["code"] if name != "run_code"} == {LACK}
    assert [problem.message for problem in await bare.source.problems()] == [LACK]
    assert (await bare.refusal("run_code", language="bash", code="true")).code == "INVALID_ARGUMENTS"
    withheld = bare.tools["run_command"]
    call = Call(name="run_command", tool=withheld, arguments={"command": "touch x"}, chat="demo", confirmed=True)
    with pytest.raises(GatewayError, match=LACK):
        await bare.source.call_tool(call)
    assert os.listdir(bare.folder) == []


async def test_what_the_description_says_is_so(bare: ToolClient) -> None:
    """A newer Monty that knows more, or less, makes this fail: then the description is mended."""
    description = bare.tools["run_code"].description
    for module in MODULES:
        assert module in description
    assert (await python(bare, "\n".join(f"import {module}" for module in MODULES)))["stderr"] == ""
    (bare.folder / "mine.py").write_text("")
    for code in (
        *("import mine", "import numpy", "import subprocess", "class A: pass\nclass B(A): pass"),
        *("def f():\n    yield 1", "x = 1\ndel x", "input()", "import sys\nsys.exit()"),
    ):
        assert (await python(bare, code))["exitCode"] == 1, code


async def test_it_answers_as_any_sandbox_does(bare: ToolClient) -> None:
    (bare.folder / "in.txt").write_text("6 * 7")
    code = (
        "import os, sys\nopen('out.txt', 'w').write(open('in.txt').read() + os.environ['MORE'])\n"
        "print(sorted(os.listdir('.')))\nprint('no', file=sys.stderr)\n1 / 0"
    )
    value = await python(bare, code, env={"MORE": " = 42"})
    assert isinstance(value.pop("duration"), int)
    assert value.pop("stderr").startswith('no\nTraceback (most recent call last):\n  File "<code>", line 5')
    assert value == {
        "stdout": "['in.txt', 'out.txt']\n",
        "exitCode": 1,
        "timedOut": False,
        "killed": None,
        "stdoutTruncated": False,
        "stderrTruncated": False,
        "sandbox": "monty",
    }
    assert (bare.folder / "out.txt").read_text() == "6 * 7 = 42"
    refusal = await bare.refusal("run_code", language="python", code="", args=["x"])
    assert (refusal.code, "args" in refusal.message) == ("INVALID_ARGUMENTS", True)
    assert (await bare.refusal("run_code", language="python", code="", env={"LD_X": ""})).code == "INVALID_ENVIRONMENT"


async def test_the_variables_of_the_gateway_are_not_there(bare: ToolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the gateway")
    code = "import os\nprint(dict(os.environ), os.getenv('SECRET'), os.getenv('A', 'none'))"
    assert (await python(bare, code, env={"B": "1"}))["stdout"] == "{'B': '1'} None none\n"


async def test_links_lead_nowhere_else_and_paths_neither(bare: ToolClient, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("hidden")
    (bare.folder / "inside").mkdir()
    (bare.folder / "inside" / "file").write_text("shown")
    (bare.folder / "good").symlink_to("inside/file")
    (bare.folder / "absolute").symlink_to(outside / "secret")
    (bare.folder / "relative").symlink_to("../outside/secret")
    (bare.folder / "folder").symlink_to("../outside")
    (bare.folder / "twice").symlink_to("folder/secret")
    (bare.folder / "loop").symlink_to("loop")
    assert (await python(bare, "print(open('inside/file').read(), open('good').read())"))["stdout"] == "shown shown\n"
    assert (bare.folder / "relative").read_text() == "hidden", "the links do lead there, for whoever follows them"
    paths = ("absolute", "relative", "folder/secret", "twice", "loop", "../outside/secret", f"{outside}/secret")
    for path in (
        *paths,
        "inside/../../outside/secret",
        "/proc/self/environ",
        "/etc/passwd",
        "/workspace/../etc/passwd",
    ):
        for code in (f"print(open({path!r}).read())", f"open({path!r}, 'w').write('x')", f"open({path!r}, 'a')"):
            value = await python(bare, code)
            assert (value["stdout"], value["exitCode"]) == ("", 1), code
    for code in (
        "import os\nprint(os.listdir('folder'))",
        "import os\nprint(os.listdir('..'))",
        "import os\nos.rename('inside/file', 'folder/file')",
        "import os\nos.mkdir('folder/made')",
        "import os\nos.remove('folder/secret')",
    ):
        assert (await python(bare, code))["exitCode"] == 1, code
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "hidden"


async def test_what_would_use_up_the_machine_is_ended(tmp_path: Path) -> None:
    client = await opened(tmp_path, sandbox={"memory_mb": 64})
    os.mkfifo(client.folder / "fifo")
    with (client.folder / "huge").open("wb") as file:
        file.truncate(10**12)
    try:
        assert (await python(client, "x = 'a' * 10**6\nprint(len(x))"))["stdout"] == "1000000\n"
        for code in ("x = 'a' * 10**9", "10**10**9", "x = []\nwhile True: x.append('a' * 10**5 + str(len(x)))"):
            value = await python(client, f"print('begun')\n{code}")
            assert (value["stdout"], value["killed"], value["exitCode"]) == ("begun\n", "memory", 137), code
        for code, error in (
            ("def f(n): return f(n + 1)\nf(0)", "RecursionError"),
            ("(" * 5000 + ")" * 5000, "SyntaxError"),
            ("open('huge').read()", "MemoryError"),
            ("open('fifo').read()", "PermissionError"),
        ):
            value = await python(client, code, timeout=TIMEOUT)
            assert (value["exitCode"], value["killed"]) == (1, None), code
            assert error in value["stderr"], code
        value = await python(client, "while True: print('x' * 10_000)", timeout=TIMEOUT)
        assert (value["killed"], value["stdoutTruncated"]) == ("output", True)
    finally:
        await client.source.close()


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        pytest.param("while True: open('x', 'w').write('y')", marks=pytest.mark.slow),
        "import time\ntime.sleep(3600)",
        pytest.param(
            "import asyncio\nasync def f(): await asyncio.sleep(3600)\nasyncio.run(f())", marks=pytest.mark.slow
        ),
        pytest.param("sum(range(10**15))", marks=pytest.mark.slow),
    ],
)
async def test_what_takes_too_long_is_ended_and_what_it_said_is_kept(bare: ToolClient, code: str) -> None:
    for seconds in TIME_LIMITS:
        value = await python(bare, f"print('begun')\n{code}", timeout=seconds)
        assert (value["exitCode"], value["timedOut"], value["killed"]) == (124, True, "timeout")
        if value["stdout"]:
            break
    assert value["stdout"] == "begun\n"


async def test_sleep_takes_its_time_and_no_more(bare: ToolClient) -> None:
    value = await python(bare, "import time\ntime.sleep(0.2)\nprint('slept')")
    assert (value["stdout"], value["exitCode"]) == ("slept\n", 0)
    assert 200 <= value["duration"] < 1000 * TIMEOUT


async def test_files_without_end_are_too_many(bare: ToolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.sandbox.disk_usage._FIRST_WALK", 0.1)
    bare.code_tools._limits = Limits(files=500)
    value = await python(bare, "for i in range(10**7): open('%d' % i, 'w')", timeout=TIMEOUT)
    assert value["killed"] == "disk"


async def test_an_answer_nobody_asked_for_stays_where_it_is(bare: ToolClient) -> None:
    """The value of a last expression, which Monty would hand over whole."""
    await python(bare, "1")
    tracemalloc.start()
    try:
        value = await python(bare, "'a' * 5 * 10**7")
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (value["stdout"], value["stderr"], value["exitCode"]) == ("", "", 0)
    assert taken < 10**7


async def test_whoever_waits_sees_the_output_while_it_runs(bare: ToolClient) -> None:
    received: list[str | None] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        received.append(message)
        (bare.folder / "go").touch()

    code = "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    value = await python(bare, code, progress=progress, timeout=TIMEOUT)
    assert value["stdout"] == "first\nsecond\n"
    assert received[0] == "first\n"


@pytest.mark.parametrize("last", ["while True: pass", "import time\ntime.sleep(3600)"])
async def test_who_calls_it_off_ends_it_and_the_next_runs(bare: ToolClient, last: str) -> None:
    code = f"open('there', 'w')\n{last}"
    task = asyncio.ensure_future(bare.call("run_code", language="python", code=code))
    await async_eventually((bare.folder / "there").exists)
    with anyio.fail_after(TIMEOUT / 2):  # the program's own time limit is 60 s
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    with anyio.fail_after(TIMEOUT):
        values = await asyncio.gather(*(python(bare, f"print({each})") for each in range(8)))
    assert [value["stdout"] for value in values] == [f"{each}\n" for each in range(8)]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_nothing_starts_before_it_is_needed_and_nothing_is_left(tmp_path: Path) -> None:
    def workers() -> list[int]:
        ours = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        return [int(pid) for path in ours for pid in path.read_text().split() if b"monty" in _command(pid)]

    client = await opened(tmp_path)
    assert workers() == []
    task = asyncio.ensure_future(
        client.call("run_code", language="python", code="open('there', 'w')\nwhile True: pass")
    )
    await async_eventually((client.folder / "there").exists)
    assert len(workers()) == 1
    with anyio.fail_after(TIMEOUT / 2):  # the program's own time limit is 60 s
        await client.source.close()
        await asyncio.wait([task])
    assert workers() == []


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def barren(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every sandbox was tried and none works."""
    monkeypatch.setattr("gateway.sandbox.detect._cached_survey", [Survey(None)])


@pytest.mark.promise("T1")
async def test_the_files_are_kept_before_and_after(barren: None, tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": tmp_path / "data", **ON}) as gateway:
        assert {entry.name for entry in gateway.catalog} & set(BUILTINS["code"]) == {"run_code"}
        write = {"language": "python", "code": "open('a.txt', 'w').write('1')"}
        first = await gateway.call("run_code", write, chat="c")
        slow = {"language": "python", "code": "open('a.txt', 'w').write('2')\nwhile True: pass"}
        for seconds in TIME_LIMITS:
            second = await gateway.call("run_code", {**slow, "timeout": seconds}, chat="c")
            if (tmp_path / "data/chats/c/workspace/a.txt").read_text() == "2":
                break
        assert first.value["sandbox"] == "monty"
        assert first.pre_manifest != first.post_manifest == second.pre_manifest != second.post_manifest
        back = {"manifest": first.post_manifest}
        assert (await gateway.call("workspace_restore", back, chat="c", confirmed=True)).ok
        assert (tmp_path / "data/chats/c/workspace/a.txt").read_text() == "1"


async def test_an_operator_who_allows_programs_without_a_sandbox_has_them(barren: None, tmp_path: Path) -> None:
    allowed = {"sandbox": {"allow_unsandboxed": True}}
    async with Gateway.open({"data_dir": tmp_path / "data", **ON, **allowed}) as gateway:
        assert {entry.name for entry in gateway.catalog} >= {"run_code", "run_command"}
        call = {"language": "bash", "code": "echo 1"}
        assert (await gateway.call("run_code", call, chat="c")).value["sandbox"] == "unconfined"


async def test_the_doctor_says_that_it_stands_in(barren: None, tmp_path: Path) -> None:
    async def notes(found: Settings) -> list[str]:
        checks = await check_machine(found)
        return [check.message for check in checks if (check.subject, check.state) == ("sandbox", "note")]

    assert await notes(settings(tmp_path)) == ["run_code uses monty: a subset of Python, without packages and bash"]
    assert await notes(settings(tmp_path, sandbox={"allow_unsandboxed": True})) == []
