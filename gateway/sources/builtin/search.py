"""The tool search_code: the gateway opens each file, and a child process searches the open files."""

from __future__ import annotations

import base64
import os
import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any, BinaryIO

from pydantic import Field

from gateway.errors import GatewayError, Invalid
from gateway.sources.builtin.decorator import FileContext, Shape, builtin, hidden_files_note
from gateway.sources.builtin.read_files import is_skipped
from gateway.sources.builtin.ripgrep import OMITTED, Query, search
from gateway.sources.builtin.word_index import FILE_BYTES, RankedFile, find_lines, query_words
from gateway.tools import Access, Permission
from gateway.value import Value
from gateway.workspace import Entry, Parts, parse, show_path
from gateway.workspace.globs import Glob

_FILE_LIMIT = 8 * 1024 * 1024
_FIRST_BLOCK = 8192
_LINE_LIMIT = 500
_TEXT_LIMIT = 256 * 1024


class Match(Shape):
    path: str
    line: int
    column: int
    text: str
    before: list[str] | None = None
    after: list[str] | None = None
    score: float | None = Field(default=None, description="How well the file fits the words; best first")


class SearchMatches(Shape):
    matches: list[Match]
    truncated: bool
    files_searched: int
    files_skipped: int = Field(description="Binary, larger than 8 MiB, or not readable")
    files_left_out: int | None = Field(default=None, description="Files that the operator's rules hide")
    engine: str = Field(description="Dialect of the regular expression: ripgrep or python; or words")


@builtin(
    title="Search in files",
    longest_result=_TEXT_LIMIT,
    category="filesystem",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
)
def search_code(
    context: FileContext,
    pattern: Annotated[
        str, Field(min_length=1, max_length=1000, description="Regular expression, matched per line; or words")
    ],
    path: Annotated[str, Field(description="Directory or file, relative to the workspace root")] = ".",
    globs: Annotated[
        list[str], Field(max_length=50, description="Only files matching one of these; a leading ! excludes")
    ] = [],  # noqa: B006 - a default in a schema; it is copied before use
    case_sensitive: Annotated[bool, Field(description="Match upper and lower case exactly")] = True,
    literal: Annotated[bool, Field(description="The pattern is plain text, not a regular expression")] = False,
    words: Annotated[
        bool, Field(description="The pattern is plain words: the files that fit best, by names, definitions and text")
    ] = False,
    context_lines: Annotated[int, Field(ge=0, le=10, description="Lines shown before and after each match")] = 0,
    limit: Annotated[int, Field(ge=1, le=1000, description="Maximum number of matches")] = 100,
) -> tuple[SearchMatches, str]:
    """Search the text files of the workspace for a regular expression, line by line; or, with words, find the places
    that fit a description best: "retry after timeout" also finds retryAfterTimeout.

    Hidden names, node_modules and __pycache__ are skipped unless path or a glob names them; binary files and files
    larger than 8 MiB are always skipped. To find files by name use find_files."""
    if "\n" in pattern:
        raise Invalid("the pattern contains a line break, but each line is matched alone", code="INVALID_PATTERN")
    if words:
        result = _search_words(context, pattern, parse(path), _GlobFilter.parse(globs), context_lines, limit)
        return result, _text(result)
    query = Query(pattern, literal, case_sensitive, context_lines, per_file=limit + 1)
    search = _SearchRun(context, query, limit, time.monotonic() + context.engine.seconds)
    search.run(_candidates(context, parse(path), _GlobFilter.parse(globs)))
    result = SearchMatches(
        matches=search.matches[:limit],
        truncated=search.truncated,
        files_searched=search.searched,
        files_skipped=search.skipped,
        files_left_out=search.left_out or None,
        engine=context.engine.name,
    )
    return result, _text(result)


# Lines shown of each file that has some of the words.
_LINES_OF_A_FILE = 3
# Share of the time for bringing the index up to date.
_INDEX_SHARE = 0.75


