"""Pages that were fetched a moment ago, so that reading on does not fetch them again."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

SECONDS = 300.0
# Kept in all; the longest unused go first.
CHARACTERS = 16_000_000


@dataclass(frozen=True)
class Document:
    """What was at a URL, as text to be read in pages."""

    status: int
    url: str
    headers: Mapping[str, str]
    content_type: str | None
    format: str
    text: str
    title: str | None = None
    cut: bool = False


class Remembered:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[Hashable, tuple[float, Document]] = OrderedDict()
        self._size = 0

    def get(self, key: Hashable) -> Document | None:
        self._forget_old()
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][1]

    def put(self, key: Hashable, document: Document) -> None:
        self._drop(key)
        self._kept[key] = (self._clock(), document)
        self._size += len(document.text)
        while self._size > CHARACTERS:
            self._drop(next(iter(self._kept)))

    def _forget_old(self) -> None:
        oldest = self._clock() - SECONDS
        for key in [key for key, (since, _) in self._kept.items() if since < oldest]:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        _, document = self._kept.pop(key, (0.0, None))
        self._size -= len(document.text) if document is not None else 0
