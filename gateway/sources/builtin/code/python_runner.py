"""Runners for Python code: an interpreter in the sandbox, or Monty where no sandbox works."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gateway.errors import GatewayError
from gateway.sandbox import Mount, Process, Program, Sandbox
from gateway.sandbox.monty import MODULES, Monty
from gateway.sandbox.prestart import PrestartedSandboxes
from gateway.sandbox.run import FinishedProgram, OutputListener, finish
from gateway.sandbox.supervisor import refuse_hidden
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.sources.builtin.code.call_context import CodeContext

# The description of run_code where Monty runs it.
MONTY_DESCRIPTION = f"""Run a program in a subset of Python, in the workspace's root.

It runs in Monty, a small interpreter. Only these can be imported: {", ".join(MODULES)}; no packages, no modules of the
workspace. No class inheritance, yield, del, input() or sys.exit(). It reads and writes the workspace's files and
nothing else; memory, time and output are limited. A failing program is not an error: see exitCode and stderr."""


class Script(Value):
    """Python code with its arguments, environment and time limit."""

    code: str
    args: Sequence[str]
    env: Mapping[str, str]
    timeout: float


class PythonRunner(Protocol):
    async def run(self, context: CodeContext, script: Script, on_output: OutputListener) -> FinishedProgram:
        """Run the code to its end and pass its output to `on_output`. Cancelling ends the code."""
        ...

    def prepare(self, context: CodeContext) -> None:
        """Start in the background what the next run needs."""
        ...

    async def close(self) -> None:
        """Stop every process."""
        ...


class SandboxedRunner:
    """Runs code by the Python of the workspace or of the machine, in a sandbox that may be started in advance."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._prestarted = PrestartedSandboxes(sandbox)

    async def run(self, context: CodeContext, script: Script, on_output: OutputListener) -> FinishedProgram:
        started = time.monotonic()
        process = await self._prestarted.start(
            _interpreter(context), script.code, args=script.args, env=script.env, timeout=script.timeout
        )
        left = script.timeout - (time.monotonic() - started)
        finished = await finish(process, timeout=max(left, 0), on_output=on_output)
        return dataclasses.replace(finished, duration=time.monotonic() - started)

    def prepare(self, context: CodeContext) -> None:
        self._prestarted.expect(_interpreter(context), now=True)

    async def close(self) -> None:
        await self._prestarted.close()


def _interpreter(context: CodeContext) -> Program:
    # -u: output is complete when the program is killed, and visible while it runs; -B: no __pycache__ in the workspace.
    python = context.python()
    return context.program(python.path, "-I", "-B", "-u", readable=python.readable, online=True, untrusted=True)


class MontyRunner:
    """Runs code in Monty. It takes no arguments; the tool offers none where Monty runs it."""

    def __init__(self) -> None:
        self._monty = Monty()

    async def run(self, context: CodeContext, script: Script, on_output: OutputListener) -> FinishedProgram:
        refuse_hidden(Monty.name, context.program(sys.executable))
        return await self._monty.run(
            script.code,
            folder=context.folder,
            env=script.env,
            limits=context.limits,
            timeout=script.timeout,
            on_output=on_output,
        )

    def prepare(self, context: CodeContext) -> None:
        """Nothing can be started in advance."""

    async def close(self) -> None:
        await self._monty.close()


class UnavailableSandbox:
    """The sandbox where only Monty works: it refuses every program, with the reason."""

    name = Monty.name
    weaknesses = Monty.weaknesses
    protects_paths = Monty.protects_paths

    def __init__(self, reason: GatewayError) -> None:
        self._reason = reason

    def inside(self, mount: Mount) -> str:
        return mount.target

    async def start(self, program: Program, *, stdin: bool = False) -> Process:
        raise self._reason
