"""Lines of Markdown as they are written: paragraphs put together of words, within quotes and lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Characters of a page; the rest is left out.
LONGEST = 4_000_000

_NESTED = 12  # deeper quotes and lists are written as this deep
_BREAK = "\n"
_SPACE = re.compile(r"[ \t\r\n\f\v\u200b\ufeff]+")
_STRUCTURE = re.compile(r"(#{1,6}\s|>|[-+*]\s|(?:-{3,}|={3,}|\*{3,}|_{3,})$|```|~~~)")
_NUMBERED = re.compile(r"(\d{1,9})([.)]\s)")


@dataclass
class _Margin:
    """What stands before the lines of a quote or an item: the first of them, and the rest."""

    first: str
    rest: str
    one_line: bool = False
    item: bool = False
    used: bool = False


@dataclass
class _Mark:
    """What stands around words: where they begin among those not yet written."""

    before: str
    after: str
    start: int


class Lines:
    """Takes words and blocks in the order of a page; `full` says that it takes no more."""

    def __init__(self) -> None:
        self._written: list[str] = []
        self._size = 0
        self._words: list[str] = []
        self._margins: list[_Margin] = []
        self._marks: list[_Mark] = []
        self._in_list = False

    @property
    def full(self) -> bool:
        return self._size > LONGEST

    def text(self) -> str:
        self.end_block()
        return "\n".join(self._written).strip("\n")

    def add(self, text: str) -> None:
        if text:
            self._words.append(_SPACE.sub(" ", text))
            self._size += 1

    def add_code(self, text: str) -> None:
        text = " ".join(text.split())
        if text:
            ticks = _fence(text, 1)
            pad = " " if text.startswith("`") or text.endswith("`") else ""
            self._words.append(f"{ticks}{pad}{text}{pad}{ticks}")

    def break_line(self) -> None:
        self._words.append(_BREAK)

    @contextmanager
    def marked(self, before: str, after: str) -> Iterator[None]:
        """Around what is written within, in each paragraph of it anew; not twice the same."""
        if any(mark.before == before for mark in self._marks):
            yield
            return
        self._marks.append(_Mark(before, after, len(self._words)))
        yield
        self._close(self._marks.pop())

    @contextmanager
    def within(self, first: str, rest: str, one_line: bool = False, item: bool = False) -> Iterator[None]:
        self.end_block()
        deep = sum(bool(margin.rest) for margin in self._margins) >= _NESTED
        self._margins.append(_Margin("" if deep else first, "" if deep else rest, one_line, item))
        yield
        self.end_block()
        self._margins.pop()

    def end_block(self) -> None:
        """Write the words there are as a paragraph; marks that are open go on in the next one."""
        if not self._words:
            return
        for mark in reversed(self._marks):
            self._close(mark)
            mark.start = 0
        lines = [" ".join(line.split()) for line in "".join(self._words).split(_BREAK)]
        self._words.clear()
        lines = [line for line in lines if line]
        if any(margin.one_line for margin in self._margins):
            lines = [" ".join(lines)] if lines else []
        else:
            lines = [_escaped(line) for line in lines]
        self._write(lines)

    def begin_list(self) -> None:
        self.end_block()
        self._in_list = any(margin.item for margin in self._margins)

    def block(self, lines: Sequence[str]) -> None:
        self.end_block()
        self._write(lines)

    def code_block(self, text: str, language: str) -> None:
        text = text.replace("\r\n", "\n").strip("\n")
        if text.strip():
            fence = _fence(text, 3)
            self.block([f"{fence}{language}", *(line.rstrip() for line in text.split("\n")), fence])

    def _close(self, mark: _Mark) -> None:
        inner = "".join(self._words[mark.start :])
        del self._words[mark.start :]
        bare = inner.strip()
        if bare:
            lead, trail = " " * inner[0].isspace(), " " * inner[-1].isspace()
            self._words += [lead, mark.before, bare.replace(_BREAK, " "), mark.after, trail]
        else:
            self._words.append(inner)

    def _write(self, lines: Sequence[str]) -> None:
        if not lines or self.full:
            return
        starts_item = any(margin.item and margin.first and not margin.used for margin in self._margins)
        if self._written and not (starts_item and self._in_list):
            self._put("".join(margin.rest for margin in self._margins if margin.used).rstrip())
        for line in lines:
            before = "".join(margin.rest if margin.used else margin.first for margin in self._margins)
            for margin in self._margins:
                margin.used = True
            self._put((before + line).rstrip())
        self._in_list = any(margin.item for margin in self._margins)

    def _put(self, line: str) -> None:
        self._written.append(line)
        self._size += len(line) + 1


def _escaped(line: str) -> str:
    """A line that is only words, also where it begins like a heading, a quote or a list."""
    if _STRUCTURE.match(line):
        return f"\\{line}"
    return _NUMBERED.sub(r"\1\\\2", line, count=1) if _NUMBERED.match(line) else line


def _fence(text: str, least: int) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(least, longest + 1 if longest >= least else least)
