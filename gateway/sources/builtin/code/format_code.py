"""The tool format_code: runs formatters on a copy of the files, and writes back what changed."""

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
from gateway.sources.builtin.read_files import is_skipped
from gateway.tools import Access, Permission
from gateway.value import Value
from gateway.workspace import Entry, Parts, Root, parse, show_path
from gateway.workspace.diff import unified_diff
from gateway.workspace.protected import PROTECTED_NAMES

FILE_LIMIT = 2000
FILE_BYTES = 1024 * 1024
TOTAL_BYTES = 64 * 1024 * 1024
_DIFF_LENGTH = 256 * 1024
_MESSAGE_LENGTH = 2000
_REASON_LENGTH = 500
_FAILURE_LIMIT = 200
_PARSED_LENGTH = 64 * 1024
_COPY = "/copy"
_BATCH_SIZE = 200

# Configuration files of formatters; they are copied too.
_STYLE_FILES = (
    "pyproject.toml", "ruff.toml", ".ruff.toml", "setup.cfg", ".editorconfig", ".prettierrc", ".prettierrc.json",
    ".prettierrc.yaml", ".prettierrc.yml", ".prettierrc.toml", ".prettierrc.js", ".prettierrc.cjs", ".prettierrc.mjs",
    "prettier.config.js", "prettier.config.cjs", "prettier.config.mjs", "package.json", "rustfmt.toml", ".rustfmt.toml",
    "go.mod", ".prettierignore",
)  # fmt: skip


class Formatter(Value):
    """A program that rewrites files in place, and the file name suffixes it formats. One with `plugins` runs code that
    the project's settings name."""

    program: str
    options: tuple[str, ...]
    suffixes: tuple[str, ...]
    plugins: bool = False


# The first installed formatter for a suffix is used.
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
        plugins=True,
    ),
    Formatter("gofmt", ("-w",), (".go",)),
    Formatter("rustfmt", ("--edition", "2021"), (".rs",)),
    Formatter("shfmt", ("-w",), (".sh", ".bash")),
)

_SUFFIXES = {suffix for formatter in FORMATTERS for suffix in formatter.suffixes}


class FormattedFile(Shape):
    path: str
    formatter: str


class UnformattedFile(Shape):
    path: str
    formatter: str
    reason: str = Field(description="Error of the formatter, such as a syntax error and its line")


class FormatterProblem(Shape):
    formatter: str
    message: str


class FormatResult(Shape):
    changed: list[FormattedFile] = Field(description="Changed files; with check, files that would change")
    unchanged: int = Field(description="Number of files that are already formatted")
    failed: list[UnformattedFile] = Field(description="Files that could not be formatted; they are unchanged")
    diff: str = Field(description="Changes as a unified diff")
    problems: list[FormatterProblem] = Field(description="Errors of formatters that are not about a file")
    without_formatter: list[str] = Field(description="Suffixes of files for which no formatter is installed")
    truncated: bool = Field(description="True if files or lines were left out")
    files_left_out: int | None = Field(default=None, description="Files that the operator's rules hide")


@builtin(
    title="Format code",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    idempotent=True,
    requires=("sandbox", "formatter"),
    path_arguments=("paths",),
)
async def format_code(
    context: CodeContext,
    paths: Annotated[list[str], Field(max_length=1000, description="Files or directories; default all")] = [],  # noqa: B006
    check: Annotated[bool, Field(description="Change nothing, only report what would change")] = False,
) -> tuple[FormatResult, str]:
    """Format source files of the workspace with the installed formatters: ruff or black, prettier, gofmt, rustfmt and
    shfmt, with the project's configuration.

    Formatters installed with install_package are used too. With check nothing is changed."""
    sources = await in_thread(_collect, context, paths)
    if not sources.files and sources.unsupported and paths:
        suffixes = ", ".join(sorted(sources.unsupported))
        programs = [each.program for each in FORMATTERS if sources.unsupported.intersection(each.suffixes)]
        hint = context.install_hint(*programs)
        if not context.can_execute:
            hint += ". Without the level execute, no formatter and plugin of the workspace is run, and so no prettier"
        raise Invalid(f"no formatter for {suffixes} is installed; {hint}", code="NO_FORMATTER")
    copy = await in_thread(_copy_files, sources, f"{context.workspace_path}/{NODE_MODULES}")
    try:
        errors = [error async for error in _run_formatters(context, sources, copy)]
        result = await in_thread(_write_back, context, sources, copy, errors, check)
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(shutil.rmtree, copy, True)
    return result, _text(result, check)


