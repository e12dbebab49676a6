"""Tools that read the workspace: read a file in parts, list directories and find files by name."""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, BinaryIO, Literal

from pydantic import Field

from gateway.errors import Invalid
from gateway.sources.builtin.decorator import FileContext, Shape, builtin
from gateway.tools import Access, Permission
from gateway.workspace import Entry, Parts, Root, parse, show_path
from gateway.workspace.globs import Glob
from gateway.workspace.walk import ANY_DEPTH, modified_at

Type = Literal["file", "directory", "symlink", "other"]

# Directories nobody means when searching; hidden ones such as `.git` and `.venv` are passed over anyway.
IGNORED = frozenset({"node_modules", "__pycache__"})


class ListedEntry(Shape):
    name: str
    type: Type
    size: int
    modified: str
    escaped: bool | None = Field(
        default=None, description="The name is not plain text and shown escaped; no path reaches it"
    )


class Listing(Shape):
    entries: list[ListedEntry]
    truncated: bool


@builtin(
    title="List directory",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
)
def list_directory(
    context: FileContext,
    path: Annotated[str, Field(description="Directory, relative to the workspace root; '.' is the root")] = ".",
    recursive: Annotated[bool, Field(description="Also what is in its directories; names are then paths")] = False,
    include_hidden: Annotated[bool, Field(description="Also names beginning with a dot")] = False,
    limit: Annotated[int, Field(ge=1, le=10_000, description="At most so many entries")] = 1000,
) -> tuple[Listing, str]:
    """List a directory of the workspace, sorted by name: directories end in /, links in @, files show their bytes.

    Links are listed as links and never followed. To find files by name use find_files."""
    base = parse(path)

    def wanted(entry: Entry) -> bool:
        return include_hidden or not entry.hidden

    found, truncated = select(context, base, limit, wanted, wanted, depth=ANY_DEPTH if recursive else 1)
    listed = [_listed(entry, base) for entry in found]
    return Listing(entries=listed, truncated=truncated), _listing_text(listed, show_path(base), truncated)


class FoundFile(Shape):
    path: str
    type: Type
    size: int
    modified: str


class Found(Shape):
    matches: list[FoundFile]
    truncated: bool


@builtin(
    title="Find files",
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
)
def find_files(
    context: FileContext,
    pattern: Annotated[str, Field(description="Glob such as *.py, src/**/test_*.ts or *.{md,txt}")],
    path: Annotated[str, Field(description="Directory to search, relative to the workspace root")] = ".",
    type: Annotated[Literal["file", "directory", "any"], Field(description="What to find")] = "file",  # noqa: A002
    include_hidden: Annotated[bool, Field(description="Also hidden names, node_modules and __pycache__")] = False,
    limit: Annotated[int, Field(ge=1, le=10_000, description="At most so many matches")] = 200,
) -> tuple[Found, str]:
    """Find files in the workspace by name. A pattern without / matches the name in any directory; with / it
    matches the path from the searched directory, ** standing for any number of directories.

    Hidden names, node_modules and __pycache__ are passed over unless the pattern spells them out. To search what
    is in files use search_code."""
    base, glob = parse(path), Glob(pattern)
    visible = _visible(include_hidden, glob)

    def wanted(entry: Entry) -> bool:
        return visible(entry) and type in ("any", entry.kind) and glob.matches(entry.parts[len(base) :])

    found, truncated = select(context, base, limit, wanted, visible)
    matches = [_found(entry) for entry in found]
    return Found(matches=matches, truncated=truncated), _found_text([match.path for match in matches], truncated)


def select(
    context: FileContext,
    base: Parts,
    limit: int,
    wanted: Callable[[Entry], bool],
    enter: Callable[[Entry], bool],
    depth: int = ANY_DEPTH,
) -> tuple[list[Entry], bool]:
    """The first `limit` wanted entries under a directory, and whether there may be more."""
    found: list[Entry] = []
    with context.workspace.walk(base, depth, enter) as walk:
        for entry in walk:
            context.check_cancelled()
            if not wanted(entry):
                continue
            if len(found) == limit:
                return found, True
            found.append(entry)
    return found, walk.truncated


