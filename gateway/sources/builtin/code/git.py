"""git on an untrusted repository: in the sandbox, and without any program that the repository configures.

A repository's settings can name programs for nearly every step: hooks, monitors, filters, pagers, editors, signers,
credential helpers. All of them are overridden here, in addition to the sandbox.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gateway.errors import Forbidden, GatewayError, Invalid, NotFound, ToolFailed
from gateway.sandbox.network_init import PORT
from gateway.sandbox.run import FinishedProgram
from gateway.sources.builtin.code.call_context import SEARCH_PATH, CodeContext, in_thread
from gateway.sources.builtin.decorator import Shape
from gateway.value import Value
from gateway.workspace import Parts, parse, show_path

OUTPUT_LIMIT = 4 * 1024 * 1024
_ERROR_LENGTH = 2000
_LINE_LENGTH = 4096
_SETTINGS_LIMIT = 2000
_INDEX_BYTES = 32 * 1024 * 1024
_SUBMODULE_LIMIT, _SUBMODULE_DEPTH = 50, 2
_SUBMODULE_MODE, _TAB = "160000 ", "\t"
_LIST_SETTINGS = ("--list", "--includes", "-z")

Where = Annotated[str, Field(description="Directory of the repository, relative to the workspace root")]
Revision = Annotated[str, Field(min_length=1, max_length=300, description="Commit, branch, tag or other revision")]
Paths = Annotated[
    list[str], Field(max_length=1000, description="Only these files or directories, relative to the repository")
]

_HASH = re.compile("[0-9a-f]{40,64}")
_REVISION = re.compile(r"[^-\s\x00-\x1f\x7f][^\s\x00-\x1f\x7f]*")

# The proxy of a sandbox with network access.
_PROXY = f"http://127.0.0.1:{PORT}"

# Settings that override those of the repository.
SETTINGS: Mapping[str, str] = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.pager": "cat",
    "core.editor": "true",
    "sequence.editor": "true",
    "core.askPass": "",
    "core.sshCommand": "false",
    "core.attributesFile": "/dev/null",
    "core.alternateRefsCommand": "",
    "core.quotePath": "false",
    "credential.helper": "",
    "gpg.program": "false",
    "gpg.ssh.program": "false",
    "gpg.x509.program": "false",
    "gpg.ssh.defaultKeyCommand": "",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "push.gpgSign": "false",
    "log.showSignature": "false",
    "log.mailmap": "false",
    "commit.template": "",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "interactive.diffFilter": "cat",
    "submodule.recurse": "false",
    "push.recurseSubmodules": "no",
    "fetch.recurseSubmodules": "no",
    "status.submoduleSummary": "false",
    "diff.mnemonicPrefix": "false",
    "diff.noprefix": "false",
    "diff.orderFile": "/dev/null",
    "diff.renames": "true",
    "diff.relative": "false",
    "status.renames": "true",
    "color.ui": "false",
    "column.ui": "never",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "http.sslVerify": "true",
    "http.proxy": _PROXY,
    "safe.directory": "*",
    "safe.bareRepository": "explicit",
}

# Patterns of keys that contain a name chosen by the repository, and the value that overrides them.
_OVERRIDES = (
    (re.compile(r"filter\..+\.(clean|smudge|process)", re.IGNORECASE | re.DOTALL), ""),
    (re.compile(r"filter\..+\.required", re.IGNORECASE | re.DOTALL), "false"),
    (re.compile(r"merge\..+\.driver", re.IGNORECASE | re.DOTALL), "git merge-file %A %O %B"),  # as without a driver
    (re.compile(r"gpg\..+\.(program|defaultkeycommand)", re.IGNORECASE | re.DOTALL), "false"),
    (re.compile(r"credential\..+\.helper", re.IGNORECASE | re.DOTALL), ""),
    (re.compile(r"trailer\..+\.(command|cmd)", re.IGNORECASE | re.DOTALL), "true"),
    (re.compile(r"pager\..+", re.IGNORECASE | re.DOTALL), "false"),
    (re.compile(r"protocol\..+\.allow", re.IGNORECASE | re.DOTALL), "never"),
    (re.compile(r"http\..+\.sslverify", re.IGNORECASE | re.DOTALL), "true"),
    (re.compile(r"(http\..+|remote\..+)\.proxy", re.IGNORECASE | re.DOTALL), _PROXY),
    (re.compile(r"remote\..+\.(promisor|partialclonefilter)", re.IGNORECASE | re.DOTALL), ""),
    (re.compile(r"submodule\..+\.update", re.IGNORECASE | re.DOTALL), "none"),
)

_MISSING_GIT_DIRECTORY = re.compile(r"not a git repository: (.+)")

_FILTER = re.compile(r"filter\.(.+)\.(?:clean|smudge|process)", re.IGNORECASE | re.DOTALL)


class Repository(Value):
    """A repository in the workspace. `config` are its settings, in order; a key may occur several times.
    `submodule_keys` are the keys that its submodules set. `main_repository` is set when the workspace is a worktree of
    a repository outside of it, which is then read and never changed."""

    context: CodeContext
    directory: str
    config: Sequence[tuple[str, str]]
    submodule_keys: Sequence[str] = ()
    main_repository: Path | None = None
    online: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    async def open(cls, context: CodeContext, directory: str, *, changing: bool = False) -> Repository:
        """Open the repository of a directory, or of the nearest one above it in the workspace. A command that is
        `changing` the repository also reads the settings of its submodules."""
        main = await in_thread(_main_repository, context, parse(directory)) if context.attached else None
        opened = cls(context, context.directory(directory), (), main_repository=main)
        finished = await opened._git(("config", *_LIST_SETTINGS), writable=False)
        if finished.exit.code != 0:
            raise _failure("config", finished)
        pairs = [entry.partition("\n") for entry in decode(finished.stdout).split("\0") if entry]
        if len(pairs) > _SETTINGS_LIMIT:
            raise Invalid(f"the repository has more than {_SETTINGS_LIMIT} settings", code="GIT_FAILED")
        opened = replace(opened, config=[(key, value) for key, _, value in pairs])
        return replace(opened, submodule_keys=await opened._read_submodule_keys()) if changing else opened

    async def _read_submodule_keys(self, path: str = ".", depth: int = 0) -> list[str]:
        """Return the keys of the settings of submodules, and of their submodules."""
        index = await self._git(("-C", path, "ls-files", "--stage", "-z"), writable=False, limit=_INDEX_BYTES)
        if index.exit.code != 0:  # not a repository
            return []
        entries = [entry for entry in decode(index.stdout).split("\0") if entry.startswith(_SUBMODULE_MODE)]
        if index.stdout_truncated or len(entries) > _SUBMODULE_LIMIT:
            message = f"the repository has more than {_SUBMODULE_LIMIT} submodules, or too many files"
            raise Invalid(message, code="GIT_FAILED")
        keys = []
        for submodule in (f"{path}/{entry.partition(_TAB)[2]}" for entry in entries):
            finished = await self._git(("-C", submodule, "config", "--name-only", *_LIST_SETTINGS), writable=False)
            keys += [key for key in decode(finished.stdout).split("\0")[:_SETTINGS_LIMIT] if key]
            if depth < _SUBMODULE_DEPTH:
                keys += await self._read_submodule_keys(submodule, depth + 1)
        return keys

    async def read(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Run a command that only reads, with read-only files, and return its output."""
        return await self._text(arguments, codes, writable=False)

    async def change(self, *arguments: str, stdin: bytes = b"", codes: Sequence[int] = (0,)) -> str:
        """Run a command that changes the repository or the files, and return its output."""
        if self.main_repository is not None:
            message = f"the workspace is a worktree of {self.main_repository}, which is outside of it and only read"
            raise Forbidden(f"{message}; run git {arguments[0]} yourself, or attach the folder of that repository")
        return await self._text(arguments, codes, writable=True, stdin=stdin)

    async def top(self) -> Parts:
        """Return the top directory of the repository's files, relative to the workspace."""
        top = (await self.read("rev-parse", "--show-toplevel")).rstrip("\n")
        for base in (self.context.workspace_path, str(self.context.folder.resolve())):
            if f"{top}/".startswith(f"{base}/"):
                return parse(top.removeprefix(base).lstrip("/") or ".")
        raise Invalid("the files of the repository are outside of the workspace", code="GIT_FAILED")

    async def commit(self, text: str) -> str:
        """Return the hash of the commit that a revision names. Refuse a revision that names a file or directory, which
        would be shown without the path that rules apply to."""
        output = await self.read("rev-parse", "--verify", "--quiet", f"{revision(text)}^{{commit}}", codes=(0, 1, 128))
        if not _HASH.fullmatch(output.strip()):
            message = f"{text!r} is not a commit; rules hide files in this repository, so name a commit"
            raise Invalid(message, code="INVALID_REVISION")
        return output.strip()

    def value(self, key: str) -> str | None:
        """Return the last value of a setting, which is the effective one."""
        return next((value for name, value in reversed(self.config) if name.lower() == key.lower()), None)

    @property
    def depends_on_branch(self) -> bool:
        """True if another branch may bring other settings."""
        return any(key.lower().startswith("includeif.onbranch:") for key in (*dict(self.config), *self.submodule_keys))

    @property
    def filters(self) -> list[str]:
        """The filters that the repository configures; they are not run, and its files are stored as they are."""
        names = [match[1] for key, _ in self.config if (match := _FILTER.fullmatch(key))]
        return [show_path((name,)) for name in dict.fromkeys(names)]

    async def _text(self, arguments: Sequence[str], codes: Sequence[int], **options: object) -> str:
        finished = await self._git(arguments, **options)  # type: ignore[arg-type]
        if finished.exit.code not in codes or finished.exit.killed is not None:
            raise _failure(arguments[0], finished)
        if finished.stdout_truncated:
            message = f"git {arguments[0]} prints more than {OUTPUT_LIMIT // 2**20} MiB; name paths, or a smaller range"
            raise ToolFailed(message, code="OUTPUT_TOO_LARGE")
        return decode(finished.stdout)

    async def _git(
        self, arguments: Sequence[str], *, writable: bool, stdin: bytes = b"", limit: int = OUTPUT_LIMIT
    ) -> FinishedProgram:
        program = self.context.program(
            *(self.context.host.programs["git"], "--no-pager", *arguments),
            cwd=self.directory,
            env={**_ENVIRONMENT, **self._settings(), **self._ceiling(), **self.env},
            writable=writable,
            readable=() if self.main_repository is None else (self.main_repository,),
            online=self.online,
            sees_hidden=True,
        )
        return await self.context.run(program, stdin=stdin, output_limit=limit, quiet=not self.online)

    def _ceiling(self) -> dict[str, str]:
        # git must not search above the workspace.
        return {"GIT_CEILING_DIRECTORIES": str(Path(self.context.workspace_path).parent)}

    def _settings(self) -> dict[str, str]:
        pairs = [*SETTINGS.items(), *self._overrides()]
        if self.online:
            pairs += [("protocol.https.allow", "always"), ("protocol.http.allow", "always")]
        env = {"GIT_CONFIG_COUNT": str(len(pairs))}
        for number, (key, value) in enumerate(pairs):
            env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return env

    def _overrides(self) -> Iterator[tuple[str, str]]:
        for key in dict.fromkeys((*(key for key, _ in self.config), *self.submodule_keys)):
            for pattern, value in _OVERRIDES:
                if pattern.fullmatch(key):
                    yield key, value


