"""git, looking: what changed, what was, and who did it. The repository is read-only meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from gateway.errors import Conflict, Forbidden, Invalid, ToolFailed
from gateway.sources.builtin.code.call_context import CodeContext
from gateway.sources.builtin.code.git import Paths, Repository, Revision, Where, pathspecs, plain, revision, without
from gateway.sources.builtin.code.git_output import (
    COMMIT,
    Commit,
    FileChange,
    FileState,
    Status,
    changes,
    commits,
    status,
)
from gateway.sources.builtin.decorator import Shape, builtin, hidden_files_note
from gateway.tools import Access, Permission, hide_nothing
from gateway.workspace import parse

FILES = 2000
# Characters of a diff or a file that are shown.
DIFF = 256 * 1024

# For diffs: by git itself, and without a look into other repositories, whose own settings would count there.
AS_IT_IS = (
    *("--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=dirty", "--submodule=short"),
    "--find-renames",
)


@builtin(
    title="Git status",
    category="development",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
    requires=("sandbox", "git"),
)
async def git_status(
    context: CodeContext,
    repository: Where = ".",
    untracked: Annotated[bool, Field(description="Whether to list files git does not know")] = True,
) -> tuple[Status, str]:
    """Show the branch of a git repository in the workspace and which files are staged, changed or unknown to git.

    git_diff shows what is in the changes, git_add and git_commit record them."""
    found = await state_of(await Repository.open(context, repository), untracked=untracked)
    return found, _status_text(found)


async def state_of(repository: Repository, *, untracked: bool = True) -> Status:
    how = "--untracked-files=all" if untracked else "--untracked-files=no"
    text = await repository.read("status", "--porcelain=v2", "--branch", "-z", how, "--ignore-submodules=dirty")
    return status(text, FILES)


LEFT_OUT = Field(default=None, description="Files the operator's rules keep from being read")


class Diff(Shape):
    files: list[FileChange]
    diff: str = Field(description="In git's format")
    truncated: bool = Field(description="Whether files or lines were left out")
    files_left_out: int | None = LEFT_OUT


@builtin(
    title="Git diff",
    category="development",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
    requires=("sandbox", "git"),
)
async def git_diff(
    context: CodeContext,
    repository: Where = ".",
    from_: Annotated[Revision | None, Field(description="Revision to compare from; else the index")] = None,
    to: Annotated[Revision | None, Field(description="Revision to compare with; else the files as they are")] = None,
    staged: Annotated[bool, Field(description="Compare what is staged with the last commit, or with 'from'")] = False,
    paths: Paths = [],  # noqa: B006 - a default in a schema; it is copied before use
    context_lines: Annotated[int, Field(ge=0, le=100, description="Lines shown around each change")] = 3,
) -> tuple[Diff, str]:
    """Show what changed in a git repository: by default what is not staged yet, with staged what is, and between
    two revisions with from and to.

    Each file comes with its added and deleted lines. Long diffs are cut; name paths to see the rest."""
    if to is not None and (from_ is None or staged):
        raise Invalid("'to' needs 'from', and goes without 'staged'")
    opened = await Repository.open(context, repository)
    named = [revision(each) for each in (from_, to) if each is not None]
    if context.hides is not hide_nothing:
        named = [await opened.commit(each) for each in named]
    what = [*(["--cached"] if staged else []), *named]
    found = await difference(opened, ["diff", f"--unified={context_lines}"], [*what, *pathspecs(paths)])
    return found, _diff_text(found)


async def difference(repository: Repository, command: Sequence[str], what: Sequence[str]) -> Diff:
    """The files and the text of a difference, without files that rules keep from being read; `what` ends in
    pathspecs."""
    found = changes(await repository.read(*command, "--raw", "--numstat", "-z", *AS_IT_IS, *what))
    hidden = await _hidden(repository, found)
    files = [change for names, change in found.items() if names not in hidden]
    excluded = without(sorted({name for names in hidden for name in names}))
    listing = () if repository.context.hides is hide_nothing else ("--raw", "-z")
    text = await repository.read(*command, "--patch", *listing, *AS_IT_IS, *what, *excluded)
    if listing:  # once more, as files may have changed since the first time
        raw, _, text = text.partition("\0\0")
        if await _hidden(repository, changes(f"{raw}\0")):
            raise Conflict("files changed while they were compared; call again", code="CHANGED_MEANWHILE")
    text, truncated = plain(text), len(files) > FILES or len(text) > DIFF
    return Diff(files=files[:FILES], diff=text[:DIFF], truncated=truncated, files_left_out=len(hidden) or None)


async def _hidden(repository: Repository, found: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Those changes, by old and new path, of which a rule hides one of the two."""
    hides = repository.context.hides
    if hides is hide_nothing or not found:
        return set()
    top = await repository.top()
    hidden = {names for names in found if any(hides("/".join((*top, name))) for name in names)}
    if len(hidden) > FILES:
        message = f"rules keep {len(hidden)} of these files from being read; name paths that have fewer"
        raise ToolFailed(message, code="OUTPUT_TOO_LARGE")
    return hidden


class Log(Shape):
    commits: list[Commit]
    more: bool


