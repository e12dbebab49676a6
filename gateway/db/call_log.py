"""The tamper-evident call log: a hash chain over every write to `tool_calls`, with signed checkpoints.

Entries are appended in the transaction that writes the records, so the two never differ, whichever process writes and
whenever it is killed. SQLite has one writer at a time, so all processes share one chain: where a process had a chain of
its own, removing the whole of it would leave no trace. A file beside the database has the position and hash of the last
entry, which shows that the end was removed. What is and is not detected: docs/audit.md.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import itertools
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from gateway.db import Insert, Row, timestamp
from gateway.db.journal import Batch
from gateway.db.migrations import MIGRATIONS
from gateway.errors import GatewayError, NotFound, Unavailable
from gateway.sealing import import_cryptography, load_key_file

log = logging.getLogger(__name__)

KEY_FILE = "audit.key"
HEAD_FILE = "audit.head"
_KEY_MODE = stat.S_IRUSR
# The columns of a record, in the order in which they are digested. New ones go to the end: a NULL is not digested.
COLUMNS = (
    *("id", "chat_id", "message_id", "parent_message_id", "tool_id", "tool_name", "category", "principal", "surface"),
    *("client", "started_at", "process", "parent_call_id", "args", "status", "error", "error_code", "result"),
    *("render_plan", "finished_at", "duration_ms", "pre_manifest_id", "post_manifest_id", "attempts"),
    *("args_bytes", "result_bytes"),
)
MAC_BYTES = 16
PROBLEM_LIMIT = 1000
_SIGNED_TEXT = b"toolgate call log "
# Set by the migration that creates the log, until the records from before it are logged.
_IMPORT = "SELECT 1 FROM revisions WHERE subject = 'call_log_import'"
_END_IMPORT = "DELETE FROM revisions WHERE subject = 'call_log_import'"

# Another trigger could change records within the gateway's own transactions, or keep them from being written.
_TRIGGERS = {" ".join(sql.split()) for statements in MIGRATIONS for sql in statements if "CREATE TRIGGER" in sql}
_LIST_TRIGGERS = "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger'"
_SCHEMA_VERSION = "PRAGMA main.schema_version"
_VERSION = "PRAGMA main.user_version"

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
SIGN = f"""INSERT INTO call_log (position, digest, removed, at, hash, mac, signature)
    SELECT position, digest, removed, at, hash, authenticate_entry(hash), sign_entry(hash) FROM (
        SELECT position, digest, removed, at, link_entry(previous, position, NULL, NULL, digest, removed, at) AS hash
        FROM ({_LAST}, (SELECT hash FROM call_log WHERE position = ?) AS digest, ? AS removed, ? AS at LIMIT 1)
        LIMIT 1
    ) WHERE removed IS NULL OR digest IS NOT NULL"""  # noqa: S608 - constants
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM tool_calls"  # noqa: S608 - constants
_UNSIGNED = """SELECT position, hash FROM call_log
    WHERE position = (SELECT max(position) FROM call_log) AND signature IS NULL"""
_HASH = "SELECT hash FROM call_log WHERE position = ?"
_FIRST = "SELECT min(position) FROM call_log"
_HEAD = "SELECT position, hash FROM call_log ORDER BY position DESC LIMIT 1"
SUPERSEDED = """EXISTS (SELECT 1 FROM call_log AS later
    WHERE later.call_id = l.call_id AND later.before IS NOT NULL AND later.position > {position})"""
_CHANGED = "SELECT 1 FROM call_log WHERE call_id = ? AND before = ?"
_FIELDS = ("position", "call_id", "before", "digest", "removed", "at", "hash", "mac", "signature")
_ENTRIES = f"""SELECT {", ".join(f"l.{name}" for name in _FIELDS)}, {SUPERSEDED.format(position="l.position")},
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
    return hashlib.sha256(orjson.dumps([previous, position, *fields], default=bytes.hex)).digest()


class EntryPlace(NamedTuple):
    """An entry, by its position and hash."""

    position: int
    hash: bytes


EMPTY = EntryPlace(0, bytes(32))


