"""Tools that read the workspace: read a file in parts, list directories and find files by name."""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Callable
from typing import Annotated, BinaryIO, Literal

from pydantic import Field

from gateway.errors import Invalid
from gateway.sources.builtin.decorator import FileContext, Shape, builtin
from gateway.tools import Access, Permission
from gateway.value import Value
from gateway.workspace import Entry, Parts, Root, parse, show_path
from gateway.workspace.globs import Glob
from gateway.workspace.walk import ANY_DEPTH, modified_at

Type = Literal["file", "directory", "symlink", "other"]

# Directories that searches skip, besides hidden ones such as `.git` and `.venv`.
SKIPPED = frozenset({"node_modules", "__pycache__"})


class ListedEntry(Shape):
    name: str
    type: Type
    size: int
    modified: str
    escaped: bool | None = Field(
        default=None, description="The name is not valid text and is shown escaped; it cannot be used as a path"
    )


class DirectoryListing(Shape):
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
    recursive: Annotated[
        bool, Field(description="Include the contents of subdirectories; names are then paths")
    ] = False,
    include_hidden: Annotated[bool, Field(description="Include names that begin with a dot")] = False,
    limit: Annotated[int, Field(ge=1, le=10_000, description="Maximum number of entries")] = 1000,
) -> tuple[DirectoryListing, str]:
    """List a directory of the workspace, sorted by name: directories end in /, links in @, files show their size.

    Links are listed but not followed. To find files by name use find_files."""
    base = parse(path)

    def is_listed(entry: Entry) -> bool:
        return include_hidden or not entry.hidden

    entries, truncated = select(context, base, limit, is_listed, is_listed, depth=ANY_DEPTH if recursive else 1)
    listed = [_entry(entry, base) for entry in entries]
    return DirectoryListing(entries=listed, truncated=truncated), _listing_text(listed, show_path(base), truncated)


class FileMatch(Shape):
    path: str
    type: Type
    size: int
    modified: str


class FileMatches(Shape):
    matches: list[FileMatch]
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
    include_hidden: Annotated[bool, Field(description="Include hidden names, node_modules and __pycache__")] = False,
    limit: Annotated[int, Field(ge=1, le=10_000, description="Maximum number of matches")] = 200,
) -> tuple[FileMatches, str]:
    """Find files in the workspace by name. A pattern without / matches the name in any directory; with / it matches
    the path relative to the searched directory; ** matches any number of directories.

    Hidden names, node_modules and __pycache__ are skipped unless the pattern names them. To search the contents of
    files use search_code."""
    base, glob = parse(path), Glob(pattern)

    def is_visible(entry: Entry) -> bool:
        return include_hidden or not is_skipped(entry) or glob.names_explicitly(entry.name)

    def is_match(entry: Entry) -> bool:
        return is_visible(entry) and type in ("any", entry.kind) and glob.matches(entry.parts[len(base) :])

    entries, truncated = select(context, base, limit, is_match, is_visible)
    matches = [_file_match(entry) for entry in entries]
    return FileMatches(matches=matches, truncated=truncated), _matches_text(
        [match.path for match in matches], truncated
    )


def select(
    context: FileContext,
    base: Parts,
    limit: int,
    matches: Callable[[Entry], bool],
    enter: Callable[[Entry], bool],
    depth: int = ANY_DEPTH,
) -> tuple[list[Entry], bool]:
    """Return the first `limit` matching entries under a directory, and whether there may be more."""
    entries: list[Entry] = []
    with context.workspace.walk(base, depth, enter) as walk:
        for entry in walk:
            context.check_cancelled()
            if not matches(entry):
                continue
            if len(entries) == limit:
                return entries, True
            entries.append(entry)
    return entries, walk.truncated


def is_skipped(entry: Entry) -> bool:
    return entry.hidden or entry.name in SKIPPED


def _entry(entry: Entry, base: Parts) -> ListedEntry:
    parts = entry.parts[len(base) :]
    name = show_path(parts)
    escaped = True if name != "/".join(parts) else None
    return ListedEntry(
        name=name, type=entry.kind, size=entry.stat.st_size, modified=modified_at(entry.stat), escaped=escaped
    )


