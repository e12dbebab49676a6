"""What a worker may use: the sandbox ends one that takes too much, and the caller reads which limit it was."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from eventually import TIMEOUT

from gateway.errors import ToolFailed

from .conftest import Bench

pytestmark = pytest.mark.anyio


async def test_a_memory_hog_is_ended_and_told_so(boxed: Bench) -> None:
    boxed.open(memory_mb=128)
    boxed.write("""
        def hog():
            held = []
            while True:
                held.append(bytearray(4_000_000))

        def good():
            return "good"
    """)
    with pytest.raises(ToolFailed) as failed:
        async with asyncio.timeout(TIMEOUT):
            await boxed.call("hog")
    if failed.value.code == "WORKER_DIED":
        assert failed.value.details["limit"] == "memory"
        assert "128 MiB of memory it may use (sandbox.memory_mb)" in failed.value.message
    else:
        assert failed.value.details["type"] == "MemoryError"
    assert await boxed.call("good") == "good"


async def test_a_bomb_of_processes_is_ended_or_stopped(boxed: Bench) -> None:
    boxed.write("""
        import os, time

        def bomb():
            for _ in range(400):
                if os.fork() == 0:
                    time.sleep(90)
                    os._exit(0)
            time.sleep(45)  # what is over before anybody looks is no bomb
            return "four hundred"

        def good():
            return "good"
    """)
    with pytest.raises(ToolFailed) as failed:
        async with asyncio.timeout(TIMEOUT):
            await boxed.call("bomb")
    if failed.value.code == "WORKER_DIED":
        assert failed.value.details.get("limit") == "processes", (failed.value.message, failed.value.details)
        assert "all of the 256 processes" in failed.value.message
    else:
        assert failed.value.details["type"] == "BlockingIOError"
    await boxed.runtime.retire(boxed.directory)
    assert await boxed.call("good") == "good"


async def test_the_toolset_and_its_surroundings_cannot_be_written(boxed: Bench) -> None:
    if boxed.sandbox.name == "unconfined":
        pytest.skip("without a sandbox nothing stops it")
    boxed.write("""
        from covalt_toolset import get_context
        import sys

        def run(paths: list[str]):
            written = []
            for path in [str(get_context().toolset_dir / "x"), *(f"{each}/x" for each in sys.path), *paths]:
                try:
                    open(path, "w").close()
                    written.append(path)
                except OSError:
                    pass
            return written
    """)
    outside = [boxed.folder / name for name in ("x", "runtime/x", "toolset/x", "other/x")]
    boxed.workspace("other")
    written = await boxed.call("run", paths=[str(path) for path in outside])
    assert not [path for path in written if Path(path).exists()]
    assert not [path for path in outside if path.exists()]
    assert not (boxed.directory / "x").exists()


async def test_another_chats_files_are_not_there(boxed: Bench) -> None:
    if boxed.sandbox.name == "unconfined":
        pytest.skip("without a sandbox nothing stops it")
    boxed.write("""
        def run(path: str):
            return open(path).read()
    """)
    secret = boxed.workspace("other") / "secret.txt"
    secret.write_text("secret")
    with pytest.raises(ToolFailed) as failed:
        await boxed.call("run", path=str(secret))
    assert failed.value.details.get("type") in ("FileNotFoundError", "PermissionError"), failed.value.to_dict()
