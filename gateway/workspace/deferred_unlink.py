"""Files that go: their names at once, their space on disk after whoever waits has been answered."""

from __future__ import annotations

import os
import threading

_HELD = 256  # files whose space is still taken; beyond that it is given back on the spot
_HOLD = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_CLOEXEC


class DeferredUnlink:
    """Unlinks files. To give back the space of one takes longer than all else about it, and waits until
    its last descriptor is closed; a crash before that costs nothing, since the system does it then."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def unlink(self, parent: int, name: str) -> None:
        if hasattr(os, "O_PATH") and len(self._held) < _HELD:
            self._held.append(os.open(name, _HOLD, dir_fd=parent))
        os.unlink(name, dir_fd=parent)

    def finish(self) -> None:
        """Let go of all of them, in the background."""
        if self._held:
            threading.Thread(target=_close, args=(self._held,), name="farewell", daemon=True).start()
            self._held = []


def _close(held: list[int]) -> None:
    for fd in held:
        os.close(fd)