class LogHead:
    """The file with the end of the log and a MAC. It is overwritten in place: a new file would reach the disk before
    the entries that it names, which a power failure could then lose."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, key: bytes) -> EntryPlace | None:
        for _ in range(3):  # somebody may be writing
            try:
                position, entry_hash, _ = text = self._path.read_text().strip().split(":")
                place = EntryPlace(int(position), bytes.fromhex(entry_hash))
            except (OSError, ValueError):
                return None
            if text == _format_head(key, place).strip().split(":"):
                return place
        return None

    def write(self, key: bytes, place: EntryPlace) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, _format_head(key, place).encode(), 0)
        finally:
            os.close(descriptor)


def _format_head(key: bytes, place: EntryPlace) -> str:
    text = f"{place.position:020d}:{place.hash.hex()}"
    mac = hmac.digest(key, b"toolgate call log head " + text.encode(), "sha256")[:MAC_BYTES]
    return f"{text}:{mac.hex()}\n"


def _derive(seed: bytes, purpose: bytes = b"entries") -> bytes:
    return hmac.digest(seed, b"toolgate call log " + purpose, "sha256")


class EntryKey:
    """The key of a data directory, read or made on first use. It authenticates each entry for whoever has the key
    (HMAC), and checkpoints for everybody (Ed25519). Its file is read-only once there is a head: those who can change
    everything but the key cannot pretend that an older version wrote the log, which had none."""

    def __init__(self, key_file: Path) -> None:
        self._key_file = key_file
        self.head = LogHead(key_file.with_name(HEAD_FILE))

    def exists(self) -> bool:
        return self._key_file.exists()

    def is_from_before_head(self) -> bool:
        """Return whether there may be no head yet, nor MACs in journal files; true also without a key."""
        try:
            return bool(self._key_file.stat().st_mode & stat.S_IWUSR)
        except FileNotFoundError:
            return True

    def protect_head(self) -> None:
        """Make the file read-only: from now on, a missing head was removed."""
        if self.exists() and self.is_from_before_head() and self.read_head() is not None:
            self._key_file.chmod(_KEY_MODE)

    def load_journal_key(self) -> bytes:
        """The key of the MACs in journal files."""
        return _derive(self._seed, b"journal")

    def read_head(self) -> EntryPlace | None:
        """The end of the log as it was last written; None if that is missing, or was not written with this key."""
        return self.head.read(self._mac_key)

    def write_head(self, place: EntryPlace) -> None:
        self.head.write(self._mac_key, place)

    def authenticate(self, entry_hash: bytes) -> bytes | None:
        """The MAC of an entry; None if the key cannot be used, which must not keep a call from being recorded."""
        try:
            mac = self._empty_mac.copy()
            mac.update(entry_hash)
            return mac.digest()[:MAC_BYTES]
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
        # A head before the key, which is protected from its beginning.
        return load_key_file(self._key_file, lambda seed: self.head.write(_derive(seed), EMPTY), _KEY_MODE)

    @functools.cached_property
    def _mac_key(self) -> bytes:
        return _derive(self._seed)

    @functools.cached_property
    def _empty_mac(self) -> hmac.HMAC:
        return hmac.new(self._mac_key, digestmod="sha256")  # a copy takes a third of the time of another one

    @functools.cached_property
    def _private_key(self) -> Any:
        return import_ed25519().Ed25519PrivateKey.from_private_bytes(self._seed)


def import_ed25519() -> Any:
    return import_cryptography("cryptography.hazmat.primitives.asymmetric.ed25519")


class CallLog:
    """Appends to the log what one connection writes."""

    def __init__(self, connection: sqlite3.Connection, key: EntryKey) -> None:
        self._connection = connection
        self._key = key
        self._appended: tuple[EntryPlace, EntryPlace] | None = (
            None  # the last entry before this transaction, and after it
        )
        self._head_is_wrong = False
        self._checked_schema: int | None = None
        self.check_schema()
        # Else whoever can change the schema could have the functions sign anything.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.create_function("digest_call", len(COLUMNS), digest_call, deterministic=True)
        connection.create_function("link_entry", 7, link_entry, deterministic=True)
        connection.create_function("authenticate_entry", 1, self._key.authenticate)
        connection.create_function("sign_entry", 1, self._key.sign)
        for statement in _ATTACH:
            connection.execute(statement)
        if key.exists() and key.is_from_before_head():
            self._begin_head()
        if connection.execute(_IMPORT).fetchone():
            self._log_existing()

    def append_entries(self, rows: Mapping[str, Sequence[Any]]) -> None:
        """Log the records that this transaction has written, before its commit. `rows` are records as they were given
        to the database, by id; others are read."""
        self._appended = None
        ((text,),) = self._connection.execute(_WRITTEN).fetchall()
        if text == "[]":
            return
        written = orjson.loads(text)
        before_update = {call_id: before for call_id, before, _ in reversed(written) if before}

        def entries() -> Iterator[tuple[str, bytes | None, bytes]]:
            for call_id, before, digest in sorted(written, key=lambda each: not each[1] or bool(each[2])):
                if before and not digest:  # an entry that retention moves to the end; before changes of the same record
                    yield call_id, bytes.fromhex(before), bytes.fromhex(before)
                elif not before and call_id in before_update:  # a new record that the same transaction changed
                    yield call_id, None, bytes.fromhex(before_update[call_id])
                elif not before:
                    row = rows.get(call_id, ())  # has fewer columns in the journal of an older version
                    yield call_id, None, digest_call(*(row if len(row) == len(COLUMNS) else self._read(call_id)))
                elif before != digest:
                    yield call_id, bytes.fromhex(before), bytes.fromhex(digest)

        self._append(entries())
        self._connection.execute(_CLEAR)

    def check_schema(self) -> None:
        """Refuse to write to the database of a newer version, or while it has a trigger of somebody else. Call it when
        a transaction begins."""
        ((database_version,),) = self._connection.execute(_VERSION).fetchall()
        if database_version > len(MIGRATIONS):
            raise Unavailable(
                f"a newer toolgate has changed the database (to version {database_version}, this gateway knows up to "
                f"{len(MIGRATIONS)}); restart this gateway with the new version: what it could not write stays in its "
                "journal until then",
                code="DATABASE_TOO_NEW",
                database_version=database_version,
                known_version=len(MIGRATIONS),
            )
        ((version,),) = self._connection.execute(_SCHEMA_VERSION).fetchall()
        if version == self._checked_schema:
            return
        for name, sql in self._connection.execute(_LIST_TRIGGERS).fetchall():
            if " ".join(str(sql).split()) not in _TRIGGERS:
                raise Unavailable(
                    f"the database has the trigger {name!r}, which this version did not make and which could change "
                    "call records; remove it with DROP TRIGGER, or after an upgrade restart the gateway",
                    code="STORAGE_UNAVAILABLE",
                )
        self._checked_schema = version

    def is_superseded(self, row: Sequence[Any]) -> bool:
        """Return whether the log says that a record was like this, and changed since: the row was replayed before."""
        return (
            len(row) == len(COLUMNS)
            and type(row[0]) is str
            and self._connection.execute(_CHANGED, (row[0], digest_call(*row))).fetchone() is not None
        )

    def sign(self) -> None:
        """Append a signed checkpoint, unless the last entry is one. The log of the process names it too, so that one
        which is kept elsewhere shows a later truncation."""
        self._appended = None
        self.check_schema()
        if last := self._connection.execute(_UNSIGNED).fetchone():
            self._connection.execute(SIGN, (None, None, timestamp(time.time())))
            signed = read_end(self._connection)
            self._appended = (EntryPlace(*last), signed)
            log.info("call log signed: checkpoint %d:%s", signed.position, signed.hash.hex())

    def write_head(self) -> None:
        """Write the end of the log to its file, after the commit and under the file lock. Never where the log no longer
        has what is written there: somebody has removed it, and `verify` must find that."""
        if self._appended is None:
            return
        (before, end), self._appended = self._appended, None
        try:
            head = self._key.read_head()
            is_right = head is not None and (head == before or self._contains(head))
            if is_right:
                self._key.write_head(end)
        except (GatewayError, OSError) as error:
            log.error("the end of the call log cannot be noted: %s", error)
            return
        if not is_right and not self._head_is_wrong:
            log.error("the end of the call log was removed, or %s changed; see: toolgate audit verify", HEAD_FILE)
        self._head_is_wrong = not is_right

    def _contains(self, place: EntryPlace) -> bool:
        """Return whether the log has an entry, or had it before retention."""
        (first,) = self._connection.execute(_FIRST).fetchone()
        if place == EMPTY or first is None or place.position >= first:
            return place == EMPTY or self._connection.execute(_HASH, (place.position,)).fetchone() == (place.hash,)
        removed = self._connection.execute(_REMOVED).fetchone()  # looks at every entry
        return removed is not None and bool(place.position <= removed[0])

    def _begin_head(self) -> None:
        """Note the end of a log that an older version wrote."""
        try:
            if self._key.read_head() is None:
                self._key.write_head(read_end(self._connection))
        except (GatewayError, OSError) as error:
            log.error("the end of the call log cannot be noted: %s", error)

    def _log_existing(self) -> None:
        """Log records from before the log existed. Never where the log has begun, and somebody has removed it; there is
        a key before if that was tried by a process that was killed."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        if not self._key.exists() or self._key.read_head() == read_end(connection) == EMPTY:
            records = connection.execute(f"{_SELECT} ORDER BY id")
            self._append((row[0], None, digest_call(*row)) for row in records)
        connection.execute(_END_IMPORT)
        connection.execute("COMMIT")
        self.write_head()

    def _read(self, call_id: str) -> Row:
        row: Row = self._connection.execute(f"{_SELECT} WHERE id = ?", (call_id,)).fetchone()
        return row

    def _append(self, entries: Iterator[tuple[str, bytes | None, bytes]]) -> None:
        position, previous = self._connection.execute(_LAST).fetchone()
        before = EMPTY if previous is None else EntryPlace(position - 1, previous)
        authenticate = self._key.authenticate
        while chunk := list(itertools.islice(entries, _APPENDED_AT_ONCE)):
            rows: list[Sequence[Any]] = []
            for entry in chunk:
                previous = link_entry(previous, position, *entry, None, None)
                rows.append((position, *entry, previous, authenticate(previous)))
                position += 1
            for sql, parameters, _ in Batch((_APPEND,), rows).statements():
                self._connection.execute(sql, parameters)
            self._appended = (before, EntryPlace(position - 1, previous))


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
        values: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        line = {name: value.hex() if isinstance(value, bytes) else value for name, value in values.items()}
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


