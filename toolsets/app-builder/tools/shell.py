"""Running commands in the workspace, for a bounded time and with bounded output."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from typing import Annotated

from pydantic import BaseModel, Field

from covalt_toolset import get_context, tool

from .output import Output

TIME_LIMIT = 600
TIMED_OUT = 124  # exit code of a command that was stopped, as of `timeout`
_REPORT_EVERY = 1.0
_QUIET = {"TERM": "dumb", "NO_COLOR": "1", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}


class Ran(BaseModel):
    command: str
    output: str = Field(description="What the command wrote to stdout and stderr, in the order it did")
    exit_code: int = Field(description="0 means success; 124 that it was stopped when its time was up")


@tool(
    name="Run Command",
    permission="execute",
    access="write",
    destructive=True,
    requires_confirmation=True,
    timeout=TIME_LIMIT + 30,
)
def run_command(command: str, timeout: Annotated[int, Field(ge=1, le=TIME_LIMIT)] = 120) -> Ran:
    """Run a shell command in the workspace and return its output and exit code. It gets no input, so pass options
    such as '--yes' instead of waiting for questions. What it leaves running in the background is ended with it.

    Args:
        command: The command line, as a shell takes it, such as 'npm test' or 'python app.py | head'
        timeout: Seconds after which it is stopped
    """
    if "\0" in command or not command.strip():
        raise ValueError("'command' is empty or has a NUL character in it; give a command line such as 'ls -la'")
    output = Output()
    process = subprocess.Popen(
        [shutil.which("bash") or "sh", "-c", command],
        cwd=get_context().workspace,
        env=os.environ | _QUIET,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    reader = threading.Thread(target=output.fill, args=[process.stdout], daemon=True)
    reader.start()
    try:
        code = _wait(process, timeout, output)
    finally:
        _end(process)
    reader.join(timeout=2)  # limited: a process that left the group may hold the pipe
    if code is None:
        stopped = f"[stopped after {timeout} seconds; give a larger 'timeout', at most {TIME_LIMIT}]"
        return Ran(command=command, output=f"{output.text()}\n{stopped}".lstrip("\n"), exit_code=TIMED_OUT)
    return Ran(command=command, output=output.text(), exit_code=code if code >= 0 else 128 - code)


def _wait(process: subprocess.Popen[bytes], timeout: float, output: Output) -> int | None:
    """Return the exit code, or None after the timeout; meanwhile report the latest line as progress."""
    started = time.monotonic()
    while (passed := time.monotonic() - started) < timeout:
        try:
            return process.wait(min(_REPORT_EVERY, timeout - passed))
        except subprocess.TimeoutExpired:
            get_context().progress(round(time.monotonic() - started, 1), timeout, output.last_line() or "running")
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the command's process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS raises the latter for a group of zombies
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
