"""Journal files: rows that are appended to a file at once and written to the database a moment later, in groups.

To commit a row alone costs thirty times what it costs in a group. An appended line is with the kernel, so it survives
a killed process as a commit does. The next process that opens the database, or is idle, replays the journals of killed
ones. The files are named `<database>.promised-<owner>-<number>`.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from gateway.db import Insert, Inserts, Statement
from gateway.files import lock, try_lock
from gateway.names import new_id

log = logging.getLogger(__name__)

FILES = 3  # one to append to, while others are being written to the database
ROWS = 512  # of one file
SIZE = 1024 * 1024  # bytes of a full file
LONGEST = 256 * 1024  # bytes of a line
# Rows per statement. Python releases its lock for each statement and may wait to get it back; more rows than these
# gain nothing.
_GROUP_SIZES = (16, 8, 4, 2, 1)


@dataclass(slots=True)
class Batch:
    """Rows to be written, and the statements that write them."""

    inserts: Inserts
    rows: list[Sequence[Any]]

    def statements(self) -> list[Statement]:
        return [statement for insert in self.inserts for statement in _statements(insert, self.rows)]

    def split(self) -> Iterator[Batch]:
        for row in self.rows:
            yield Batch(self.inserts, [row])


class JournalFile:
    """One file of lines: the statements that write its rows, then the rows. Locked as long as its owner lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.free = True
        self.batch = Batch((), [])
        self.size = 0
        self._unwritten: list[bytes] = []  # the text of each row that is not in the file yet
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            lock(self._descriptor)
        except OSError:
            self.close()
            raise

    @property
    def full(self) -> bool:
        return len(self.batch.rows) >= ROWS or self.size >= SIZE

    def append(self, inserts: Inserts, row: Sequence[Any], line: bytes) -> bool:
        """Add the row as this line, for `write`; False when the file is full or holds rows of other statements."""
        batch, text = self.batch, line + b"\n"
        if not batch.rows:
            batch.inserts = inserts
            text = header(inserts) + text
        elif batch.inserts != inserts:
            return False
        if self.full:
            return False
        batch.rows.append(row)
        self._unwritten.append(text)
        self.size += len(text)
        return True

    def write(self) -> list[Sequence[Any]]:
        """Write the rows added since the last time, all at once; return them when that fails."""
        text, number, self._unwritten = b"".join(self._unwritten), len(self._unwritten), []
        with contextlib.suppress(OSError):
            if os.write(self._descriptor, text) == len(text):
                return []
        self.size -= len(text)
        try:
            os.ftruncate(self._descriptor, self.size)  # nothing may follow an incomplete line
        except OSError:
            self.size = SIZE
        rows = self.batch.rows
        self.batch.rows, failed = rows[:-number], rows[-number:]
        return failed

    def clear(self) -> None:
        """Empty the file, once all its rows are committed."""
        self.batch = Batch((), [])
        try:
            os.ftruncate(self._descriptor, 0)
        except OSError as error:
            log.warning("%s could not be truncated and is no longer used: %s", self.path, error)
            self._remove()  # else its rows would be replayed over later changes
            return
        self.size = 0
        self.free = True

    def close(self) -> None:
        if not self.batch.rows:  # else the next process that opens the database replays it
            self._remove()
        os.close(self._descriptor)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


def header(inserts: Inserts) -> bytes:
    """The first line of a file."""
    return orjson.dumps([[insert.sql, insert.places] for insert in inserts]) + b"\n"


