"""Tools that read a git repository: status, diff, log and show. The sandbox mounts the files read-only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from pydantic import Field

from gateway.errors import Conflict, Forbidden, Invalid, ToolFailed
from gateway.sources.builtin.code.call_context import CodeContext
from gateway.sources.builtin.code.git import (
    COMMIT_FORMAT,
    Commit,
    FileChange,
    FileState,
    GitStatus,
    Paths,
    Repository,
    Revision,
    Where,
    exclude,
    parse_changes,
    parse_commits,
    parse_status,
    pathspecs,
    plain,
    revision,
)
from gateway.sources.builtin.decorator import Shape, builtin, hidden_files_note
from gateway.tools import Access, Permission, hide_nothing
from gateway.workspace import parse

FILE_LIMIT = 2000

# Characters of a diff or a file in one result.
TEXT_LIMIT = 256 * 1024

# Options for diffs: no external programs, and no reading of submodules, whose own settings would apply.
DIFF_OPTIONS = (
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
    untracked: Annotated[bool, Field(description="Include untracked files")] = True,
) -> tuple[GitStatus, str]:
    """Show the branch of a git repository in the workspace, and which files are staged, changed or untracked.

    git_diff shows the changes in detail, git_add and git_commit record them."""
    status = await read_status(await Repository.open(context, repository), untracked=untracked)
    return status, _status_text(status)


async def read_status(repository: Repository, *, untracked: bool = True) -> GitStatus:
    mode = "--untracked-files=all" if untracked else "--untracked-files=no"
    text = await repository.read("status", "--porcelain=v2", "--branch", "-z", mode, "--ignore-submodules=dirty")
    return parse_status(text, FILE_LIMIT)


LEFT_OUT = Field(default=None, description="Files that the operator's rules hide")


class GitDiff(Shape):
    files: list[FileChange]
    diff: str = Field(description="In git's format")
    truncated: bool = Field(description="True if files or lines were left out")
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
    from_: Annotated[Revision | None, Field(description="Revision to compare from; default the index")] = None,
    to: Annotated[Revision | None, Field(description="Revision to compare with; default the current files")] = None,
    staged: Annotated[bool, Field(description="Compare what is staged with the last commit, or with 'from'")] = False,
    paths: Paths = [],  # noqa: B006 - a default in a schema; it is copied before use
    context_lines: Annotated[int, Field(ge=0, le=100, description="Lines shown around each change")] = 3,
) -> tuple[GitDiff, str]:
    """Show changes in a git repository: by default those that are not staged, with staged those that are, and with from
    and to those between two revisions.

    Each file has its number of added and deleted lines. Long diffs are cut; give paths to see the rest."""
    if to is not None and (from_ is None or staged):
        raise Invalid("'to' needs 'from', and cannot be used with 'staged'")
    opened = await Repository.open(context, repository)
    revisions = [revision(name) for name in (from_, to) if name is not None]
    if context.hides is not hide_nothing:
        revisions = [await opened.commit(name) for name in revisions]
    compared = [*(["--cached"] if staged else []), *revisions, *pathspecs(paths)]
    diff = await read_diff(opened, ["diff", f"--unified={context_lines}"], compared)
    return diff, _diff_text(diff)


async def read_diff(repository: Repository, command: Sequence[str], compared: Sequence[str]) -> GitDiff:
    """Return the files and the text of a diff, without hidden files; `compared` ends in pathspecs."""
    changes = parse_changes(await repository.read(*command, "--raw", "--numstat", "-z", *DIFF_OPTIONS, *compared))
    hidden = await _find_hidden(repository, changes)
    files = [change for names, change in changes.items() if names not in hidden]
    excluded = exclude(sorted({name for names in hidden for name in names}))
    listing = () if repository.context.hides is hide_nothing else ("--raw", "-z")
    text = await repository.read(*command, "--patch", *listing, *DIFF_OPTIONS, *compared, *excluded)
    if listing:  # check again: files may have changed since the first command
        raw, _, text = text.partition("\0\0")
        if await _find_hidden(repository, parse_changes(f"{raw}\0")):
            raise Conflict("files changed during the comparison; call again", code="CHANGED_MEANWHILE")
    text, truncated = plain(text), len(files) > FILE_LIMIT or len(text) > TEXT_LIMIT
    return GitDiff(
        files=files[:FILE_LIMIT], diff=text[:TEXT_LIMIT], truncated=truncated, files_left_out=len(hidden) or None
    )


async def _find_hidden(repository: Repository, changes: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the changes, by old and new path, where a rule hides one of the paths."""
    hides = repository.context.hides
    if hides is hide_nothing or not changes:
        return set()
    top = await repository.top()
    hidden = {names for names in changes if any(hides("/".join((*top, name))) for name in names)}
    if len(hidden) > FILE_LIMIT:
        message = f"rules hide {len(hidden)} of these files; give paths with fewer hidden files"
        raise ToolFailed(message, code="OUTPUT_TOO_LARGE")
    return hidden


