"""git, changing: staging, commits, branches, and the files they bring back."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from gateway.errors import Invalid, NotFound
from gateway.sources.builtin.code.call_context import CodeContext
from gateway.sources.builtin.code.git import Paths, Repository, Revision, Where, pathspecs, plain, revision
from gateway.sources.builtin.code.git_output import BRANCH, Branch, Commit, FileChange, FileState, branches
from gateway.sources.builtin.code.git_read import committed, state_of
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission

_BRANCHES = 1000
_STASHES = 200

Filters = Annotated[
    list[str] | None, Field(description="Filters the repository names, such as lfs, that were not run on its files")
]


class Staged(Shape):
    staged: list[FileState]
    unstaged: int = Field(description="How many files have changes that are not staged")
    truncated: bool
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
    unstage: Annotated[bool, Field(description="Take them out of what is staged instead")] = False,
) -> tuple[Staged, str]:
    """Stage changed, new and deleted files of a git repository for the next commit, or take them out again.

    Answers with all that is staged then. Files that .gitignore names are refused."""
    found = await Repository.open(context, repository, changing=True)
    command = ("reset", "--quiet") if unstage else ("add", "--all")
    await found.change(*command, *pathspecs(paths))
    now = await state_of(found)
    staged = [file for file in now.files if file.staged and file.staged != "conflict"]
    answer = Staged(
        staged=staged,
        unstaged=sum(file.unstaged is not None for file in now.files),
        truncated=now.truncated,
        filters_not_run=found.filters or None,
    )
    lines = [f"staged: {file.staged}: {file.path}" for file in staged] or ["Nothing is staged."]
    return answer, "\n".join(lines)


class Author(Shape):
    name: str = Field(min_length=1, max_length=200)
    email: str = Field(min_length=1, max_length=200)


class Committed(Shape):
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
    all_: Annotated[bool, Field(description="Stage every changed and deleted file git knows first")] = False,
    amend: Annotated[bool, Field(description="Replace the last commit instead of adding one")] = False,
    author: Annotated[Author | None, Field(description="Whose commit it is; else as the repository is set")] = None,
) -> tuple[Committed, str]:
    """Record what is staged in a git repository as a commit. Hooks and signing are not run.

    Stage files with git_add first, or say all. The author is the one given, else the gateway's GIT_AUTHOR_NAME and
    GIT_AUTHOR_EMAIL, else user.name and user.email of the repository."""
    found = await Repository.open(context, repository, changing=True)
    signed = dataclasses.replace(found, env=_identity(found, author))
    options = [*(["--all"] if all_ else []), *(["--amend", "--reset-author"] if amend else [])]
    unsigned = ("--no-verify", "--no-gpg-sign", "--no-edit", "--quiet")
    await signed.change("commit", *unsigned, *options, "--file=-", stdin=message.encode())
    commit, done = await committed(found, "HEAD")
    branch = plain(await found.read("branch", "--show-current")).strip()
    answer = Committed(commit=commit, branch=branch or None, files=done.files, filters_not_run=found.filters or None)
    return answer, f"{commit.hash[:12]} on {branch or 'no branch'}: {commit.subject} ({len(done.files)} files)"


def _identity(repository: Repository, author: Author | None, fallback: Author | None = None) -> Mapping[str, str]:
    """Who commits; refused when nobody says."""
    name = author.name if author else os.environ.get("GIT_AUTHOR_NAME") or repository.value("user.name")
    email = author.email if author else os.environ.get("GIT_AUTHOR_EMAIL") or repository.value("user.email")
    if fallback is not None:
        name, email = name or fallback.name, email or fallback.email
    if not name or not email:
        message = "nobody says whose commit it is; give 'author', or set GIT_AUTHOR_NAME and GIT_AUTHOR_EMAIL"
        raise Invalid(f"{message} for the gateway", code="IDENTITY_MISSING")
    if any(character in text for text in (name, email) for character in "\0\n<>"):
        raise Invalid("an author's name and email have no line breaks and no < or >", code="INVALID_ARGUMENTS")
    return {
        f"GIT_{who}_{what}": text
        for who in ("AUTHOR", "COMMITTER")
        for what, text in (("NAME", name), ("EMAIL", email))
    }


class Branches(Shape):
    current: str | None = None
    branches: list[Branch]
    truncated: bool


Name = Annotated[str, Field(min_length=1, max_length=200, description="Name of a branch")]


async def _branch_reason(
    _: CodeContext, delete: str | None = None, force: bool = False, **_other: object
) -> str | None:
    return f"git_branch deletes {delete!r} although its commits may be nowhere else" if delete and force else None


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
    create: Annotated[Name | None, Field(description="Make a branch of this name; git_checkout goes to it")] = None,
    at: Annotated[Revision | None, Field(description="Where the new branch begins; else at the last commit")] = None,
    delete: Annotated[Name | None, Field(description="Delete this branch, if its commits are merged")] = None,
    rename: Annotated[Name | None, Field(description="Rename this branch")] = None,
    to: Annotated[Name | None, Field(description="The new name, with rename")] = None,
    force: Annotated[bool, Field(description="Delete a branch also when that loses commits; asks first")] = False,
) -> tuple[Branches, str]:
    """List the branches of a git repository, after creating, deleting or renaming one if asked to.

    One of create, delete and rename per call; without any it only lists."""
    if sum(each is not None for each in (create, delete, rename)) > 1:
        raise Invalid("one of create, delete and rename at a time")
    if (rename is None) != (to is None) or (at is not None and create is None):
        raise Invalid("'rename' and 'to' go together, and 'at' with 'create'")
    found = await Repository.open(context, repository)
    if create is not None:
        await found.change("branch", "--no-track", revision(create), *([revision(at)] if at else []))
    elif delete is not None:
        await found.change("branch", "-D" if force else "-d", revision(delete))
    elif rename is not None and to is not None:
        await found.change("branch", "-m", revision(rename), revision(to))
    listed = await _branches(found)
    lines = [
        f"{'*' if each.current else ' '} {each.name} {each.commit[:12]} {each.subject}" for each in listed.branches
    ]
    return listed, "\n".join(lines) or "There are no branches yet."


async def _branches(repository: Repository) -> Branches:
    text = await repository.read(
        "for-each-ref", f"--format={BRANCH}", f"--count={_BRANCHES + 1}", "refs/heads", "refs/remotes"
    )
    listed = list(branches(text))
    current = next((each.name for each in listed if each.current), None)
    return Branches(current=current, branches=listed[:_BRANCHES], truncated=len(listed) > _BRANCHES)


class CheckedOut(Shape):
    branch: str | None = Field(default=None, description="Missing when no branch is checked out")
    commit: str | None = None
    files: list[FileState] = Field(description="What differs from the commit afterwards")
    filters_not_run: Filters = None


@builtin(
    title="Git checkout",
    category="development",
    permission=Permission.READ_WRITE,
    access=Access.WRITE,
    destructive=True,
    requires=("sandbox", "git"),
    path_arguments=(),
)
async def git_checkout(
    context: CodeContext,
    repository: Where = ".",
    revision_: Annotated[
        Revision | None, Field(description="Branch or revision to go to, or to take paths from")
    ] = None,
    create: Annotated[Name | None, Field(description="Make a branch of this name there, and go to it")] = None,
    paths: Annotated[
        list[str],
        Field(max_length=1000, description="Bring back only these files, as they are at the revision or staged"),
    ] = [],  # noqa: B006
) -> tuple[CheckedOut, str]:
    """Go to another branch or revision of a git repository, or bring back single files as they were.

    Changes that going there would overwrite are refused; commit or stash them first. Bringing back files overwrites
    them, and workspace_restore has them as they were before."""
    if create is not None and paths:
        raise Invalid("'create' goes without 'paths'")
    if revision_ is None and create is None and not paths:
        raise Invalid("say where to go ('revision', 'create') or what to bring back ('paths')")
    found = await Repository.open(context, repository, changing=True)
    where = [revision(revision_)] if revision_ else []
    made = ["-b", revision(create)] if create else []
    what = pathspecs(paths) if paths else ["--"]
    track = ["--no-track"] if create else [] if paths else ["--no-guess"]
    await found.change("checkout", "--quiet", "--no-recurse-submodules", *track, *made, *where, *what)
    now = await state_of(found, untracked=False)
    answer = CheckedOut(branch=now.branch, commit=now.commit, files=now.files, filters_not_run=found.filters or None)
    return answer, f"On {now.branch or 'no branch'} at {(now.commit or '')[:12]}, {len(now.files)} files changed"


Action = Literal["list", "push", "apply", "pop", "drop"]


class Stash(Shape):
    name: str
    commit: str
    message: str


class Stashes(Shape):
    stashes: list[Stash] = Field(description="Newest first")
    files: list[FileState] = Field(description="What is changed in the files now")
    filters_not_run: Filters = None


async def _stash_reason(_: CodeContext, action: str = "list", stash: int = 0, **_other: object) -> str | None:
    return f"git_stash throws away stash@{{{stash}}}" if action == "drop" else None


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
    action: Annotated[Action, Field(description="push puts changes away, pop brings them back")] = "list",
    repository: Where = ".",
    stash: Annotated[int, Field(ge=0, le=10_000, description="Which one, the newest being 0")] = 0,
    message: Annotated[str | None, Field(max_length=1000, description="What to call it, with push")] = None,
    untracked: Annotated[bool, Field(description="With push: put away files git does not know too")] = False,
    paths: Paths = [],  # noqa: B006
) -> tuple[Stashes, str]:
    """Put the uncommitted changes of a git repository away, bring them back, or list what was put away.

    git_show with revision stash@{0} shows what is in one."""
    found = await Repository.open(context, repository, changing=True)
    someone = Author(name="Toolgate", email="toolgate@localhost")
    signed = dataclasses.replace(found, env=_identity(found, None, fallback=someone))
    if action == "push":
        options = [*(["--include-untracked"] if untracked else []), *(["-m", message] if message else [])]
        await signed.change("stash", "push", "--quiet", *options, *(pathspecs(paths) if paths else []))
    elif action != "list":
        await signed.change("stash", action, "--quiet", f"stash@{{{stash}}}")
    text = await found.read("stash", "list", "-z", "--format=tformat:%gd%x00%H%x00%gs", f"--max-count={_STASHES}")
    fields = list(map(plain, text.split("\0")))
    stashes = [
        Stash(name=name, commit=commit, message=said)
        for name, commit, said in zip(fields[0::3], fields[1::3], fields[2::3], strict=False)
    ]
    now = await state_of(found, untracked=False)
    answer = Stashes(stashes=stashes, files=now.files, filters_not_run=found.filters or None)
    return answer, "\n".join(f"{each.name} {each.message}" for each in stashes) or "Nothing is put away."


_SECRET = re.compile(r"//[^/@\s]*@")
_REWRITTEN = re.compile(r"url\..*\.(insteadof|pushinsteadof)", re.IGNORECASE | re.DOTALL)

Remote = Annotated[str, Field(min_length=1, max_length=200, description="Name of a remote")]
Which = Annotated[str | None, Field(max_length=200, description="Which branch; else the one checked out")]


class Pushed(Shape):
    remote: str
    url: str
    branch: str
    commit: str
    said: str = Field(description="What git and the server said")


async def _reason(
    context: CodeContext, repository: str = ".", remote: str = "origin", branch: str | None = None, force: bool = False
) -> str:
    found = await Repository.open(context, repository)
    name = branch or plain(await found.read("branch", "--show-current")).strip()
    forced = ", replacing what is there" if force else ""
    return f"git_push sends branch {name!r} to {_masked(_url(found, remote))}{forced}"


@builtin(
    title="Git push",
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_reason,
    destructive=True,
    open_world=True,
    requires=("sandbox", "network", "git"),
    path_arguments=(),
)
async def git_push(
    context: CodeContext,
    repository: Where = ".",
    remote: Remote = "origin",
    branch: Which = None,
    force: Annotated[bool, Field(description="Replace what is there, if nobody else has pushed meanwhile")] = False,
) -> tuple[Pushed, str]:
    """Push a branch of a git repository to a remote, after a person has agreed to where it goes.

    Only over http and https, through the gateway's guarded network; no credentials of the machine are used."""
    found = await Repository.open(context, repository)
    url = _url(found, remote)
    name = branch or plain(await found.read("branch", "--show-current")).strip()
    if not name:
        raise Invalid("no branch is checked out; say which one to push", code="INVALID_REVISION")
    context.require_network()
    spec = f"refs/heads/{revision(name)}:refs/heads/{name}"
    online = dataclasses.replace(found, online=True)
    options = ["--force-with-lease"] if force else []
    said = await online.change("push", "--porcelain", "--no-verify", "--no-signed", *options, url, spec)
    commit = (await found.read("rev-parse", f"refs/heads/{name}")).strip()
    answer = Pushed(remote=remote, url=_masked(url), branch=name, commit=commit, said=_masked(plain(said)))
    return answer, f"{name} is at {commit[:12]} on {answer.url}\n{answer.said}"


def _url(repository: Repository, remote: str) -> str:
    """Where a remote is, as the person who agrees is told: nothing may rewrite it afterwards."""
    url = repository.value(f"remote.{remote}.pushurl") or repository.value(f"remote.{remote}.url")
    if not url:
        raise NotFound(f"the repository has no remote {remote!r}", code="UNKNOWN_REMOTE")
    if not re.match(r"https?://", url):
        raise Invalid(
            f"{_masked(url)!r} cannot be reached from the sandbox: only http and https can", code="INVALID_URL"
        )
    rewriting = [key for key, _ in repository.config if _REWRITTEN.fullmatch(key)]
    if rewriting:
        message = (
            f"the repository rewrites addresses with {rewriting[0]!r}, so that nobody could agree to one; remove it"
        )
        raise Invalid(message, code="INVALID_URL")
    return url


def _masked(text: str) -> str:
    return _SECRET.sub("//…@", text)
