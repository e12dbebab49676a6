"""Parsers for the machine-readable output of git."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from gateway.sources.builtin.code.git import path_of, plain
from gateway.sources.builtin.decorator import Shape

Change = Literal["added", "modified", "deleted", "renamed", "copied", "type changed", "untracked", "conflict"]

_CHANGES: dict[str, Change] = {
    "A": "added",
    "M": "modified",
    "D": "deleted",
    "R": "renamed",
    "C": "copied",
    "T": "type changed",
    "U": "conflict",
}

# The log format that `parse_commits` reads; with -z each commit ends in another NUL.
COMMIT_FORMAT = "%H%x00%P%x00%an%x00%ae%x00%aI%x00%D%x00%s%x00%b"

# The format of for-each-ref that `parse_branches` reads.
BRANCH_FORMAT = (
    "%(refname)%00%(HEAD)%00%(objectname)%00%(upstream:short)%00%(committerdate:iso-strict)%00%(contents:subject)"
)


class FileState(Shape):
    path: str
    staged: Change | None = Field(default=None, description="How the index differs from the last commit")
    unstaged: Change | None = Field(default=None, description="How the file differs from the index")
    was: str | None = Field(default=None, description="Old path of a renamed file")


class GitStatus(Shape):
    branch: str | None = Field(default=None, description="Missing when no branch is checked out")
    commit: str | None = Field(default=None, description="Missing before the first commit")
    upstream: str | None = None
    ahead: int | None = None
    behind: int | None = None
    clean: bool
    files: list[FileState]
    truncated: bool = Field(description="True if not all files are listed")


class FileChange(Shape):
    path: str
    status: Change
    was: str | None = Field(default=None, description="Old path of a renamed file")
    added: int | None = Field(default=None, description="Added lines; missing for binary files")
    deleted: int | None = None


class Commit(Shape):
    hash: str
    parents: list[str]
    author: str
    email: str
    date: str
    refs: list[str]
    subject: str
    body: str


class Branch(Shape):
    name: str
    current: bool
    remote: bool
    commit: str
    upstream: str | None = None
    date: str
    subject: str


def parse_status(text: str, limit: int) -> GitStatus:
    """Parse the output of `git status --porcelain=v2 --branch -z`."""
    headers: dict[str, str] = {}
    files: list[FileState] = []
    fields = iter(text.split("\0"))
    for entry in fields:
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            name, _, value = rest.partition(" ")
            headers[name] = value
        elif kind == "1":
            files.append(_state(rest.split(" ", 7)[-1], rest[:2]))
        elif kind == "2":
            files.append(_state(rest.split(" ", 8)[-1], rest[:2], was=next(fields)))
        elif kind == "u":
            files.append(FileState(path=path_of(rest.split(" ", 9)[-1]), staged="conflict", unstaged="conflict"))
        elif kind == "?":
            files.append(FileState(path=path_of(rest), unstaged="untracked"))
    ahead, behind = (abs(int(part)) for part in headers["branch.ab"].split()) if "branch.ab" in headers else (None,) * 2
    head, oid = headers.get("branch.head"), headers.get("branch.oid")
    upstream = headers.get("branch.upstream")
    return GitStatus(
        branch=None if head in (None, "(detached)") else plain(head or ""),
        commit=None if oid == "(initial)" else oid,
        upstream=None if upstream is None else plain(upstream),
        ahead=ahead,
        behind=behind,
        clean=not files,
        files=files[:limit],
        truncated=len(files) > limit,
    )


def _state(path: str, letters: str, was: str | None = None) -> FileState:
    return FileState(
        path=path_of(path),
        staged=_CHANGES.get(letters[0]),
        unstaged=_CHANGES.get(letters[1]),
        was=None if was is None else path_of(was),
    )


def parse_changes(text: str) -> dict[tuple[str, str], FileChange]:
    """Parse the output of `git diff --raw --numstat -z`: the raw entries, then one with numbers for each. The keys are
    the old and the new path as git prints them."""
    parsed: dict[tuple[str, str], FileChange] = {}
    fields = iter(text.split("\0"))
    for entry in fields:
        if entry.startswith(":"):
            letter = entry.rsplit(" ", 1)[-1][:1]
            was = next(fields) if letter in "RC" else None
            path = next(fields)
            state, old_path = _CHANGES.get(letter, "modified"), None if was is None else path_of(was)
            parsed[was or path, path] = FileChange(path=path_of(path), status=state, was=old_path)
        elif entry.count("\t") >= 2:
            added, deleted, path = entry.split("\t", 2)
            key = (path, path) if path else (next(fields), next(fields))  # both paths of a renamed file follow
            if key in parsed and added != "-":
                parsed[key].added, parsed[key].deleted = int(added), int(deleted)
    return parsed


def parse_commits(text: str) -> Iterator[Commit]:
    """Parse the output of `git log -z --format=tformat:` with `COMMIT_FORMAT`."""
    fields = text.split("\0")
    for start in range(0, len(fields) - 8, 8):
        name, parents, author, email, date, refs, subject, body = map(plain, fields[start : start + 8])
        yield Commit(
            hash=name,
            parents=parents.split(),
            author=author,
            email=email,
            date=date,
            refs=[ref for ref in refs.split(", ") if ref],
            subject=subject,
            body=body.strip("\n"),
        )


def parse_branches(text: str) -> Iterator[Branch]:
    """Parse the output of `git for-each-ref` with `BRANCH_FORMAT`."""
    for line in text.split("\n"):
        if line.count("\0") != 5:
            continue
        name, current, commit, upstream, date, subject = map(plain, line.split("\0"))
        yield Branch(
            name=name.removeprefix("refs/heads/").removeprefix("refs/remotes/"),
            current=current == "*",
            remote=name.startswith("refs/remotes/"),
            commit=commit,
            upstream=upstream or None,
            date=date,
            subject=subject,
        )
