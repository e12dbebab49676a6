"""An index of the words in a workspace, for ranked search: names of files, names that code defines, and text.

It is a SQLite database in the chat's directory. Each search first indexes what has changed since the last one, whoever
changed it. It holds nothing that the files do not have, so it is dropped whenever something is wrong with it.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from gateway.errors import GatewayError, Unavailable
from gateway.value import Value
from gateway.workspace import Entry, Parts, Root

FILE_LIMIT = 20_000
# Bytes of a file that are indexed; the rest is found by a regular expression only.
FILE_BYTES = 512 * 1024
TOTAL_BYTES = 256 * 1024 * 1024

_SCHEMA_VERSION = 1
_BUSY_SECONDS = 5.0
_BATCH = 64
_QUERY_WORDS = 32
_SCHEMA = f"""
CREATE TABLE files (
    id INTEGER PRIMARY KEY AUTOINCREMENT, path TEXT NOT NULL UNIQUE, stamp TEXT NOT NULL, size INTEGER NOT NULL
);
CREATE VIRTUAL TABLE words USING fts5 (path, names, text, content='', tokenize='porter unicode61');
PRAGMA user_version = {_SCHEMA_VERSION};
"""

# Names count more than text: the weights are those of the columns.
_SEARCH = """
SELECT files.path, -bm25(words, 6.0, 8.0, 1.0) FROM words JOIN files ON files.id = words.rowid
WHERE words MATCH ? ORDER BY 2 DESC, files.path
"""
_DROP = "DROP TABLE IF EXISTS files; DROP TABLE IF EXISTS words;"

# An underscore separates words for the tokenizer; a change from lower to upper case does after this.
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_DEFINITION = re.compile(
    r"^[ \t]*(?:(?:export|default|public|private|protected|static|abstract|final|async|pub(?:\([a-z]+\))?|unsafe) +)*"
    r"(?:def|class|function\*?|func(?: *\([^)\n]*\))?|fn|interface|struct|enum|trait|impl|type|module|const|let|var)"
    r" +([A-Za-z_$][\w$]*)",
    re.MULTILINE,
)
_SUFFIX = re.compile(r"(?:ing|ies|es|ed|er|s|e|y)$")


class RankedFile(Value):
    """A file that has some of the words; a higher score is better."""

    path: str
    score: float


class WordIndex:
    """The index of one workspace at `path`; blocking, for a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def update(
        self, root: Root, entries: Iterable[Entry], deadline: float, check: Callable[[], None]
    ) -> tuple[int, bool]:
        """Index the files that have changed and forget those that are gone. Return the number of indexed files, and
        False if not all could be indexed, for lack of time or because there is too much; the next call goes on."""
        with self._open() as db:
            complete = _Update(db, root, deadline, check).run(entries)
            return db.execute("SELECT count(*) FROM files").fetchone()[0], complete

    def search(self, words: Sequence[str]) -> Iterator[RankedFile]:
        """Yield the files with some of the words, best first."""
        query = " OR ".join(f'"{word}"' for word in words)
        with self._open() as db:
            found = db.execute(
                _SEARCH,
                [query],
            )
            yield from (RankedFile(path, round(score, 3)) for path, score in found)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(self._connect()) as db:
                yield db
        except sqlite3.OperationalError as error:  # locked by another search for too long, or the disk is full
            raise Unavailable(f"the word index cannot be used now: {error}; try again") from error
        except sqlite3.DatabaseError as error:
            self._path.unlink(missing_ok=True)
            raise Unavailable("the word index was damaged; call again, and it is built anew") from error

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        db.execute("PRAGMA synchronous = OFF")  # it can be built again
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != _SCHEMA_VERSION:
            with suppress(sqlite3.OperationalError):  # another process has just made it
                db.executescript(f"BEGIN IMMEDIATE; {_DROP} {_SCHEMA} COMMIT;")
        return db