@dataclass
class _Sources:
    """The files to format with their formatter and content, and the formatters' configuration files."""

    files: dict[Parts, tuple[Formatter, bytes, os.stat_result]]
    styles: dict[Parts, bytes]
    unsupported: set[str]
    truncated: bool = False
    size: int = 0
    left_out: int = 0


def _collect(context: CodeContext, paths: Sequence[str]) -> _Sources:
    usable = (each for each in FORMATTERS if context.can_execute or not each.plugins)
    installed = [formatter for formatter in usable if context.find_program(formatter.program)]
    sources = _Sources({}, {}, set())
    for entry in _entries(context.root, paths):
        if context.hides("/".join(entry.parts)):
            sources.left_out += 1
            continue
        suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - a name, not a path
        formatter = next((each for each in installed if suffix in each.suffixes), None)
        if formatter is None:
            sources.unsupported |= {suffix} & _SUFFIXES
            continue
        if len(sources.files) >= FILE_LIMIT or entry.stat.st_size > FILE_BYTES or sources.size > TOTAL_BYTES:
            sources.truncated = True
            continue
        with context.root.open(entry.parts) as file:
            seen, content = os.fstat(file.fileno()), file.read(FILE_BYTES + 1)
        sources.size += len(content)
        sources.files[entry.parts] = (formatter, content, seen)
    for folder in {parts[:depth] for parts in sources.files for depth in range(len(parts))}:
        sources.styles |= _styles(context, folder)
    return sources


def _entries(root: Root, paths: Sequence[str]) -> Iterator[Entry]:
    for path in paths or ["."]:
        parts = parse(path)
        entry = Entry(parts, root.stat(parts))
        if entry.kind != "directory":
            root.open(parts).close()  # raises if the named path is not a regular file
            yield entry
            continue
        with root.walk(parts, enter=lambda entry: not is_skipped(entry)) as walk:
            # Protected files only if the caller names them: then a person is asked.
            yield from (entry for entry in walk if entry.kind == "file" and entry.name not in PROTECTED_NAMES)


def _styles(context: CodeContext, folder: Parts) -> dict[Parts, bytes]:
    found = {}
    for name in _STYLE_FILES:
        if context.hides("/".join((*folder, name))):
            continue
        try:
            with context.root.open((*folder, name)) as file:
                found[(*folder, name)] = file.read(FILE_BYTES)
        except GatewayError:
            continue
    return found


def _copy_files(sources: _Sources, modules: str) -> Path:
    """Copy the files to a temporary directory, so that no formatter writes to the workspace."""
    folder = Path(tempfile.mkdtemp(prefix="toolgate-format-"))
    contents = {parts: content for parts, (_, content, _) in sources.files.items()}
    for parts, content in {**sources.styles, **contents}.items():
        path = folder.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / NODE_MODULES).symlink_to(modules)  # for plugins of the project
    return folder


class _FormatterError(Value):
    """The error output of a formatter for a batch of files."""

    formatter: str
    files: Sequence[Parts]
    output: str
    killed: bool = False


async def _run_formatters(context: CodeContext, sources: _Sources, copy: Path) -> AsyncIterator[_FormatterError]:
    """Run the formatters on the copy and yield their errors."""
    inside = context.sandbox.inside(Mount(copy, _COPY, writable=True))
    for formatter in FORMATTERS:
        files = [parts for parts, (assigned, _, _) in sources.files.items() if assigned is formatter]
        for start in range(0, len(files), _BATCH_SIZE):
            batch = files[start : start + _BATCH_SIZE]
            names = ["./" + "/".join(parts) for parts in batch]
            finished = await context.run(_program(context, formatter, copy, names))
            output = (finished.stderr or finished.stdout).decode("utf-8", "replace").replace(f"{inside}/", "").strip()
            if finished.exit.killed is not None:
                limit = f"it exceeded its limit of {finished.exit.killed}"
                yield _FormatterError(formatter.program, batch, limit, killed=True)
            elif finished.exit.code != 0:
                yield _FormatterError(
                    formatter.program, batch, output or f"it ended with exit code {finished.exit.code}"
                )


