"""What one request may take."""

from __future__ import annotations

from dataclasses import dataclass

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True)
class Limits:
    """What one request may take. `seconds` is for all of it: names, redirects, retries, and reading
    the body to its end. `bytes` holds for the body as sent and as unpacked."""

    bytes: int = 32 * _MEBIBYTE
    header_bytes: int = 64 * 1024
    seconds: float = 30.0
    connect_seconds: float = 10.0
    redirects: int = 5