_ENVIRONMENT = {
    "PATH": SEARCH_PATH,  # without the programs of the workspace
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "GIT_SSH_COMMAND": "false",
    "LC_ALL": "C.UTF-8",
}


def revision(text: str) -> str:
    """Check a revision, so that git cannot take it for an option."""
    if not _REVISION.fullmatch(text):
        raise Invalid(f"{text!r} is not a revision; name a commit, branch or tag", code="INVALID_REVISION")
    return text


def pathspecs(paths: Sequence[str]) -> list[str]:
    """Return arguments for paths relative to the repository: after `--`, and each marked as literal. The global option
    for literal paths would also apply to patterns that git uses itself."""
    return ["--", *(f":(literal){'/'.join(parse(path)) or '.'}" for path in paths)]


def exclude(paths: Sequence[str]) -> list[str]:
    """Return pathspecs that exclude files, by their paths as git prints them."""
    return [f":(top,literal,exclude){path}" for path in paths]


def decode(content: bytes) -> str:
    """Decode git's output, which has no defined encoding; `path_of` makes a path of it printable."""
    return content.decode("utf-8", "surrogateescape")


def plain(text: str) -> str:
    """Replace the bytes that are not UTF-8 by U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def path_of(text: str) -> str:
    return show_path((text,))


def _failure(command: str, finished: FinishedProgram) -> GatewayError:
    reason = plain(decode(finished.stderr or finished.stdout)).strip()[-_ERROR_LENGTH:]
    if finished.exit.killed is not None:
        return ToolFailed(f"git {command} exceeded its limit of {finished.exit.killed}", code="LIMIT_EXCEEDED")
    if (missing := _MISSING_GIT_DIRECTORY.search(reason)) is not None:
        message = f"the .git file here refers to {missing[1]}, which is not visible in the sandbox; attach the folder"
        return NotFound(f"{message} that contains the repository", code="NOT_A_REPOSITORY")
    if "not a git repository" in reason:
        message = "there is no git repository here; name its directory, or create one with 'git init' (run_command)"
        return NotFound(message, code="NOT_A_REPOSITORY")
    return ToolFailed(f"git {command}: {reason or 'failed'}", code="GIT_FAILED", exit_code=finished.exit.code)


def _main_repository(context: CodeContext, directory: Parts) -> Path | None:
    """Return the repository that an attached folder is a worktree of, if that repository lists the worktree. Without
    this check a file in the folder could make any repository of the machine readable. Blocks."""
    candidates = [(*directory[:depth], ".git") for depth in range(len(directory), -1, -1)]
    nearest = next((parts for parts in candidates if context.find(parts) is not None), None)
    if not context.attached or nearest != (".git",):
        return None
    try:
        with context.root.open(nearest) as file:
            target = file.read(_LINE_LENGTH).removeprefix(b"gitdir: ").strip()
        worktree = Path(os.path.realpath(os.fsdecode(target)))
        if not target.startswith(b"/") or worktree.parent.name != "worktrees":
            return None
        listed = os.path.realpath(_read_line(worktree / "gitdir"))
    except (GatewayError, OSError, ValueError):
        return None
    return worktree.parent.parent if listed == os.path.realpath(context.folder / ".git") else None


def _read_line(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} is not a regular file")
        return os.fsdecode(file.read(_LINE_LENGTH).strip())


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
