"""The tamper-evident call log: a hash chain over every write to `tool_calls`, with signed checkpoints.

Entries are appended in the transaction that writes the records, so the two never differ, whichever process writes and
whenever it is killed. SQLite has one writer at a time, so all processes share one chain: where a process had a chain of
its own, removing the whole of it would leave no trace. What is and is not detected: SECURITY.md.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import itertools
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from gateway.db import Database, Insert, Row, Statement, timestamp
from gateway.db.journal import Batch
from gateway.errors import Conflict, GatewayError, NotFound, Unavailable
from gateway.sealing import import_cryptography, load_key_file

log = logging.getLogger(__name__)

KEY_FILE = "audit.key"
# The columns of a record, in the order in which they are digested. New ones go to the end: a NULL is not digested.
COLUMNS = (
    *("id", "chat_id", "message_id", "parent_message_id", "tool_id", "tool_name", "category", "principal", "surface"),
    *("client", "started_at", "process", "parent_call_id", "args", "status", "error", "error_code", "result"),
    *("render_plan", "finished_at", "duration_ms", "pre_manifest_id", "post_manifest_id", "attempts"),
    *("args_bytes", "result_bytes"),
)
MAC_BYTES = 16
PROBLEM_LIMIT = 1000
REMOVED_AT_ONCE = 500
_SIGNED_TEXT = b"toolgate call log "
# Set by the migration that creates the log, until the records from before it are logged.
_IMPORT = "SELECT 1 FROM revisions WHERE subject = 'call_log_import'"
_END_IMPORT = "DELETE FROM revisions WHERE subject = 'call_log_import'"

_NEW = ", ".join(f"NEW.{name}" for name in COLUMNS)
_OLD = ", ".join(f"OLD.{name}" for name in COLUMNS)
# A connection's own: what its transaction has written so far. No function of Python for a new record: each would wait
# for the interpreter lock, which the event loop holds most of the time.
_ATTACH = (
    "CREATE TEMP TABLE written_calls (id TEXT NOT NULL, before BLOB, digest BLOB)",
    """CREATE TEMP TRIGGER note_insert AFTER INSERT ON main.tool_calls BEGIN
        INSERT INTO written_calls (id) VALUES (NEW.id); END""",
    f"""CREATE TEMP TRIGGER note_update AFTER UPDATE ON main.tool_calls BEGIN
        INSERT INTO written_calls VALUES (NEW.id, digest_call({_OLD}), digest_call({_NEW})); END""",  # noqa: S608 - constants
)
# One row, for the same reason.
_WRITTEN = "SELECT json_group_array(json_array(id, hex(before), hex(digest))) FROM temp.written_calls"
_CLEAR = "DELETE FROM temp.written_calls"
_APPEND = Insert("INSERT INTO call_log (position, call_id, before, digest, hash, mac) VALUES {rows}", tuple(range(6)))
_APPENDED_AT_ONCE = 64
_LAST = """SELECT COALESCE((SELECT max(position) FROM call_log), 0) + 1 AS position,
    (SELECT hash FROM call_log ORDER BY position DESC LIMIT 1) AS previous"""
# Takes the position up to which entries are removed, NULL for a plain checkpoint, twice, and the time.
# Each LIMIT keeps SQLite from evaluating the functions once for every use.
_SIGN = f"""INSERT INTO call_log (position, digest, removed, at, hash, mac, signature)
    SELECT position, digest, removed, at, hash, authenticate_entry(hash), sign_entry(hash) FROM (
        SELECT position, digest, removed, at, link_entry(previous, position, NULL, NULL, digest, removed, at) AS hash
        FROM ({_LAST}, (SELECT hash FROM call_log WHERE position = ?) AS digest, ? AS removed, ? AS at LIMIT 1)
        LIMIT 1
    ) WHERE removed IS NULL OR digest IS NOT NULL"""  # noqa: S608 - constants
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM tool_calls"  # noqa: S608 - constants
_UNSIGNED = "SELECT 1 FROM call_log WHERE position = (SELECT max(position) FROM call_log) AND signature IS NULL"
_HEAD = "SELECT position, hash FROM call_log ORDER BY position DESC LIMIT 1"
_OLDEST = """SELECT l.position, c.status, c.started_at FROM call_log AS l LEFT JOIN tool_calls AS c ON c.id = l.call_id
    WHERE l.call_id IS NOT NULL ORDER BY l.position LIMIT ?"""
_SUPERSEDED = """EXISTS (SELECT 1 FROM call_log AS later
    WHERE later.call_id = l.call_id AND later.before IS NOT NULL AND later.position > {position})"""
_REMOVE_RECORDS = f"""DELETE FROM tool_calls WHERE id IN (
    SELECT call_id FROM call_log AS l WHERE position <= ? AND NOT {_SUPERSEDED.format(position="?")}
    ) RETURNING id"""  # noqa: S608 - constants
_REMOVE_ENTRIES = "DELETE FROM call_log WHERE position <= ?"
_FIELDS = ("position", "call_id", "before", "digest", "removed", "at", "hash", "mac", "signature")
_ENTRIES = f"""SELECT {", ".join(f"l.{name}" for name in _FIELDS)}, {_SUPERSEDED.format(position="l.position")},
    {", ".join(f"c.{name}" for name in COLUMNS)}
    FROM call_log AS l LEFT JOIN tool_calls AS c ON c.id = l.call_id ORDER BY l.position"""  # noqa: S608 - constants
_REMOVED = "SELECT removed, digest FROM call_log WHERE removed IS NOT NULL ORDER BY removed DESC LIMIT 1"
_UNLOGGED = """SELECT id FROM tool_calls WHERE id NOT IN (SELECT call_id FROM call_log WHERE call_id IS NOT NULL)
    ORDER BY id LIMIT ?"""


def digest_call(*values: Any) -> bytes:
    """SHA-256 of a record: compact JSON of its columns that are not NULL."""
    record = {name: value for name, value in zip(COLUMNS, values, strict=True) if value is not None}
    return hashlib.sha256(orjson.dumps(record)).digest()


def link_entry(previous: bytes | None, position: int, *fields: Any) -> bytes:
    """SHA-256 of an entry (`call_id`, `before`, `digest`, `removed`, `at`) with the hash of the one before it."""
    values = [_hex(previous), position, *map(_hex, fields)]
    return hashlib.sha256(orjson.dumps(values)).digest()


def _hex(value: Any) -> Any:
    return value.hex() if type(value) is bytes else value


class EntryKey:
    """The key of a data directory, read or made on first use. It authenticates each entry for whoever has the key
    (HMAC), and checkpoints for everybody (Ed25519)."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file

    def authenticate(self, entry_hash: bytes) -> bytes | None:
        """The MAC of an entry; None if the key cannot be used, which must not keep a call from being recorded."""
        try:
            return hmac.digest(self._mac_key, entry_hash, "sha256")[:MAC_BYTES]
        except (GatewayError, OSError) as error:
            log.error("the call log cannot be authenticated: %s", error)
            return None

    def sign(self, entry_hash: bytes) -> bytes:
        try:
            signature: bytes = self._private_key.sign(_SIGNED_TEXT + entry_hash)
        except Exception as error:  # SQLite reports only that a function failed
            log.error("the call log cannot be signed: %s", error)
            raise
        return signature

    @property
    def public_key(self) -> str:
        return str(self._private_key.public_key().public_bytes_raw().hex())

    @functools.cached_property
    def _seed(self) -> bytes:
        return load_key_file(self._key_file)

    @functools.cached_property
    def _mac_key(self) -> bytes:
        return hmac.digest(self._seed, b"toolgate call log entries", "sha256")

    @functools.cached_property
    def _private_key(self) -> Any:
        return _ed25519().Ed25519PrivateKey.from_private_bytes(self._seed)


