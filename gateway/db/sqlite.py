"""SQLite: a writer that groups commits, and a reader beside it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import aiosqlite

from gateway.db import Row, Statement, Writing
from gateway.db.sqlite_connection import BUSY_TIMEOUT, refusal
from gateway.db.sqlite_writer import Writer
from gateway.errors import Unavailable


class SqliteDatabase:
    """One file, any number of processes. Belongs to the event loop that opened it."""

    def __init__(self, writer: Writer, reader: aiosqlite.Connection) -> None:
        self._writer = writer
        self._reader = reader
        self._closed = False

    @classmethod
    async def open(cls, path: Path | str) -> SqliteDatabase:
        """Open or create the database and bring it to the newest version."""
        path = Path(path)
        writer = Writer(path)
        try:
            await writer.opened
            return cls(writer, await _reader(path))
        except BaseException:
            writer.stop()
            raise

    async def run(self, *statements: Statement) -> list[list[Row]]:
        if self._closed:
            raise _closed()
        return await self._writer.submit(statements)

    def promise(self, writing: Writing, row: Sequence[Any]) -> bool:
        return not self._closed and self._writer.promise(writing, row)

    async def fetch(self, sql: str, *parameters: Any) -> list[Row]:
        await self._writer.made_good()
        if self._closed:
            raise _closed()
        try:
            rows = await self._reader.execute_fetchall(sql, parameters)
            return cast(list[Row], rows)
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise refusal(error, "be read") from error

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                await self._reader.close()
            finally:
                self._writer.stop()  # closes last, inside the gate
        await asyncio.shield(self._writer.ended)


async def _reader(path: Path) -> aiosqlite.Connection:
    uri = f"file:{quote(str(path))}?mode=ro"
    connecting = aiosqlite.connect(uri, uri=True, isolation_level=None, timeout=BUSY_TIMEOUT)
    connecting._thread.daemon = True  # else a process that fails before `close` would never end
    try:
        return await connecting
    except sqlite3.Error as error:
        raise refusal(error, f"be opened at {path}") from error


def _closed() -> Unavailable:
    return Unavailable("the database is closed", code="DATABASE_CLOSED")
