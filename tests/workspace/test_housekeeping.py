"""What is swept by itself: contents that no version has, and what killed writers left among the files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.workspace.gc import remove_leftovers, sizes

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T2")]

OURS = ".toolgate-0123456789abcdef"


def gateway(data: Path) -> Any:
    return Gateway.open({"data_dir": data, "approval": {"mode": "never"}})


async def write(open_gateway: Gateway, content: str) -> None:
    assert (await open_gateway.call("write_file", {"path": "a.txt", "content": content}, chat="c")).ok


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds, time.time() - seconds))


async def test_a_chat_is_swept_once_a_day_after_somebody_was_done_with_it(tmp_path: Path) -> None:
    chat = tmp_path / "chats/c"
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "1")
    dead = chat / "blobs/aa" / ("a" * 64)
    dead.parent.mkdir(exist_ok=True)
    dead.write_bytes(b"nobody's")
    age(dead, 48 * 3600)
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "2")
    assert dead.exists(), "not yet: the chat is new"
    age(chat / "swept", 25 * 3600)
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "3")
    assert not dead.exists()
    assert time.time() - (chat / "swept").stat().st_mtime < 3600
    async with gateway(tmp_path) as open_gateway:
        for row in await open_gateway.versions.manifests.history("c"):
            async with open_gateway.versions.hold("c", "local") as files:
                await files.checkout(row.id)
        assert (chat / "workspace/a.txt").read_text() == "1", "every version is still whole"


async def test_a_sweep_that_fails_is_nobody_elses_trouble(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(tmp_path) as open_gateway:
        await write(open_gateway, "1")
    age(tmp_path / "chats/c/swept", 25 * 3600)
    async with gateway(tmp_path) as open_gateway:
        (tmp_path / "chats/c/blobs/00").touch()
        await write(open_gateway, "2")
    assert "the sweep of chat 'c' failed" in caplog.text


def test_only_what_killed_writers_left_is_removed_and_only_when_it_is_old(tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er" / OURS).write_text("half a file")
    (tmp_path / f"{OURS[:-1]}0").symlink_to("/etc/passwd")
    (tmp_path / f"{OURS[:-1]}1/inner").mkdir(parents=True)
    kept = [tmp_path / ".toolgate-notes", tmp_path / f"{OURS}.txt", tmp_path / "deep/mine"]
    for path in kept:
        path.write_text("mine")
    (tmp_path / "way-out").symlink_to(tmp_path.parent)
    assert remove_leftovers(tmp_path, before=time.time() - 3600) == 0
    assert remove_leftovers(tmp_path, before=time.time() + 3600) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".toolgate-0123456789abcdef.txt",
        ".toolgate-notes",
        "deep",
        "way-out",
    ]
    assert all(path.read_text() == "mine" for path in kept)


def test_sizes_are_counted_up_to_a_limit(tmp_path: Path) -> None:
    for chat, digests in {"a": ["aa", "ab"], "b": ["bb"]}.items():
        for digest in digests:
            (tmp_path / chat / "blobs" / digest).mkdir(parents=True)
            (tmp_path / chat / "blobs" / digest / (digest * 32)).write_bytes(b"four")
    found, complete = sizes(tmp_path)
    assert ({chat: (size.blobs, size.bytes) for chat, size in found.items()}, complete) == (
        {"a": (2, 8), "b": (1, 4)},
        True,
    )
    assert sizes(tmp_path, limit=2)[1] is False
    assert sizes(tmp_path / "nowhere") == ({}, True)