class CommitList(Shape):
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
    revision_: Annotated[Revision, Field(description="Commit or branch to start from, or a range a..b")] = "HEAD",
    paths: Paths = [],  # noqa: B006
    limit: Annotated[int, Field(ge=1, le=500, description="Maximum number of commits")] = 20,
    skip: Annotated[int, Field(ge=0, le=1_000_000, description="Number of commits to skip")] = 0,
    author: Annotated[
        str | None, Field(max_length=200, description="Only authors whose name or email contains this")
    ] = None,
    message: Annotated[str | None, Field(max_length=200, description="Only messages that contain this text")] = None,
) -> tuple[CommitList, str]:
    """List the commits of a git repository, newest first: hash, author, date, message and refs.

    With paths only the commits that changed them. git_show shows a commit in detail."""
    found = await Repository.open(context, repository)
    options = [f"--max-count={limit + 1}", f"--skip={skip}", "--fixed-strings", "--regexp-ignore-case"]
    options += [f"--author={author}"] if author else []
    options += [f"--grep={message}"] if message else []
    head = await found.read("rev-parse", "--verify", "--quiet", "HEAD", codes=(0, 1))
    if not head and revision_ == "HEAD":
        return CommitList(commits=[], more=False), "There are no commits yet."
    text = await found.read(
        *("log", "-z", "--no-show-signature", f"--format=tformat:{COMMIT_FORMAT}", *options, revision(revision_)),
        *pathspecs(paths),
    )
    listed = list(parse_commits(text))
    log = CommitList(commits=listed[:limit], more=len(listed) > limit)
    return log, "\n".join(map(_line, log.commits)) + (f"\nOlder ones: skip={skip + limit}" if log.more else "")


class ShownRevision(Shape):
    commit: Commit | None = None
    files: list[FileChange] | None = None
    files_left_out: int | None = LEFT_OUT
    diff: str | None = Field(default=None, description="Changes of the commit, in git's format")
    path: str | None = None
    content: str | None = Field(default=None, description="Content of the file at the revision")
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
    path: Annotated[str | None, Field(description="File to show at the revision")] = None,
) -> tuple[ShownRevision, str]:
    """Show a commit of a git repository with its changes, or with path the content of a file at that revision.

    A merge is compared with its first parent. Long diffs and files are cut."""
    found = await Repository.open(context, repository)
    if path is not None:
        commit_id = revision(revision_) if context.hides is hide_nothing else await found.commit(revision_)
        return await _show_file(found, commit_id, "/".join(parse(path)))
    commit, diff = await read_commit(found, revision(revision_))
    shown = ShownRevision(
        commit=commit, files=diff.files, diff=diff.diff, truncated=diff.truncated, files_left_out=diff.files_left_out
    )
    return shown, f"{_line(commit)}\n{commit.body}\n\n{_diff_text(diff)}"


async def read_commit(repository: Repository, name: str) -> tuple[Commit, GitDiff]:
    """Return a commit and its changes against its first parent."""
    text = await repository.read(
        "log", "-z", "-1", "--no-show-signature", f"--format=tformat:{COMMIT_FORMAT}", name, "--"
    )
    commit = next(parse_commits(text))
    tree = ["diff-tree", "-r", "--root", "--no-commit-id"]
    return commit, await read_diff(repository, tree, [*commit.parents[:1], commit.hash, "--"])


async def _show_file(repository: Repository, name: str, path: str) -> tuple[ShownRevision, str]:
    if repository.context.hides is not hide_nothing:
        prefix = (await repository.read("rev-parse", "--show-prefix")).rstrip("\n")
        full = "/".join((*await repository.top(), *parse(f"{prefix}{path}")))
        if (rule := repository.context.hides(full)) is not None:
            raise Forbidden(f"the operator does not allow reading {full!r} ({rule})", code="DENIED_BY_RULE")
    content = await repository.read("cat-file", "blob", f"{name}:./{path}")
    if "\0" in content:
        raise Invalid(f"{path!r} is a binary file at {name}", code="NOT_UTF8")
    text = plain(content)
    shown = ShownRevision(path=path, content=text[:TEXT_LIMIT], truncated=len(text) > TEXT_LIMIT)
    return shown, (shown.content or "") + ("\n[cut]" if shown.truncated else "")


def _line(commit: Commit) -> str:
    refs = f" ({', '.join(commit.refs)})" if commit.refs else ""
    return f"{commit.hash[:12]} {commit.date[:10]} {commit.author}: {commit.subject}{refs}"


def _status_text(status: GitStatus) -> str:
    branch = f"On branch {status.branch}" if status.branch else f"At {(status.commit or '')[:12]}, on no branch"
    if status.upstream:
        branch += f", {status.ahead or 0} ahead of and {status.behind or 0} behind {status.upstream}"
    lines = [branch, *map(_state_line, status.files)]
    if status.clean:
        lines.append("Nothing changed since the last commit.")
    return "\n".join([*lines, *(["[more files than are listed]"] if status.truncated else [])])


def _state_line(file: FileState) -> str:
    staged = f"staged: {file.staged}" if file.staged and file.staged != "conflict" else ""
    states = ", ".join(part for part in (staged, file.unstaged) if part)
    return f"{states}: {f'{file.was} -> ' if file.was else ''}{file.path}"


def _diff_text(diff: GitDiff) -> str:
    cut = ["[cut; give paths to see the rest]"] if diff.truncated else []
    return "\n".join([diff.diff or "Nothing changed.", *cut, *hidden_files_note(diff.files_left_out or 0)])
