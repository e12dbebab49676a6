"""What a worker is asked to do, and what it must be started with for that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.calls import Progress, no_progress
from gateway.workspace.hidden import Hidden

Key = tuple[Path, Path, bool, bool]


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """One call of a toolset's function. `directory` holds the toolset's version and never changes; `env` has the
    values of the secrets it declares, `id` names the call. A call that is not `writable` cannot change the workspace,
    and one without `programs` can start none. `protected` are paths in the workspace that it cannot change, `hidden`
    those that it cannot see either. One of `single_use` has a worker of its own, of which nothing is left when the
    call has ended."""

    toolset: str
    directory: Path
    entrypoint: str
    arguments: Mapping[str, Any]
    workspace: Path
    chat: str
    id: str
    requirements: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    progress: Progress = no_progress
    writable: bool = True
    programs: bool = True
    protected: tuple[str, ...] = ()
    hidden: Hidden = ()
    single_use: bool = False


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is started with. One that was started with something else cannot serve the call: another secret,
    other packages, other files to hide, or a workspace that was made anew under the same name. One of `single_use` is
    ended after its first call: code that goes on in it could change files that have been looked at already."""

    toolset: str
    directory: Path
    workspace: Path
    packages: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    inode: int = 0
    writable: bool = True
    programs: bool = True
    protected: tuple[str, ...] = ()
    hidden: Hidden = ()
    single_use: bool = False

    @classmethod
    def of(cls, job: FunctionCall, packages: Path | None) -> WorkerSpec:
        inode = os.stat(job.workspace).st_ino  # noqa: PTH116 - on the way of every call
        rights = job.writable, job.programs, job.protected, job.hidden, job.single_use
        return cls(job.toolset, job.directory, job.workspace, packages, job.env, inode, *rights)

    @property
    def key(self) -> Key:
        return self.directory, self.workspace, self.writable, self.programs