@builtin(
    title="Git log",
    category="development",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
    requires=("sandbox", "git"),
)
async def git_log(
    context: CodeContext,
    repository: Where = ".",
    revision_: Annotated[Revision, Field(description="Where to begin: a commit, branch, or a range a..b")] = "HEAD",
    paths: Paths = [],  # noqa: B006
    limit: Annotated[int, Field(ge=1, le=500, description="At most so many commits")] = 20,
    skip: Annotated[int, Field(ge=0, le=1_000_000, description="Pass over so many, to page on")] = 0,
    author: Annotated[
        str | None, Field(max_length=200, description="Only by authors whose name or mail has this")
    ] = None,
    message: Annotated[str | None, Field(max_length=200, description="Only with this text in the message")] = None,
) -> tuple[Log, str]:
    """List the commits of a git repository, newest first: hash, author, date, message and the names that point to it.

    With paths only the commits that changed them. git_show shows what is in a commit."""
    found = await Repository.open(context, repository)
    chosen = [f"--max-count={limit + 1}", f"--skip={skip}", "--fixed-strings", "--regexp-ignore-case"]
    chosen += [f"--author={author}"] if author else []
    chosen += [f"--grep={message}"] if message else []
    state = await found.read("rev-parse", "--verify", "--quiet", "HEAD", codes=(0, 1))
    if not state and revision_ == "HEAD":
        return Log(commits=[], more=False), "There are no commits yet."
    text = await found.read(
        *("log", "-z", "--no-show-signature", f"--format=tformat:{COMMIT}", *chosen, revision(revision_)),
        *pathspecs(paths),
    )
    listed = list(commits(text))
    log = Log(commits=listed[:limit], more=len(listed) > limit)
    return log, "\n".join(map(_line, log.commits)) + (f"\nOlder ones: skip={skip + limit}" if log.more else "")


class Shown(Shape):
    commit: Commit | None = None
    files: list[FileChange] | None = None
    files_left_out: int | None = LEFT_OUT
    diff: str | None = Field(default=None, description="What the commit changed, in git's format")
    path: str | None = None
    content: str | None = Field(default=None, description="The file as it was at the revision")
    truncated: bool


@builtin(
    title="Git show",
    category="development",
    permission=Permission.READ_ONLY,
    access=Access.READ,
    idempotent=True,
    requires=("sandbox", "git"),
)
async def git_show(
    context: CodeContext,
    repository: Where = ".",
    revision_: Revision = "HEAD",
    path: Annotated[str | None, Field(description="A file, to see it as it was at the revision")] = None,
) -> tuple[Shown, str]:
    """Show a commit of a git repository with all it changed, or with path a file as it was at that revision.

    A merge is compared with its first parent. Long diffs and files are cut."""
    found = await Repository.open(context, repository)
    if path is not None:
        at = revision(revision_) if context.hides is hide_nothing else await found.commit(revision_)
        return await _file(found, at, "/".join(parse(path)))
    commit, done = await committed(found, revision(revision_))
    shown = Shown(
        commit=commit, files=done.files, diff=done.diff, truncated=done.truncated, files_left_out=done.files_left_out
    )
    return shown, f"{_line(commit)}\n{commit.body}\n\n{_diff_text(done)}"


async def committed(repository: Repository, at: str) -> tuple[Commit, Diff]:
    """A commit, and what it changed against its first parent."""
    text = await repository.read("log", "-z", "-1", "--no-show-signature", f"--format=tformat:{COMMIT}", at, "--")
    commit = next(commits(text))
    tree = ["diff-tree", "-r", "--root", "--no-commit-id"]
    return commit, await difference(repository, tree, [*commit.parents[:1], commit.hash, "--"])


async def _file(repository: Repository, at: str, path: str) -> tuple[Shown, str]:
    if repository.context.hides is not hide_nothing:
        inner = (await repository.read("rev-parse", "--show-prefix")).rstrip("\n")
        full = "/".join((*await repository.top(), *parse(f"{inner}{path}")))
        if (rule := repository.context.hides(full)) is not None:
            raise Forbidden(f"the operator does not allow to read {full!r} ({rule})", code="DENIED_BY_RULE")
    content = await repository.read("cat-file", "blob", f"{at}:./{path}")
    if "\0" in content:
        raise Invalid(f"{path!r} is a binary file at {at}", code="NOT_UTF8")
    text = plain(content)
    shown = Shown(path=path, content=text[:DIFF], truncated=len(text) > DIFF)
    return shown, (shown.content or "") + ("\n[cut]" if shown.truncated else "")


def _line(commit: Commit) -> str:
    refs = f" ({', '.join(commit.refs)})" if commit.refs else ""
    return f"{commit.hash[:12]} {commit.date[:10]} {commit.author}: {commit.subject}{refs}"


def _status_text(found: Status) -> str:
    branch = f"On branch {found.branch}" if found.branch else f"At {(found.commit or '')[:12]}, on no branch"
    if found.upstream:
        branch += f", {found.ahead or 0} ahead of and {found.behind or 0} behind {found.upstream}"
    lines = [branch, *map(_state_line, found.files)]
    if found.clean:
        lines.append("Nothing changed since the last commit.")
    return "\n".join([*lines, *(["[more files than are listed]"] if found.truncated else [])])


def _state_line(file: FileState) -> str:
    staged = f"staged: {file.staged}" if file.staged and file.staged != "conflict" else ""
    told = ", ".join(part for part in (staged, file.unstaged) if part)
    return f"{told}: {f'{file.was} -> ' if file.was else ''}{file.path}"


def _diff_text(found: Diff) -> str:
    cut = ["[cut; name paths to see the rest]"] if found.truncated else []
    return "\n".join([found.diff or "Nothing changed.", *cut, *hidden_files_note(found.files_left_out or 0)])