def read_end(connection: sqlite3.Connection) -> EntryPlace:
    """The last entry."""
    row = connection.execute(_HEAD).fetchone()
    return EMPTY if row is None else EntryPlace(*row)


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
    noted: Sequence[EntryPlace] = (),
) -> Verification:
    """Check every record against the log, and the log against the key of its data directory, where it is known, and
    its signatures. `noted` entries must still be there, or have been removed by retention."""
    found = Verification(authenticated=key is not None)
    trusted = [bytes.fromhex(public_key) for public_key in public_keys]
    # Retention appends what it removed, so the latest such entry explains how the log begins.
    position, previous = connection.execute(_REMOVED).fetchone() or (0, None)
    found.removed = position
    superseded: dict[str, bytes | None] = {}
    missing = {place for place in noted if place.position > position}
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
        missing.discard(EntryPlace(position, previous))
    for (call_id,) in connection.execute(_UNLOGGED, (PROBLEM_LIMIT,)):
        found.add("the record is not in the log: it was inserted", None, call_id)
    for place in sorted(missing):
        found.add(f"the log no longer has the entry {place.position}: it was truncated or replaced", place.position)
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
    verifier = import_ed25519().Ed25519PublicKey
    invalid = import_cryptography("cryptography.exceptions").InvalidSignature
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
