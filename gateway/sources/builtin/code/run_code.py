"""Running what a model wrote: code, or a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from gateway.errors import Invalid
from gateway.sandbox import Killed
from gateway.sandbox.process import create_data_fd
from gateway.sandbox.run import FinishedProgram
from gateway.sources.builtin.code.call_context import CodeContext
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission

Language = Literal["python", "bash"]
LANGUAGES: tuple[Language, ...] = ("python", "bash")

# The exit code of what took too long, as `timeout(1)` has it.
TIMED_OUT = 124

_CODE = 1024 * 1024
_VARIABLES = 200
_WORD, _WORDS = 100_000, 500_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that make an interpreter run something other than the code it is given.
_REFUSED = re.compile(r"(LD_|DYLD_|PYTHON).*|BASH_ENV|ENV|BASH_FUNC_.*")

Timeout = Annotated[float | None, Field(gt=0, description="Seconds it may take; by default, all that are allowed")]


class Ran(Shape):
    """What became of a program. One that fails is an answer too: its exit code says so."""

    stdout: str
    stderr: str
    exit_code: int = Field(description="128 + n when ended by signal n, 124 when it took too long")
    duration: int = Field(description="Milliseconds")
    timed_out: bool
    killed: Killed | None = Field(default=None, description="The limit it was ended for, else null")
    stdout_truncated: bool = Field(description="Whether the middle of a long output was left out")
    stderr_truncated: bool
    sandbox: str = Field(description="What kept it apart from the machine")

    @model_serializer(mode="wrap")
    def _killed_is_told_in_any_case(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        told: dict[str, Any] = plain(self)
        return {**told, "killed": self.killed}


async def _code_reason(context: CodeContext, language: str, **_other: object) -> str | None:
    return context.attached_folder_reason(f"run_code runs {language} code")


@builtin(
    title="Run code",
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
    language: Annotated[Language, Field(description="What the code is written in")],
    code: Annotated[str, Field(max_length=_CODE, description="The whole program")],
    args: Annotated[list[str], Field(max_length=1000, description="Command-line arguments")] = [],  # noqa: B006
    env: Annotated[
        dict[str, str], Field(max_length=_VARIABLES, description="Environment variables, besides PATH, HOME and LANG")
    ] = {},  # noqa: B006 - a default in a schema; it is copied before use
    timeout: Timeout = None,
) -> tuple[Ran, str]:
    """Run a Python or bash program in a sandbox, in the workspace's root.

    It sees the workspace's files and may change them, and nothing else of the machine. There is no network unless the
    operator allows it; memory, time and output are limited. Python uses the packages install_package put into the
    workspace. In a folder a person attached, that person is asked first. A program that fails is no error: look at
    exitCode and stderr."""
    check_environment(env)
    _check_text(code, *args)
    _check_sizes([*args, *env, *env.values()])
    if language == "python":
        finished = await context.run_python(code, args, env, timeout)
    else:
        finished = await _shell(context, "main.sh", code, args=args, env=env, timeout=timeout)
    ran = outcome(context, finished)
    return ran, told(ran)


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
    """The code goes by descriptor, as a command line is for all to read and has a limit; its stdin stays its own."""
    script = create_data_fd(code.encode())
    try:
        argv = (*_reading(context, script), name, *args)
        program = context.program(*argv, cwd=cwd, env=env, pass_fds=(script,), online=True, untrusted=True)
        return await context.run(program, timeout=timeout)
    finally:
        os.close(script)


def _reading(context: CodeContext, script: int) -> tuple[str, ...]:
    if (bash := context.host.programs.get("bash")) is not None:
        return bash, "-c", f'eval "$(< /dev/fd/{script})"'
    return context.host.programs["sh"], "-c", f". /dev/fd/{script}"


async def _command_reason(_: CodeContext, command: str, directory: str = ".", **_other: object) -> str:
    shown = command if len(command) <= 500 else f"{command[:500]}… ({len(command)} characters)"
    return f"run_command runs in {directory!r}: {shown}"


@builtin(
    title="Run a command",
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
    directory: Annotated[str, Field(description="Where to run it, relative to the workspace root")] = ".",
    timeout: Timeout = None,
) -> tuple[Ran, str]:
    """Run a shell command line in the workspace, after a person has agreed to it.

    It runs in a sandbox as run_code does: the workspace's files and no others, limited memory, time and output. A
    command that fails is no error: look at exitCode and stderr."""
    _check_text(command)
    finished = await _shell(context, "command", command, cwd=context.directory(directory), timeout=timeout)
    ran = outcome(context, finished)
    return ran, told(ran)


def check_environment(env: dict[str, str]) -> None:
    """Refuse what is no variable, and variables that would run something else than was asked for."""
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:100]!r} cannot be the name of an environment variable", code="INVALID_ENVIRONMENT")
        if _REFUSED.fullmatch(name):
            message = f"{name!r} would change what runs; the variables {_REFUSED_SHOWN} cannot be set"
            raise Invalid(message, code="INVALID_ENVIRONMENT")
        _check_text(value)


_REFUSED_SHOWN = "LD_*, DYLD_*, PYTHON*, BASH_ENV and ENV"


def _check_text(*texts: str) -> None:
    if any("\0" in text for text in texts):
        raise Invalid("a NUL character cannot be part of code, arguments or variables")


def _check_sizes(texts: Sequence[str]) -> None:
    """Refuse what no program could be started with."""
    sizes = [len(text.encode()) for text in texts]
    if max(sizes, default=0) > _WORD or sum(sizes) > _WORDS:
        message = (
            f"arguments and variables have at most {_WORD} bytes each, and {_WORDS} together; write a file instead"
        )
        raise Invalid(message, code="TOO_LARGE")


def outcome(context: CodeContext, finished: FinishedProgram) -> Ran:
    killed = finished.exit.killed
    return Ran(
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


def told(ran: Ran) -> str:
    """What a model reads: the output as it is, and how it ended where that is not simply well."""
    parts = [ran.stdout.rstrip("\n")]
    if ran.stderr.strip():
        parts.append(f"[stderr]\n{ran.stderr.rstrip()}")
    if ran.timed_out:
        parts.append(f"[ended after {ran.duration / 1000:.1f} s: it took too long; exit code {TIMED_OUT}]")
    elif ran.killed is not None:
        parts.append(f"[ended: it went over its limit of {ran.killed}; exit code {ran.exit_code}]")
    else:
        parts.append(f"[exit code {ran.exit_code}, {ran.duration} ms]")
    return "\n".join(part for part in parts if part)
