"""The two ways Python code is run: by an interpreter in the sandbox, or by Monty where no sandbox works."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.errors import GatewayError
from gateway.sandbox import Mount, Process, Program, Sandbox
from gateway.sandbox.monty import MODULES, Monty
from gateway.sandbox.prestart import PrestartedSandboxes
from gateway.sandbox.run import Finished, Said, finish
from gateway.sandbox.supervisor import refuse_hidden

if TYPE_CHECKING:
    from gateway.sources.builtin.code.call_context import Bench

# What a model is told of run_code where Monty runs it.
SUBSET = f"""Run a program in a subset of Python, in the workspace's root.

Monty runs it, a small interpreter. Only these can be imported: {", ".join(MODULES)}; no packages, none of the
workspace's modules. No class inheritance, yield, del, input() or sys.exit(). It reads and writes the workspace's files
and nothing else; memory, time and output are limited. A program that fails is no error: look at exitCode and stderr."""


@dataclass(frozen=True)
class Script:
    """Python code and what it is given."""

    code: str
    args: Sequence[str]
    env: Mapping[str, str]
    timeout: float


class Python(Protocol):
    """Runs code on a bench. `said` hears what it writes; who is cancelled meanwhile ends it."""

    async def run(self, bench: Bench, script: Script, said: Said) -> Finished: ...

    def expect(self, bench: Bench) -> None:
        """Code is about to be run there: make ready what that needs, beside whatever comes first."""
        ...

    async def close(self) -> None:
        """Leave nothing running."""
        ...


class Sandboxed:
    """The workspace's Python or the machine's, in an interpreter that may be waiting already."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._spares = PrestartedSandboxes(sandbox)

    async def run(self, bench: Bench, script: Script, said: Said) -> Finished:
        began = time.monotonic()
        process = await self._spares.start(
            _interpreter(bench), script.code, args=script.args, env=script.env, timeout=script.timeout
        )
        left = script.timeout - (time.monotonic() - began)
        finished = await finish(process, timeout=max(left, 0), said=said)
        return dataclasses.replace(finished, duration=time.monotonic() - began)

    def expect(self, bench: Bench) -> None:
        self._spares.expect(_interpreter(bench), now=True)

    async def close(self) -> None:
        await self._spares.close()


def _interpreter(bench: Bench) -> Program:
    """-u: what it wrote is there when it is ended, and seen while it runs; -B: no traces in the workspace."""
    found = bench.python()
    return bench.program(found.path, "-I", "-B", "-u", readable=found.readable, online=True, free=True)


class Subset:
    """Monty. It knows no arguments, and a script has none here: they are not in what is offered."""

    def __init__(self) -> None:
        self._monty = Monty()

    async def run(self, bench: Bench, script: Script, said: Said) -> Finished:
        refuse_hidden(Monty.name, bench.program(sys.executable))
        return await self._monty.run(
            script.code, folder=bench.folder, env=script.env, limits=bench.limits, timeout=script.timeout, said=said
        )

    def expect(self, bench: Bench) -> None:
        """It has nothing to make ready."""

    async def close(self) -> None:
        await self._monty.close()


class NoPrograms:
    """Stands for the sandbox where Monty runs the code: every program is refused, with the reason."""

    name = Monty.name
    weaknesses = Monty.weaknesses
    keeps_paths = Monty.keeps_paths

    def __init__(self, lack: GatewayError) -> None:
        self._lack = lack

    def inside(self, mount: Mount) -> str:
        return mount.target

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        raise self._lack
