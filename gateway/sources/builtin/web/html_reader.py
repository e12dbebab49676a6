"""HTML made readable in a process of its own, in the sandbox where this machine has one.

Parsers of HTML take time that grows with the square of what they are given, and ours is written in C: a
page must neither keep the gateway busy nor reach it.
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
# Pages being read; more wait their turn.
AT_ONCE = 4

_MEBIBYTE = 1024 * 1024
_LIMITS = Limits(memory=1024 * _MEBIBYTE, processes=8, disk=_MEBIBYTE, files=16, cpu_seconds=12)
_OUTPUT = 32 * _MEBIBYTE
_HERE = Path(__file__).resolve().parent
_OUT_OF_TIME = (128 + signal.SIGKILL, 128 + signal.SIGXCPU)
_LAUNCH = "import sys; sys.path += sys.argv[1:]; from reader import main; main()"


class HtmlReader:
    """Reads pages, a few at a time."""

    def __init__(self) -> None:
        self._turns = anyio.Semaphore(AT_ONCE)

    async def read(self, html: str, wanted: Mapping[str, Any], *, seconds: float = SECONDS) -> dict[str, Any]:
        """What `reader.read` makes of the page; `UNREADABLE_PAGE` when it takes too much time or memory."""
        given = orjson.dumps(wanted) + b"\n" + html.encode("utf-8", "replace")
        async with self._turns:
            finished = await run(
                await _sandbox(), _program(), input=given, timeout=seconds, output_limit=_OUTPUT, hard_limit=_OUTPUT
            )
        return _answer(finished)


async def _sandbox() -> Sandbox:
    """The program is ours, so it may also run without a sandbox; it is a process to be ended all the same."""
    return (await survey()).sandbox or Unconfined()


def _program() -> Program:
    parser = importlib.util.find_spec("selectolax")
    packages = [Path(folder).parent for folder in (parser.submodule_search_locations or ())] if parser else []
    path = [_HERE, *packages]  # readable as wholes: they are searched for modules
    return Program(
        argv=(sys.executable, "-I", "-S", "-B", "-c", _LAUNCH, *map(str, path)),
        readable=tuple(sorted({*path, Path(sys.prefix), Path(sys.base_prefix)})),
        env={"LC_ALL": "C.UTF-8"},
        limits=_LIMITS,
    )


def _answer(finished: FinishedProgram) -> dict[str, Any]:
    if finished.exit.code != 0 or finished.stdout_truncated:
        reason = finished.exit.killed or ("time" if finished.exit.code in _OUT_OF_TIME else "a fault")
        _log.info("a page could not be read: %s, %s", finished.exit, finished.stderr[-500:])
        raise ToolFailed(
            f"this page cannot be made readable within the limits ({reason}); fetch it with format='raw'",
            code=UNREADABLE_PAGE,
        )
    answer: dict[str, Any] = orjson.loads(finished.stdout)
    return answer