class Journal:
    """The journal files of one writer. Opened, truncated and closed under the file lock, where recovery also runs; the
    event loop only appends."""

    def __init__(self, database: Path) -> None:
        self._name = f"{database.name}.promised-"
        self._directory = database.parent.absolute()
        self._owner = new_id()
        self._files: list[JournalFile] = []
        self._current: JournalFile | None = None
        self._requested = False  # a row could not be appended because no file is open yet

    @property
    def pending(self) -> bool:
        return self._current is not None and self._current.size > 0

    @property
    def full(self) -> bool:
        return self._current is not None and self._current.full

    def append(self, inserts: Inserts, row: Sequence[Any]) -> bool:
        """Add the row, for `write`; False when it cannot be, so that the caller must write it."""
        if self._current is None:
            self._current = self._next()
            if self._current is None:
                return False
        try:
            line = orjson.dumps(row, option=orjson.OPT_STRICT_INTEGER)
        except TypeError:  # a lone surrogate, or an integer that is too large
            return False
        return len(line) <= LONGEST and self._current.append(inserts, row, line)

    def write(self) -> list[Sequence[Any]]:
        """Write the rows added since the last time; return them when that fails."""
        return [] if self._current is None else self._current.write()

    def rotate(self) -> JournalFile | None:
        """Stop appending to the current file and return it, if it has rows; the next row goes to another one."""
        if not self.pending:
            return None
        full, self._current = self._current, None
        return full

    def _next(self) -> JournalFile | None:
        self._requested = not self._files
        for file in self._files:
            if file.free:
                file.free = False
                return file
        return None

    def open(self) -> None:
        """Open the files, if a row was waiting for them."""
        if not self._requested or self._files:
            return
        self._requested = False
        try:
            for number in range(FILES):
                self._files.append(JournalFile(self._directory / f"{self._name}{self._owner}-{number}"))
        except OSError as error:
            log.warning("rows are written one by one, since no journal can be opened: %s", error)

    def recover(self) -> Iterator[Batch]:
        """The rows that other processes have journaled and not committed. A file whose owner is dead is removed once
        the consumer is done with it. A live owner keeps its file: a row may be written twice."""
        for path in sorted(self._directory.glob(f"{glob.escape(self._name)}*"), key=_modification_time):
            if self._owner in path.name:
                continue
            try:
                with _open_for_recovery(path) as (owner_is_dead, batch):
                    if batch.rows:
                        yield batch
                    if owner_is_dead:
                        path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("the journal %s cannot be read: %s", path, error)

    def close(self) -> None:
        for file in self._files:
            file.close()


def _modification_time(path: Path) -> int:
    """The time of the last line: of two files with the same row, the later one is replayed last."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@contextlib.contextmanager
def _open_for_recovery(path: Path) -> Iterator[tuple[bool, Batch]]:
    """True if the owner of a journal file is dead, and its rows."""
    with path.open("rb") as file:
        yield try_lock(file), _read(file.read(SIZE + 2 * LONGEST))


def _read(text: bytes) -> Batch:
    """The rows of a journal file. An incomplete line was never acknowledged; one that is not JSON was lost in a power
    failure."""
    first, *rows = [_parse_list(line) for line in text.split(b"\n")[:-1]] or [[]]
    inserts = [_parse_insert(item) for item in first]
    if not inserts or None in inserts:
        return Batch((), [])
    return Batch(tuple(filter(None, inserts)), [row for row in rows if row])


def _parse_insert(item: Any) -> Insert | None:
    match item:
        case [str(sql), [*places]]:
            return Insert(sql, tuple(places))
        case _:
            return None


def _parse_list(line: bytes) -> list[Any]:
    try:
        value = orjson.loads(line)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def _statements(insert: Insert, rows: Sequence[Sequence[Any]]) -> Iterator[Statement]:
    done = 0
    while done < len(rows):
        number = next(number for number in _GROUP_SIZES if number <= len(rows) - done)
        some = rows[done : done + number]
        columns = list(zip(*some, strict=True))
        given = tuple(place for place in insert.places if columns[place].count(None) < number)
        yield Statement(_sql(insert, number, given), [row[place] for row in some for place in given])
        done += number


@lru_cache(maxsize=256)
def _sql(insert: Insert, number: int, given: tuple[int, ...]) -> str:
    """The SQL for so many rows with values at these places. To bind a NULL costs more than any other value."""
    row = f"({', '.join('?' if place in given else 'NULL' for place in insert.places)})"
    return insert.sql.replace("{rows}", ", ".join([row] * number))