def _file_match(entry: Entry) -> FileMatch:
    return FileMatch(path=entry.path, type=entry.kind, size=entry.stat.st_size, modified=modified_at(entry.stat))


def _listing_text(entries: list[ListedEntry], directory: str, truncated: bool) -> str:
    if not entries:
        return f"{directory} is empty or has only hidden entries."
    ends = {"directory": "/", "symlink": "@", "other": " (not a file)"}
    lines = [f"{entry.name}{ends.get(entry.type) or f' {entry.size}'}" for entry in entries]
    if truncated:
        lines.append(f"[only the first {len(entries)}; list a subdirectory or raise limit]")
    return "\n".join(lines)


def _matches_text(paths: list[str], truncated: bool) -> str:
    if not paths:
        return "No file matches."
    more = [f"[only the first {len(paths)}; narrow pattern or path, or raise limit]"] if truncated else []
    return "\n".join([*paths, *more])


TEXT_LIMIT = 8 * 1024 * 1024
DIFF_LIMIT = 32 * 1024


class TextFile(Value):
    """A text file as it was read. `body` has LF line endings, whatever the file has."""

    parts: Parts
    body: str
    content: bytes
    stat: os.stat_result

    @property
    def crlf(self) -> bool:
        return has_crlf(self.content)

    def encode(self, body: str) -> bytes:
        """Encode a new body with the line endings of this file."""
        return (body.replace("\n", "\r\n") if self.crlf else body).encode("utf-8")


def read_text(root: Root, parts: Parts) -> TextFile:
    """Read a whole file; refuse one that is not UTF-8 or too large to edit."""
    with root.open(parts) as file:
        stat = os.fstat(file.fileno())
        content = b"" if stat.st_size > TEXT_LIMIT else file.read(TEXT_LIMIT + 1)
    if max(stat.st_size, len(content)) > TEXT_LIMIT:
        limit = f"{TEXT_LIMIT // 2**20} MiB"
        raise Invalid(f"{show_path(parts)!r} is larger than {limit}, the limit for editing", code="FILE_TOO_LARGE")
    body = decode(content, parts)
    return TextFile(parts, body.replace("\r\n", "\n") if has_crlf(content) else body, content, stat)


def decode(content: bytes, parts: Parts) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise not_utf8(parts) from error


def not_utf8(parts: Parts) -> Invalid:
    return Invalid(f"{show_path(parts)!r} is not UTF-8 text; read it with encoding='base64'", code="NOT_UTF8")


def has_crlf(content: bytes) -> bool:
    """Return whether every line ends in CR LF; mixed line endings are kept as they are."""
    lines = content.count(b"\n")
    return lines > 0 and content.count(b"\r\n") == lines


def shorten(text: str, limit: int = DIFF_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit} more characters"


# Bytes of a file in one result.
RESULT_LIMIT = 256 * 1024

_SCAN_LIMIT = 64 * 1024 * 1024  # how far lines are counted, to find the first or the total
_CHUNK = 256 * 1024


class FilePart(Shape):
    content: str
    size: int = Field(description="Bytes of the whole file")
    modified: str
    truncated: bool
    offset: int = Field(description="First line returned, from 1; for base64 the first byte, from 0")
    next_offset: int | None = Field(default=None, description="Offset of the next part")
    total_lines: int | None = Field(default=None, description="Lines of the whole file; missing for a very large file")


@builtin(
    title="Read file",
    longest_result=256 * 1024,
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
    limit: Annotated[int | None, Field(ge=1, description="Maximum number of lines; for base64, bytes")] = None,
) -> tuple[FilePart, str]:
    """Read a file of the workspace, whole or starting at a line. One result has at most 256 KiB; a longer file is cut,
    and nextOffset is the offset of the next part.

    Refused: directories, links, and with utf-8 files that are not UTF-8 text (use base64 for those)."""
    parts = parse(path)
    with context.workspace.open(parts) as file:
        if encoding == "base64":
            return _read_bytes(file, offset, limit)
        return _read_lines(context, file, parts, max(offset, 1), limit)


