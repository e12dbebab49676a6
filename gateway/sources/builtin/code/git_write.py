"""Tools that change a git repository: add, commit, branch, checkout, stash and push."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from gateway.errors import Forbidden, Invalid, NotFound, ToolFailed
from gateway.sources.builtin.code.call_context import CodeContext, in_thread
from gateway.sources.builtin.code.git import (
    BRANCH_FORMAT,
    Branch,
    Commit,
    FileChange,
    FileState,
    Paths,
    Repository,
    Revision,
    Where,
    exclude,
    parse_branches,
    pathspecs,
    plain,
    revision,
)
from gateway.sources.builtin.code.git_read import FILE_LIMIT, read_commit, read_status
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission, hide_nothing
from gateway.workspace.protected import find_named_hooks, is_protected, reason_to_ask

_BRANCH_LIMIT = 1000
_STASH_LIMIT = 200

Filters = Annotated[
    list[str] | None, Field(description="Filters of the repository, such as lfs, that were not run on its files")
]

LeftOut = Annotated[int | None, Field(description="Number of files that approval rules hide")]


class StageResult(Shape):
    staged: list[FileState]
    unstaged: int = Field(description="Number of files with unstaged changes")
    truncated: bool
    files_left_out: LeftOut = None
    filters_not_run: Filters = None


@builtin(
    title="Git add",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    idempotent=True,
    requires=("sandbox", "git"),
    path_arguments=(),
)
async def git_add(
    context: CodeContext,
    paths: Annotated[list[str], Field(min_length=1, max_length=1000, description="Files or directories; '.' for all")],
    repository: Where = ".",
    unstage: Annotated[bool, Field(description="Unstage them instead")] = False,
) -> tuple[StageResult, str]:
    """Stage changed, new and deleted files of a git repository for the next commit, or unstage them.

    Returns all staged files. Files that .gitignore matches are refused."""
    found = await Repository.open(context, repository, changing=True)
    command = ("reset", "--quiet") if unstage else ("add", "--all")
    hidden = [] if unstage else await _find_hidden_changes(found, "--others", "--exclude-standard")
    await found.change(*command, *pathspecs(paths), *exclude(hidden))
    status = await read_status(found)
    staged = [file for file in status.files if file.staged and file.staged != "conflict"]
    result = StageResult(
        staged=staged,
        unstaged=sum(file.unstaged is not None for file in status.files),
        truncated=status.truncated,
        files_left_out=len(hidden) or None,
        filters_not_run=found.filters or None,
    )
    lines = [f"staged: {file.staged}: {file.path}" for file in staged] or ["Nothing is staged."]
    return result, "\n".join(lines)


async def _find_hidden_changes(repository: Repository, *options: str) -> list[str]:
    """Return the changed files of the repository that a rule hides: programs could read them among its objects."""
    if repository.context.hides is hide_nothing:
        return []
    listing = ("ls-files", "-z", "--modified", *options, "--full-name", "--", ":/")
    return await _find_hidden(repository, await _list_names(repository, *listing))


class CommitAuthor(Shape):
    name: str = Field(min_length=1, max_length=200)
    email: str = Field(min_length=1, max_length=200)


class CommitResult(Shape):
    commit: Commit
    branch: str | None = None
    files: list[FileChange]
    filters_not_run: Filters = None


@builtin(
    title="Git commit",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires=("sandbox", "git"),
    path_arguments=(),
)
async def git_commit(
    context: CodeContext,
    message: Annotated[str, Field(min_length=1, max_length=50_000, description="The whole commit message")],
    repository: Where = ".",
    all_: Annotated[bool, Field(description="Stage all changes of tracked files first")] = False,
    amend: Annotated[bool, Field(description="Replace the last commit")] = False,
    author: Annotated[CommitAuthor | None, Field(description="Author; default as configured")] = None,
) -> tuple[CommitResult, str]:
    """Commit the staged changes of a git repository. Hooks and signing are not run.

    Stage files with git_add first, or set all. The author is the given one, else the gateway's GIT_AUTHOR_NAME and
    GIT_AUTHOR_EMAIL, else user.name and user.email of the repository."""
    found = await Repository.open(context, repository, changing=True)
    if all_ and (hidden := await _find_hidden_changes(found)):
        message = f"rules hide {len(hidden)} changed files, such as {hidden[0]!r}; stage the others with git_add"
        raise Forbidden(message, code="DENIED_BY_RULE")
    authored = dataclasses.replace(found, env=_identity(found, author))
    options = [*(["--all"] if all_ else []), *(["--amend", "--reset-author"] if amend else [])]
    unsigned = ("--no-verify", "--no-gpg-sign", "--no-edit", "--quiet")
    await authored.change("commit", *unsigned, *options, "--file=-", stdin=message.encode())
    commit, diff = await read_commit(found, "HEAD")
    branch = plain(await found.read("branch", "--show-current")).strip()
    result = CommitResult(commit=commit, branch=branch or None, files=diff.files, filters_not_run=found.filters or None)
    return result, f"{commit.hash[:12]} on {branch or 'no branch'}: {commit.subject} ({len(diff.files)} files)"


def _identity(
    repository: Repository, author: CommitAuthor | None, fallback: CommitAuthor | None = None
) -> Mapping[str, str]:
    """Return the environment with author and committer; refuse a commit without an author."""
    name = author.name if author else os.environ.get("GIT_AUTHOR_NAME") or repository.value("user.name")
    email = author.email if author else os.environ.get("GIT_AUTHOR_EMAIL") or repository.value("user.email")
    if fallback is not None:
        name, email = name or fallback.name, email or fallback.email
    if not name or not email:
        message = "the author is not known; give 'author', or set GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL"
        raise Invalid(f"{message} for the gateway", code="IDENTITY_MISSING")
    if any(character in text for text in (name, email) for character in "\0\n<>"):
        raise Invalid("the author's name and email must not contain line breaks, < or >", code="INVALID_ARGUMENTS")
    return {
        f"GIT_{role}_{field}": text
        for role in ("AUTHOR", "COMMITTER")
        for field, text in (("NAME", name), ("EMAIL", email))
    }


class BranchList(Shape):
    current: str | None = None
    branches: list[Branch]
    truncated: bool


Name = Annotated[str, Field(min_length=1, max_length=200, description="Name of a branch")]


async def _branch_reason(
    _: CodeContext, delete: str | None = None, force: bool = False, **_other: object
) -> str | None:
    return f"git_branch deletes {delete!r}; its commits may be on no other branch" if delete and force else None


@builtin(
    title="Git branches",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_branch_reason,
    requires=("sandbox", "git"),
    path_arguments=(),
)
async def git_branch(
    context: CodeContext,
    repository: Where = ".",
    create: Annotated[Name | None, Field(description="Create a branch; git_checkout switches to it")] = None,
    at: Annotated[Revision | None, Field(description="Start of the new branch; default the last commit")] = None,
    delete: Annotated[Name | None, Field(description="Delete this branch if it is merged")] = None,
    rename: Annotated[Name | None, Field(description="Rename this branch")] = None,
    to: Annotated[Name | None, Field(description="New name, with rename")] = None,
    force: Annotated[bool, Field(description="Delete the branch even if commits are lost; asks first")] = False,
) -> tuple[BranchList, str]:
    """List the branches of a git repository, after creating, deleting or renaming one.

    Use one of create, delete and rename per call; without them it only lists."""
    if sum(name is not None for name in (create, delete, rename)) > 1:
        raise Invalid("use one of 'create', 'delete' and 'rename' per call")
    if (rename is None) != (to is None) or (at is not None and create is None):
        raise Invalid("'rename' needs 'to', and 'at' needs 'create'")
    found = await Repository.open(context, repository)
    if create is not None:
        await found.change("branch", "--no-track", revision(create), *([revision(at)] if at else []))
    elif delete is not None:
        await found.change("branch", "-D" if force else "-d", revision(delete))
    elif rename is not None and to is not None:
        await found.change("branch", "-m", revision(rename), revision(to))
    listed = await _list_branches(found)
    lines = [
        f"{'*' if branch.current else ' '} {branch.name} {branch.commit[:12]} {branch.subject}"
        for branch in listed.branches
    ]
    return listed, "\n".join(lines) or "There are no branches yet."


async def _list_branches(repository: Repository) -> BranchList:
    text = await repository.read(
        "for-each-ref", f"--format={BRANCH_FORMAT}", f"--count={_BRANCH_LIMIT + 1}", "refs/heads", "refs/remotes"
    )
    listed = list(parse_branches(text))
    current = next((branch.name for branch in listed if branch.current), None)
    return BranchList(current=current, branches=listed[:_BRANCH_LIMIT], truncated=len(listed) > _BRANCH_LIMIT)


class GitCheckoutResult(Shape):
    branch: str | None = Field(default=None, description="Missing when no branch is checked out")
    commit: str | None = None
    files: list[FileState] = Field(description="Files that differ from the commit afterwards")
    files_left_out: LeftOut = None
    filters_not_run: Filters = None


_NAMES = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff")
_TREE_NAMES = ("ls-tree", "-r", "--name-only", "-z", "--full-tree")


async def _list_names(repository: Repository, *command: str, codes: Sequence[int] = (0,)) -> set[str]:
    return set((await repository.read(*command, codes=codes)).split("\0")) - {""}


async def _find_trees(repository: Repository, name: str) -> list[str]:
    """Return the trees that a revision may mean: git checkout prefers a branch, other commands a tag of that name."""
    commands = [("rev-parse", "--verify", "--quiet", f"{each}^{{tree}}") for each in (f"refs/heads/{name}", name)]
    found = [(await repository.read(*each, codes=(0, 1, 128))).split() for each in commands]
    return [trees[0] for trees in found if len(trees) == 1]  # a range has two


async def _checkout_changes(repository: Repository, name: str | None, paths: Sequence[str]) -> set[str]:
    """Return the files that a checkout may change, by their paths in the repository."""
    if name is None:
        return await _list_names(repository, *_NAMES, *pathspecs(paths)) if paths else set()
    trees = await _find_trees(repository, revision(name))
    if not trees:  # such as `A...B`, which is a merge base here and a range in other commands
        raise Invalid(f"{name!r} is not a commit; name a commit, branch or tag", code="INVALID_REVISION")
    if paths:
        commands = [(*_NAMES, tree, *pathspecs(paths)) for tree in trees]
    elif head := await _find_trees(repository, "HEAD"):
        commands = [(*_NAMES, head[-1], tree, "--") for tree in trees]
    else:
        commands = [(*_TREE_NAMES, tree) for tree in trees]
    return set().union(*[await _list_names(repository, *command) for command in commands])


async def _stash_changes(
    repository: Repository, action: str, stash: int, untracked: bool, paths: Sequence[str]
) -> set[str]:
    """Return the files that git stash may change, by their paths in the repository."""
    if action in ("apply", "pop"):
        name = f"stash@{{{stash}}}"
        changed = await _list_names(repository, *_NAMES, f"{name}^1", name, "--", codes=(0, 128))
        return changed | await _list_names(repository, *_TREE_NAMES, f"{name}^3", codes=(0, 128))
    if action != "push":
        return set()
    chosen = pathspecs(paths) if paths else ["--", ":/"]
    commands = [(*_NAMES, "HEAD", *chosen), (*_NAMES, "--cached", "HEAD", *chosen)]
    if untracked:
        commands.append(("ls-files", "-z", "--others", "--exclude-standard", "--full-name", *chosen))
    return set().union(*[await _list_names(repository, *command) for command in commands])


async def _find_hidden(repository: Repository, names: Collection[str]) -> list[str]:
    if not names or repository.context.hides is hide_nothing:
        return []
    top = await repository.top()
    hidden = sorted(name for name in names if repository.context.hides("/".join((*top, name))))
    if len(hidden) > FILE_LIMIT:
        raise ToolFailed(f"rules hide {len(hidden)} of these files; name other paths", code="OUTPUT_TOO_LARGE")
    return hidden


def _refuse_hidden(hidden: Sequence[str], tool: str) -> None:
    if hidden:
        more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        message = f"{tool} would change {hidden[0]!r}{more}, which the operator's rules hide; nothing ran"
        raise Forbidden(message, code="DENIED_BY_RULE")


async def _protected_reason(repository: Repository, names: Collection[str]) -> str | None:
    """Return why a person is asked if protected files are among those that would change."""
    top = await repository.top() if names else ()
    paths = ["/".join((*top, name)) for name in names]
    hooks = await in_thread(find_named_hooks, repository.context.folder, paths)
    protected = sorted({*filter(is_protected, paths), *hooks})
    return reason_to_ask(repository.context.call.target.id, protected) if protected else None


async def _checkout_reason(
    context: CodeContext, repository: str = ".", revision_: str | None = None, paths: Sequence[str] = (), **_: object
) -> str | None:
    if not context.attached:
        return None
    found = await Repository.open(context, repository)
    return await _protected_reason(found, await _checkout_changes(found, revision_, paths))


@builtin(
    title="Git checkout",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_checkout_reason,
    destructive=True,
    requires=("sandbox", "git"),
    path_arguments=(),
)
async def git_checkout(
    context: CodeContext,
    repository: Where = ".",
    revision_: Annotated[
        Revision | None, Field(description="Branch or revision to switch to, or to restore paths from")
    ] = None,
    create: Annotated[Name | None, Field(description="Create a branch there and switch to it")] = None,
    paths: Annotated[
        list[str],
        Field(max_length=1000, description="Restore only these files, from the revision or the index"),
    ] = [],  # noqa: B006
) -> tuple[GitCheckoutResult, str]:
    """Switch to another branch or revision of a git repository, or restore single files.

    Switching is refused if it would overwrite changes; commit or stash them first. Restoring files overwrites them;
    workspace_restore can undo that."""
    if create is not None and paths:
        raise Invalid("'create' cannot be used with 'paths'")
    if revision_ is None and create is None and not paths:
        raise Invalid("give 'revision' or 'create' to switch, or 'paths' to restore")
    found = await Repository.open(context, repository, changing=True)
    target = [revision(revision_)] if revision_ else []
    branch = ["-b", revision(create)] if create else []
    hidden: list[str] = []
    if context.hides is not hide_nothing:
        hidden = await _find_hidden(found, await _checkout_changes(found, revision_, paths))
    if not paths:
        _refuse_hidden(hidden, "git_checkout")
    restored = [*pathspecs(paths), *exclude(hidden)] if paths else ["--"]
    track = ["--no-track"] if create else [] if paths else ["--no-guess"]
    await found.change("checkout", "--quiet", "--no-recurse-submodules", *track, *branch, *target, *restored)
    if found.depends_on_branch:
        found = await Repository.open(context, repository, changing=True)
    status = await read_status(found, untracked=False)
    result = GitCheckoutResult(
        branch=status.branch,
        commit=status.commit,
        files=status.files,
        files_left_out=len(hidden) or None,
        filters_not_run=found.filters or None,
    )
    return (
        result,
        f"On {status.branch or 'no branch'} at {(status.commit or '')[:12]}, {len(status.files)} files changed",
    )


StashAction = Literal["list", "push", "apply", "pop", "drop"]


class Stash(Shape):
    name: str
    commit: str
    message: str


class StashList(Shape):
    stashes: list[Stash] = Field(description="Newest first")
    files: list[FileState] = Field(description="Files with changes now")
    files_left_out: LeftOut = None
    filters_not_run: Filters = None


async def _stash_reason(
    context: CodeContext,
    action: str = "list",
    repository: str = ".",
    stash: int = 0,
    untracked: bool = False,
    paths: Sequence[str] = (),
    **_: object,
) -> str | None:
    if action == "drop":
        return f"git_stash deletes stash@{{{stash}}}"
    if not context.attached or action == "list":
        return None
    found = await Repository.open(context, repository)
    return await _protected_reason(found, await _stash_changes(found, action, stash, untracked, paths))


@builtin(
    title="Git stash",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    requires_confirmation=_stash_reason,
    destructive=True,
    requires=("sandbox", "git"),
    path_arguments=(),
)
async def git_stash(
    context: CodeContext,
    action: Annotated[StashAction, Field(description="push stores the changes, pop restores them")] = "list",
    repository: Where = ".",
    stash: Annotated[int, Field(ge=0, le=10_000, description="Number of the stash; 0 is the newest")] = 0,
    message: Annotated[str | None, Field(max_length=1000, description="Message, with push")] = None,
    untracked: Annotated[bool, Field(description="With push: include untracked files")] = False,
    paths: Paths = [],  # noqa: B006
) -> tuple[StashList, str]:
    """Stash the uncommitted changes of a git repository, restore them, or list the stashes.

    git_show with revision stash@{0} shows the changes in a stash."""
    found = await Repository.open(context, repository, changing=True)
    default = CommitAuthor(name="Toolgate", email="toolgate@localhost")
    authored = dataclasses.replace(found, env=_identity(found, None, fallback=default))
    hidden: list[str] = []
    if context.hides is not hide_nothing:
        hidden = await _find_hidden(found, await _stash_changes(found, action, stash, untracked, paths))
    if action == "push":
        options = [*(["--include-untracked"] if untracked else []), *(["-m", message] if message else [])]
        chosen = pathspecs(paths) if paths else ["--", ":/"] if hidden else []
        await authored.change("stash", "push", "--quiet", *options, *chosen, *exclude(hidden))
    elif action != "list":
        _refuse_hidden(hidden, "git_stash")
        await authored.change("stash", action, "--quiet", f"stash@{{{stash}}}")
    text = await found.read("stash", "list", "-z", "--format=tformat:%gd%x00%H%x00%gs", f"--max-count={_STASH_LIMIT}")
    fields = list(map(plain, text.split("\0")))
    stashes = [
        Stash(name=name, commit=commit, message=text)
        for name, commit, text in zip(fields[0::3], fields[1::3], fields[2::3], strict=False)
    ]
    status = await read_status(found, untracked=False)
    result = StashList(
        stashes=stashes,
        files=status.files,
        files_left_out=len(hidden) or None,
        filters_not_run=found.filters or None,
    )
    return result, "\n".join(f"{entry.name} {entry.message}" for entry in stashes) or "There are no stashes."


_CREDENTIALS = re.compile(r"//[^/@\s]*@")
_URL_REWRITE = re.compile(r"url\..*\.(insteadof|pushinsteadof)", re.IGNORECASE | re.DOTALL)

Remote = Annotated[str, Field(min_length=1, max_length=200, description="Name of a remote")]
PushedBranch = Annotated[str | None, Field(max_length=200, description="Branch; default the current one")]


class PushResult(Shape):
    remote: str
    url: str
    branch: str
    commit: str
    output: str = Field(description="Output of git and the server")


async def _push_reason(
    context: CodeContext, repository: str = ".", remote: str = "origin", branch: str | None = None, force: bool = False
) -> str:
    found = await Repository.open(context, repository)
    name = branch or plain(await found.read("branch", "--show-current")).strip()
    forced = ", replacing the remote branch" if force else ""
    return f"git_push sends branch {name!r} to {_mask(_push_url(found, remote))}{forced}"


@builtin(
    title="Git push",
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_push_reason,
    destructive=True,
    open_world=True,
    requires=("sandbox", "network", "git"),
    path_arguments=(),
)
async def git_push(
    context: CodeContext,
    repository: Where = ".",
    remote: Remote = "origin",
    branch: PushedBranch = None,
    force: Annotated[bool, Field(description="Replace the remote branch, unless others have pushed to it")] = False,
) -> tuple[PushResult, str]:
    """Push a branch of a git repository to a remote, after a person has agreed to the URL.

    Only over http and https, through the gateway's guarded network; credentials of the machine are not used."""
    found = await Repository.open(context, repository)
    url = _push_url(found, remote)
    name = branch or plain(await found.read("branch", "--show-current")).strip()
    if not name:
        raise Invalid("no branch is checked out; give 'branch'", code="INVALID_REVISION")
    context.require_network()
    spec = f"refs/heads/{revision(name)}:refs/heads/{name}"
    online = dataclasses.replace(found, online=True)
    options = ["--force-with-lease"] if force else []
    output = await online.change("push", "--porcelain", "--no-verify", "--no-signed", *options, url, spec)
    commit = (await found.read("rev-parse", f"refs/heads/{name}")).strip()
    result = PushResult(remote=remote, url=_mask(url), branch=name, commit=commit, output=_mask(plain(output)))
    return result, f"{name} is at {commit[:12]} on {result.url}\n{result.output}"


def _push_url(repository: Repository, remote: str) -> str:
    """Return the URL of a remote, as the person is asked about it. Refuse settings that could rewrite it afterwards."""
    url = repository.value(f"remote.{remote}.pushurl") or repository.value(f"remote.{remote}.url")
    if not url:
        raise NotFound(f"the repository has no remote {remote!r}", code="UNKNOWN_REMOTE")
    if not re.match(r"https?://", url):
        raise Invalid(f"{_mask(url)!r} cannot be reached from the sandbox; use http or https", code="INVALID_URL")
    rewriting = [key for key, _ in repository.config if _URL_REWRITE.fullmatch(key)]
    if rewriting:
        message = f"the repository rewrites URLs with {rewriting[0]!r}, so nobody can approve the URL; remove it"
        raise Invalid(message, code="INVALID_URL")
    return url


def _mask(text: str) -> str:
    return _CREDENTIALS.sub("//…@", text)
