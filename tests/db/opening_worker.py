"""One of several processes that open a database at the same instant, told by the end of its input."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import anyio

from gateway.db import chats
from gateway.db.sqlite import SqliteDatabase


async def main(path: Path, chat: str) -> None:
    db = await SqliteDatabase.open(path)
    await db.run(chats.ensure(chat, time.time()))
    await db.close()


if __name__ == "__main__":
    print("ready", flush=True)
    sys.stdin.read()
    anyio.run(main, Path(sys.argv[1]), sys.argv[2])
