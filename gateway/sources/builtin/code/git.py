"""git on a repository that strangers may have written: in the sandbox, and none of its programs run.

A repository's settings can name programs for nearly every step: hooks, monitors, filters, pagers, editors, signers,
credential helpers. All of them are set to nothing here, on top of what the sandbox keeps them from.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gateway.errors import Forbidden, GatewayError, Invalid, NotFound, ToolFailed
from gateway.sandbox.network_init import PORT
from gateway.sandbox.run import FinishedProgram
from gateway.sources.builtin.code.call_context import CodeContext, in_thread
from gateway.workspace import Parts, parse, show_path

if TYPE_CHECKING:
    from gateway.sources.builtin.code.call_context import CodeContext


_LINE = 4096


def _main_repository(context: CodeContext, where: Parts) -> Path | None:
    """The repository that a folder is a worktree of, where the repository says so too: who can write to the folder
    could else have any repository of the machine read. Blocks, for a thread."""
    nearest = next((parts for parts in _upwards(where) if context.find(parts) is not None), None)
    if not context.attached or nearest != (".git",):
        return None
    try:
        with context.root.open(nearest) as file:
            led = file.read(_LINE).removeprefix(b"gitdir: ").strip()
        own = Path(os.path.realpath(os.fsdecode(led)))
        if not led.startswith(b"/") or own.parent.name != "worktrees":
            return None
        back = os.path.realpath(_line(own / "gitdir"))
    except (GatewayError, OSError, ValueError):
        return None
    return own.parent.parent if back == os.path.realpath(context.folder / ".git") else None


def _upwards(where: Parts) -> list[Parts]:
    return [(*where[:depth], ".git") for depth in range(len(where), -1, -1)]


def _line(path: Path) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} is no file")
        return os.fsdecode(file.read(_LINE).strip())


OUTPUT_LIMIT = 4 * 1024 * 1024
_TOLD = 2000
_KEYS = 2000
_INDEX = 32 * 1024 * 1024
_WITHIN, _DEPTH = 50, 2
_REPOSITORY, _TAB = "160000 ", "\t"
_LISTED = ("--list", "--includes", "-z")

Where = Annotated[str, Field(description="The repository's directory, relative to the workspace root")]
Revision = Annotated[
    str, Field(min_length=1, max_length=300, description="Commit, branch, tag or any revision git understands")
]
Paths = Annotated[list[str], Field(max_length=1000, description="Only these files or directories of the repository")]

_HASH = re.compile("[0-9a-f]{40,64}")
_REVISION = re.compile(r"[^-\s\x00-\x1f\x7f][^\s\x00-\x1f\x7f]*")

# The only way out of a sandbox that has one.
_DOOR = f"http://127.0.0.1:{PORT}"

# What holds whatever the repository says.
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
    "http.proxy": _DOOR,
    "safe.directory": "*",
    "safe.bareRepository": "explicit",
}

# Keys with a name of the repository's own choosing in them, and what they are set to.
_BY_NAME = (
    (re.compile(r"filter\..+\.(clean|smudge|process)", re.IGNORECASE | re.DOTALL), ""),
    (re.compile(r"filter\..+\.required", re.IGNORECASE | re.DOTALL), "false"),
    (re.compile(r"merge\..+\.driver", re.IGNORECASE | re.DOTALL), "git merge-file %A %O %B"),  # as without one
    (re.compile(r"gpg\..+\.(program|defaultkeycommand)", re.IGNORECASE | re.DOTALL), "false"),
    (re.compile(r"credential\..+\.helper", re.IGNORECASE | re.DOTALL), ""),
    (re.compile(r"trailer\..+\.(command|cmd)", re.IGNORECASE | re.DOTALL), "true"),
    (re.compile(r"pager\..+", re.IGNORECASE | re.DOTALL), "false"),
    (re.compile(r"protocol\..+\.allow", re.IGNORECASE | re.DOTALL), "never"),
    (re.compile(r"http\..+\.sslverify", re.IGNORECASE | re.DOTALL), "true"),
    (re.compile(r"(http\..+|remote\..+)\.proxy", re.IGNORECASE | re.DOTALL), _DOOR),
    (re.compile(r"remote\..+\.(promisor|partialclonefilter)", re.IGNORECASE | re.DOTALL), ""),
    (re.compile(r"submodule\..+\.update", re.IGNORECASE | re.DOTALL), "none"),
)

_ELSEWHERE = re.compile(r"not a git repository: (.+)")

_FILTER = re.compile(r"filter\.(.+)\.(?:clean|smudge|process)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True)
class Repository:
    """One repository in the workspace. `config` has its own settings, several values for a key possible; `within` are
    the names of those that repositories inside of it have. `elsewhere` is where it lies when the workspace is only a
    worktree of it; it is then read, and never changed."""

    context: CodeContext
    directory: str
    config: Sequence[tuple[str, str]]
    within: Sequence[str] = ()
    elsewhere: Path | None = None
    online: bool = False
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    async def open(cls, context: CodeContext, where: str, *, changing: bool = False) -> Repository:
        """The repository in that directory, or in the nearest above it in the workspace. For `changing` it, git also
        looks into the repositories within, where their settings count too."""
        elsewhere = await in_thread(_main_repository, context, parse(where)) if context.attached else None
        found = cls(context, context.directory(where), (), elsewhere=elsewhere)
        answer = await found._git(("config", *_LISTED), writable=False)
        if answer.exit.code != 0:
            raise _failure("config", answer)
        pairs = [entry.partition("\n") for entry in decoded(answer.stdout).split("\0") if entry]
        if len(pairs) > _KEYS:
            raise Invalid(f"the repository has more than {_KEYS} settings", code="GIT_FAILED")
        found = replace(found, config=[(key, value) for key, _, value in pairs])
        return replace(found, within=await found._settings_within()) if changing else found

    async def _settings_within(self, path: str = ".", depth: int = 0) -> list[str]:
        """Names of settings of the repositories within this one, and within those."""
        index = await self._git(("-C", path, "ls-files", "--stage", "-z"), writable=False, limit=_INDEX)
        if index.exit.code != 0:  # it is no repository after all
            return []
        entries = [entry for entry in decoded(index.stdout).split("\0") if entry.startswith(_REPOSITORY)]
        if index.stdout_truncated or len(entries) > _WITHIN:
            message = f"the repository has too many files to look for others in it, or more than {_WITHIN} of those"
            raise Invalid(message, code="GIT_FAILED")
        keys = []
        for inner in (f"{path}/{entry.partition(_TAB)[2]}" for entry in entries):
            answer = await self._git(("-C", inner, "config", "--name-only", *_LISTED), writable=False)
            keys += [key for key in decoded(answer.stdout).split("\0")[:_KEYS] if key]
            if depth < _DEPTH:
                keys += await self._settings_within(inner, depth + 1)
        return keys

    async def read(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """What a command prints that changes nothing, and could not: the files are read-only for it."""
        return await self._text(arguments, codes, writable=False)

    async def change(self, *arguments: str, stdin: bytes = b"", codes: Sequence[int] = (0,)) -> str:
        """The same for a command that changes the repository or the files."""
        if self.elsewhere is not None:
            message = f"the workspace is a worktree of {self.elsewhere}, which lies outside of it and is only read"
            raise Forbidden(f"{message}; run git {arguments[0]} yourself, or attach the folder it is in")
        return await self._text(arguments, codes, writable=True, stdin=stdin)

    async def top(self) -> Parts:
        """The directory of the workspace in which the repository's files lie."""
        top = (await self.read("rev-parse", "--show-toplevel")).rstrip("\n")
        for base in (self.context.workspace_path, str(self.context.folder.resolve())):
            if f"{top}/".startswith(f"{base}/"):
                return parse(top.removeprefix(base).lstrip("/") or ".")
        raise Invalid("the files of the repository lie outside of the workspace", code="GIT_FAILED")

    async def commit(self, text: str) -> str:
        """The hash of the commit that a revision names. A file or directory of one, which would be shown without the
        path that rules speak of, is refused."""
        answer = await self.read("rev-parse", "--verify", "--quiet", f"{revision(text)}^{{commit}}", codes=(0, 1, 128))
        if not _HASH.fullmatch(answer.strip()):
            message = f"{text!r} names no commit; files that rules keep from being read are here, so name a commit"
            raise Invalid(message, code="INVALID_REVISION")
        return answer.strip()

    def value(self, key: str) -> str | None:
        """The last value of a setting, which is the one that counts."""
        return next((value for name, value in reversed(self.config) if name.lower() == key.lower()), None)

    @property
    def filters(self) -> list[str]:
        """Filters that the repository wants and that were not run: its files are stored as they are."""
        names = [match[1] for key, _ in self.config if (match := _FILTER.fullmatch(key))]
        return [show_path((name,)) for name in dict.fromkeys(names)]

    async def _text(self, arguments: Sequence[str], codes: Sequence[int], **how: object) -> str:
        answer = await self._git(arguments, **how)  # type: ignore[arg-type]
        if answer.exit.code not in codes or answer.exit.killed is not None:
            raise _failure(arguments[0], answer)
        if answer.stdout_truncated:
            message = f"git {arguments[0]} says more than {OUTPUT_LIMIT // 2**20} MiB; name paths, or a smaller range"
            raise ToolFailed(message, code="OUTPUT_TOO_LARGE")
        return decoded(answer.stdout)

    async def _git(
        self, arguments: Sequence[str], *, writable: bool, stdin: bytes = b"", limit: int = OUTPUT_LIMIT
    ) -> FinishedProgram:
        program = self.context.program(
            *(self.context.host.programs["git"], "--no-pager", *arguments),
            cwd=self.directory,
            env={**_ENVIRONMENT, **self._settings(), **self._ceiling(), **self.env},
            writable=writable,
            readable=() if self.elsewhere is None else (self.elsewhere,),
            online=self.online,
            sees_hidden=True,
        )
        return await self.context.run(program, stdin=stdin, output_limit=limit, quiet=not self.online)

    def _ceiling(self) -> dict[str, str]:
        """Nothing above the workspace is looked for a repository."""
        return {"GIT_CEILING_DIRECTORIES": str(Path(self.context.workspace_path).parent)}

    def _settings(self) -> dict[str, str]:
        pairs = [*SETTINGS.items(), *self._overridden()]
        if self.online:
            pairs += [("protocol.https.allow", "always"), ("protocol.http.allow", "always")]
        env = {"GIT_CONFIG_COUNT": str(len(pairs))}
        for number, (key, value) in enumerate(pairs):
            env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return env

    def _overridden(self) -> Iterator[tuple[str, str]]:
        for key in dict.fromkeys((*(key for key, _ in self.config), *self.within)):
            for pattern, value in _BY_NAME:
                if pattern.fullmatch(key):
                    yield key, value


