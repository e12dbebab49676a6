"""Reading a file, a part of it at a time, however large it is."""

from __future__ import annotations

import base64
import codecs
import os
from dataclasses import dataclass
from typing import Annotated, BinaryIO, Literal

from pydantic import Field

from gateway.errors import Invalid
from gateway.sources.builtin.decorator import Context, Shape, builtin
from gateway.sources.builtin.text_files import not_utf8
from gateway.tools import Access, Permission
from gateway.workspace import Parts, parse, shown
from gateway.workspace.walk import modified

# Bytes of a file in one answer.
RESULT_LIMIT = 256 * 1024

_SCAN_LIMIT = 64 * 1024 * 1024  # how far lines are counted, to find the first or to tell the total
_CHUNK = 256 * 1024


class FilePart(Shape):
    content: str
    size: int = Field(description="Bytes of the whole file")
    modified: str
    truncated: bool
    offset: int = Field(description="First line returned, from 1; for base64 the first byte, from 0")
    next_offset: int | None = Field(default=None, description="Where to go on reading")
    total_lines: int | None = Field(default=None, description="Lines of the whole file, where they were counted")


@builtin(
    title="Read file",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
)
def read_file(
    context: Context,
    path: Annotated[str, Field(description="File, relative to the workspace root")],
    encoding: Annotated[Literal["utf-8", "base64"], Field(description="base64 for files that are not text")] = "utf-8",
    offset: Annotated[int, Field(ge=0, le=2**53, description="First line, from 1; for base64 first byte, from 0")] = 0,
    limit: Annotated[int | None, Field(ge=1, description="At most so many lines; for base64, bytes")] = None,
) -> tuple[FilePart, str]:
    """Read a file of the workspace, whole or from a line on. One answer has at most 256 KiB; a longer file is
    cut, and nextOffset says where to go on.

    Refused: directories, links, and with utf-8 what is not UTF-8 text (use base64 for that)."""
    parts = parse(path)
    with context.workspace.open(parts) as file:
        if encoding == "base64":
            return _read_bytes(file, offset, limit)
        return _read_lines(context, file, parts, max(offset, 1), limit)


def _read_bytes(file: BinaryIO, offset: int, limit: int | None) -> tuple[FilePart, str]:
    found = os.fstat(file.fileno())
    content = os.pread(file.fileno(), min(limit or RESULT_LIMIT, RESULT_LIMIT), offset)
    end = offset + len(content)
    more = end < found.st_size
    part = FilePart(
        content=base64.b64encode(content).decode("ascii"),
        size=found.st_size,
        modified=modified(found),
        truncated=more,
        offset=offset,
        next_offset=end if more else None,
    )
    closing = f"\n[bytes {offset}-{end - 1} of {found.st_size}; go on with offset={end}]" if more else ""
    return part, part.content + closing


def _read_lines(context: Context, file: BinaryIO, parts: Parts, first: int, limit: int | None) -> tuple[FilePart, str]:
    found = os.fstat(file.fileno())
    scan = _Scan(context, file)
    start = scan.skip_lines(first - 1, parts)
    block = os.pread(file.fileno(), RESULT_LIMIT + 1, start)
    lines, end, cut = _take(block, limit)
    more = start + end < found.st_size
    part = FilePart(
        content=_decoded(block[:end], parts, final=not cut),
        size=found.st_size,
        modified=modified(found),
        truncated=more,
        offset=first,
        next_offset=first + lines if more else None,
        total_lines=scan.count_lines(found.st_size),
    )
    return part, part.content + _closing(part, lines, start + end if cut else None)


def _take(block: bytes, limit: int | None) -> tuple[int, int, bool]:
    """How many whole lines of a block are returned, their bytes, and whether the last one is cut."""
    end = _end_of_line(block, limit) if limit is not None else len(block)
    if end > RESULT_LIMIT:
        end = block.rfind(b"\n", 0, RESULT_LIMIT) + 1
        if end == 0:
            return 1, RESULT_LIMIT, True
    taken = block[:end]
    return taken.count(b"\n") + (not taken.endswith(b"\n") and bool(taken)), end, False


def _end_of_line(block: bytes, number: int) -> int:
    end = 0
    for _ in range(number):
        end = block.find(b"\n", end) + 1
        if end == 0:
            return len(block)
    return end


def _decoded(content: bytes, parts: Parts, final: bool) -> str:
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content, final)
    except UnicodeDecodeError as error:
        raise not_utf8(parts) from error


def _closing(part: FilePart, lines: int, cut_at: int | None) -> str:
    """The line that tells a model what it has not seen; nothing when it has seen all."""
    end = "" if part.content.endswith("\n") else "\n"
    of = f" of {part.total_lines}" if part.total_lines is not None else ""
    if cut_at is not None:
        rest = f"the rest of it: encoding='base64', offset={cut_at}"
        return f"{end}[line {part.offset}{of} is too long and cut; {rest}; the next line: offset={part.next_offset}]"
    if part.truncated:
        return f"{end}[lines {part.offset}-{part.offset + lines - 1}{of}; go on with offset={part.next_offset}]"
    if not lines and part.offset > 1:
        return f"[line {part.offset} is past the end; the file has {part.total_lines} lines]"
    return ""


@dataclass(frozen=True)
class _Scan:
    """Counting lines in chunks, so that neither memory nor a cancelled call depends on the size."""

    context: Context
    file: BinaryIO

    def skip_lines(self, number: int, parts: Parts) -> int:
        """The byte where the line after `number` lines begins; the end of the file when it has fewer."""
        at = 0
        while number > 0:
            if at >= _SCAN_LIMIT:
                far = f"{_SCAN_LIMIT // 2**20} MiB"
                message = f"the line lies beyond the first {far} of {shown(parts)!r}; read it with encoding='base64'"
                raise Invalid(message, code="OFFSET_TOO_FAR")
            chunk = self._chunk(at)
            if not chunk:
                return at
            found = chunk.count(b"\n")
            at += len(chunk) if found < number else _end_of_line(chunk, number)
            number -= min(found, number)
        return at

    def count_lines(self, size: int) -> int | None:
        """All lines of the file; None where counting them would take long."""
        if size > _SCAN_LIMIT:
            return None
        lines, at, last = 0, 0, b"\n"
        while at < _SCAN_LIMIT and (chunk := self._chunk(at)):
            lines, at, last = lines + chunk.count(b"\n"), at + len(chunk), chunk[-1:]
        return lines + (last != b"\n")

    def _chunk(self, at: int) -> bytes:
        self.context.check_cancelled()
        return os.pread(self.file.fileno(), _CHUNK, at)
