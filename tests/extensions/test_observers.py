"""The observers: what is counted and what is written down, whatever comes of a call."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from eventually import TIMEOUT

from gateway.calls import Call, Outcome
from gateway.errors import Forbidden
from gateway.extensions import stack
from gateway.extensions.audit import Audit
from gateway.extensions.telemetry import BUCKETS, Telemetry
from gateway.tools import Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X3")]

ECHO = Tool("echo", "")


class Ledger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self.fails = False

    async def record_running(self, call: Call) -> None:
        self.lines.append((call.name, "running"))

    async def finish(self, call: Call, outcome: Outcome, alone: bool) -> None:
        await anyio.lowlevel.checkpoint()
        if self.fails:
            raise OSError("disk full")
        self.lines.append((call.name, "OK" if outcome.error is None else outcome.error.code))


def call(tool: Tool | None = ECHO) -> Call:
    return Call(name=tool.id if tool else "nobody", arguments={}, tool=tool)


async def ok(_: Call) -> Outcome:
    return Outcome(value=1)


async def refuse(call: Call) -> Outcome:
    assert call.target
    raise Forbidden("no")


async def test_telemetry_counts_calls_by_outcome_and_unknown_names_together() -> None:
    telemetry = Telemetry()
    for run in (ok, ok, refuse):
        await stack([telemetry], run)(call())
    for name in ("a", "b"):
        await stack([telemetry], refuse)(Call(name=name, arguments={}))
    assert telemetry.tools["echo"].outcomes == {"OK": 2, "PERMISSION_DENIED": 1}
    assert sum(telemetry.tools["echo"].buckets) == 3
    assert len(telemetry.tools["echo"].buckets) == len(BUCKETS) + 1
    assert telemetry.unknown.outcomes == {"UNKNOWN_TOOL": 2}
    assert (set(telemetry.tools), telemetry.running) == ({"echo"}, 0)


async def test_audit_records_every_call_before_its_outcome_is_returned() -> None:
    ledger = Ledger()
    await stack([Audit(ledger)], ok)(call())
    assert ledger.lines == [("echo", "OK")]
    await stack([Audit(ledger)], refuse)(call())
    await stack([Audit(ledger)], refuse)(call(None))
    assert ledger.lines == [("echo", "OK"), ("echo", "PERMISSION_DENIED"), ("nobody", "UNKNOWN_TOOL")]


async def test_audit_records_a_cancelled_call_and_a_long_one_twice() -> None:
    ledger = Ledger()
    noted = asyncio.Event()

    class Noting(Ledger):
        async def record_running(self, call: Call) -> None:
            ledger.lines.append((call.name, "running"))
            noted.set()

    async def wait(_: Call) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError

    watching = Noting()
    watching.lines = ledger.lines
    task = asyncio.ensure_future(stack([Audit(watching, running_after=0)], wait)(call()))
    async with asyncio.timeout(TIMEOUT):
        await noted.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ledger.lines == [("echo", "running"), ("echo", "CANCELLED")]


async def test_audit_logs_a_record_that_cannot_be_written_and_the_call_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Ledger()
    ledger.fails = True
    assert (await stack([Audit(ledger)], ok)(call())).value == 1
    assert "disk full" in caplog.text
