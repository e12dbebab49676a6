"""Audit: every call is recorded before its response is sent, refusals and unknown names included, and logged if the
log level is INFO."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.calls import Call, Outcome
from gateway.errors import Cancelled, GatewayError
from gateway.extensions import Extension
from gateway.secrets import KNOWN, redact
from gateway.tasks import SharedTimer, TaskSet
from gateway.text import visible

log = logging.getLogger(__name__)

# One line for each call, at INFO.
CALLS = logging.getLogger("gateway.calls")
LOGGED_ARGUMENTS = 300

# Returns the versions of the files before and after a call that ended without an outcome of its own.
TakeVersions = Callable[[str], tuple[str | None, str | None] | None]

# Seconds after which a call gets a `running` row; a shorter one costs a single write.
RUNNING_AFTER = 0.25


class Recorder(Protocol):
    """Stores records of calls."""

    async def record_running(self, call: Call) -> None: ...

    def finish(self, call: Call, outcome: Outcome, alone: bool) -> Awaitable[object] | None:
        """Record the end of a call. It is recorded when the awaitable is done, or at once where there is none. Records
        of calls that are not `alone` may share a write."""
        ...


class Audit(Extension):
    """Records each call when it ends, and a long one also while it runs. A call that cannot be recorded continues.
    `take_versions` supplies the versions of the files for calls that were cut short."""

    mode = "observer"

    def __init__(
        self,
        recorder: Recorder,
        running_after: float = RUNNING_AFTER,
        take_versions: TakeVersions = lambda _: None,
    ) -> None:
        self._recorder = recorder
        self._take_versions = take_versions
        self._logs = CALLS.isEnabledFor(logging.INFO)
        self._timer = SharedTimer(running_after)
        self._running_records = TaskSet()

    def before_execute(self, call: Call) -> None:
        self._timer.add(call.id, self._note_running, call)

    def after_execute(self, call: Call, outcome: Outcome) -> Awaitable[object] | None:
        self._timer.remove(call.id)
        if outcome.error is not None and (left := self._take_versions(call.id)) is not None:
            outcome = outcome.replace(pre_manifest=left[0], post_manifest=left[1])
        if self._logs:
            _log_call(call, outcome)
        return self._recorder.finish(call, outcome, alone=not self._timer.waits)

    def on_cancel(self, call: Call) -> Awaitable[object] | None:
        return self.after_execute(call, Outcome(error=Cancelled("the caller cancelled the call")))

    async def record_now(self, call_id: str) -> None:
        """Record a call that has just begun, for somebody who knows its id already."""
        if (begun := self._timer.take(call_id)) is not None:
            await self._record_running(*begun)

    def _note_running(self, call: Call) -> None:
        self._running_records.start(self._record_running(call))

    async def _record_running(self, call: Call) -> None:
        try:
            await self._recorder.record_running(call)
        except Exception:
            log.exception("call %s: could not be recorded as running", call.id)


def _log_call(call: Call, outcome: Outcome) -> None:
    """Write one line without secret values. The record has the same as `call`, for formats with fields."""
    try:
        arguments = KNOWN.mask(redact(call.arguments_json)[0].decode())
    except (GatewayError, TypeError, ValueError, RecursionError):
        arguments = "(not JSON)"
    if len(arguments) > LOGGED_ARGUMENTS:
        arguments = f"{arguments[:LOGGED_ARGUMENTS]}…"
    caller = call.caller
    through = f"{caller.surface}, {caller.client}" if caller.client else caller.surface
    code = None if outcome.error is None else outcome.error.code
    milliseconds = round((time.time() - call.started_at) * 1000, 1)
    line = (
        f"call {call.id} {call.name} {arguments}: {code or 'ok'} in {milliseconds} ms, chat {call.chat}, "
        f"{caller.principal} by {through}"
    )
    fields = {
        "id": call.id,
        "tool": call.name if call.tool is None else call.tool.id,
        "arguments": arguments,
        "error_code": code,
        "duration_ms": milliseconds,
        "chat": call.chat,
        "principal": caller.principal,
        "surface": caller.surface,
        "client": caller.client,
        "parent": None if call.parent is None else call.parent.id,
    }
    CALLS.info("%s", visible(KNOWN.mask(line)).replace("\n", "\\n"), extra={"call": fields})
