"""Writing and reading the workspace's text files."""

from __future__ import annotations

import codecs
import itertools
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import BaseModel, Field

from covalt_toolset import tool

from .workspace import relative_path, resolve_path

# Bytes of text in one result: about what a model can still read carefully.
READ_LIMIT = 128 * 1024


class Written(BaseModel):
    written: str = Field(description="The path, as it was given")
    size: int = Field(description="Bytes now in the file")
    created: bool = Field(description="False when a file of that name was replaced")


class Text(BaseModel):
    path: str = Field(description="The path, as it was given")
    content: str
    size: int = Field(description="Bytes in the whole file")
    first_line: int = Field(description="Number of the first line in `content`")
    next_line: int | None = Field(description="Where to go on reading, or null when nothing follows")
    cut: bool = Field(description="True when the line was too long for one answer and its end is missing")


@tool(name="Write File", permission="read-write", access="write", idempotent=True)
def write_file(path: str, content: str) -> Written:
    """Write a text file in the workspace, replacing what was there. Folders on the way are made. Give the whole
    content: nothing of an earlier file is kept.

    Args:
        path: Path relative to the workspace, such as 'src/app.py'
        content: The file's whole text, written as UTF-8
    """
    target = resolve_path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{path!r} is a folder; name a file in it, such as '{path.rstrip('/')}/index.html'")
    created = not target.exists()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"{path!r} has a file where a folder should be: {_parent_file(target)}") from None
    data = content.encode()
    target.write_bytes(data)
    return Written(written=path, size=len(data), created=created)


@tool(name="Read File", permission="read-only", access="read", idempotent=True)
def read_file(
    path: str,
    first_line: Annotated[int, Field(ge=1)] = 1,
    lines: Annotated[int, Field(ge=1, le=10_000)] = 2_000,
) -> Text:
    """Read a text file of the workspace. A long file comes in parts: where `next_line` is a number, read on from
    there.

    Args:
        path: Path relative to the workspace, such as 'src/app.py'
        first_line: The line to begin with
        lines: How many lines to read at most; fewer come when they are long
    """
    target = resolve_path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{path!r} is a folder; it holds {_names(target)}")
    if not target.is_file():
        folder = next(each for each in target.parents if each.is_dir())
        raise FileNotFoundError(f"there is no file {path!r}; {_quote_folder(folder)} holds {_names(folder)}")
    with target.open("rb") as file:
        _skip(file, first_line - 1, path)
        data, count, cut = _take(file, lines)
        more = bool(file.read(1))
        size = target.stat().st_size
    next_line = first_line + count if more else None
    return Text(
        path=path, content=_text(data, path, cut), size=size, first_line=first_line, next_line=next_line, cut=cut
    )


def _skip(file: BinaryIO, lines: int, path: str) -> None:
    for passed in range(lines):
        if not file.readline(READ_LIMIT):
            raise ValueError(f"{path!r} has only {passed} lines; 'first_line' is {lines + 1}")
        _end_of_line(file)


def _take(file: BinaryIO, lines: int) -> tuple[bytes, int, bool]:
    """Return as many whole lines as fit, their number, and whether the first line was too long and was cut."""
    data = bytearray()
    for count in range(lines):
        start = file.tell()
        line = file.readline(READ_LIMIT + 1)
        if not line:
            return bytes(data), count, False
        if len(line) > READ_LIMIT and not data:
            _end_of_line(file)
            return line[:READ_LIMIT], 1, True
        if len(data) + len(line) > READ_LIMIT:
            file.seek(start)
            return bytes(data), count, False
        data += line
    return bytes(data), lines, False


def _end_of_line(file: BinaryIO) -> None:
    """Skip to the end of a line of which a part was read."""
    file.seek(-1, 1)
    while (piece := file.readline(READ_LIMIT)) and not piece.endswith(b"\n"):
        pass


def _text(data: bytes, path: str, cut: bool) -> str:
    try:
        if b"\0" not in data:
            return codecs.getincrementaldecoder("utf-8")().decode(data, final=not cut)
        reason = "it has NUL bytes in it"
    except UnicodeDecodeError as error:
        reason = f"the byte {data[error.start]:#04x} is no UTF-8"
    raise ValueError(
        f"{path!r} is no text file: {reason}; look at it with run_command, for example with 'file' or 'od'"
    )


def _parent_file(target: Path) -> str:
    return next(relative_path(each) for each in target.parents if each.is_file())


def _quote_folder(folder: Path) -> str:
    return "the workspace" if relative_path(folder) == "." else repr(relative_path(folder))


def _names(folder: Path) -> str:
    """The first names in a folder, for a message."""
    names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in itertools.islice(folder.iterdir(), 1000))
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"{', '.join(names[:12])}{more}" if names else "nothing"
