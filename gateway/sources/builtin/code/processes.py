"""The tools start_process, list_processes, process_output and stop_process."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from pydantic import Field

from gateway.sandbox import Killed
from gateway.sandbox.loopback import Loopback
from gateway.sandbox.process import create_data_fd
from gateway.sources.builtin.code.background import BackgroundProcess
from gateway.sources.builtin.code.call_context import CodeContext
from gateway.sources.builtin.code.run_code import check_text, shell_argv, shorten
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission

# Seconds to wait for a process by default: with a port until it answers, else to see whether it fails at once.
_PORT_SECONDS, _START_SECONDS = 15.0, 1.0
_LONGEST_WAIT = 30.0

ProcessId = Annotated[str, Field(max_length=32, description="The process, as start_process named it")]


class ProcessState(Shape):
    """A process in the background of the chat."""

    process: str
    command: str
    directory: str
    running: bool
    exit_code: int | None = Field(default=None, description="128 + n if ended by signal n; none while it runs")
    killed: Killed | None = Field(default=None, description="The limit that it exceeded")
    port: int | None = None
    url: str | None = Field(default=None, description="Where its port is reached from this machine while it runs")
    listening: bool | None = Field(default=None, description="True once it accepted a connection at its port")


class StartedProcess(ProcessState):
    """A process and its first output."""

    output: str
    next: int = Field(description="Give it to process_output as 'since', to get what follows")
    sandbox: str = Field(description="The sandbox that it runs in")


class ProcessOutput(Shape):
    """A part of the output of a process, stdout and stderr as they came."""

    process: str
    running: bool
    exit_code: int | None = None
    killed: Killed | None = None
    output: str
    next: int = Field(description="Give it as 'since' to get what follows")
    left_out: int = Field(description="Characters before 'output' that are no longer kept")


class ProcessList(Shape):
    processes: list[ProcessState]


async def _start_reason(
    _: CodeContext, command: str, directory: str = ".", port: int | None = None, **_other: object
) -> str:
    published = f", with its port {port} published on this machine's loopback" if port else ""
    return f"start_process starts in the background in {directory!r}{published}: {shorten(command)}"


@builtin(
    title="Start a process",
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_start_reason,
    destructive=True,
    requires=("sandbox", "shell"),
    path_arguments=(),
)
async def start_process(
    context: CodeContext,
    command: Annotated[str, Field(min_length=1, max_length=100_000, description="A command line for the shell")],
    directory: Annotated[str, Field(description="Working directory, relative to the workspace root")] = ".",
    port: Annotated[
        int | None,
        Field(ge=1024, le=65535, description="Port that it will listen on at 127.0.0.1; it finds it in $PORT"),
    ] = None,
    wait: Annotated[
        float | None,
        Field(ge=0, le=_LONGEST_WAIT, description="Seconds to wait until it answers at its port, or ends"),
    ] = None,
) -> tuple[StartedProcess, str]:
    """Start a program that goes on in the background, such as a development server, after a person has agreed.

    It runs in a sandbox like run_command, with a network of its own. With 'port', the result's url shows what listens
    there, from this machine only. It ends with the chat, with stop_process, or when its time is over. In a folder that
    a person attached it can only read."""
    check_text(command)
    cwd = context.directory(directory)
    script = create_data_fd(command.encode())
    try:
        program = context.background_program(
            *shell_argv(context, script),
            "process",
            cwd=cwd,
            env={"PORT": str(port)} if port else {},
            pass_fds=(script,),
            loopback=Loopback() if port else None,
        )
        process = await context.processes.start(context.call.chat, context.sandbox, program, command, directory, port)
    finally:
        os.close(script)
    await process.wait(wait if wait is not None else _PORT_SECONDS if port else _START_SECONDS)
    output, _ = process.output()
    state = StartedProcess(
        **_state(process).model_dump(), output=output, next=process.length, sandbox=context.sandbox.name
    )
    return state, "\n".join(part for part in (_text(state), output.rstrip("\n")) if part)


@builtin(
    title="List processes",
    category="development",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
    idempotent=True,
    requires=("sandbox", "shell"),
)
async def list_processes(context: CodeContext) -> tuple[ProcessList, str]:
    """List the processes that this chat has started in the background, running and ended ones, with their addresses."""
    processes = context.processes.list(context.call.chat)
    await asyncio.gather(*(process.is_listening() for process in processes))
    states = list(map(_state, processes))
    return ProcessList(processes=states), "\n".join(map(_text, states)) or "no process was started in this chat"


@builtin(
    title="Read a process's output",
    category="development",
    permission=Permission.READ_ONLY,
    access=Access.NONE,
    idempotent=True,
    requires=("sandbox", "shell"),
)
async def process_output(
    context: CodeContext,
    process: ProcessId,
    since: Annotated[int, Field(ge=0, description="Position to read from; 'next' of the result before")] = 0,
    wait: Annotated[float, Field(ge=0, le=_LONGEST_WAIT, description="Seconds to wait for more output")] = 0,
) -> tuple[ProcessOutput, str]:
    """Read what a process in the background has printed, from a position on, and whether it still runs. Only the newest
    part of a long output is kept."""
    found = context.processes.find(context.call.chat, process)
    if wait:
        await found.wait(wait, since=since)
    output, left_out = found.output(since)
    ended = found.exit
    result = ProcessOutput(
        process=found.id,
        running=ended is None,
        exit_code=ended.code if ended else None,
        killed=ended.killed if ended else None,
        output=output,
        next=found.length,
        left_out=left_out,
    )
    note = f"[{left_out} characters left out]\n" if left_out else ""
    return result, f"{note}{output}{'' if output.endswith(chr(10)) or not output else chr(10)}[{_end(result)}]"


@builtin(
    title="Stop a process",
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    idempotent=True,
    requires=("sandbox", "shell"),
    path_arguments=(),
)
async def stop_process(context: CodeContext, process: ProcessId) -> tuple[ProcessState, str]:
    """End a process in the background, with everything that it started. It gets a few seconds to end by itself; its
    output can still be read."""
    found = context.processes.find(context.call.chat, process)
    await found.stop()
    state = _state(found)
    return state, _text(state)


def _state(process: BackgroundProcess) -> ProcessState:
    published, ended = process.published, process.exit
    return ProcessState(
        process=process.id,
        command=process.command,
        directory=process.directory,
        running=ended is None,
        exit_code=ended.code if ended else None,
        killed=ended.killed if ended else None,
        port=published.port if published else None,
        url=published.url if published and ended is None else None,
        listening=process.listening if published else None,
    )


def _text(state: ProcessState) -> str:
    shown = f"{state.process}: {shorten(state.command)} [{_end(state)}]"
    if state.url is None:
        return shown
    now = "" if state.listening else " (nothing listens there yet)"
    return f"{shown}\nport {state.port}: {state.url}{now}"


def _end(state: ProcessState | ProcessOutput) -> str:
    if state.running:
        return "running"
    return f"ended: {state.killed} limit exceeded" if state.killed else f"ended with exit code {state.exit_code}"
