"""Deadlines of calls that wait for each other: they measure what a tool does, and nothing that others do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from textwrap import dedent

import pytest
from clock import Clock
from eventually import async_eventually

from gateway import Gateway

from .writing import install, write_toolset

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X2")]

MANIFEST = dedent(
    """
    id: lab
    name: Lab
    version: 1.0.0
    tools:
      - {id: hold, entrypoint: "code:hold", timeout: 3000}
      - {id: note, entrypoint: "code:note", timeout: 300}
      - id: notes
        type: steps
        timeout: 300
        steps:
        - parallel:
          - {tool: note, args: {name: x.txt}}
          - {tool: note, args: {name: y.txt}}
    """
)
CODE = dedent(
    """
    import time
    from pathlib import Path
    from covalt_toolset import tool

    @tool
    def hold() -> None:
        Path("begun").write_text("")
        while not Path("go").exists():
            time.sleep(0.01)

    @tool
    def note(name: str) -> None:
        Path(name).write_text("")
    """
)


async def wait_for_calls(gateway: Gateway, number: int) -> None:
    """Wait until so many calls wait for the files of the chat."""
    lock = (await gateway.versions._open_chat("c")).lock
    await async_eventually(lambda: lock._tasks.statistics().tasks_waiting == number)


async def test_deadline_of_a_call_stands_still_while_other_calls_of_the_chat_have_its_files(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
    files = gateway.settings.data_dir / "chats/c/workspace"
    holding = asyncio.create_task(gateway.call("lab:hold", chat="c"))
    await async_eventually((files / "begun").exists)
    notes = [asyncio.create_task(gateway.call("lab:note", {"name": f"{n}.txt"}, chat="c")) for n in range(3)]
    notes.append(asyncio.create_task(gateway.call("lab:notes", chat="c")))
    await wait_for_calls(gateway, 5)
    await Clock(monkeypatch).move(400)
    assert not any(note.done() for note in notes)
    (files / "go").write_text("")
    assert all([(await each).ok for each in (holding, *notes)])
    assert {path.name for path in files.iterdir()} == {"begun", "go", "0.txt", "1.txt", "2.txt", "x.txt", "y.txt"}
    assert not any(timer.waits for timer in gateway._parts.concurrency._timers.values())


async def test_deadline_of_a_call_begins_when_it_gets_the_files(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
    clock, files = Clock(monkeypatch), gateway.settings.data_dir / "chats/c/workspace"
    async with gateway.versions.hold("c", "local"):
        holding = asyncio.create_task(gateway.call("lab:hold", chat="c"))
        await wait_for_calls(gateway, 1)
    await async_eventually((files / "begun").exists)
    await clock.move(2900)
    assert not holding.done()
    await clock.move(200)
    outcome = await holding
    assert str(outcome.error).startswith("TIMEOUT: lab:hold took longer than 3000 s"), outcome.error


async def test_call_that_waits_for_the_files_is_cancelled_or_ends_after_a_limit_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Gateway.open({"data_dir": tmp_path, "limits": {"total_timeout": 1000}}) as gateway:
        clock, running = Clock(monkeypatch), gateway._parts.concurrency._runs
        async with gateway.versions.hold("c", "local"):
            for end in ("cancelled", "timed out"):
                call = asyncio.create_task(gateway.call("write_file", {"path": "a.txt", "content": ""}, chat="c"))
                await wait_for_calls(gateway, 1)
                await clock.move(900)
                assert not call.done()
                if end == "cancelled":
                    assert gateway._parts.concurrency.cancel(next(iter(running)), "ann")
                    assert str((await call).error) == "CANCELLED: write_file: ann cancelled the call"
                else:
                    await clock.move(200)
                    assert str((await call).error) == (
                        "TIMEOUT: write_file waited 1000 s for the files of chat 'c', which other calls were using; "
                        "call again later"
                    )
        assert (await gateway.call("write_file", {"path": "a.txt", "content": ""}, chat="c")).ok
        assert not running and not any(timer.waits for timer in gateway._parts.concurrency._timers.values())
