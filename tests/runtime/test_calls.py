"""Functions of a toolset, called in a real worker: what goes in, what comes out, what they find around them."""

from __future__ import annotations

import asyncio
import json
import logging
import os

import pytest
from eventually import TIMEOUT, async_eventually

from gateway.errors import Invalid, ToolFailed

from .conftest import Bench

pytestmark = pytest.mark.anyio


async def test_the_seeds_data_tool_reads_and_writes_its_workspace(boxed: Bench) -> None:
    boxed.write("""
        import json
        from covalt_toolset import tool, get_context

        @tool(name="Analyze Data", description="Analyze a data file and return statistics")
        def analyze_data(filename: str) -> dict:
            ctx = get_context()
            rows = (ctx.workspace / filename).read_text().splitlines()
            (ctx.workspace / "output.json").write_text(json.dumps({"rows": len(rows)}))
            return {"summary": f"Processed {len(rows)} rows", "output_file": "output.json"}
    """)
    (boxed.workspace() / "data.csv").write_text("a\nb\nc\n")
    outcome = await boxed.call("analyze_data", filename="data.csv")
    assert outcome == {"summary": "Processed 3 rows", "output_file": "output.json"}
    assert json.loads((boxed.workspace() / "output.json").read_text()) == {"rows": 3}


async def test_the_seeds_app_builder_runs_as_it_is_written(boxed: Bench) -> None:
    boxed.write(
        """
        from pathlib import Path

        def write_file(workspace: Path, path: str, content: str) -> dict:
            target = workspace / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(content)
            return {"written": path, "size": len(content)}
        """,
        "tools/files.py",
    )
    boxed.write(
        """
        import subprocess
        from pathlib import Path

        def run_command(workspace: Path, command: str) -> dict:
            result = subprocess.run(command, shell=True, cwd=workspace, capture_output=True, text=True)
            return {"command": command, "output": result.stdout + result.stderr, "exit_code": result.returncode}
        """,
        "tools/shell.py",
    )
    written = await boxed.call("tools.files:write_file", path="src/a.txt", content="hi")
    assert written == {"written": "src/a.txt", "size": 2}
    ran = await boxed.call("tools.shell:run_command", command="cat src/a.txt; exit 3")
    assert ran == {"command": "cat src/a.txt; exit 3", "output": "hi", "exit_code": 3}


async def test_a_model_is_built_from_arguments_and_comes_back_as_json(bench: Bench) -> None:
    bench.write("""
        from pydantic import BaseModel, Field
        from covalt_toolset import tool

        class TransformConfig(BaseModel):
            input: str = Field(description="Input file path")
            times: int = 2

        class Done(BaseModel):
            text: str

        @tool(name="Transform File", description="Transform a file using a template")
        async def transform(config: TransformConfig) -> Done:
            return Done(text=config.input * config.times)
    """)
    assert await bench.call("transform", config={"input": "ab"}) == {"text": "abab"}


async def test_sibling_modules_packages_and_assets_are_found(boxed: Bench) -> None:
    boxed.write("def words(text):\n    return text.split()\n", "tools/text.py")
    boxed.write("LIMIT = 2\n", "shared/limits.py")
    boxed.write("hello there", "assets/greeting.txt")
    boxed.write("""
        from covalt_toolset import get_context
        from .text import words
        from tools.text import words as same
        import text
        from shared.limits import LIMIT

        def run():
            assert words is same is text.words
            return words((get_context().toolset_dir / "assets/greeting.txt").read_text())[:LIMIT]
    """)
    assert await boxed.call("run") == ["hello", "there"]


async def test_the_context_tells_chat_call_toolset_and_working_directory(bench: Bench) -> None:
    bench.write("""
        import os
        from covalt_toolset import get_context

        def run():
            ctx = get_context()
            return [ctx.chat_id, ctx.tool_call_id, ctx.toolset_id, os.path.samefile(ctx.workspace, os.getcwd())]

        async def later():
            return run()
    """)
    for function in ("run", "later"):
        job = bench.job(function, {})
        assert await bench.runtime.call(job) == ["demo", job.id, "it", True]


async def test_calls_side_by_side_have_contexts_of_their_own(bench: Bench) -> None:
    bench.write("""
        import asyncio, time
        from covalt_toolset import get_context

        def sync(n: int):
            before = get_context().tool_call_id
            time.sleep(0.02)
            return [n, before, get_context().tool_call_id]

        async def coro(n: int):
            before = get_context().tool_call_id
            await asyncio.sleep(0.02)
            return [n, before, get_context().tool_call_id]
    """)
    jobs = [bench.job(("sync", "coro")[n % 2], {"n": n}) for n in range(60)]
    answers = await asyncio.gather(*(bench.runtime.call(job) for job in jobs))
    assert answers == [[n, job.id, job.id] for n, job in enumerate(jobs)]
    assert bench.runtime.workers == 1


