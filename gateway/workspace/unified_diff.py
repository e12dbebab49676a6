"""What changed between two texts, as a unified diff, in time linear in them."""

from __future__ import annotations

import difflib
from typing import Literal

_COMPARED = 1_000_000  # pairs of lines; difflib takes a second or two for so many that are alike

_Opcode = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


def split_lines(text: str) -> list[str]:
    """Lines with their newline; only `\\n` ends one."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def unified_diff(path: str, before: str, after: str) -> str:
    """What changed, as a unified diff that `apply_patch` takes."""
    changed = hunks(before, after)
    return f"--- a/{path}\n+++ b/{path}\n{changed}" if changed else ""


def hunks(before: str, after: str) -> str:
    """The hunks of a unified diff, without the lines that name the files; empty for equal texts."""
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
    return "".join(lines)


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
