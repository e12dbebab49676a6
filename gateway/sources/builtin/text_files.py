"""Files as text: read whole and strictly, line ends kept."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gateway.errors import Invalid
from gateway.workspace import Parts, Root, shown

TEXT_LIMIT = 8 * 1024 * 1024
DIFF_LIMIT = 32 * 1024


@dataclass(frozen=True)
class Text:
    """A text file as it was seen: `body` has plain newlines, whatever the file has."""

    parts: Parts
    body: str
    content: bytes
    stat: os.stat_result

    @property
    def crlf(self) -> bool:
        return has_crlf(self.content)

    def encoded(self, body: str) -> bytes:
        """Another body as this file would be written: with its line ends."""
        return (body.replace("\n", "\r\n") if self.crlf else body).encode("utf-8")


def read_text(root: Root, parts: Parts) -> Text:
    """The whole file; refused when it is not UTF-8 or larger than a file that people edit."""
    with root.open(parts) as file:
        stat = os.fstat(file.fileno())
        content = b"" if stat.st_size > TEXT_LIMIT else file.read(TEXT_LIMIT + 1)
    if max(stat.st_size, len(content)) > TEXT_LIMIT:
        limit = f"{TEXT_LIMIT // 2**20} MiB"
        raise Invalid(f"{shown(parts)!r} is larger than {limit}, the most that is edited", code="FILE_TOO_LARGE")
    body = decode(content, parts)
    return Text(parts, body.replace("\r\n", "\n") if has_crlf(content) else body, content, stat)


def decode(content: bytes, parts: Parts) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(parts) from error


def not_utf8(parts: Parts) -> Invalid:
    return Invalid(f"{shown(parts)!r} is not UTF-8 text; read it with encoding='base64'", code="NOT_UTF8")


def has_crlf(content: bytes) -> bool:
    """Whether every line ends in CR LF; a file of mixed line ends is taken as it is."""
    lines = content.count(b"\n")
    return lines > 0 and content.count(b"\r\n") == lines


def shortened(text: str, limit: int = DIFF_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit} more characters"