def _visible(include_hidden: bool, glob: Glob) -> Callable[[Entry], bool]:
    def visible(entry: Entry) -> bool:
        return include_hidden or not passed_over(entry) or glob.names_explicitly(entry.name)

    return visible


def passed_over(entry: Entry) -> bool:
    return entry.hidden or entry.name in IGNORED


def _listed(entry: Entry, base: Parts) -> ListedEntry:
    parts = entry.parts[len(base) :]
    name = show_path(parts)
    escaped = True if name != "/".join(parts) else None
    return ListedEntry(
        name=name, type=entry.kind, size=entry.stat.st_size, modified=modified_at(entry.stat), escaped=escaped
    )


def _found(entry: Entry) -> FoundFile:
    return FoundFile(path=entry.path, type=entry.kind, size=entry.stat.st_size, modified=modified_at(entry.stat))


def _listing_text(entries: list[ListedEntry], where: str, truncated: bool) -> str:
    if not entries:
        return f"{where} is empty or has only hidden entries."
    ends = {"directory": "/", "symlink": "@", "other": " (not a file)"}
    lines = [f"{entry.name}{ends.get(entry.type) or f' {entry.size}'}" for entry in entries]
    if truncated:
        lines.append(f"[the first {len(entries)} only; list a directory further down or raise limit]")
    return "\n".join(lines)


def _found_text(paths: list[str], truncated: bool) -> str:
    if not paths:
        return "No file matches."
    more = [f"[the first {len(paths)} only; narrow pattern or path, or raise limit]"] if truncated else []
    return "\n".join([*paths, *more])


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
        raise Invalid(f"{show_path(parts)!r} is larger than {limit}, the most that is edited", code="FILE_TOO_LARGE")
    body = decode(content, parts)
    return Text(parts, body.replace("\r\n", "\n") if has_crlf(content) else body, content, stat)


def decode(content: bytes, parts: Parts) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(parts) from error


def not_utf8(parts: Parts) -> Invalid:
    return Invalid(f"{show_path(parts)!r} is not UTF-8 text; read it with encoding='base64'", code="NOT_UTF8")


def has_crlf(content: bytes) -> bool:
    """Whether every line ends in CR LF; a file of mixed line ends is taken as it is."""
    lines = content.count(b"\n")
    return lines > 0 and content.count(b"\r\n") == lines


def shortened(text: str, limit: int = DIFF_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit} more characters"


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
    context: FileContext,
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
        modified=modified_at(found),
        truncated=more,
        offset=offset,
        next_offset=end if more else None,
    )
    closing = f"\n[bytes {offset}-{end - 1} of {found.st_size}; go on with offset={end}]" if more else ""
    return part, part.content + closing


def _read_lines(
    context: FileContext, file: BinaryIO, parts: Parts, first: int, limit: int | None
) -> tuple[FilePart, str]:
    found = os.fstat(file.fileno())
    scan = _Scan(context, file)
    start = scan.skip_lines(first - 1, parts)
    block = os.pread(file.fileno(), RESULT_LIMIT + 1, start)
    lines, end, cut = _take(block, limit)
    more = start + end < found.st_size
    part = FilePart(
        content=_decoded(block[:end], parts, final=not cut),
        size=found.st_size,
        modified=modified_at(found),
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

    context: FileContext
    file: BinaryIO

    def skip_lines(self, number: int, parts: Parts) -> int:
        """The byte where the line after `number` lines begins; the end of the file when it has fewer."""
        at = 0
        while number > 0:
            if at >= _SCAN_LIMIT:
                far = f"{_SCAN_LIMIT // 2**20} MiB"
                message = f"the line is beyond the first {far} of {show_path(parts)!r}; use encoding='base64'"
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
