"""Rows that are promised before they are written: a line in a file, and a moment later a row beside many others.

To commit a row alone costs thirty times what it costs in company. A line is in the hands of the kernel as soon as it
is appended, so it outlives the process that wrote it as a commit does; whoever opens the database next, or is
idle, makes good what a killed process had promised.
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

from gateway.db import Insert, Statement, Writing
from gateway.files import lock, try_lock
from gateway.names import new_id

log = logging.getLogger(__name__)

BOOKS = 3  # one to write in, while others are being made good
ROWS = 512  # promised together
SIZE = 1024 * 1024  # bytes of a full book
LONGEST = 256 * 1024  # bytes of a line
# How many rows a statement writes. For each that it executes Python gives up its lock and must have it again, for
# which it may have to wait; with more at once than these nothing is won.
_TOGETHER = (16, 8, 4, 2, 1)


@dataclass(slots=True)
class Promised:
    """Rows on their way: what a book holds."""

    writing: Writing
    rows: list[Sequence[Any]]

    def statements(self) -> list[Statement]:
        return [statement for insert in self.writing for statement in _statements(insert, self.rows)]

    def apart(self) -> Iterator[Promised]:
        for row in self.rows:
            yield Promised(self.writing, [row])


class JournalFile:
    """One file of lines: the statements that write its rows, then the rows. Locked as long as its owner lives."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.free = True
        self.promised = Promised((), [])
        self.size = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            lock(self._descriptor)
        except OSError:
            self.close()
            raise

    @property
    def full(self) -> bool:
        return len(self.promised.rows) >= ROWS or self.size >= SIZE

    def note(self, writing: Writing, row: Sequence[Any], line: bytes) -> bool:
        """Whether the row is in the file, as this line; not when that is full, or is for other rows."""
        promised, text = self.promised, line + b"\n"
        if not promised.rows:
            promised.writing = writing
            text = heading(writing) + text
        elif promised.writing != writing:
            return False
        if self.full or not self._append(text):
            return False
        promised.rows.append(row)
        return True

    def _append(self, text: bytes) -> bool:
        with contextlib.suppress(OSError):
            if os.write(self._descriptor, text) == len(text):
                self.size += len(text)
                return True
        try:
            os.ftruncate(self._descriptor, self.size)  # nothing may follow a line without an end
        except OSError:
            self.size = SIZE
        return False

    def clear(self) -> None:
        """Everything in it is written."""
        self.promised = Promised((), [])
        try:
            os.ftruncate(self._descriptor, 0)
        except OSError as error:
            log.warning("%s is not used any more, what is written cannot be taken out of it: %s", self.path, error)
            self._remove()  # else it would be written again, whatever has become of it
            return
        self.size = 0
        self.free = True

    def close(self) -> None:
        if not self.promised.rows:  # else the next to open the database finds it
            self._remove()
        os.close(self._descriptor)

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink()


def heading(writing: Writing) -> bytes:
    """The first line of a book."""
    return orjson.dumps([[insert.sql, insert.places] for insert in writing]) + b"\n"


class Journal:
    """The books of one writer. They are opened, cleared and closed inside the gate, in which alone anybody looks for
    those of the dead; the event loop notes in them."""

    def __init__(self, database: Path) -> None:
        self._name = f"{database.name}.promised-"
        self._directory = database.parent.absolute()
        self._owner = new_id()
        self._books: list[JournalFile] = []
        self._current: JournalFile | None = None
        self.wanted = False
        """Whether somebody would have promised something, had there been a book."""

    @property
    def any(self) -> bool:
        return self._current is not None and self._current.size > 0

    @property
    def full(self) -> bool:
        return self._current is not None and self._current.full

    def note(self, writing: Writing, row: Sequence[Any]) -> bool:
        """Whether the row is promised. If not, it is for whoever has it to see that it is written."""
        if self._current is None:
            self._current = self._next()
            if self._current is None:
                return False
        try:
            line = orjson.dumps(row, option=orjson.OPT_STRICT_INTEGER)
        except TypeError:  # a lone surrogate, or an integer that is too large
            return False
        return len(line) <= LONGEST and self._current.note(writing, row, line)

    def turn_over(self) -> JournalFile | None:
        """The book that was noted in until now, if it holds anything; from now on it is another."""
        if not self.any:
            return None
        full, self._current = self._current, None
        return full

    def _next(self) -> JournalFile | None:
        self.wanted = not self._books
        for book in self._books:
            if book.free:
                book.free = False
                return book
        return None

    def open(self) -> None:
        """Have books, if they are wanted and can be had."""
        if not self.wanted or self._books:
            return
        self.wanted = False
        try:
            for number in range(BOOKS):
                self._books.append(JournalFile(self._directory / f"{self._name}{self._owner}-{number}"))
        except OSError as error:
            log.warning("rows are written one by one, there is no place to note them: %s", error)

    def left_behind(self) -> Iterator[Promised]:
        """What others have promised and not yet written. The books of the dead are gone when whoever asked is done
        with them; the living keep theirs, since a row may be written twice."""
        for path in sorted(self._directory.glob(f"{glob.escape(self._name)}*"), key=_noted_at):
            if self._owner in path.name:
                continue
            try:
                with _opened(path) as (dead, promised):
                    if promised.rows:
                        yield promised
                    if dead:
                        path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("what is promised in %s cannot be read: %s", path, error)

    def close(self) -> None:
        for book in self._books:
            book.close()


def _noted_at(path: Path) -> int:
    """When the last line of a book was noted: of two that name the same row, the later has the last word."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[bool, Promised]]:
    """Whether the owner of a book is dead, and what is promised in it."""
    with path.open("rb") as file:
        yield try_lock(file), _read(file.read(SIZE + 2 * LONGEST))


def _read(text: bytes) -> Promised:
    """What was promised. Of a line without its end nobody was told; one that is no JSON was lost with the power."""
    first, *rows = [_list(line) for line in text.split(b"\n")[:-1]] or [[]]
    writing = [_insert(each) for each in first]
    if not writing or None in writing:
        return Promised((), [])
    return Promised(tuple(filter(None, writing)), [row for row in rows if row])


def _insert(said: Any) -> Insert | None:
    match said:
        case [str(sql), [*places]]:
            return Insert(sql, tuple(places))
        case _:
            return None


def _list(line: bytes) -> list[Any]:
    try:
        value = orjson.loads(line)
    except ValueError:
        return []
    return value if isinstance(value, list) else []


def _statements(insert: Insert, rows: Sequence[Sequence[Any]]) -> Iterator[Statement]:
    done = 0
    while done < len(rows):
        number = next(number for number in _TOGETHER if number <= len(rows) - done)
        some = rows[done : done + number]
        columns = list(zip(*some, strict=True))
        given = tuple(place for place in insert.places if columns[place].count(None) < number)
        yield Statement(_sql(insert, number, given), [row[place] for row in some for place in given])
        done += number


@lru_cache(maxsize=256)
def _sql(insert: Insert, number: int, given: tuple[int, ...]) -> str:
    """For so many rows that have something in these places: to hand over a NULL costs more than any other value."""
    row = f"({', '.join('?' if place in given else 'NULL' for place in insert.places)})"
    return insert.sql.replace("{rows}", ", ".join([row] * number))
