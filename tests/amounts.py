"""How often a test tries the same thing: less in the inner loop, more at night."""

from __future__ import annotations

import os

QUICK = bool(os.environ.get("TOOLGATE_QUICK"))
NIGHTLY = bool(os.environ.get("TOOLGATE_NIGHTLY"))


def amount(whole: int, quick: int | None = None, *, nightly: int | None = None) -> int:
    if QUICK and quick is not None:
        return quick
    return nightly if NIGHTLY and nightly is not None else whole
