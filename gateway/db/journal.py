"""Journal files: rows that are appended to a file at once and written to the database a moment later, in groups.

Committing one row alone costs thirty times as much as in a group. The kernel has an appended line, so the line survives
a killed process. The next process that opens the database, or is idle, replays the journals of killed processes. The
files are named `<database>.promised-<owner>-<number>`.

A file begins with a MAC of its name, and each write ends with a MAC of the name and all rows so far. The key is that of
the call log: without it nobody can add or change a call. A file that fails the check is renamed to
`<database>.unverified-<id>`.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from gateway.db import Insert, Inserts, Statement
from gateway.errors import GatewayError
from gateway.files import create_file, lock, try_lock
from gateway.names import new_id

log = logging.getLogger(__name__)

FILES = 3  # one to append to, while others are being written to the database
ROWS = 512  # of one file
SIZE = 1024 * 1024  # bytes of a full file
LONGEST = 256 * 1024  # bytes of a line
# Rows per statement. Python releases its lock for each statement and may wait to get it back; more rows than these
# gain nothing.
_GROUP_SIZES = (16, 8, 4, 2, 1)
_MAC_LINE = re.compile(rb'^"([0-9a-f]{32})"\n', re.MULTILINE)  # a row begins with a bracket
_MAC_LINE_SIZE = 35
_NAME, _UNVERIFIED_NAME = "promised-", "unverified-"


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
    """One file of lines: its first MAC, the statements that write its rows, then the rows. Locked as long as its owner
    lives. `size` is that of what follows the first MAC."""

    def __init__(self, path: Path, key: bytes) -> None:
        self.path = path
        self._empty_mac = self._mac = start_mac(path, key)
        self.free = True
        self.batch = Batch((), [])
        self.size = 0
        self._unwritten: list[bytes] = []  # the text of each row that is not in the file yet
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            lock(self._descriptor)
            if os.write(self._descriptor, add_mac(b"", self._mac)) < _MAC_LINE_SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            self.close()
            raise

    def append(self, inserts: Inserts, row: Sequence[Any], line: bytes) -> bool:
        """Add the row as this line, for `write`; False when the file is full or holds rows of other statements."""
        batch, text = self.batch, line + b"\n"
        if not batch.rows:
            batch.inserts = inserts
            text = header(inserts) + text
        elif batch.inserts != inserts:
            return False
        if len(batch.rows) >= ROWS or self.size >= SIZE:
            return False
        batch.rows.append(row)
        self._unwritten.append(text)
        self.size += len(text)
        return True

    def write(self) -> list[Sequence[Any]]:
        """Write the rows added since the last time, all at once; return them when that fails."""
        rows_text, number, self._unwritten = b"".join(self._unwritten), len(self._unwritten), []
        text = add_mac(rows_text, mac := self._mac.copy())
        try:
            if os.write(self._descriptor, text) == len(text):
                self._mac = mac
                self.size += len(text) - len(rows_text)
                return []
        except OSError as error:
            log.debug("a row could not be journaled: %s", error)
        self.size -= len(rows_text)
        try:
            os.ftruncate(self._descriptor, _MAC_LINE_SIZE + self.size)  # nothing may follow an incomplete line
        except OSError:
            self.size = SIZE
        rows = self.batch.rows
        self.batch.rows, failed = rows[:-number], rows[-number:]
        return failed

    def clear(self) -> None:
        """Empty the file, once all its rows are committed."""
        self.batch = Batch((), [])
        self._mac = self._empty_mac
        try:
            os.ftruncate(self._descriptor, _MAC_LINE_SIZE)
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


def start_mac(path: Path, key: bytes) -> hashlib.blake2b:
    """The MAC of an empty journal file, to be updated with each row. It contains the file's name."""
    return hashlib.blake2b(os.fsencode(path.name) + b"\0", key=key, digest_size=16)


def add_mac(text: bytes, mac: hashlib.blake2b) -> bytes:
    """The text with the line that ends a write; updates the MAC."""
    mac.update(text)
    return b'%b"%b"\n' % (text, mac.hexdigest().encode())