def _search_words(
    context: FileContext, text: str, base: Parts, selected: _GlobFilter, around: int, limit: int
) -> SearchMatches:
    query, index = query_words(text), context.words
    if not query or index is None:
        raise Invalid("the pattern has no words; give some, or leave out 'words'", code="INVALID_PATTERN")
    context.workspace.stat(base)  # raises if there is no such path
    deadline = time.monotonic() + _INDEX_SHARE * context.engine.seconds
    with context.workspace.walk((), enter=lambda entry: not is_skipped(entry)) as walk:
        files = (entry for entry in walk if entry.kind == "file" and not is_skipped(entry))
        known, complete = index.update(context.workspace, files, deadline, context.check_cancelled)
    matches: list[Match] = []
    left_out, truncated = 0, walk.truncated or not complete
    for found in index.search(query):
        context.check_cancelled()
        parts = tuple(found.path.split("/"))
        if parts[: len(base)] != base or not selected.selects(parts[len(base) :]):
            continue
        if context.hides(found.path):
            left_out += 1
        elif len(matches) >= limit:
            truncated = True
            break
        else:
            matches += _word_matches(context, found, parts, query, around)
    return SearchMatches(
        matches=matches[:limit],
        truncated=truncated or len(matches) > limit,
        files_searched=known,
        files_skipped=0,
        files_left_out=left_out or None,
        engine="words",
    )


def _word_matches(
    context: FileContext, found: RankedFile, parts: Parts, query: list[str], around: int
) -> Iterator[Match]:
    """Yield the best lines of a file; its first one if only its name has the words."""
    try:
        with context.workspace.open(parts) as file:
            data = file.read(FILE_BYTES)
    except GatewayError:  # it has just been removed
        return
    lines = [] if b"\0" in data[:_FIRST_BLOCK] else data.decode("utf-8", "replace").splitlines()
    numbered = {number: _Line(_excerpt(line, 1), 1) for number, line in enumerate(lines, 1)}
    for number in find_lines(lines, query, _LINES_OF_A_FILE) or [1]:
        numbered.setdefault(number, _Line("", 1))
        yield _match(found.path, number, 1, numbered, around).model_copy(update={"score": found.score})


class _GlobFilter(Value):
    included: list[Glob]
    excluded: list[Glob]

    @classmethod
    def parse(cls, globs: list[str]) -> _GlobFilter:
        excluded = [Glob(glob[1:]) for glob in globs if glob.startswith("!")]
        return cls([Glob(glob) for glob in globs if not glob.startswith("!")], excluded)

    def enters(self, entry: Entry, base: Parts) -> bool:
        if is_skipped(entry) and not any(glob.names_explicitly(entry.name) for glob in self.included):
            return False
        return not any(glob.matches(entry.parts[len(base) :]) for glob in self.excluded)

    def includes(self, entry: Entry, base: Parts) -> bool:
        return entry.kind == "file" and self.enters(entry, base) and self.selects(entry.parts[len(base) :])

    def selects(self, parts: Parts) -> bool:
        """Return whether a file is included, by its path and the directories above it."""
        if any(glob.matches(parts[:depth]) for glob in self.excluded for depth in range(1, len(parts) + 1)):
            return False
        return not self.included or any(glob.matches(parts) for glob in self.included)


def _candidates(context: FileContext, base: Parts, selected: _GlobFilter) -> Iterator[Parts | None]:
    """Yield the files to search; a last None means that the walk was cut short."""
    entry = Entry(base, context.workspace.stat(base))
    if base and entry.kind != "directory":
        context.workspace.open(base).close()  # raises if the named path is not a regular file
        yield base
        return
    with context.workspace.walk(base, enter=lambda entry: selected.enters(entry, base)) as walk:
        for entry in walk:
            context.check_cancelled()
            if selected.includes(entry, base):
                yield entry.parts
    if walk.truncated:
        yield None


