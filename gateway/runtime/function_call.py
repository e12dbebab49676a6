"""A call of a toolset's function, and the worker it needs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.calls import Progress, no_progress
from gateway.workspace.hidden import Hidden

WorkerKey = tuple[Path, Path, bool, bool]


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """One call of a toolset's function.

    `directory` holds the toolset version and never changes; `env` has the secrets that the toolset declares; `id` is
    the call's id. Without `writable` the call cannot change the workspace, without `programs` it cannot start
    processes. `protected` are paths in the workspace that it cannot change, `hidden` paths that it cannot see. With
    `single_use` it has a worker of its own, which is ended with the call.
    """

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
    """Everything a worker is started with. A worker serves only calls with an equal spec: other secrets, packages or
    hidden files need another worker, and so does a workspace that was created again under the same name (`inode`).

    A `single_use` worker is ended after its first call: remaining code could change files that were checked already.
    """

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
    def of(cls, call: FunctionCall, packages: Path | None) -> WorkerSpec:
        inode = os.stat(call.workspace).st_ino  # noqa: PTH116 - faster than Path.stat, for every call
        rights = call.writable, call.programs, call.protected, call.hidden, call.single_use
        return cls(call.toolset, call.directory, call.workspace, packages, call.env, inode, *rights)

    @property
    def key(self) -> WorkerKey:
        return self.directory, self.workspace, self.writable, self.programs
