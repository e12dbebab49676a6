"""Files as text: read whole and strictly, line ends kept, changes shown as a diff."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from typing import Literal

from ...errors import Invalid
from ...workspace import Parts, Root, shown

TEXT_LIMIT = 8 * 1024 * 1024
DIFF_LIMIT = 32 * 1024
_COMPARED = 1_000_000  # pairs of lines; difflib takes a second or two for so many that are alike


_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


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


def split_lines(text: str) -> list[str]:
    """Lines with their newline; only `\\n` ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def unified_diff(path: str, before: str, after: str) -> str:
    """What changed, as a unified diff that `apply_patch` takes, in time linear in the text."""
    old, new = split_lines(before), split_lines(after)
    matcher = _Comparison(old, new)
    lines = []
    for group in matcher.get_grouped_opcodes(3):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@\n")
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                lines += [_line(" ", line) for line in old[old_from:old_to]]
                continue
            lines += [_line("-", line) for line in old[old_from:old_to]]
            lines += [_line("+", line) for line in new[new_from:new_to]]
    return "".join([f"--- a/{path}\n", f"+++ b/{path}\n", *lines]) if lines else ""


def shortened(text: str, limit: int = DIFF_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit} more characters"


class _Comparison(difflib.SequenceMatcher[str]):
    """Compares only the lines between the first and the last change, and gives up on too many."""

    def __init__(self, old: list[str], new: list[str]) -> None:
        super().__init__(None, old, new, autojunk=False)
        self._old, self._new = old, new

    def get_opcodes(self) -> list[_Opcode]:
        old, new = self._old, self._new
        head = _common(old, new)
        tail = _common(old[head:][::-1], new[head:][::-1])
        old_end, new_end = len(old) - tail, len(new) - tail
        codes: list[_Opcode] = [("equal", 0, head, 0, head)] if head else []
        codes += _between(old, new, head, old_end, new_end)
        if tail:
            codes.append(("equal", old_end, len(old), new_end, len(new)))
        return codes


def _between(old: list[str], new: list[str], head: int, old_end: int, new_end: int) -> list[_Opcode]:
    if (old_end - head) * (new_end - head) > _COMPARED:
        return [("replace", head, old_end, head, new_end)]
    found = difflib.SequenceMatcher(None, old[head:old_end], new[head:new_end], autojunk=False).get_opcodes()
    return [(tag, a + head, b + head, c + head, d + head) for tag, a, b, c, d in found]


def _common(one: list[str], other: list[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _range(start: int, end: int) -> str:
    return f"{start + 1},{end - start}" if end > start else f"{start},0"


def _line(sign: str, line: str) -> str:
    return f"{sign}{line}" if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"