def _program(context: CodeContext, formatter: Formatter, copy: Path, names: Sequence[str]) -> Program:
    # The workspace is read-only: formatters, plugins and their dependencies may be installed in it.
    path = context.find_program(formatter.program)
    assert path is not None  # noqa: S101 - else no file was assigned to it
    mount = Mount(copy, _COPY, writable=True)
    argv, python = (path, *formatter.options, *names), context.script_interpreter(formatter.program)
    program = context.program(
        *(argv if python is None else (python.path, *argv)),
        cwd=context.sandbox.inside(mount),
        writable=False,
        readable=() if python is None else python.readable,
    )
    return replace(program, mounts=(*program.mounts, mount))


def _write_back(
    context: CodeContext, sources: _Sources, copy: Path, errors: Sequence[_FormatterError], check: bool
) -> FormatResult:
    """Compare the copy with the files and, unless it is only a check, write the changes back."""
    changed, diffs, problems = [], [], []
    reasons: dict[Parts, str] = {}
    for error in errors:
        by_file = {} if error.killed else _reasons(error)
        reasons |= by_file or dict.fromkeys(error.files, error.output.partition("\n")[0][:_REASON_LENGTH])
        if not by_file:
            problems.append(FormatterProblem(formatter=error.formatter, message=error.output[:_MESSAGE_LENGTH]))
    with Root(copy) as formatted:
        for parts, (formatter, before, seen) in sources.files.items():
            after = _content(formatted, parts)
            if after is None:
                reasons[parts] = "the formatter removed the file or made it too large"
            if after is None or after == before:
                continue
            reasons.pop(parts, None)
            if not check:
                context.root.replace(parts, after, seen=seen)
            changed.append(FormattedFile(path=show_path(parts), formatter=formatter.program))
            old, new = before.decode("utf-8", "replace"), after.decode("utf-8", "replace")
            diffs.append(unified_diff(show_path(parts), old, new))
    diff = "".join(diffs)
    failed = [
        UnformattedFile(path=show_path(parts), formatter=sources.files[parts][0].program, reason=reason)
        for parts, reason in reasons.items()
    ]
    return FormatResult(
        changed=changed,
        unchanged=len(sources.files) - len(changed) - len(failed),
        failed=failed[:_FAILURE_LIMIT],
        diff=diff[:_DIFF_LENGTH],
        problems=problems,
        without_formatter=sorted(sources.unsupported),
        truncated=sources.truncated or len(diff) > _DIFF_LENGTH or len(failed) > _FAILURE_LIMIT,
        files_left_out=sources.left_out or None,
    )


def _content(formatted: Root, parts: Parts) -> bytes | None:
    """Return the content of a file after formatting; None if it was removed or grew too large."""
    try:
        with formatted.open(parts) as file:
            content = file.read(2 * FILE_BYTES + 1)
    except GatewayError:
        return None
    return content if len(content) <= 2 * FILE_BYTES else None


def _reasons(error: _FormatterError) -> dict[Parts, str]:
    """Return the error lines of each file: from the line that names it to the next file, with the lines above it in the
    same paragraph. Empty if the output names no file."""
    known = {"/".join(parts): parts for parts in error.files}
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    named = re.compile(rf"(?<![\w./-])(?:\./)?({names})(?![\w/-]|\.\w)")
    reasons: dict[Parts, list[str]] = {}
    lines: list[str] = []
    unassigned = True
    for line in error.output[:_PARSED_LENGTH].splitlines():
        match = named.search(line)
        if match is not None and known[match[1]] not in reasons:
            lines = reasons[known[match[1]]] = [*(lines if unassigned else ()), line]
            unassigned = False
        elif line.strip():
            lines.append(line)
        else:
            lines, unassigned = [], True
    return {parts: "\n".join(texts)[:_REASON_LENGTH] for parts, texts in reasons.items()}


def _text(result: FormatResult, check: bool) -> str:
    verb = "would change" if check else "changed"
    failed = f", {len(result.failed)} could not be formatted" if result.failed else ""
    lines = [f"{len(result.changed)} files {verb}, {result.unchanged} are already formatted{failed}"]
    lines += [f"{verb}: {file.path} ({file.formatter})" for file in result.changed]
    lines += [f"could not be formatted: {file.path} ({file.formatter}): {file.reason}" for file in result.failed]
    lines += [f"{problem.formatter}: {problem.message}" for problem in result.problems]
    if result.without_formatter:
        lines.append(f"no formatter is installed for {', '.join(result.without_formatter)}")
    lines += hidden_files_note(result.files_left_out or 0)
    return "\n".join([*lines, result.diff] if check else lines)