@dataclass
class _SearchRun:
    """One search: a child process per batch of open files, until there are enough matches."""

    context: FileContext
    query: Query
    limit: int
    deadline: float
    matches: list[Match] = field(default_factory=list)
    full: bool = False
    truncated: bool = False
    searched: int = 0
    skipped: int = 0
    left_out: int = 0
    characters: int = 0

    def run(self, paths: Iterator[Parts | None]) -> None:
        size, candidates = _batch_size(), self._without_hidden(paths)
        batch = list(islice(candidates, size))
        self._search_batch(batch)  # also without files: an invalid pattern is reported
        while not self.full and (batch := list(islice(candidates, size))):
            self._search_batch(batch)

    def _without_hidden(self, candidates: Iterator[Parts | None]) -> Iterator[Parts | None]:
        for parts in candidates:
            if parts is not None and self.context.hides("/".join(parts)):
                self.left_out += 1
            else:
                yield parts

    def _search_batch(self, batch: list[Parts | None]) -> None:
        with ExitStack() as stack:
            opened: dict[str, Parts] = {}
            for parts in batch:
                file = self._open(parts)
                if file is not None and parts is not None:
                    opened[f"/dev/fd/{stack.enter_context(file).fileno()}"] = parts
            fds = [int(path.rpartition("/")[2]) for path in opened]
            check = self.context.check_cancelled
            with closing(search(self.context.engine, self.query, fds, self.deadline, check)) as events:
                self._collect(events, opened)
            self.searched += len(opened)
        self.truncated = self.truncated or None in batch

    def _open(self, parts: Parts | None) -> BinaryIO | None:
        """Open a file to search; return None for a file that is skipped, became a link or vanished."""
        if parts is None:
            return None
        try:
            file = self.context.workspace.open(parts)
        except GatewayError:
            self.skipped += 1
            return None
        if os.fstat(file.fileno()).st_size <= _FILE_LIMIT and b"\0" not in os.pread(file.fileno(), _FIRST_BLOCK, 0):
            return file
        file.close()
        self.skipped += 1
        return None

    def _collect(self, events: Iterable[dict[str, Any]], opened: dict[str, Parts]) -> None:
        lines = _MatchLines()
        enough = self.limit - len(self.matches) + self.query.context_lines
        for event in events:
            if event["type"] in ("match", "context"):
                lines.add(event["data"], event["type"] == "match")
            self.truncated = self.truncated or event is OMITTED
            if lines.matches > enough:
                break
        for path, numbered in lines.by_path.items():
            self._add_matches(show_path(opened[path]), numbered)

    def _add_matches(self, path: str, lines: dict[int, _Line]) -> None:
        for number, line in lines.items():
            if line.column is None:
                continue
            if len(self.matches) == self.limit or self.characters > _TEXT_LIMIT:
                self.full = self.truncated = True
                return
            match = _match(path, number, line.column, lines, self.query.context_lines)
            self.characters += len(match.text) + sum(map(len, [*(match.before or []), *(match.after or [])]))
            self.matches.append(match)


class _Line(Value):
    text: str
    column: int | None


class _MatchLines:
    """Matching lines and their context lines, by file and line number."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[int, _Line]] = {}
        self.matches = 0

    def add(self, data: dict[str, Any], matched: bool) -> None:
        content = _bytes(data["lines"])
        column = len(content[: data["submatches"][0]["start"]].decode("utf-8", "replace")) + 1 if matched else None
        text = _excerpt(content.decode("utf-8", "replace").rstrip("\r\n"), column or 1)
        self.by_path.setdefault(data["path"]["text"], {})[data["line_number"]] = _Line(text, column)
        self.matches += matched


def _bytes(text: dict[str, str]) -> bytes:
    return text["text"].encode("utf-8", "replace") if "text" in text else base64.b64decode(text["bytes"])


def _match(path: str, number: int, column: int, lines: dict[int, _Line], around: int) -> Match:
    def near(numbers: range) -> list[str] | None:
        return [lines[index].text for index in numbers if index in lines] if around else None

    return Match(
        path=path,
        line=number,
        column=column,
        text=lines[number].text,
        before=near(range(number - around, number)),
        after=near(range(number + 1, number + around + 1)),
    )


def _excerpt(text: str, column: int) -> str:
    """Return a line, or the part of a long line that contains the match."""
    start = max(0, column - _LINE_LIMIT // 2) if column > _LINE_LIMIT else 0
    end = start + _LINE_LIMIT
    return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")


def _batch_size() -> int:
    # All threads together stay well below the limit of file descriptors.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(256, soft // 32))


def _text(result: SearchMatches) -> str:
    """Format the matches as grep does, each path once."""
    lines: list[str] = []
    path = None
    for match in result.matches:
        if match.path != path:
            path = match.path
            lines.append(path)
        before, after = match.before or [], match.after or []
        lines += [f"{match.line - len(before) + index}-{text}" for index, text in enumerate(before)]
        lines.append(f"{match.line}:{match.text}")
        lines += [f"{match.line + 1 + index}-{text}" for index, text in enumerate(after)]
    if not lines:
        lines.append(f"No match in {result.files_searched} files.")
    if result.truncated:
        lines.append(f"[the first {len(result.matches)} matches only; narrow pattern, path or globs, or raise limit]")
    lines += hidden_files_note(result.files_left_out or 0)
    return "\n".join(lines)
