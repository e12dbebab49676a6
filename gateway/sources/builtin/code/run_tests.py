"""The tool run_tests: runs a project's tests and reports the failures."""

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
from gateway.sources.builtin.code.test_runners import RunnerCommand, RunnerName, RunnerReport, detect, prepare
from gateway.sources.builtin.decorator import Shape, builtin
from gateway.tools import Access, Permission
from gateway.workspace import parse

# Bytes of a report.
REPORT_BYTES = 16 * 1024 * 1024
_CHUNK = 256 * 1024
_PATIENCE = 1.0


class ResultPipe:
    """A pipe for a program's test report, separate from its output.

    What exceeds the limit is read and dropped, so that the program is never blocked. Use it as an async context
    manager: pass `fd` to the program, which opens it at `path`, and read the `content` when it has ended."""

    def __init__(self, limit: int = REPORT_BYTES) -> None:
        self._limit = limit
        self._content = bytearray()
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._read, self.fd = os.pipe()

    @property
    def path(self) -> str:
        return f"/dev/fd/{self.fd}"

    async def __aenter__(self) -> ResultPipe:
        os.fchmod(self.fd, 0o666)  # the program opens it again by path, maybe as another user
        os.set_blocking(self._read, False)
        self._loop.add_reader(self._read, self._read_chunk)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._close_write_end()
        self._loop.remove_reader(self._read)
        os.close(self._read)

    async def content(self) -> bytes | None:
        """Return what was written; None if it exceeds the limit."""
        self._close_write_end()
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._ended.wait()
        except TimeoutError:
            pass
        return None if len(self._content) > self._limit else bytes(self._content)

    def _read_chunk(self) -> None:
        try:
            data = os.read(self._read, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._read)
            self._ended.set()
        self._content += data[: max(self._limit + 1 - len(self._content), 0)]

    def _close_write_end(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


_FAILURE_LIMIT = 100
_OUTPUT_LENGTH = 64 * 1024
_OUTPUT_BYTES = 4 * 1024 * 1024


class FailureDetail(Shape):
    name: str
    message: str


class TestRunResult(Shape):
    """The result of a test run. The numbers are missing if the runner does not report them in a known format."""

    runner: RunnerName
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    errors: int | None = Field(default=None, description="Tests that could not be run")
    failures: list[FailureDetail]
    output: str = Field(description="Output; the middle of a long output is left out")
    exit_code: int
    duration: int = Field(description="Milliseconds")
    timed_out: bool
    killed: Killed | None = Field(default=None, description="The limit that the tests exceeded")
    truncated: bool = Field(description="True if failures or output were left out")
    sandbox: str


_HINTS: dict[str, str] = {
    "unittest": "; tests that are plain functions need pytest: install it and set runner to pytest",
}


async def _reason(context: CodeContext, directory: str = ".", **_other: object) -> str | None:
    return context.reason_for_attached_folder(f"run_tests runs the project's tests in {directory!r}")


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
    directory: Annotated[str, Field(description="Directory of the project, relative to the workspace root")] = ".",
    runner: Annotated[RunnerName | None, Field(description="Test runner; default detected from the project")] = None,
    only: Annotated[
        list[str],
        Field(
            max_length=200, description="Only these: files or test ids (pytest), packages (go), names (cargo), targets"
        ),
    ] = [],  # noqa: B006 - a default in a schema; it is copied before use
    timeout: Timeout = None,
) -> tuple[TestRunResult, str]:
    """Run the tests of a project in the workspace and report the failures.

    Detects pytest, unittest, npm, go, cargo or make, and runs it in the sandbox. In a folder that a person attached,
    that person is asked first. Failing tests are not an error: see failed and failures."""
    cwd, parts = context.directory(directory), parse(directory)
    chosen = await in_thread(detect, context, parts) if runner is None else runner
    tests = await in_thread(prepare, context, chosen, only)
    async with ResultPipe() as pipe:
        argv = tests.argv if tests.report_option is None else (*tests.argv, tests.report_option.format(pipe.path))
        fds = (pipe.fd,) if tests.report_option else ()
        env, readable = tests.env, tests.readable
        program = context.program(*argv, cwd=cwd, env=env, readable=readable, pass_fds=fds, online=True, untrusted=True)
        finished = await context.run(program, timeout=timeout, output_limit=_OUTPUT_BYTES)
        written = await pipe.content()
    report = await in_thread(_parse_report, tests, finished, written)
    if report is not None and report.empty and finished.exit.killed is None:
        raise NotFound(f"{chosen} found no tests in {directory!r}{_HINTS.get(chosen, '')}", code="NO_TESTS")
    result = _result(context, tests, finished, report)
    return result, _text(result)


def _parse_report(tests: RunnerCommand, finished: FinishedProgram, written: bytes | None) -> RunnerReport | None:
    if tests.parse_report is not None:
        return tests.parse_report(written) if written else None
    assert tests.parse_output is not None  # noqa: S101 - each command has one of them
    return tests.parse_output(finished.stdout.decode("utf-8", "replace"))


def _result(
    context: CodeContext, tests: RunnerCommand, finished: FinishedProgram, report: RunnerReport | None
) -> TestRunResult:
    printed = (finished.stdout + finished.stderr).decode("utf-8", "replace")
    timed_out = finished.exit.killed == "timeout"
    failures = report.failures if report else ()
    return TestRunResult(
        runner=tests.runner,
        passed=report.passed if report else None,
        failed=report.failed if report else None,
        skipped=report.skipped if report else None,
        errors=report.errors if report else None,
        failures=[FailureDetail(name=test.name, message=test.message) for test in failures[:_FAILURE_LIMIT]],
        output=_shorten(printed),
        exit_code=TIMED_OUT if timed_out else finished.exit.code,
        duration=round(finished.duration * 1000),
        timed_out=timed_out,
        killed=finished.exit.killed,
        truncated=len(failures) > _FAILURE_LIMIT or len(printed) > _OUTPUT_LENGTH,
        sandbox=context.sandbox.name,
    )


def _shorten(text: str) -> str:
    if len(text) <= _OUTPUT_LENGTH:
        return text
    half = _OUTPUT_LENGTH // 2
    return f"{text[:half]}\n... {len(text) - _OUTPUT_LENGTH} characters left out ...\n{text[-half:]}"


def _text(result: TestRunResult) -> str:
    if result.passed is None:
        return f"{result.runner} ended with exit code {result.exit_code}\n{result.output}"
    counts = f"{result.passed} passed, {result.failed} failed, {result.errors} errors, {result.skipped} skipped"
    lines = [f"{result.runner}: {counts} (exit code {result.exit_code}, {result.duration} ms)"]
    if result.timed_out:
        lines.append("The tests were stopped: time limit exceeded.")
    lines += [f"\nFAILED {test.name}\n{test.message}" for test in result.failures]
    if result.exit_code and not result.failures:
        lines.append(result.output)
    return "\n".join(lines)
