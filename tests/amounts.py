"""How often a test tries the same thing: the inner loop tries it less often than the whole does."""

from __future__ import annotations

import os

QUICK = bool(os.environ.get("TOOLGATE_QUICK"))


def amount(whole: int, quick: int) -> int:
    return quick if QUICK else whole
