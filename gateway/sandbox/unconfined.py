"""No sandbox at all: for operators who said `allow_unsandboxed`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from gateway.sandbox import Mount, Process, Program
from gateway.sandbox.supervisor import launch, refuse_hidden


class Unconfined:
    """Programs run with all rights of the gateway's account. They still get only the environment they
    are given, their limits, and an end."""

    name = "unconfined"
    keeps_paths = False

    def __init__(self) -> None:
        self.weaknesses: tuple[str, ...] = ("programs run with all rights of your account, files and network included",)
        if sys.platform != "linux":
            self.weaknesses += ("memory and the number of processes are not limited on this system",)

    def inside(self, mount: Mount) -> str:
        return str(mount.source)

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        refuse_hidden(self.name, program)
        scratch = Path(tempfile.mkdtemp(prefix="toolgate-"))
        return await launch(program, stdin=stdin, scratch=scratch, task_limit=None)
