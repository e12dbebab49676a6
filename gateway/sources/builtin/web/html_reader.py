"""The HTML reader: converts pages in a child process, in the sandbox where this machine has one.

The time of an HTML parser can grow with the square of its input, and ours is written in C: a page must neither block
nor compromise the gateway.
"""

from __future__ import annotations

import importlib.util
import logging
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import orjson

from gateway.errors import ToolFailed
from gateway.sandbox import Limits, Program, Sandbox
from gateway.sandbox.detect import Unconfined, survey
from gateway.sandbox.run import FinishedProgram, run

_log = logging.getLogger(__name__)

UNREADABLE_PAGE = "UNREADABLE_PAGE"
SECONDS = 20.0
# Pages read at once; more wait.
CONCURRENT_PAGES = 4

_MEBIBYTE = 1024 * 1024
_LIMITS = Limits(memory=1024 * _MEBIBYTE, processes=8, disk=_MEBIBYTE, files=16, cpu_seconds=12)
_OUTPUT = 32 * _MEBIBYTE
_HERE = Path(__file__).resolve().parent
_OUT_OF_TIME = (128 + signal.SIGKILL, 128 + signal.SIGXCPU)
_LAUNCH = "import sys; sys.path += sys.argv[1:]; from reader import main; main()"


class HtmlReader:
    """Reads pages in child processes, a few at a time."""

    def __init__(self) -> None:
        self._slots = anyio.Semaphore(CONCURRENT_PAGES)

    async def read(self, html: str, options: Mapping[str, Any], *, seconds: float = SECONDS) -> dict[str, Any]:
        """Return the result of `reader.read`; raise `UNREADABLE_PAGE` when it takes too much time or memory."""
        request = orjson.dumps(options) + b"\n" + html.encode("utf-8", "replace")
        async with self._slots:
            finished = await run(
                await _sandbox(), _program(), input=request, timeout=seconds, output_limit=_OUTPUT, hard_limit=_OUTPUT
            )
        return _result(finished)


async def _sandbox() -> Sandbox:
    # The program is our own, so it may run without a sandbox; as a process it can still be killed.
    return (await survey()).sandbox or Unconfined()


def _program() -> Program:
    parser = importlib.util.find_spec("selectolax")
    packages = [Path(folder).parent for folder in (parser.submodule_search_locations or ())] if parser else []
    path = [_HERE, *packages]  # readable as whole directories: Python searches them for modules
    return Program(
        argv=(sys.executable, "-I", "-S", "-B", "-c", _LAUNCH, *map(str, path)),
        readable=tuple(sorted({*path, Path(sys.prefix), Path(sys.base_prefix)})),
        env={"LC_ALL": "C.UTF-8"},
        limits=_LIMITS,
    )


def _result(finished: FinishedProgram) -> dict[str, Any]:
    if finished.exit.code != 0 or finished.stdout_truncated:
        reason = finished.exit.killed or ("time" if finished.exit.code in _OUT_OF_TIME else "a crash")
        _log.info("the HTML reader failed: %s, %s", finished.exit, finished.stderr[-500:])
        raise ToolFailed(
            f"the page cannot be converted within the limits ({reason}); fetch it with format='raw'",
            code=UNREADABLE_PAGE,
        )
    result: dict[str, Any] = orjson.loads(finished.stdout)
    return result
