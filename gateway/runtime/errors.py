"""What a caller reads when a call came to no good end: the tool's own error, or the end of its process."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from gateway.errors import GatewayError, Invalid, ToolFailed
from gateway.sandbox import Exit, Limits

WORKER_DIED = "WORKER_DIED"
OUTPUT_LIMIT = "OUTPUT_LIMIT"
_TEXT_LIMIT = 16 * 1024
_MEBIBYTE = 1024 * 1024


def tool_error(said: Any) -> GatewayError:
    """The worker's word on a call that failed, as one of our errors."""
    told: Mapping[str, Any] = said if isinstance(said, dict) else {}
    message = _text(told.get("message")) or "it failed without a word"
    match told.get("kind"):
        case "arguments":
            return Invalid(message)
        case "output":
            return ToolFailed(message, code="INVALID_OUTPUT")
        case "toolset":
            return ToolFailed(message)
    kind, place = _text(told.get("type")) or "Exception", _text(told.get("place"))
    where = f" ({place})" if place else ""
    own = _text(told.get("message"))
    return ToolFailed(f"{kind}: {own}{where}" if own else f"{kind}{where}", type=kind, text=own, place=place)


def too_much_output(limit: int) -> ToolFailed:
    printed = f"more than {limit // _MEBIBYTE} MiB" if limit >= _MEBIBYTE else f"more than {limit:,} bytes"
    return ToolFailed(
        f"the tool printed {printed} during one call and was ended; have it write to a file instead",
        code=OUTPUT_LIMIT,
        limit=limit,
    )


def worker_died(toolset: str, how: str, ended: Exit | None, stderr: str) -> ToolFailed:
    """`how` completes "the process of … "; the details have what an author needs to find out why."""
    return ToolFailed(
        f"the process of toolset {toolset!r} {how}; the next call starts a new one",
        code=WORKER_DIED,
        **({} if ended is None else exit_details(ended)),
        stderr=stderr,
    )


def exit_details(ended: Exit) -> dict[str, Any]:
    name = signal_name(ended.code)
    code = {"exit_code": ended.code} if name is None else {"signal": name}
    return code if ended.killed is None else {**code, "limit": ended.killed}


def how_it_ended(ended: Exit, limits: Limits, stderr: str) -> str:
    """In words for someone who never saw the code."""
    match ended.killed:
        case "memory":
            return f"used more than the {limits.memory // _MEBIBYTE} MiB of memory it may use (sandbox.memory_mb)"
        case "processes":
            return f"used all of the {limits.processes} processes and threads it may have"
        case "disk":
            return f"wrote more than the {limits.disk // _MEBIBYTE} MiB it may add to its files"
        case str() as limit:
            return f"went over its limit of {limit}"
    name = signal_name(ended.code)
    last = stderr.strip().rpartition("\n")[2][:300]
    if name is not None:
        return f"crashed ({_SIGNALS.get(name, name)})"
    return f"ended itself with exit code {ended.code}" + (f", saying {last!r}" if last else "")


def signal_name(code: int) -> str | None:
    """The signal behind an exit code, as `SIGSEGV`; None for a code the program chose."""
    number = code - 128 if code > 128 else -code
    try:
        return signal.Signals(number).name if number > 0 else None
    except ValueError:
        return None


_SIGNALS = {
    "SIGSEGV": "SIGSEGV: it touched memory that is not its own",
    "SIGKILL": "SIGKILL: it was killed from outside, perhaps for lack of memory",
    "SIGABRT": "SIGABRT: it gave itself up",
    "SIGXCPU": "SIGXCPU: it used up its processor time",
    "SIGSYS": "SIGSYS: it asked the system for something it may not do",
}


def _text(value: Any) -> str | None:
    return value[:_TEXT_LIMIT] if isinstance(value, str) else None
