"""The instructions of Python that something takes: a measure which other processes do not change."""

from __future__ import annotations

import dis
import linecache
import sys
from collections.abc import Awaitable, Callable
from types import CodeType, FrameType
from typing import Any


async def count_opcodes(run: Callable[[], Awaitable[object]]) -> int:
    """Return the instructions of a run beside which nothing else happened in this thread: the least of many."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    counts = []
    before = sys.gettrace()
    for _ in range(60):
        count = 0
        sys.settrace(trace)
        try:
            await run()
        finally:
            sys.settrace(before)
        counts.append(count)
    return min(counts[20:])


async def record_opcodes(run: Callable[[], Awaitable[object]], package: str) -> set[tuple[str, str]]:
    """Return the instructions of a package's code in a run, in this thread: their names, and the text of the expression
    that each belongs to."""
    executed: set[tuple[CodeType, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            if not frame.f_globals.get("__name__", "").startswith(package):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            executed.add((frame.f_code, frame.f_lasti))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await run()
    finally:
        sys.settrace(before)
    instructions = {code: {each.offset: each for each in dis.get_instructions(code)} for code, _ in executed}
    return {
        (instruction.opname, _read_expression(code, instruction))
        for code, offset in executed
        if (instruction := instructions[code].get(offset)) is not None
    }


def _read_expression(code: CodeType, instruction: dis.Instruction) -> str:
    position = instruction.positions
    if position is None or position.lineno is None or position.end_lineno is None:
        return ""
    lines = [linecache.getline(code.co_filename, at) for at in range(position.lineno, position.end_lineno + 1)]
    lines[-1] = lines[-1][: position.end_col_offset]
    lines[0] = lines[0][position.col_offset :]
    return "".join(lines)