class _Update:
    """One update. A text is never removed from a table without content: its row stays, and no file refers to it. When
    most rows are such, the index is built again."""

    def __init__(self, db: sqlite3.Connection, root: Root, deadline: float, check: Callable[[], None]) -> None:
        self._db = db
        self._root = root
        self._deadline = deadline
        self._check = check

    def run(self, entries: Iterable[Entry]) -> bool:
        db = self._db
        known: Mapping[str, str] = dict(db.execute("SELECT path, stamp FROM files"))
        found = {entry.path: entry for _, entry in zip(range(FILE_LIMIT + 1), entries, strict=False)}
        complete = len(found) <= FILE_LIMIT
        gone = [(path,) for path in known if path not in found]
        changed = [entry for path, entry in found.items() if known.get(path) != _stamp(entry)]
        if gone:
            db.executemany("DELETE FROM files WHERE path = ?", gone)
        total = db.execute("SELECT coalesce(sum(size), 0) FROM files").fetchone()[0]
        for start in range(0, len(changed), _BATCH):
            if time.monotonic() > self._deadline or total > TOTAL_BYTES:
                return False
            db.execute("BEGIN IMMEDIATE")
            try:
                total += sum(self._index(entry) for entry in changed[start : start + _BATCH])
            finally:
                db.execute("COMMIT")
        self._drop_if_stale()
        return complete

    def _index(self, entry: Entry) -> int:
        self._check()
        text = self._read(entry.parts)
        self._db.execute("DELETE FROM files WHERE path = ?", [entry.path])
        stamp = [entry.path, _stamp(entry), len(text)]
        row = self._db.execute("INSERT INTO files (path, stamp, size) VALUES (?, ?, ?)", stamp).lastrowid
        names = " ".join(_DEFINITION.findall(text))
        self._db.execute(
            "INSERT INTO words (rowid, path, names, text) VALUES (?, ?, ?, ?)",
            [row, split_words(entry.path), split_words(names), split_words(text)],
        )
        return len(text)

    def _read(self, parts: Parts) -> str:
        """Return the beginning of a text file; nothing of another."""
        try:
            with self._root.open(parts) as file:
                data = file.read(FILE_BYTES)
        except GatewayError:
            return ""
        return "" if b"\0" in data[:8192] else data.decode("utf-8", "replace")

    def _drop_if_stale(self) -> None:
        rows, files = self._db.execute(
            "SELECT (SELECT coalesce(max(seq), 0) FROM sqlite_sequence), (SELECT count(*) FROM files)"
        ).fetchone()
        if rows > 1000 + 4 * files:
            self._db.executescript(
                "BEGIN IMMEDIATE; DELETE FROM files; DELETE FROM sqlite_sequence;"
                "INSERT INTO words (words) VALUES ('delete-all'); COMMIT;"
            )


def _stamp(entry: Entry) -> str:
    found = entry.stat
    return f"{found.st_ino} {found.st_ctime_ns} {found.st_mtime_ns} {found.st_size}"


def split_words(text: str) -> str:
    """Return the text with the parts of compound names apart: `readFile` and `read_file` have the words of `read
    file`."""
    return _CAMEL_CASE.sub(" ", text).replace("_", " ")


def query_words(text: str) -> list[str]:
    """Return the distinct words of a query, in lower case."""
    return list(dict.fromkeys(word.lower() for word in _WORD.findall(split_words(text))))[:_QUERY_WORDS]


def stem(word: str) -> str:
    """Return the beginning of a word that its other forms share, about as the index does."""
    found = _SUFFIX.sub("", word)
    return found if len(found) >= 3 else word


def find_lines(lines: Sequence[str], words: Sequence[str], limit: int) -> list[int]:
    """Return the numbers of the lines with most of the words, definitions first; in their order."""
    stems = {stem(word) for word in words}
    ranked = []
    for number, line in enumerate(lines, 1):
        parts = {part.lower() for part in _WORD.findall(split_words(line[:2000]))}
        count = sum(any(part.startswith(each) for part in parts) for each in stems)
        if count:
            ranked.append((-(2 * count + bool(_DEFINITION.match(line))), number))
    return sorted(number for _, number in sorted(ranked)[:limit])
