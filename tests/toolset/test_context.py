"""What a tool knows of its call, and how a unit test stands in for one."""

import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from covalt_toolset import (
    Log,
    Progress,
    ToolContext,
    clear_context,
    context,
    get_context,
    invoke,
    set_context,
    tool,
)


@pytest.fixture(autouse=True)
def _outside_of_any_call() -> Iterator[None]:
    clear_context()
    yield
    clear_context()


@tool
def note(text: str) -> str:
    here = get_context()
    here.progress(1)
    here.progress(2, 2, "done")
    here.log("noted")
    here.log("too short", "warning")
    (here.workspace / "note.txt").write_text(text)
    return f"{here.chat_id}/{here.toolset_id}/{here.tool_call_id}"


def test_outside_of_a_call_the_message_says_how_to_test() -> None:
    with pytest.raises(RuntimeError) as refused:
        note("x")
    assert str(refused.value) == (
        "get_context() called outside of tool execution; in a unit test, call it inside "
        "'with covalt_toolset.context(workspace=tmp_path):', and to a thread of your own, "
        "pass the values it needs"
    )


def test_a_unit_test_sees_what_a_tool_did_and_reported(tmp_path: Path) -> None:
    with context(workspace=tmp_path) as call:
        assert note("hello") == "chat/toolset/call"
    assert (tmp_path / "note.txt").read_text() == "hello"
    assert call.progress_reports == [Progress(1), Progress(2, 2, "done")]
    assert call.log_lines == [Log("noted"), Log("too short", "warning")]
    assert call.toolset_dir == Path.cwd()


def test_whoever_runs_a_tool_hears_its_reports_at_once(tmp_path: Path) -> None:
    received: list[Progress | Log] = []
    set_context(
        ToolContext(
            workspace=tmp_path,
            chat_id="c1",
            toolset_id="t1",
            tool_call_id="k1",
            toolset_dir=tmp_path,
            send=received.append,
        )
    )
    assert invoke(note, {"text": "x"}) == "c1/t1/k1"
    assert received == [Progress(1), Progress(2, 2, "done"), Log("noted"), Log("too short", "warning")]
    assert get_context().progress_reports == []
    clear_context()
    with pytest.raises(RuntimeError):
        get_context()


def test_the_context_around_comes_back(tmp_path: Path) -> None:
    with context(tmp_path, chat_id="outer"):
        with pytest.raises(ZeroDivisionError), context(tmp_path, chat_id="inner"):
            assert get_context().chat_id == "inner"
            raise ZeroDivisionError
        assert get_context().chat_id == "outer"
    with pytest.raises(RuntimeError):
        get_context()


def test_calls_side_by_side_do_not_see_each_other(tmp_path: Path) -> None:
    async def whoami(name: str) -> str:
        await anyio.lowlevel.checkpoint()
        return f"{name} in {get_context().chat_id}"

    async def call(name: str, answers: dict[str, str]) -> None:
        with context(tmp_path, chat_id=name):
            answers[name] = await invoke(whoami, {"name": name})

    async def both() -> dict[str, str]:
        answers: dict[str, str] = {}
        async with anyio.create_task_group() as group:
            group.start_soon(call, "one", answers)
            group.start_soon(call, "two", answers)
        return answers

    assert anyio.run(both) == {"one": "one in one", "two": "two in two"}


def test_a_worker_thread_of_the_event_loop_keeps_the_context(tmp_path: Path) -> None:
    async def call() -> str:
        with context(tmp_path, chat_id="threaded"):
            return await anyio.to_thread.run_sync(lambda: get_context().chat_id)

    assert anyio.run(call) == "threaded"


def test_a_thread_of_the_authors_own_has_none(tmp_path: Path) -> None:
    seen: list[str] = []

    def look() -> None:
        try:
            get_context()
        except RuntimeError as error:
            seen.append(str(error))

    with context(tmp_path):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert len(seen) == 1


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    with (
        context(tmp_path) as call,
        pytest.raises(ValueError, match=r"^level 'loud' is none of debug, info, warning, error$"),
    ):
        call.log("x", "loud")  # type: ignore[arg-type]
