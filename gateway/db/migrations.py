"""Forward migrations, numbered by their place in the list; an engine runs the pending ones at start."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Unavailable
from . import schema

Migration = Sequence[str]
"""Statements that run as one transaction."""

MIGRATIONS: Sequence[Migration] = (schema.TABLES,)


def pending(version: int, migrations: Sequence[Migration] = MIGRATIONS) -> list[tuple[int, Migration]]:
    """What a database at `version` lacks, each with the version it leads to; refuses a newer database."""
    if version > len(migrations):
        raise Unavailable(
            f"the database is at version {version}, this toolgate knows up to {len(migrations)}; "
            "upgrade toolgate, or give it another data directory",
            code="DATABASE_TOO_NEW",
            database_version=version,
            known_version=len(migrations),
        )
    return [(number, migrations[number - 1]) for number in range(version + 1, len(migrations) + 1)]
