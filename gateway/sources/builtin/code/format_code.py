"""Formatting code: what the formatters here make of a copy, and what of that differs."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import anyio
from pydantic import Field

from gateway.errors import GatewayError, Invalid
from gateway.sandbox import Mount, Program
from gateway.sources.builtin.code.call_context import NODE_MODULES, CodeContext, in_thread
from gateway.sources.builtin.decorator import Shape, builtin, hidden_files_note
from gateway.sources.builtin.read_files import passed_over
from gateway.tools import Access, Permission
from gateway.workspace import Entry, Parts, Root, parse, show_path
from gateway.workspace.diff import unified_diff
from gateway.workspace.protected import PROTECTED_NAMES

FILES = 2000
FILE_BYTES = 1024 * 1024
TOTAL_BYTES = 64 * 1024 * 1024
_DIFF = 256 * 1024
_SAID = 2000
_REASON = 500
_FAILED = 200
_PARSED = 64 * 1024
_COPY = "/copy"
_BATCH = 200

# Files that say how others are formatted; they are copied along.
_STYLES = (
    "pyproject.toml", "ruff.toml", ".ruff.toml", "setup.cfg", ".editorconfig", ".prettierrc", ".prettierrc.json",
    ".prettierrc.yaml", ".prettierrc.yml", ".prettierrc.toml", ".prettierrc.js", ".prettierrc.cjs", ".prettierrc.mjs",
    "prettier.config.js", "prettier.config.cjs", "prettier.config.mjs", "package.json", "rustfmt.toml", ".rustfmt.toml",
    "go.mod", ".prettierignore",
)  # fmt: skip


@dataclass(frozen=True)
class Formatter:
    """A program that rewrites the files it is given."""

    program: str
    options: tuple[str, ...]
    endings: tuple[str, ...]


# The first that is here and knows a file's ending formats it.
FORMATTERS = (
    Formatter("ruff", ("format", "--no-cache"), (".py", ".pyi")),
    Formatter("black", ("--quiet",), (".py", ".pyi")),
    Formatter(
        "prettier",
        ("--write", "--log-level=error"),
        (
            *(".js", ".jsx", ".mjs", ".cjs", ".ts", ".tsx", ".vue", ".html", ".css", ".scss", ".less"),
            *(".json", ".md", ".yaml", ".yml", ".graphql"),
        ),
    ),
    Formatter("gofmt", ("-w",), (".go",)),
    Formatter("rustfmt", ("--edition", "2021"), (".rs",)),
    Formatter("shfmt", ("-w",), (".sh", ".bash")),
)

_KNOWN = {ending for each in FORMATTERS for ending in each.endings}


class Reformatted(Shape):
    path: str
    formatter: str


class Failed(Shape):
    path: str
    formatter: str
    reason: str = Field(description="In the formatter's own words, such as where the file has a mistake")


class Problem(Shape):
    formatter: str
    message: str


class Formatted(Shape):
    changed: list[Reformatted] = Field(description="Files that were changed, or with check would be")
    unchanged: int = Field(description="How many are as they should be")
    failed: list[Failed] = Field(description="Files that could not be formatted; they are as they were")
    diff: str = Field(description="What changed, as a unified diff")
    problems: list[Problem] = Field(description="What kept a formatter from its work, other than the files themselves")
    without_formatter: list[str] = Field(description="Endings of files for which no formatter is here")
    truncated: bool = Field(description="Whether files or lines were left out")
    files_left_out: int | None = Field(default=None, description="Files the operator's rules keep from being read")


@builtin(
    title="Format code",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    idempotent=True,
    requires=("sandbox",),
    path_arguments=("paths",),
)
async def format_code(
    context: CodeContext,
    paths: Annotated[list[str], Field(max_length=1000, description="Files or directories; else all")] = [],  # noqa: B006
    check: Annotated[bool, Field(description="Change nothing, only tell what would change")] = False,
) -> tuple[Formatted, str]:
    """Format source files of the workspace with the formatters that are here: ruff or black, prettier, gofmt, rustfmt,
    shfmt, by the project's own configuration.

    Those install_package put into the workspace are found too. With check nothing is changed."""
    taken = await in_thread(_taken, context, paths)
    if not taken.files and taken.without and paths:
        endings = ", ".join(sorted(taken.without))
        fitting = [each.program for each in FORMATTERS if taken.without.intersection(each.endings)]
        raise Invalid(f"no formatter for {endings} is here; {context.install_hint(*fitting)}", code="NO_FORMATTER")
    copy = await in_thread(_copied, taken, f"{context.workspace_path}/{NODE_MODULES}")
    try:
        complaints = [complaint async for complaint in _formatted(context, taken, copy)]
        answer = await in_thread(_settled, context, taken, copy, complaints, check)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(shutil.rmtree, copy, True)
    return answer, _text(answer, check)


@dataclass
class _Taken:
    """The files to format, by formatter, as they were seen."""

    files: dict[Parts, tuple[Formatter, bytes, os.stat_result]]
    styles: dict[Parts, bytes]
    without: set[str]
    truncated: bool = False
    size: int = 0
    left_out: int = 0


def _taken(context: CodeContext, paths: Sequence[str]) -> _Taken:
    here = [each for each in FORMATTERS if context.find_program(each.program)]
    taken = _Taken({}, {}, set())
    for entry in _entries(context.root, paths):
        if context.hides("/".join(entry.parts)):
            taken.left_out += 1
            continue
        ending = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - a name, no path
        formatter = next((each for each in here if ending in each.endings), None)
        if formatter is None:
            taken.without |= {ending} & _KNOWN
            continue
        if len(taken.files) >= FILES or entry.stat.st_size > FILE_BYTES or taken.size > TOTAL_BYTES:
            taken.truncated = True
            continue
        with context.root.open(entry.parts) as file:
            seen, content = os.fstat(file.fileno()), file.read(FILE_BYTES + 1)
        taken.size += len(content)
        taken.files[entry.parts] = (formatter, content, seen)
    for folder in {parts[:depth] for parts in taken.files for depth in range(len(parts))}:
        taken.styles |= _styles(context, folder)
    return taken


def _entries(root: Root, paths: Sequence[str]) -> Iterator[Entry]:
    for path in paths or ["."]:
        parts = parse(path)
        found = Entry(parts, root.stat(parts))
        if found.kind != "directory":
            root.open(parts).close()  # a file named by the caller is refused for what it is
            yield found
            continue
        with root.walk(parts, enter=lambda entry: not passed_over(entry)) as walk:
            # Of what other programs obey, only what the caller names: that is asked about.
            yield from (entry for entry in walk if entry.kind == "file" and entry.name not in PROTECTED_NAMES)


def _styles(context: CodeContext, folder: Parts) -> dict[Parts, bytes]:
    found = {}
    for name in _STYLES:
        if context.hides("/".join((*folder, name))):
            continue
        try:
            with context.root.open((*folder, name)) as file:
                found[(*folder, name)] = file.read(FILE_BYTES)
        except GatewayError:
            continue
    return found


def _copied(taken: _Taken, modules: str) -> Path:
    """A folder of its own with the files, so that no formatter touches the workspace."""
    folder = Path(tempfile.mkdtemp(prefix="toolgate-format-"))
    contents = {parts: content for parts, (_, content, _) in taken.files.items()}
    for parts, content in {**taken.styles, **contents}.items():
        place = folder.joinpath(*parts)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    (folder / NODE_MODULES).symlink_to(modules)  # where plugins of the project are looked for
    return folder


@dataclass(frozen=True)
class _Complaint:
    """What a formatter that failed said of the files it was given."""

    formatter: str
    files: Sequence[Parts]
    said: str
    killed: bool = False


async def _formatted(context: CodeContext, taken: _Taken, copy: Path) -> AsyncIterator[_Complaint]:
    """Run the formatters on the copy; what they complain of."""
    inside = context.sandbox.inside(Mount(copy, _COPY, writable=True))
    for formatter in FORMATTERS:
        files = [parts for parts, (which, _, _) in taken.files.items() if which is formatter]
        for start in range(0, len(files), _BATCH):
            batch = files[start : start + _BATCH]
            names = ["./" + "/".join(parts) for parts in batch]
            finished = await context.run(_program(context, formatter, copy, names))
            said = (finished.stderr or finished.stdout).decode("utf-8", "replace").replace(f"{inside}/", "").strip()
            if finished.exit.killed is not None:
                limit = f"it went over its limit of {finished.exit.killed}"
                yield _Complaint(formatter.program, batch, limit, killed=True)
            elif finished.exit.code != 0:
                yield _Complaint(formatter.program, batch, said or f"it ended with {finished.exit.code}")


def _program(context: CodeContext, formatter: Formatter, copy: Path, names: Sequence[str]) -> Program:
    """The workspace is only read: formatters, their plugins and what they need may be in it."""
    found = context.find_program(formatter.program)
    assert found is not None  # noqa: S101 - else no file was given to it
    mount = Mount(copy, _COPY, writable=True)
    program = context.program(found, *formatter.options, *names, cwd=context.sandbox.inside(mount), writable=False)
    return replace(program, mounts=(*program.mounts, mount))


def _settled(
    context: CodeContext, taken: _Taken, copy: Path, complaints: Sequence[_Complaint], check: bool
) -> Formatted:
    """Compare, and unless it is only a check, take over what differs."""
    changed, diffs, problems = [], [], []
    reasons: dict[Parts, str] = {}
    for each in complaints:
        of_files = {} if each.killed else _reasons(each)
        reasons |= of_files or dict.fromkeys(each.files, each.said.partition("\n")[0][:_REASON])
        if not of_files:
            problems.append(Problem(formatter=each.formatter, message=each.said[:_SAID]))
    with Root(copy) as formatted:
        for parts, (formatter, before, seen) in taken.files.items():
            after = _content(formatted, parts)
            if after is None:
                reasons[parts] = "the formatter left no file of a size to take over"
            if after is None or after == before:
                continue
            reasons.pop(parts, None)
            if not check:
                context.root.replace(parts, after, seen=seen)
            changed.append(Reformatted(path=show_path(parts), formatter=formatter.program))
            old, new = before.decode("utf-8", "replace"), after.decode("utf-8", "replace")
            diffs.append(unified_diff(show_path(parts), old, new))
    diff = "".join(diffs)
    failed = [
        Failed(path=show_path(parts), formatter=taken.files[parts][0].program, reason=reason)
        for parts, reason in reasons.items()
    ]
    return Formatted(
        changed=changed,
        unchanged=len(taken.files) - len(changed) - len(failed),
        failed=failed[:_FAILED],
        diff=diff[:_DIFF],
        problems=problems,
        without_formatter=sorted(taken.without),
        truncated=taken.truncated or len(diff) > _DIFF or len(failed) > _FAILED,
        files_left_out=taken.left_out or None,
    )


def _content(formatted: Root, parts: Parts) -> bytes | None:
    """What a formatter made of a file; one that removes files or blows them up is not followed."""
    try:
        with formatted.open(parts) as file:
            content = file.read(2 * FILE_BYTES + 1)
    except GatewayError:
        return None
    return content if len(content) <= 2 * FILE_BYTES else None


def _reasons(complaint: _Complaint) -> dict[Parts, str]:
    """Why files failed: of each the lines from where it is named to the next, with those above it in its paragraph.
    None where a formatter names none."""
    known = {"/".join(parts): parts for parts in complaint.files}
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    named = re.compile(rf"(?<![\w./-])(?:\./)?({names})(?![\w/-]|\.\w)")
    found: dict[Parts, list[str]] = {}
    said: list[str] = []
    nobodys = True
    for line in complaint.said[:_PARSED].splitlines():
        match = named.search(line)
        if match is not None and known[match[1]] not in found:
            said = found[known[match[1]]] = [*(said if nobodys else ()), line]
            nobodys = False
        elif line.strip():
            said.append(line)
        else:
            said, nobodys = [], True
    return {parts: "\n".join(lines)[:_REASON] for parts, lines in found.items()}


def _text(answer: Formatted, check: bool) -> str:
    verb = "would change" if check else "changed"
    failed = f", {len(answer.failed)} could not be formatted" if answer.failed else ""
    lines = [f"{len(answer.changed)} files {verb}, {answer.unchanged} are as they should be{failed}"]
    lines += [f"{verb}: {each.path} ({each.formatter})" for each in answer.changed]
    lines += [f"could not be formatted: {each.path} ({each.formatter}): {each.reason}" for each in answer.failed]
    lines += [f"{each.formatter}: {each.message}" for each in answer.problems]
    if answer.without_formatter:
        lines.append(f"no formatter is here for {', '.join(answer.without_formatter)}")
    lines += hidden_files_note(answer.files_left_out or 0)
    return "\n".join([*lines, answer.diff] if check else lines)
