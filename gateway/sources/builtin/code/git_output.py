"""What git prints for programs to read, as values."""

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

# A commit as `commits` reads it; the command has -z, which ends each with another NUL.
COMMIT = "%H%x00%P%x00%an%x00%ae%x00%aI%x00%D%x00%s%x00%b"

BRANCH = "%(refname)%00%(HEAD)%00%(objectname)%00%(upstream:short)%00%(committerdate:iso-strict)%00%(contents:subject)"


class FileState(Shape):
    path: str
    staged: Change | None = Field(default=None, description="How the index differs from the last commit")
    unstaged: Change | None = Field(default=None, description="How the file differs from the index")
    was: str | None = Field(default=None, description="Where a renamed file was before")


class Status(Shape):
    branch: str | None = Field(default=None, description="Missing when no branch is checked out")
    commit: str | None = Field(default=None, description="Missing before the first commit")
    upstream: str | None = None
    ahead: int | None = None
    behind: int | None = None
    clean: bool
    files: list[FileState]
    truncated: bool = Field(description="Whether there are more files than are listed")


class FileChange(Shape):
    path: str
    status: Change
    was: str | None = Field(default=None, description="Where a renamed file was before")
    added: int | None = Field(default=None, description="Lines; missing for binary files")
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


def status(text: str, limit: int) -> Status:
    """From `git status --porcelain=v2 --branch -z`."""
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
    return Status(
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


def changes(text: str) -> dict[tuple[str, str], FileChange]:
    """From `git diff --raw --numstat -z`: the raw entries first, then as many with numbers. The keys are the old and
    the new path as git has them."""
    found: dict[tuple[str, str], FileChange] = {}
    fields = iter(text.split("\0"))
    for entry in fields:
        if entry.startswith(":"):
            letter = entry.rsplit(" ", 1)[-1][:1]
            was = next(fields) if letter in "RC" else None
            path = next(fields)
            known = None if was is None else path_of(was)
            state = _CHANGES.get(letter, "modified")
            found[was or path, path] = FileChange(path=path_of(path), status=state, was=known)
        elif entry.count("\t") >= 2:
            added, deleted, path = entry.split("\t", 2)
            key = (path, path) if path else (next(fields), next(fields))  # of a renamed file both paths follow
            if key in found and added != "-":
                found[key].added, found[key].deleted = int(added), int(deleted)
    return found


def commits(text: str) -> Iterator[Commit]:
    """From `git log -z --format=tformat:` with `COMMIT`."""
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


def branches(text: str) -> Iterator[Branch]:
    """From `git for-each-ref` with `BRANCH`."""
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
