"""The tamper-evident call log: verify it and export it. Reads the database of a data directory, which other processes
may be writing; only `accept` changes something."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from gateway.db import DATABASE_FILE
from gateway.db.call_log import (
    HEAD_FILE,
    KEY_FILE,
    EntryKey,
    EntryPlace,
    Verification,
    open_snapshot,
    read_end,
    read_entries,
    verify_log,
)
from gateway.db.journal import UNVERIFIED, accept_unverified, list_unverified
from gateway.db.sqlite import lock_file
from gateway.errors import Invalid, NotFound
from gateway.files import FileLock


def verify(data_dir: Path, public_keys: Sequence[str] = (), checkpoint: str | None = None) -> Verification:
    """Check the call log of a data directory. `public_keys` are trusted instead of the directory's own key;
    `checkpoint` is one that was noted elsewhere, as `position:hash`."""
    for public_key in public_keys:
        if not re.fullmatch("[0-9a-f]{64}", public_key):
            raise Invalid(f"a public key is 64 hexadecimal digits, not {public_key[:80]!r}")
    noted = [] if checkpoint is None else [_parse_checkpoint(checkpoint)]
    key_file = data_dir / KEY_FILE
    key = EntryKey(key_file) if key_file.exists() and not public_keys else None
    head = None if key is None else key.read_head()  # before the log, which grows
    with open_snapshot(data_dir / DATABASE_FILE) as connection:
        noted += [] if head is None else [head]
        found = verify_log(connection, key, public_keys or own_public_keys(data_dir), noted)
    if key is not None and head is None and not key.is_from_before_head():
        found.add(
            f"{HEAD_FILE} is missing, or was not written by this gateway: the end of the log may be removed. If you "
            "restored a backup: toolgate audit accept"
        )
    for path in list_unverified(data_dir / DATABASE_FILE):
        found.add(f"{path.name}: {UNVERIFIED}")
    return found


def accept(data_dir: Path) -> str:
    """Take the end of the log as it is for the right one, after a backup was restored. The next start records the calls
    of journal files that failed their check. Return the end as `position:hash`."""
    key_file, database = data_dir / KEY_FILE, data_dir / DATABASE_FILE
    if not key_file.exists():
        raise NotFound(
            f"there is no {KEY_FILE} in {data_dir}; choose the data directory with --data-dir", code="NO_KEY"
        )
    with closing(FileLock(lock_file(database))) as lock, lock, open_snapshot(database) as connection:
        key = EntryKey(key_file)
        end = read_end(connection)
        key.write_head(end)
        accept_unverified(database, key.load_journal_key())
    return f"{end.position}:{end.hash.hex()}"


def own_public_keys(data_dir: Path) -> list[str]:
    """The public key that this data directory signs with; none before its first record."""
    key_file = data_dir / KEY_FILE
    return [EntryKey(key_file).public_key] if key_file.exists() else []


def export(data_dir: Path) -> Iterator[str]:
    """Every entry of the log as a line of JSON, with the record it is about."""
    with open_snapshot(data_dir / DATABASE_FILE) as connection:
        for entry in read_entries(connection):
            yield json.dumps(entry.to_dict(), ensure_ascii=False, separators=(",", ":"))


def _parse_checkpoint(text: str) -> EntryPlace:
    match = re.fullmatch("([0-9]{1,18}):([0-9a-f]{64})", text)
    if match is None:
        raise Invalid(f"a checkpoint is POSITION:HASH as `toolgate audit verify` prints it, not {text[:100]!r}")
    return EntryPlace(int(match[1]), bytes.fromhex(match[2]))
