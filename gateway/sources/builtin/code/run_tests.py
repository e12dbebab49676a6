"""Running a project's tests, whatever they are written for."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from pydantic import Field

from gateway.errors import NotFound
from gateway.sandbox import Killed
from gateway.sandbox.run import FinishedProgram
from gateway.sources.builtin.code.call_context import CodeContext, in_thread
from gateway.sources.builtin.code.run_code import TIMED_OUT, Timeout
from gateway.sources.builtin.code.test_runners import Name, Report, Tests, detect, prepare
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission
from gateway.workspace import parse

LIMIT = 16 * 1024 * 1024
_CHUNK = 256 * 1024
_PATIENCE = 1.0


class Channel:
    """Its beginning is kept, the rest is read and forgotten, so that no program waits for us. Use it in an
    `async with`, hand `fd` to the program, which finds it at `path`, and ask for the `content` once it has ended."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._read, self.fd = os.pipe()

    @property
    def path(self) -> str:
        return f"/dev/fd/{self.fd}"

    async def __aenter__(self) -> Channel:
        os.fchmod(self.fd, 0o666)  # it is opened by name again, maybe by another user
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._take)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._close_ours()
        self._loop.remove_reader(self._read)
        os.close(self._read)

    async def content(self) -> bytes | None:
        """All that was told; None when it was more than anyone could mean."""
        self._close_ours()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._over.wait()
        except TimeoutError:
            pass
        return None if len(self._kept) > self._limit else bytes(self._kept)

    def _take(self) -> None:
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._read)
            self._over.set()
        self._kept += data[: max(self._limit + 1 - len(self._kept), 0)]

    def _close_ours(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


_FAILURES = 100
_OUTPUT = 64 * 1024
_READ = 4 * 1024 * 1024


class Failure(Shape):
    name: str
    message: str


class Tested(Shape):
    """The numbers are missing where the runner does not tell them in a way we can read; exitCode always tells."""

    runner: Name
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    errors: int | None = Field(default=None, description="Tests that could not be run")
    failures: list[Failure]
    output: str = Field(description="What was printed; the middle of long output is left out")
    exit_code: int
    duration: int = Field(description="Milliseconds")
    timed_out: bool
    killed: Killed | None = Field(default=None, description="The limit the tests were ended for")
    truncated: bool = Field(description="Whether failures or output were left out")
    sandbox: str


_HINTS: dict[str, str] = {
    "unittest": "; those that are plain functions need pytest: name it as the runner, once it is installed here",
}


async def _reason(context: CodeContext, directory: str = ".", **_other: object) -> str | None:
    return context.attached_folder_reason(f"run_tests runs the project's tests in {directory!r}")


@builtin(
    title="Run tests",
    category="development",
    permission=Permission.EXECUTE,
    access=Access.WRITE,
    requires_confirmation=_reason,
    destructive=True,
    requires=("sandbox",),
    path_arguments=(),
)
async def run_tests(
    context: CodeContext,
    directory: Annotated[str, Field(description="The project's directory, relative to the workspace root")] = ".",
    runner: Annotated[Name | None, Field(description="What runs the tests; else found out from the project")] = None,
    only: Annotated[
        list[str],
        Field(
            max_length=200, description="Only these: files or test ids (pytest), packages (go), names (cargo), targets"
        ),
    ] = [],  # noqa: B006 - a default in a schema; it is copied before use
    timeout: Timeout = None,
) -> tuple[Tested, str]:
    """Run the tests of a project in the workspace and tell which failed, and why.

    Finds out whether it is pytest, unittest, npm, go, cargo or make, and runs it in the sandbox. In a folder a person
    attached, that person is asked first. Tests that fail are no error: look at failed and failures."""
    place, here = context.directory(directory), parse(directory)
    chosen = await in_thread(detect, context, here) if runner is None else runner
    tests = await in_thread(prepare, context, chosen, only)
    async with Channel() as channel:
        argv = tests.argv if tests.channel is None else (*tests.argv, tests.channel.format(channel.path))
        fds = (channel.fd,) if tests.channel else ()
        env, readable = tests.env, tests.readable
        program = context.program(
            *argv, cwd=place, env=env, readable=readable, pass_fds=fds, online=True, untrusted=True
        )
        finished = await context.run(program, timeout=timeout, output_limit=_READ)
        told = await channel.content()
    report = await in_thread(_report, tests, finished, told)
    if report is not None and report.empty and finished.exit.killed is None:
        raise NotFound(f"{chosen} found no tests in {directory!r}{_HINTS.get(chosen, '')}", code="NO_TESTS")
    answer = _answer(context, tests, finished, report)
    return answer, _text(answer)


def _report(tests: Tests, finished: FinishedProgram, told: bytes | None) -> Report | None:
    if tests.told is not None:
        return tests.told(told) if told else None
    assert tests.printed is not None  # noqa: S101 - each has one way of telling
    return tests.printed(finished.stdout.decode("utf-8", "replace"))


def _answer(context: CodeContext, tests: Tests, finished: FinishedProgram, report: Report | None) -> Tested:
    printed = (finished.stdout + finished.stderr).decode("utf-8", "replace")
    timed_out = finished.exit.killed == "timeout"
    failures = report.failures if report else ()
    return Tested(
        runner=tests.runner,
        passed=report.passed if report else None,
        failed=report.failed if report else None,
        skipped=report.skipped if report else None,
        errors=report.errors if report else None,
        failures=[Failure(name=each.name, message=each.message) for each in failures[:_FAILURES]],
        output=_shortened(printed),
        exit_code=TIMED_OUT if timed_out else finished.exit.code,
        duration=round(finished.duration * 1000),
        timed_out=timed_out,
        killed=finished.exit.killed,
        truncated=len(failures) > _FAILURES or len(printed) > _OUTPUT,
        sandbox=context.sandbox.name,
    )


def _shortened(text: str) -> str:
    if len(text) <= _OUTPUT:
        return text
    half = _OUTPUT // 2
    return f"{text[:half]}\n... {len(text) - _OUTPUT} characters left out ...\n{text[-half:]}"


def _text(answer: Tested) -> str:
    if answer.passed is None:
        return f"{answer.runner} ended with exit code {answer.exit_code}\n{answer.output}"
    counts = f"{answer.passed} passed, {answer.failed} failed, {answer.errors} errors, {answer.skipped} skipped"
    lines = [f"{answer.runner}: {counts} (exit code {answer.exit_code}, {answer.duration} ms)"]
    if answer.timed_out:
        lines.append("The tests were ended: they took too long.")
    lines += [f"\nFAILED {each.name}\n{each.message}" for each in answer.failures]
    if answer.exit_code and not answer.failures:
        lines.append(answer.output)
    return "\n".join(lines)