class Journal:
    """The journal files of one writer. Opened, truncated and closed under the file lock, where recovery also runs; the
    event loop only appends. `load_key` returns the key of the MACs."""

    def __init__(self, database: Path, load_key: Callable[[], bytes]) -> None:
        self._database = database.absolute()
        self._load_key = load_key
        self._owner = new_id()
        self._files: list[JournalFile] = []
        self._current: JournalFile | None = None
        self._requested = False  # a row could not be appended because no file is open yet

    @property
    def pending(self) -> bool:
        return self._current is not None and self._current.size > 0

    def is_full(self) -> bool:
        current = self._current
        return current is not None and (len(current.batch.rows) >= ROWS or current.size >= SIZE)

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
                path = _path(self._database, f"{_NAME}{self._owner}-{number}")
                self._files.append(JournalFile(path, self._load_key()))
        except (GatewayError, OSError) as error:
            log.warning("rows are written one by one, since no journal can be opened: %s", error)

    def recover(self, from_before_macs: bool) -> Iterator[Batch]:
        """The rows that other processes have journaled and not committed. A file whose owner is dead is removed once
        the consumer is done with it, or renamed if its MACs do not match this key. With `from_before_macs` a file
        without any MAC is accepted. A live owner keeps its file: a row may be written twice."""
        for path in sorted(_list(self._database, _NAME), key=_modification_time):
            if self._owner in path.name:
                continue
            try:
                with path.open("rb") as file:
                    owner_is_dead = try_lock(file)
                    text = file.read(SIZE + 2 * LONGEST)
                    verified, is_forged = _verify(path, text, self._load_key())
                    if from_before_macs and not _MAC_LINE.search(text):
                        verified, is_forged = text.rfind(b"\n") + 1, False
                    if (batch := _read(text[:verified])).rows:
                        yield batch
                    if owner_is_dead:
                        self._remove(path, is_forged, len(text) - verified)
            except OSError as error:
                log.warning("the journal %s cannot be read: %s", path, error)

    def _remove(self, path: Path, is_forged: bool, unverified: int) -> None:
        if is_forged:
            kept = path.rename(_path(self._database, f"{_UNVERIFIED_NAME}{new_id()}"))
            log.error("%s is now %s: %s", path, kept.name, UNVERIFIED)
            return
        if unverified:
            log.warning("%s: the last write was cut off; its calls were not answered, and are dropped", path)
        path.unlink(missing_ok=True)

    def close(self) -> None:
        for file in self._files:
            file.close()


UNVERIFIED = (
    "this journal file was changed, or not written by this gateway, or by an older version after the upgrade; "
    "its calls are not recorded. Look at it, then record them with `toolgate audit accept`, or delete it"
)


def list_unverified(database: Path) -> list[Path]:
    """Journal files that failed the check."""
    return _list(database, _UNVERIFIED_NAME)


def accept_unverified(database: Path, key: bytes) -> None:
    """Turn journal files that failed the check into ones that are replayed. Call it under the file lock."""
    for path in list_unverified(database):
        text = _MAC_LINE.sub(b"", path.read_bytes())
        text = text[: text.rfind(b"\n") + 1]
        accepted = _path(database, f"{_NAME}{new_id()}-0")
        create_file(accepted, add_mac(text, start_mac(accepted, key)))
        path.unlink()


def _path(database: Path, name: str) -> Path:
    return database.with_name(f"{database.name}.{name}")


def _list(database: Path, name: str) -> list[Path]:
    return sorted(database.parent.glob(f"{glob.escape(database.name)}.{name}*"))


def _modification_time(path: Path) -> int:
    """The time of the last line: of two files with the same row, the later one is replayed last."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _verify(path: Path, text: bytes, key: bytes) -> tuple[int, bool]:
    """The size of what was written to a journal file with this key, and whether somebody else wrote to it. Rows without
    a MAC at its end are a write that was cut off; without any MAC, the file is not one of ours."""
    verified, mac = 0, start_mac(path, key)
    for line in _MAC_LINE.finditer(text):
        mac.update(text[verified : line.start()])
        if not hmac.compare_digest(mac.hexdigest().encode(), line[1]):
            return verified, True
        verified = line.end()
    return verified, not verified and bool(_read(text).rows)


def _read(text: bytes) -> Batch:
    """The rows of a journal file. An incomplete line was never acknowledged; one that is not JSON was lost in a power
    failure."""
    rows = [row for row in map(_parse_list, text.split(b"\n")[:-1]) if row]
    inserts = [_parse_insert(item) for item in rows[0]] if rows else []
    if not inserts or None in inserts:
        return Batch((), [])
    return Batch(tuple(filter(None, inserts)), [*rows[1:]])


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
