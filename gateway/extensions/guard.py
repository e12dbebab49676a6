"""Guards around the functions of operators' extensions: whatever one raises is an error of its own, and each may wait
for so long. Ours have none, so that a call pays for a guard only where an operator's extension stands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from gateway.calls import Call, Outcome, Proceed


class ExtensionFault(Exception):
    """An extension raised something that is not an `Exception`, or did not end in time."""


class ExtensionGuard:
    """Guards the functions of one extension, for which each may wait `seconds`; None sets no limit."""

    def __init__(self, name: str, seconds: float | None) -> None:
        self._name = name
        self._seconds = seconds

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function called before or after the tool, or at a cancellation, behind this guard."""
        if iscoroutinefunction(function):

            @wraps(function)
            async def call(*arguments: Any) -> Any:
                return await self._wait(function(*arguments))

            return call

        @wraps(function)
        def call_plain(*arguments: Any) -> Any:
            try:
                result = function(*arguments)
            except (Exception, KeyboardInterrupt):
                raise
            except BaseException as error:
                raise self._fault(error) from error
            return result if result is None or isinstance(result, Call | Outcome) else self._wait(result)

        return call_plain

    def guard_around(self, around: Callable[[Call, Proceed], Awaitable[Outcome]]) -> Callable[..., Awaitable[Outcome]]:
        """Return a function around the rest of the call behind this guard. The time of the rest does not count, and
        what it raises is not the extension's."""

        @wraps(around)
        async def call_tool(call: Call, proceed: Proceed) -> Outcome:
            deadline = asyncio.timeout(self._seconds)
            running, raised = 0, list[BaseException]()

            async def proceed_unlimited(call: Call) -> Outcome:
                nonlocal running
                running += 1
                deadline.reschedule(None)
                try:
                    return await proceed(call)
                except BaseException as error:
                    raised.append(error)
                    raise
                finally:
                    running -= 1
                    if not running and self._seconds is not None and not deadline.expired():
                        deadline.reschedule(asyncio.get_running_loop().time() + self._seconds)

            async def run() -> Outcome:
                return await around(call, proceed_unlimited)

            try:
                outcome: Outcome = await self._wait(run(), deadline)
                return outcome
            except ExtensionFault as fault:
                if fault.__cause__ in raised:
                    raise fault.__cause__ from None
                raise

        return call_tool

    async def _wait(self, result: Awaitable[Any], deadline: asyncio.Timeout | None = None) -> Any:
        deadline = deadline or asyncio.timeout(self._seconds)
        try:
            async with deadline:
                return await result
        except TimeoutError as error:
            if not deadline.expired():
                raise
            hint = "raise limits.timeout, or set its wait_timeout"
            raise ExtensionFault(f"{self._name} took longer than {self._seconds:g} s; {hint}") from error
        except (Exception, KeyboardInterrupt, GeneratorExit):  # a coroutine that is closed gets a GeneratorExit
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._fault(error) from error
        except BaseException as error:
            raise self._fault(error) from error

    def _fault(self, error: BaseException) -> ExtensionFault:
        return ExtensionFault(f"{self._name} raised {error!r}")
