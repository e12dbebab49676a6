"""Tools of steps: calls of other tools, one after another or at the same time, offered as one tool.

Every step passes the executor as a call of its own: with its own record under the id of the whole call, its own
permission, question to a person and version of the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from gateway.bundles import Step, StepsTool
from gateway.bundles.field_types import compile_expression
from gateway.calls import Ask, Call, ClientInfo, Outcome, Progress, no_progress, to_json
from gateway.errors import GatewayError, InputRequired, Invalid, StepWaiting, ToolFailed
from gateway.render.interpolate import Scope, interpolate
from gateway.sources.upstreams.forward import question_capabilities
from gateway.sources.upstreams.suspended_calls import SuspendableRequest, SuspendedCalls, is_resumed
from gateway.value import Value

# Steps tools inside steps tools, and calls that one of them makes.
DEPTH_LIMIT = 5
CALLS_LIMIT = 200
NOBODY = ClientInfo()

# Calls a tool for the person behind the whole call.
CallStep = Callable[[Call], Awaitable[Outcome]]


class _StepsRequest(Value):
    """The call of a tool of steps. `full_id` returns the id of a tool that a step names."""

    tool: StepsTool
    call: Call
    full_id: Callable[[str], str]

    @property
    def client(self) -> ClientInfo:
        return self.call.client or NOBODY

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.call.caller.principal, self.call.chat, self.call.target.id, to_json(self.call.arguments)

    def by(self, call: Call) -> _StepsRequest:
        return replace(self, call=call)


Request = TypeVar("Request", bound=SuspendableRequest)


class InnerCalls:
    """Runs calls that make other calls. A modern client, which cannot be asked in the middle of a call, gets the
    question of an inner one as the result and calls again with the answer; the work waits for that."""

    def __init__(self) -> None:
        self._suspended = SuspendedCalls()

    async def run(self, request: Request, work: Callable[[Request], Awaitable[Outcome]]) -> Outcome:
        client = request.client
        if is_resumed(client):
            result = await self._suspended.resume(request)
        elif client.modern and question_capabilities(client):
            result = await self._suspended.run(request, partial(self._start, work))
        else:
            return await work(request)
        if result.get("resultType") == "input_required":
            asked = InputRequired("a step asks for input before it runs", reason="a step asks for input")
            return Outcome(error=asked, wire=result)
        outcome: Outcome = result["outcome"]
        return outcome

    async def close(self) -> None:
        """Cancel calls that wait for answers."""
        await self._suspended.close()

    async def _start(self, work: Callable[[Request], Awaitable[Outcome]], ask: Ask, request: Request) -> dict[str, Any]:
        client = replace(request.client, modern=False, ask=ask)
        return {"outcome": await work(request.by(request.call.replace(client=client)))}


class StepsRunner:
    """Runs tools of steps."""

    def __init__(self, call_step: CallStep) -> None:
        self._call_step = call_step
        self._calls = InnerCalls()

    async def run(self, tool: StepsTool, call: Call, full_id: Callable[[str], str]) -> Outcome:
        return await self._calls.run(_StepsRequest(tool, call, full_id), self._run)

    async def close(self) -> None:
        """Cancel calls that wait for answers."""
        await self._calls.close()

    async def _run(self, request: _StepsRequest) -> Outcome:
        check_depth(request.call)
        return Outcome(await _StepsRun(request, self._call_step).run())


def make_inner_call(parent: Call, name: str, arguments: Mapping[str, Any], progress: Progress = no_progress) -> Call:
    """Return a call that another one makes, for the same person and with the same client."""
    return Call(
        name=name,
        arguments=arguments,
        chat=parent.chat,
        message=parent.message,
        parent_message=parent.parent_message,
        caller=parent.caller,
        client=parent.client and replace(parent.client, answers={}),
        parent=parent,
        progress=progress,
    )


def check_depth(call: Call) -> None:
    """Refuse steps that call their own tool, directly or through other toolsets, and steps inside too many others."""
    above = []
    parent = call.parent
    while parent is not None:
        above.append(parent.target.id)
        parent = parent.parent
    if call.target.id in above:
        chain = " → ".join([*reversed(above), call.target.id])
        raise Invalid(f"the steps of {call.target.id} call it again: {chain}", code="RECURSIVE_STEPS")
    if len(above) >= DEPTH_LIMIT:
        raise Invalid(f"{call.target.id} is a step inside {len(above)} others; the limit is {DEPTH_LIMIT}")


class _StepFailed(Exception):
    """A step whose failure ends the whole call."""

    def __init__(self, label: str, error: GatewayError, call_id: str | None = None) -> None:
        super().__init__(label)
        message = f"step {label}: {error.message}"
        if isinstance(error, InputRequired):
            self.error: ToolFailed = StepWaiting(message, code=error.code, **{**error.details, "step": label})
        else:
            self.error = ToolFailed(message, code=error.code, step=label, call_id=call_id, details=error.details)


@dataclass
class _StepsRun:
    """One run of the steps: the values that were saved, and the calls that were made."""

    request: _StepsRequest
    call_step: CallStep
    saved: dict[str, Any] = field(default_factory=dict)
    calls: int = 0
    done: float = 0.0

    async def run(self) -> Any:
        steps = self.request.tool.steps
        value: Any = None
        try:
            for number, step in enumerate(steps, 1):
                await self._report(number - 1, step.label)
                value = await self._run_step(step, f"{number} ({step.label})")
        except _StepFailed as failed:
            raise failed.error from None
        result = self.request.tool.result
        return value if result is None else self._fill(result)

    async def _report(self, done: float, message: str) -> None:
        """Report progress in steps, which never goes back."""
        self.done = max(self.done, done)
        await self.request.call.progress(self.done, len(self.request.tool.steps), message)

    def _step_progress(self, label: str) -> Progress:
        """Return the progress of a step, as a part of the whole."""
        if self.request.call.progress is no_progress:
            return no_progress
        before = self.done

        async def report(done: float, total: float | None = None, message: str | None = None) -> None:
            part = min(done / total, 0.99) if total else 0.0
            await self._report(before + part, f"{label}: {message}" if message else label)

        return report

    async def _run_step(self, step: Step, label: str) -> Any:
        if step.for_each is None and not self._holds(step.when, label):
            self.saved |= {inner.save_as: None for inner in step.calls() if inner.save_as is not None}
            return None
        if step.parallel is not None:
            group = [self._run_step(inner, f"{label}, {inner.label}") for inner in step.parallel]
            return await _run_together(group, len(group))
        if step.for_each is None:
            value = await self._call(step, label, {})
        else:
            items = self._fill(step.for_each)
            if not isinstance(items, list):
                raise _StepFailed(label, Invalid("its for_each is not a list", code="INVALID_STEP"))
            items = [item for item in items if self._holds(step.when, label, item)]
            self._check_number(label, len(items))
            each = [
                self._call(step, f"{label}, item {index}", {"item": item, "index": index})
                for index, item in enumerate(items)
            ]
            value = await _run_together(each, step.at_once)
        if step.save_as is not None:
            self.saved[step.save_as] = value
        return value

    def _check_number(self, label: str, more: int) -> None:
        if self.calls + more > CALLS_LIMIT:
            raise _StepFailed(label, Invalid(f"more than {CALLS_LIMIT} calls", code="TOO_MANY_STEPS"))

    def _holds(self, condition: str | None, label: str, item: Any = None) -> bool:
        if condition is None:
            return True
        values = {"args": dict(self.request.call.arguments), "steps": self.saved, "item": item}
        try:
            return bool(compile_expression(condition).search(values))
        except ValueError as error:  # of jmespath, such as a comparison of other types
            reason = Invalid(f"its condition cannot be evaluated: {error}", code="INVALID_STEP")
            raise _StepFailed(label, reason) from None

    def _fill(self, template: Any, **trees: Any) -> Any:
        call = self.request.call
        return interpolate(template, Scope(call.arguments, chat=call.chat, trees={"steps": self.saved, **trees}))

    async def _call(self, step: Step, label: str, trees: Mapping[str, Any]) -> Any:
        """Call the tool of a step; its value, or None if it failed and may."""
        self._check_number(label, 1)
        self.calls += 1
        name, arguments = self.request.full_id(step.tool or ""), self._fill(step.args, **trees)
        call = make_inner_call(self.request.call, name, arguments, self._step_progress(label))
        outcome = await self.call_step(call)
        if outcome.error is None:
            return outcome.value
        if step.on_error == "continue":
            return None
        raise _StepFailed(label, outcome.error, outcome.call_id or call.id)


async def _run_together(work: Sequence[Coroutine[Any, Any, Any]], at_once: int) -> list[Any]:
    """Run all, at most so many at a time; the results in their order. The first failure cancels the rest."""
    slots = asyncio.Semaphore(at_once)

    async def run(each: Coroutine[Any, Any, Any]) -> Any:
        async with slots:
            return await each

    tasks = [asyncio.ensure_future(run(each)) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in work:
            each.close()  # those that never began
        raise
