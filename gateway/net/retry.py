"""When a request that failed is worth another try, and how long to wait for it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx2

from gateway.errors import Timeout, Unavailable
from gateway.net.errors import CONNECT_FAILED, CONNECTION_LOST
from gateway.net.transport import LOOKUP_FAILED

_STATUSES = frozenset({429, 502, 503, 504})
_CODES = frozenset({CONNECT_FAILED, CONNECTION_LOST, LOOKUP_FAILED, Timeout.default_code})
_dice = random.SystemRandom()


@dataclass(frozen=True)
class Retry:
    """How often a request is sent at most, and the pauses between: each twice the one before, and
    somewhat by chance, so that callers who failed together do not come back together. A server that
    asks for a longer pause than `longest_seconds` is not asked again."""

    attempts: int = 3
    first_seconds: float = 0.5
    longest_seconds: float = 10.0

    def after_failure(self, failure: Unavailable, attempt: int) -> float | None:
        """Seconds to wait before the next try; None when there should be none."""
        return self._pause(attempt) if failure.code in _CODES and attempt < self.attempts else None

    def after_answer(self, response: httpx2.Response, attempt: int) -> float | None:
        if response.status_code not in _STATUSES or attempt >= self.attempts:
            return None
        asked = _asked_pause(response.headers.get("retry-after"))
        if asked is None:
            return self._pause(attempt)
        return asked if asked <= self.longest_seconds else None

    def _pause(self, attempt: int) -> float:
        longest: float = min(self.first_seconds * 2 ** (attempt - 1), self.longest_seconds)
        return _dice.uniform(longest / 2, longest)


NEVER = Retry(attempts=1)


def _asked_pause(header: str | None) -> float | None:
    """Seconds a server asks us to wait, said in seconds or as a date."""
    if header is None:
        return None
    if header.isascii() and header.isdecimal() and len(header) < 10:
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max((until - datetime.now(UTC)).total_seconds(), 0.0)
