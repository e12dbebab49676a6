"""Times of the steps of calls: of each extension and of the tool, measured only while somebody looks at calls."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.calls import Call, Outcome, Proceed
from gateway.extensions import After, AroundCall, Before, PlanStep

# Calls whose times are kept, the latest ones.
_KEPT = 1000


@dataclass
class StepTime:
    """The beginning of a step (`time.perf_counter`), the seconds it took itself, and whether it ended the call."""

    began: float
    seconds: float = 0.0
    failed: bool = False


class StepTimes:
    """The times of the latest calls that were measured, each by the place of its step; the last place is the tool."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[int, StepTime]] = {}

    def get(self, call_id: str) -> dict[int, StepTime] | None:
        return self._calls.get(call_id)

    def measure(self, steps: Sequence[PlanStep], run: Proceed) -> tuple[list[PlanStep], Proceed]:
        """Return the same steps and tool, measured."""
        return [self._measure_step(place, step) for place, step in enumerate(steps)], self._measure_tool(
            len(steps), run
        )

    def _measure_step(self, place: int, step: PlanStep) -> PlanStep:
        return step._replace(
            before=None if step.before is None else self._measure_before(place, step.before),
            after=None if step.after is None else self._measure_after(place, step.after),
            around=None if step.around is None else self._measure_around(place, step.around),
        )

    def _measure_before(self, place: int, before: Before) -> Before:
        def measured(call: Call) -> Any:
            began = time.perf_counter()
            try:
                changed = before(call)
            except Exception:
                self._add(call.id, place, began, failed=True)
                raise
            if changed is None or isinstance(changed, Call):
                self._add(call.id, place, began)
                return changed
            return self._wait(call.id, place, began, changed)

        return measured

    def _measure_after(self, place: int, after: After) -> After:
        def measured(call: Call, outcome: Outcome) -> Any:
            began = time.perf_counter()
            result = after(call, outcome)
            if result is None or isinstance(result, Outcome):
                self._add(call.id, place, began)
                return result
            return self._wait(call.id, place, began, result)

        return measured

    def _measure_around(self, place: int, around: AroundCall) -> AroundCall:
        async def measured(call: Call, proceed: Proceed) -> Outcome:
            began = time.perf_counter()
            inside = 0.0
            went_on = False

            async def proceed_measured(call: Call) -> Outcome:
                nonlocal inside, went_on
                went_on = True
                entered = time.perf_counter()
                try:
                    return await proceed(call)
                finally:
                    inside += time.perf_counter() - entered

            failed = True
            try:
                outcome = await around(call, proceed_measured)
                failed = outcome.error is not None
                return outcome
            finally:
                self._add(call.id, place, began, inside, failed=failed and not went_on)

        return measured

    def _measure_tool(self, place: int, run: Proceed) -> Proceed:
        async def measured(call: Call) -> Outcome:
            began = time.perf_counter()
            failed = True
            try:
                outcome = await run(call)
                failed = outcome.error is not None
                return outcome
            finally:
                self._add(call.id, place, began, failed=failed)

        return measured

    async def _wait(self, call_id: str, place: int, began: float, result: Awaitable[Any]) -> Any:
        failed = True
        try:
            value = await result
            failed = False
            return value
        finally:
            self._add(call_id, place, began, failed=failed)

    def _add(self, call_id: str, place: int, began: float, without: float = 0.0, failed: bool = False) -> None:
        times = self._calls.get(call_id)
        if times is None:
            if len(self._calls) >= _KEPT:
                del self._calls[next(iter(self._calls))]
            times = self._calls[call_id] = {}
        step = times.setdefault(place, StepTime(began))
        step.seconds += time.perf_counter() - began - without
        step.failed = step.failed or failed