async def test_state_lives_from_call_to_call_and_never_crosses_workspaces(boxed: Bench) -> None:
    boxed.write("""
        seen = []

        def note(word: str):
            seen.append(word)
            return seen
    """)
    run = boxed.runtime.call
    assert await run(boxed.job("note", {"word": "a"}, "one")) == ["a"]
    assert await run(boxed.job("note", {"word": "b"}, "one")) == ["a", "b"]
    assert await run(boxed.job("note", {"word": "c"}, "two")) == ["c"]


async def test_a_tool_sees_declared_secrets_and_nothing_else_of_the_environment(
    boxed: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_SECRET", "not yours")
    boxed.write("""
        import os

        def env():
            return dict(os.environ)
    """)
    env = await boxed.runtime.call(boxed.job("env", {}, env={"API_KEY": "yours"}))
    assert env["API_KEY"] == "yours"
    assert "GATEWAY_SECRET" not in env
    assert set(env) <= {"API_KEY", "PATH", "HOME", "LANG", "PWD", "TMPDIR", "PYTHONDONTWRITEBYTECODE", "LC_CTYPE"}


async def test_another_secret_means_another_worker(bench: Bench) -> None:
    bench.write("import os\nWHO = os.urandom(4).hex()\ndef key():\n    return [os.environ['KEY'], WHO]\n")
    first, second, third = [
        await bench.runtime.call(bench.job("key", {}, env={"KEY": key})) for key in ("old", "new", "new")
    ]
    assert [first[0], second[0]] == ["old", "new"]
    assert first[1] != second[1]
    assert third == second


async def test_a_worker_sees_no_package_but_the_authors_and_its_needs(bench: Bench) -> None:
    bench.write("""
        import importlib.util

        def found(names: list[str]):
            return [name for name in names if importlib.util.find_spec(name)]
    """)
    names = ["covalt_toolset", "pydantic", "gateway", "orjson", "mcp", "pytest", "anyio"]
    assert await bench.call("found", names=names) == ["covalt_toolset", "pydantic"]


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_every_progress_report_arrives_in_order_before_the_answer(bench: Bench, kind: str) -> None:
    bench.write(f"""
        from covalt_toolset import get_context

        {kind} run():
            for n in range(2000):
                get_context().progress(n + 1, 2000, f"step {{n + 1}}")
    """)
    received: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        received.append((done, total, message))

    await bench.runtime.call(bench.job("run", {}, progress=progress))
    assert received == [(n, 2000, f"step {n}") for n in range(1, 2001)]


async def test_function_that_reports_faster_than_its_caller_waits_for_it(bench: Bench) -> None:
    bench.write("""
        from covalt_toolset import get_context

        def run():
            for n in range(1000):
                get_context().progress(n)
                (get_context().workspace / "at").write_text(str(n))
    """)
    received: list[float] = []
    go = asyncio.Event()

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        await go.wait()
        received.append(done)

    call = asyncio.ensure_future(bench.runtime.call(bench.job("run", {}, progress=progress)))
    at = bench.workspace() / "at"
    await async_eventually(lambda: at.exists() and at.read_text() == "128")
    go.set()
    await call
    assert received == [*range(1000)]


async def test_newest_progress_report_suffices_where_nobody_wants_every_one(bench: Bench) -> None:
    bench.write("""
        from covalt_toolset import get_context

        def run():
            for n in range(20_000):
                get_context().progress(n + 1)
    """)
    received: list[float] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        received.append(done)

    await bench.runtime.call(bench.job("run", {}, progress=progress, every_report=False))
    assert received == sorted(received)
    assert received[-1] == 20_000
    assert len(received) < 200


async def test_progress_of_a_failing_call_arrives_before_its_error(bench: Bench) -> None:
    bench.write("""
        from covalt_toolset import get_context

        def run():
            get_context().progress(1)
            raise ValueError("no such file")
    """)
    reports: list[float] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        await asyncio.sleep(0.1)  # longer than the error takes to arrive
        reports.append(done)

    with pytest.raises(ToolFailed, match="no such file"):
        await bench.runtime.call(bench.job("run", {}, progress=progress))
    assert reports == [1]


async def test_the_last_of_a_burst_is_told_while_the_tool_works_on(bench: Bench) -> None:
    bench.write("""
        import time
        from covalt_toolset import get_context

        def run():
            for n in range(10):
                get_context().progress(n)
            time.sleep(600)
    """)
    received = asyncio.Event()

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        if done == 9:
            received.set()

    call = asyncio.ensure_future(bench.runtime.call(bench.job("run", {}, progress=progress)))
    await asyncio.wait_for(received.wait(), TIMEOUT)
    call.cancel()


async def test_a_watcher_who_breaks_or_hangs_does_not_break_the_call(bench: Bench) -> None:
    bench.write(
        "from covalt_toolset import get_context\ndef run():\n    get_context().progress(1)\n    return 'done'\n"
    )

    async def breaking(done: float, total: float | None = None, message: str | None = None) -> None:
        raise RuntimeError("not interested")

    async def hanging(done: float, total: float | None = None, message: str | None = None) -> None:
        await asyncio.Event().wait()

    for watcher in (breaking, hanging):
        assert await bench.runtime.call(bench.job("run", {}, progress=watcher)) == "done"


async def test_log_lines_go_to_the_toolsets_logger(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write("""
        from covalt_toolset import get_context

        def run():
            get_context().log("careful", "warning")
            for n in range(3000):
                get_context().log("x" * 10_000)
    """)
    with caplog.at_level(logging.INFO, "gateway.toolset.it"):
        await bench.call("run")
    assert caplog.records[0].getMessage() == "careful"
    assert caplog.records[0].levelno == logging.WARNING
    assert len(caplog.records) <= 500
    assert max(len(record.getMessage()) for record in caplog.records) <= 4096


async def test_prints_go_nowhere_and_standard_input_is_empty(bench: Bench) -> None:
    bench.write("""
        import os, sys

        def run():
            print("hello")
            print("hello", file=sys.stderr)
            os.system("echo from a shell")
            return sys.stdin.read()
    """)
    assert await bench.call("run") == ""


async def test_large_integers_arrive_whole_both_ways(bench: Bench) -> None:
    bench.write("def run(n: int):\n    return {'n': n, 'also': [n + 1]}\n")
    for number in (2**53 + 1, 2**64, -(2**70), 10**40):
        assert await bench.call("run", n=number) == {"n": number, "also": [number + 1]}


async def test_text_of_any_kind_arrives_whole(bench: Bench) -> None:
    bench.write("def run(text: str):\n    return text\n")
    text = "a\0b\n\u2028 é 漢 \U0001f600 " * 1000
    assert await bench.call("run", text=text) == text


async def test_a_large_result_arrives(bench: Bench) -> None:
    bench.write("def run(size: int):\n    return 'x' * size\n")
    assert len(await bench.call("run", size=8_000_000)) == 8_000_000


async def test_an_exception_is_told_with_its_type_text_and_the_toolsets_line(boxed: Bench) -> None:
    boxed.write("""
        import json

        def run():
            json.loads("{")

        async def later():
            raise KeyError("missing")
    """)
    with pytest.raises(ToolFailed) as failed:
        await boxed.call("run")
    assert failed.value.code == "EXECUTION_ERROR"
    assert failed.value.message.startswith("JSONDecodeError: Expecting property name")
    assert failed.value.message.endswith("(tools/it.py line 5)")
    assert failed.value.details["type"] == "JSONDecodeError"
    with pytest.raises(ToolFailed, match=r"KeyError: 'missing' \(tools/it.py line 8\)"):
        await boxed.call("later")


async def test_no_error_tells_paths_of_the_host(bench: Bench) -> None:
    bench.write("def run():\n    raise ValueError(__file__)\n")
    for function in ("run", "nothing", "tools.missing:x"):
        with pytest.raises(ToolFailed) as failed:
            await bench.call(function)
        assert str(bench.folder) not in str(failed.value.to_dict())


async def test_arguments_that_do_not_fit_are_the_callers_to_mend(bench: Bench) -> None:
    bench.write("def run(n: int):\n    return n\n")
    with pytest.raises(Invalid, match="run: 'n' is required") as refused:
        await bench.call("run")
    assert refused.value.code == "INVALID_ARGUMENTS"


NOT_JSON = ["object()", "float('nan')", "b'\\xff'", "'\\ud800'", "10**5000", "lambda: 1", "nested(400)"]


async def test_what_json_cannot_carry_is_the_tools_fault(bench: Bench) -> None:
    bench.write(f"""
        def nested(depth):
            value = []
            for _ in range(depth):
                value = [value]
            return value

        ANSWERS = [{", ".join(NOT_JSON)}]

        def run(n: int):
            return ANSWERS[n]

        async def later(n: int):
            return ANSWERS[n]

        def good():
            return "good"
    """)
    for n, answer in enumerate(NOT_JSON):
        for function in ("run", "later"):
            with pytest.raises(ToolFailed) as failed:
                await bench.call(function, n=n)
            assert failed.value.code == "INVALID_OUTPUT", answer
    assert await bench.call("good") == "good"
    assert bench.runtime.workers == 1


async def test_a_workspace_made_anew_is_seen_as_it_is_now(boxed: Bench) -> None:
    boxed.write("def run():\n    return open('note.txt').read()\n")
    workspace = boxed.workspace()
    (workspace / "note.txt").write_text("old")
    assert await boxed.call("run") == "old"
    os.rename(workspace, boxed.folder / "away")
    (boxed.workspace() / "note.txt").write_text("new")
    assert await boxed.call("run") == "new"


async def test_arguments_too_large_are_refused_before_they_are_sent(bench: Bench) -> None:
    bench.write("def run(text: str):\n    return len(text)\n")
    with pytest.raises(Invalid, match="the limit is 33,554,432") as refused:
        await bench.call("run", text="x" * (33 * 1024 * 1024))
    assert refused.value.code == "REQUEST_TOO_LARGE"
    assert await bench.call("run", text="x") == 1
