"""The tamper-evident call log: verify it and export it. Reads the database of a data directory, which other processes
may be writing, and changes nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway.db import DATABASE_FILE
from gateway.db.call_log import KEY_FILE, EntryKey, Verification, open_snapshot, read_entries, verify_log
from gateway.errors import Invalid


def verify(data_dir: Path, public_keys: Sequence[str] = (), checkpoint: str | None = None) -> Verification:
    """Check the call log of a data directory. `public_keys` are trusted instead of the directory's own key;
    `checkpoint` is one that was noted elsewhere, as `position:hash`."""
    for public_key in public_keys:
        if not re.fullmatch("[0-9a-f]{64}", public_key):
            raise Invalid(f"a public key is 64 hexadecimal digits, not {public_key[:80]!r}")
    noted = None if checkpoint is None else _parse_checkpoint(checkpoint)
    key_file = data_dir / KEY_FILE
    key = EntryKey(key_file) if key_file.exists() and not public_keys else None
    with open_snapshot(data_dir / DATABASE_FILE) as connection:
        return verify_log(connection, key, public_keys or own_public_keys(data_dir), noted)


def own_public_keys(data_dir: Path) -> list[str]:
    """The public key that this data directory signs with; none before its first record."""
    key_file = data_dir / KEY_FILE
    return [EntryKey(key_file).public_key] if key_file.exists() else []


def export(data_dir: Path) -> Iterator[str]:
    """Every entry of the log as a line of JSON, with the record it is about."""
    with open_snapshot(data_dir / DATABASE_FILE) as connection:
        for entry in read_entries(connection):
            yield json.dumps(entry.to_dict(), ensure_ascii=False, separators=(",", ":"))


def _parse_checkpoint(text: str) -> tuple[int, str]:
    match = re.fullmatch("([0-9]{1,18}):([0-9a-f]{64})", text)
    if match is None:
        raise Invalid(f"a checkpoint is POSITION:HASH as `toolgate audit verify` prints it, not {text[:100]!r}")
    return int(match[1]), match[2]
