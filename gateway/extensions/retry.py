"""Retry: a call that failed for a passing reason is made again, where its tool declares that this is harmless."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from gateway.calls import Call, Outcome, Proceed
from gateway.errors import GatewayError
from gateway.extensions import Extension
from gateway.tasks import backoff_with_jitter
from gateway.tools import RetryPolicy, Tool

# Error codes of a server or network that does not answer, for tools that name none.
TRANSIENT = frozenset(
    {
        "CONNECT_FAILED",
        "CONNECTION_LOST",
        "LOOKUP_FAILED",
        "UNAVAILABLE",
        "HTTP_429",
        "HTTP_502",
        "HTTP_503",
        "HTTP_504",
    }
    | {"UPSTREAM_BUSY", "UPSTREAM_LOST", "UPSTREAM_UNREACHABLE"}
)
# How often a pause looks whether the gateway is stopping.
_SLICE_SECONDS = 0.25


class CallRetry(Extension):
    """Calls again up to the tool's number of attempts, after growing pauses, or after the seconds that the server
    named; not when these are longer than the longest pause. The outcome and the record have the number of attempts.
    Each attempt takes a slot and has a deadline of its own; a pause holds none."""

    def __init__(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self._is_stopping = is_stopping

    def applies_to(self, tool: Tool) -> bool:
        return tool.retry is not None

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        policy = call.target.retry
        outcome, attempt = await proceed(call), 1
        while policy is not None and outcome.error is not None and attempt < policy.attempts:
            seconds = _pause(policy, outcome.error, attempt)
            if seconds is None or not await self._sleep(seconds):
                break
            outcome, attempt = await proceed(call), attempt + 1
        return outcome if attempt == 1 else outcome.replace(attempts=attempt)

    async def _sleep(self, seconds: float) -> bool:
        """Pause; return False as soon as the gateway is stopping."""
        until = anyio.current_time() + seconds
        while not self._is_stopping():
            left = until - anyio.current_time()
            if left <= 0:
                return True
            await anyio.sleep(min(left, _SLICE_SECONDS))
        return False


def _pause(policy: RetryPolicy, error: GatewayError, attempt: int) -> float | None:
    """Return the seconds before the next attempt; None if there is none."""
    if error.code not in (policy.codes or TRANSIENT):
        return None
    named = error.details.get("retry_after")
    if isinstance(named, int | float):
        return float(named) if named <= policy.longest_seconds else None
    return backoff_with_jitter(attempt, policy.first_seconds, policy.longest_seconds)
