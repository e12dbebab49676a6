"""Errors that name the fix."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

_SHOWN = 20


def check_columns(wanted: Iterable[str], columns: Collection[str], path: str) -> None:
    """Refuse the first column that is not there, with the nearest name and all of them."""
    for name in wanted:
        if name not in columns:
            near = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
            raise ValueError(f"{path!r} has no column {name!r}{hint} It has {', '.join(list(columns)[:_SHOWN])}{more}.")