def _ed25519() -> Any:
    return import_cryptography("cryptography.hazmat.primitives.asymmetric.ed25519")


class CallLog:
    """Appends to the log what one connection writes."""

    def __init__(self, connection: sqlite3.Connection, key_file: Path) -> None:
        self._connection = connection
        self._key = EntryKey(key_file)
        connection.create_function("digest_call", len(COLUMNS), digest_call, deterministic=True)
        connection.create_function("link_entry", 7, link_entry, deterministic=True)
        connection.create_function("authenticate_entry", 1, self._key.authenticate)
        connection.create_function("sign_entry", 1, self._key.sign)
        for statement in _ATTACH:
            connection.execute(statement)
        if connection.execute(_IMPORT).fetchone():
            self._log_existing(key_file)

    def append_entries(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """Log the records that this transaction has written, before its commit. `rows` are records as they were given
        to the database, by id; others are read."""
        ((text,),) = self._connection.execute(_WRITTEN).fetchall()
        if text == "[]":
            return
        written = orjson.loads(text)
        before_update = {call_id: before for call_id, before, _ in reversed(written) if before}

        def entries() -> Iterator[tuple[str, bytes | None, bytes]]:
            for call_id, before, digest in written:
                if not before and call_id in before_update:  # a new record that the same transaction changed
                    yield call_id, None, bytes.fromhex(before_update[call_id])
                elif not before:
                    row = rows.get(call_id, ())  # has fewer columns in the journal of an older version
                    yield call_id, None, digest_call(*(row if len(row) == len(COLUMNS) else self._read(call_id)))
                elif before != digest:
                    yield call_id, bytes.fromhex(before), bytes.fromhex(digest)

        self._append(entries())
        self._connection.execute(_CLEAR)

    def sign(self) -> None:
        """Append a signed checkpoint, unless the last entry is one. The log of the process names it too, so that one
        which is kept elsewhere shows a later truncation."""
        if self._connection.execute(_UNSIGNED).fetchone():
            self._connection.execute(_SIGN, (None, None, timestamp(time.time())))
            position, entry_hash = self._connection.execute(_HEAD).fetchone()
            log.info("call log signed: checkpoint %d:%s", position, entry_hash.hex())

    def _log_existing(self, key_file: Path) -> None:
        """Log records from before the log existed. Never where there is a key: then there was a log, and somebody has
        removed it."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        if not key_file.exists():
            records = connection.execute(f"{_SELECT} ORDER BY id")
            self._append((row[0], None, digest_call(*row)) for row in records)
        connection.execute(_END_IMPORT)
        connection.execute("COMMIT")

    def _read(self, call_id: str) -> Row:
        row: Row = self._connection.execute(f"{_SELECT} WHERE id = ?", (call_id,)).fetchone()
        return row

    def _append(self, entries: Iterator[tuple[str, bytes | None, bytes]]) -> None:
        position, previous = self._connection.execute(_LAST).fetchone()
        authenticate = self._key.authenticate
        while chunk := list(itertools.islice(entries, _APPENDED_AT_ONCE)):
            rows: list[Sequence[Any]] = []
            for entry in chunk:
                previous = link_entry(previous, position, *entry, None, None)
                rows.append((position, *entry, previous, authenticate(previous)))
                position += 1
            for sql, parameters, _ in Batch((_APPEND,), rows).statements():
                self._connection.execute(sql, parameters)


class RemovedCalls(NamedTuple):
    """The records that one step of retention removed, the position up to which, and whether there may be more."""

    records: int
    position: int | None
    more: bool


async def remove_calls(db: Database, before: str, limit: int = REMOVED_AT_ONCE) -> RemovedCalls:
    """Remove the oldest records that began before a time and have ended, a bounded number in one transaction. A signed
    entry says up to which position. Removes nothing behind a call that still runs or waits."""
    position, count = None, 0
    for row in await db.fetch(_OLDEST, limit):
        place, status, started_at = row
        if status in ("running", "pending") or (started_at is not None and started_at >= before):
            break
        position, count = place, count + 1
    if position is None:
        return RemovedCalls(0, None, False)
    try:
        _, removed, _ = await db.run(
            Statement(_SIGN, (position, position, timestamp(time.time())), 1),
            Statement(_REMOVE_RECORDS, (position, position)),
            Statement(_REMOVE_ENTRIES, (position,)),
        )
    except Conflict:  # another process has removed it
        return RemovedCalls(0, None, False)
    return RemovedCalls(len(removed), position, count == limit)


class LogEntry(NamedTuple):
    """One entry of the log, with the record it is the latest word about. A checkpoint has a signature and no call;
    with `removed`, all entries up to that position were removed and the last of them had the hash `digest`."""

    position: int
    call_id: str | None
    before: bytes | None
    digest: bytes | None
    removed: int | None
    at: str | None
    hash: bytes
    mac: bytes | None
    signature: bytes | None
    superseded: bool
    record: Row | None

    def to_dict(self) -> dict[str, Any]:
        """The entry as a line of an export; NULL columns of the record are left out."""
        line = {name: _hex(getattr(self, name)) for name in _FIELDS}
        if self.record is not None and not self.superseded:
            line["record"] = {
                name: value for name, value in zip(COLUMNS, self.record, strict=True) if value is not None
            }
        return line


@dataclass
class Verification:
    """The result of checking a log. `signed` is the last checkpoint, as `position:hash`; `unsigned` is the number of
    entries after it, `authenticated` whether each was checked with the gateway's key."""

    records: int = 0
    entries: int = 0
    checkpoints: int = 0
    removed: int = 0
    signed: str | None = None
    signed_at: str | None = None
    unsigned: int = 0
    authenticated: bool = False
    problems: list[dict[str, Any]] = field(default_factory=list)
    more_problems: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"ok": not self.problems, **asdict(self)}

    def add(self, problem: str, position: int | None = None, call_id: Any = None) -> None:
        if len(self.problems) < PROBLEM_LIMIT:
            self.problems.append({"problem": problem, "position": position, "call_id": call_id})
        else:
            self.more_problems += 1


