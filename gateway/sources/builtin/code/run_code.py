"""The tools run_code and run_command."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from gateway.errors import Invalid
from gateway.sandbox import Killed
from gateway.sandbox.process import create_data_fd
from gateway.sandbox.run import OUTPUT_LIMIT, FinishedProgram
from gateway.sources.builtin.code.call_context import CodeContext
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission

Language = Literal["python", "bash"]
LANGUAGES: tuple[Language, ...] = ("python", "bash")

# The exit code of a program that exceeded its time, as of `timeout(1)`.
TIMED_OUT = 124

_CODE_LENGTH = 1024 * 1024
_VARIABLE_LIMIT = 200
# Bytes of one argument or variable, and of all together.
_WORD_BYTES, _TOTAL_BYTES = 100_000, 500_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that make an interpreter run other code than the given one.
_REFUSED = re.compile(r"(LD_|DYLD_|PYTHON).*|BASH_ENV|ENV|BASH_FUNC_.*")

# How programs report that a host has no address, or no way leads there.
_NO_NETWORK = re.compile(
    "name resolution|Name or service not known|[Nn]etwork is unreachable|[Cc]ould not resolve|Couldn't resolve"
    "|unable to resolve host|EAI_AGAIN|ENOTFOUND|ENETUNREACH"
)

Timeout = Annotated[float | None, Field(gt=0, description="Seconds the program may take; default the maximum")]


class ProgramResult(Shape):
    """The result of a program. One that fails is a result too, with its exit code."""

    stdout: str
    stderr: str
    exit_code: int = Field(description="128 + n if ended by signal n, 124 if it exceeded its time")
    duration: int = Field(description="Milliseconds")
    timed_out: bool
    killed: Killed | None = Field(default=None, description="The limit that it exceeded, else null")
    stdout_truncated: bool = Field(description="True if the middle of a long output was left out")
    stderr_truncated: bool
    sandbox: str = Field(description="The sandbox that was used")

    @model_serializer(mode="wrap")
    def _include_killed(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Also when it is None, which is left out of other results.
        fields: dict[str, Any] = serialize(self)
        return {**fields, "killed": self.killed}


async def _code_reason(context: CodeContext, language: str, **_other: object) -> str | None:
    return context.reason_for_attached_folder(f"run_code runs {language} code")


@builtin(
    title="Run code",
    longest_result=OUTPUT_LIMIT,
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_code_reason,
    destructive=True,
    requires=("interpreter",),
    path_arguments=(),
)
async def run_code(
    context: CodeContext,
    language: Annotated[Language, Field(description="Language of the code")],
    code: Annotated[str, Field(max_length=_CODE_LENGTH, description="The whole program")],
    args: Annotated[list[str], Field(max_length=1000, description="Command-line arguments")] = [],  # noqa: B006
    env: Annotated[
        dict[str, str],
        Field(max_length=_VARIABLE_LIMIT, description="Environment variables, besides PATH, HOME and LANG"),
    ] = {},  # noqa: B006 - a default in a schema; it is copied before use
    timeout: Timeout = None,
) -> tuple[ProgramResult, str]:
    """Run a Python or bash program in a sandbox, in the workspace's root.

    It can read and change the workspace's files, and nothing else of the machine. There is no network unless the
    operator allows it; memory, time and output are limited. Python uses packages installed with install_package. In a
    folder that a person attached, that person is asked first. A failing program is not an error: see exitCode and
    stderr."""
    check_environment(env)
    check_text(code, *args)
    _check_sizes([*args, *env, *env.values()])
    if language == "python":
        finished = await context.run_python(code, args, env, timeout)
    else:
        finished = await _shell(context, "main.sh", code, args=args, env=env, timeout=timeout)
    result = _result(context, finished)
    return result, _text(context, result)


async def _shell(
    context: CodeContext,
    name: str,
    code: str,
    *,
    timeout: float | None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> FinishedProgram:
    # By descriptor: a command line is visible to other processes and limited in size, and stdin stays free.
    script = create_data_fd(code.encode())
    try:
        argv = (*shell_argv(context, script), name, *args)
        program = context.program(*argv, cwd=cwd, env=env, pass_fds=(script,), online=True, untrusted=True)
        return await context.run(program, timeout=timeout)
    finally:
        os.close(script)


def shell_argv(context: CodeContext, script: int) -> tuple[str, ...]:
    if (bash := context.host.programs.get("bash")) is not None:
        return bash, "-c", f'eval "$(< /dev/fd/{script})"'
    return context.host.programs["sh"], "-c", f". /dev/fd/{script}"


def shorten(command: str) -> str:
    """Return a command for a question or a result."""
    return command if len(command) <= 500 else f"{command[:500]}… ({len(command)} characters)"


async def _command_reason(_: CodeContext, command: str, directory: str = ".", **_other: object) -> str:
    return f"run_command runs a program in {directory!r}: {shorten(command)}"


@builtin(
    title="Run a command",
    longest_result=OUTPUT_LIMIT,
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_command_reason,
    destructive=True,
    requires=("sandbox", "shell"),
    path_arguments=(),
)
async def run_command(
    context: CodeContext,
    command: Annotated[str, Field(min_length=1, max_length=100_000, description="A command line for the shell")],
    directory: Annotated[str, Field(description="Working directory, relative to the workspace root")] = ".",
    timeout: Timeout = None,
) -> tuple[ProgramResult, str]:
    """Run a shell command line in the workspace, after a person has agreed to it.

    It runs in a sandbox like run_code: only the workspace's files, limited memory, time and output. A failing command
    is not an error: see exitCode and stderr."""
    check_text(command)
    finished = await _shell(context, "command", command, cwd=context.directory(directory), timeout=timeout)
    result = _result(context, finished)
    return result, _text(context, result)


def check_environment(env: dict[str, str]) -> None:
    """Refuse invalid names, and variables that would make other code run."""
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:100]!r} is not a name of an environment variable", code="INVALID_ENVIRONMENT")
        if _REFUSED.fullmatch(name):
            message = f"{name!r} would change which code runs; {_REFUSED_SHOWN} cannot be set"
            raise Invalid(message, code="INVALID_ENVIRONMENT")
        check_text(value)


_REFUSED_SHOWN = "LD_*, DYLD_*, PYTHON*, BASH_ENV and ENV"


def check_text(*texts: str) -> None:
    if any("\0" in text for text in texts):
        raise Invalid("code, arguments and variables must not contain NUL characters")


def _check_sizes(texts: Sequence[str]) -> None:
    """Refuse arguments and variables that are too large to start a program."""
    sizes = [len(text.encode()) for text in texts]
    if max(sizes, default=0) > _WORD_BYTES or sum(sizes) > _TOTAL_BYTES:
        message = f"arguments and variables may have {_WORD_BYTES} bytes each and {_TOTAL_BYTES} in all; use a file"
        raise Invalid(message, code="TOO_LARGE")


def _result(context: CodeContext, finished: FinishedProgram) -> ProgramResult:
    killed = finished.exit.killed
    return ProgramResult(
        stdout=finished.stdout.decode("utf-8", "replace"),
        stderr=finished.stderr.decode("utf-8", "replace"),
        exit_code=TIMED_OUT if killed == "timeout" else finished.exit.code,
        duration=round(finished.duration * 1000),
        timed_out=killed == "timeout",
        killed=killed,
        stdout_truncated=finished.stdout_truncated,
        stderr_truncated=finished.stderr_truncated,
        sandbox=context.sandbox.name,
    )


def _text(context: CodeContext, result: ProgramResult) -> str:
    """Return the output, the exit code, and the cause of an error that a network would have prevented."""
    parts = [result.stdout.rstrip("\n")]
    if result.stderr.strip():
        parts.append(f"[stderr]\n{result.stderr.rstrip()}")
    if result.timed_out:
        parts.append(f"[stopped after {result.duration / 1000:.1f} s: time limit exceeded; exit code {TIMED_OUT}]")
    elif result.killed is not None:
        parts.append(f"[stopped: {result.killed} limit exceeded; exit code {result.exit_code}]")
    else:
        parts.append(f"[exit code {result.exit_code}, {result.duration} ms]")
    if context.network is None and _NO_NETWORK.search(result.stderr):
        parts.append("[programs have no network here; the operator turns it on with sandbox.network: true]")
    return "\n".join(part for part in parts if part)
