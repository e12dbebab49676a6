"""Cancel scopes, of which every call needs some."""

from __future__ import annotations

from functools import cache

import anyio


def cancel_scope() -> anyio.CancelScope:
    """A scope without a deadline. To make one, anyio finds out each time which event loop it is for, and prepares it
    twice, which takes longer than to enter and leave it."""
    return _kind()()


@cache
def _kind() -> type[anyio.CancelScope]:
    return type(anyio.CancelScope())