@contextlib.contextmanager
def open_snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading, as it is now, whatever is written meanwhile."""
    if not path.exists():
        raise NotFound(f"there is no database at {path}; choose the data directory with --data-dir", code="NO_CALL_LOG")
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.text_factory = lambda text: text.decode(errors="surrogateescape")  # a tampered text is no UTF-8
        try:
            connection.execute("BEGIN")
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'call_log'").fetchone():
                raise NotFound(f"{path} has no call log yet; start the gateway once to make it", code="NO_CALL_LOG")
            yield connection
        except sqlite3.Error as error:
            raise Unavailable(f"the call log in {path} cannot be read: {error}", code="STORAGE_UNAVAILABLE") from error


def read_entries(connection: sqlite3.Connection) -> Iterator[LogEntry]:
    """Every entry in order."""
    fields = len(_FIELDS)
    for row in connection.execute(_ENTRIES):
        record = None if row[fields + 1] is None else row[fields + 1 :]
        yield LogEntry._make((*row[:fields], bool(row[fields]), record))


def verify_log(
    connection: sqlite3.Connection,
    key: EntryKey | None = None,
    public_keys: Sequence[str] = (),
    checkpoint: tuple[int, str] | None = None,
) -> Verification:
    """Check every record against the log, and the log against the key of its data directory, where it is known, and
    its signatures. `checkpoint` is the position and hash of one that was noted earlier, and must still be there or have
    been removed by retention."""
    found = Verification(authenticated=key is not None)
    trusted = [bytes.fromhex(public_key) for public_key in public_keys]
    # Retention appends what it removed, so the latest such entry explains how the log begins.
    position, previous = connection.execute(_REMOVED).fetchone() or (0, None)
    found.removed = position
    superseded: dict[str, bytes | None] = {}
    noted = checkpoint is None or checkpoint[0] <= position
    for entry in read_entries(connection):
        if entry.position != position + 1:
            found.add(f"the log goes on at {entry.position} after {position}: entries were removed", entry.position)
        if (problem := _check_entry(entry, previous, key, trusted)) is not None:
            found.add(problem, entry.position, entry.call_id)
        elif entry.signature is not None:
            found.checkpoints += 1
            found.signed, found.signed_at = f"{entry.position}:{entry.hash.hex()}", entry.at
        found.entries += 1
        found.unsigned = 0 if entry.signature is not None else found.unsigned + 1
        if entry.call_id is not None:
            _verify_record(entry, superseded, found)
        position, previous = entry.position, entry.hash
        noted = noted or (position, _hex(previous)) == checkpoint
    for (call_id,) in connection.execute(_UNLOGGED, (PROBLEM_LIMIT,)):
        found.add("the record is not in the log: it was inserted", None, call_id)
    if not noted and checkpoint is not None:
        found.add(f"the log no longer has the checkpoint {checkpoint[0]}: it was truncated or replaced", checkpoint[0])
    return found


def _check_entry(
    entry: LogEntry, previous: bytes | None, key: EntryKey | None, public_keys: Sequence[bytes]
) -> str | None:
    """The problem of an entry, if it has one."""
    try:
        fields = (entry.call_id, entry.before, entry.digest, entry.removed, entry.at)
        if link_entry(previous, entry.position, *fields) != entry.hash:
            return "the entry or the one before it was edited, moved or inserted"
        if key is not None and key.authenticate(entry.hash) != entry.mac:
            return "the entry was not written by this gateway, or its key was replaced"
        if (entry.call_id is None or entry.signature is not None) and not _is_signed(entry, public_keys):
            return "the signature is not by a trusted key: the log was edited, or the key replaced"
    except TypeError:
        return "the entry was edited: it has values of a wrong type"
    return None


def _is_signed(entry: LogEntry, public_keys: Sequence[bytes]) -> bool:
    verifier, invalid = _ed25519().Ed25519PublicKey, import_cryptography("cryptography.exceptions").InvalidSignature
    for key in public_keys:
        with contextlib.suppress(invalid):
            verifier.from_public_bytes(key).verify(entry.signature, _SIGNED_TEXT + entry.hash)
            return True
    return False


def _verify_record(entry: LogEntry, superseded: dict[str, bytes | None], found: Verification) -> None:
    call_id = str(entry.call_id)
    if entry.before is not None and superseded.pop(call_id, entry.before) != entry.before:
        found.add("the record was edited between two writes of the gateway", entry.position, call_id)
    if entry.superseded:
        superseded[call_id] = entry.digest
        return
    if entry.record is None:
        found.add("the record was deleted", entry.position, call_id)
        return
    found.records += 1
    try:
        intact = digest_call(*entry.record) == entry.digest
    except TypeError:
        intact = False
    if not intact:
        found.add("the record was edited", entry.position, call_id)