_ENVIRONMENT = {
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
    """A revision as git may see it: never taken for an option."""
    if not _REVISION.fullmatch(text):
        raise Invalid(f"{text!r} is no revision; name a commit, branch or tag", code="INVALID_REVISION")
    return text


def pathspecs(paths: Sequence[str]) -> list[str]:
    """Paths after the `--` that keeps them from being anything else, relative to the repository, and no patterns.
    Said of each of them: said to git, it would hold for the patterns it uses itself, too."""
    return ["--", *(f":(literal){'/'.join(parse(path)) or '.'}" for path in paths)]


def without(paths: Sequence[str]) -> list[str]:
    """Further pathspecs that leave out these files, which git named itself."""
    return [f":(top,literal,exclude){path}" for path in paths]


def decoded(content: bytes) -> str:
    """What git prints, which knows no encoding; `path_of` makes a path of it one can show."""
    return content.decode("utf-8", "surrogateescape")


def plain(text: str) -> str:
    """Text in which what was no UTF-8 is marked as such."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def path_of(text: str) -> str:
    return show_path((text,))


def _failure(command: str, answer: FinishedProgram) -> GatewayError:
    said = plain(decoded(answer.stderr or answer.stdout)).strip()[-_TOLD:]
    if answer.exit.killed is not None:
        return ToolFailed(f"git {command} went over its limit of {answer.exit.killed}", code="LIMIT_EXCEEDED")
    if (led := _ELSEWHERE.search(said)) is not None:
        message = f"the .git file here leads to {led[1]}, which no program in the sandbox can see; attach the folder"
        return NotFound(f"{message} in which the repository itself is", code="NOT_A_REPOSITORY")
    if "not a git repository" in said:
        message = "there is no git repository here; name its directory, or make one with 'git init' (run_command)"
        return NotFound(message, code="NOT_A_REPOSITORY")
    return ToolFailed(f"git {command}: {said or 'failed'}", code="GIT_FAILED", exit_code=answer.exit.code)