def _read_bytes(file: BinaryIO, offset: int, limit: int | None) -> tuple[FilePart, str]:
    stat = os.fstat(file.fileno())
    content = os.pread(file.fileno(), min(limit or RESULT_LIMIT, RESULT_LIMIT), offset)
    end = offset + len(content)
    more = end < stat.st_size
    part = FilePart(
        content=base64.b64encode(content).decode("ascii"),
        size=stat.st_size,
        modified=modified_at(stat),
        truncated=more,
        offset=offset,
        next_offset=end if more else None,
    )
    note = f"\n[bytes {offset}-{end - 1} of {stat.st_size}; continue with offset={end}]" if more else ""
    return part, part.content + note


def _read_lines(
    context: FileContext, file: BinaryIO, parts: Parts, first: int, limit: int | None
) -> tuple[FilePart, str]:
    stat = os.fstat(file.fileno())
    counter = _LineCounter(context, file)
    start = counter.skip_lines(first - 1, parts)
    block = os.pread(file.fileno(), RESULT_LIMIT + 1, start)
    lines, end, cut = _take(block, limit)
    more = start + end < stat.st_size
    part = FilePart(
        content=_decode_part(block[:end], parts, final=not cut),
        size=stat.st_size,
        modified=modified_at(stat),
        truncated=more,
        offset=first,
        next_offset=first + lines if more else None,
        total_lines=counter.count_lines(stat.st_size),
    )
    return part, part.content + _note(part, lines, start + end if cut else None)


def _take(block: bytes, limit: int | None) -> tuple[int, int, bool]:
    """Return the number of lines to return, their bytes, and whether the last line is cut."""
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


def _decode_part(content: bytes, parts: Parts, final: bool) -> str:
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(content, final)
    except UnicodeDecodeError as error:
        raise not_utf8(parts) from error


def _note(part: FilePart, lines: int, cut_at: int | None) -> str:
    """Return a line that tells the model what is missing; empty when nothing is."""
    end = "" if part.content.endswith("\n") else "\n"
    of = f" of {part.total_lines}" if part.total_lines is not None else ""
    if cut_at is not None:
        rest = f"rest of the line: encoding='base64', offset={cut_at}"
        return f"{end}[line {part.offset}{of} is too long and was cut; {rest}; next line: offset={part.next_offset}]"
    if part.truncated:
        return f"{end}[lines {part.offset}-{part.offset + lines - 1}{of}; continue with offset={part.next_offset}]"
    if not lines and part.offset > 1:
        return f"[line {part.offset} is past the end; the file has {part.total_lines} lines]"
    return ""


class _LineCounter(Value):
    """Counts lines in chunks, so that memory is bounded and cancellation is fast."""

    context: FileContext
    file: BinaryIO

    def skip_lines(self, number: int, parts: Parts) -> int:
        """Return the offset after `number` lines; the end of the file when it has fewer."""
        position = 0
        while number > 0:
            if position >= _SCAN_LIMIT:
                limit = f"{_SCAN_LIMIT // 2**20} MiB"
                message = f"the line is beyond the first {limit} of {show_path(parts)!r}; use encoding='base64'"
                raise Invalid(message, code="OFFSET_TOO_FAR")
            chunk = self._chunk(position)
            if not chunk:
                return position
            lines = chunk.count(b"\n")
            position += len(chunk) if lines < number else _end_of_line(chunk, number)
            number -= min(lines, number)
        return position

    def count_lines(self, size: int) -> int | None:
        """Count the lines of the file; None where that would take long."""
        if size > _SCAN_LIMIT:
            return None
        lines, position, last = 0, 0, b"\n"
        while position < _SCAN_LIMIT and (chunk := self._chunk(position)):
            lines, position, last = lines + chunk.count(b"\n"), position + len(chunk), chunk[-1:]
        return lines + (last != b"\n")

    def _chunk(self, position: int) -> bytes:
        self.context.check_cancelled()
        return os.pread(self.file.fileno(), _CHUNK, position)
