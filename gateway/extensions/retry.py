"""Retry: a call that failed for a passing reason is made again, where that is harmless."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase

from gateway.calls import Call, Outcome, Proceed
from gateway.config import RetrySettings
from gateway.errors import GatewayError
from gateway.extensions import Extension
from gateway.tasks import backoff_with_jitter
from gateway.tools import Permission, RetryPolicy, Tool

log = logging.getLogger(__name__)

# Error codes of a server or network that does not answer, and its status codes, for policies that name no codes.
TRANSIENT = frozenset(
    {"CONNECT_FAILED", "CONNECTION_LOST", "LOOKUP_FAILED", "RATE_LIMITED", "UNAVAILABLE"}
    | {"UPSTREAM_BUSY", "UPSTREAM_LOST", "UPSTREAM_UNAVAILABLE", "UPSTREAM_UNREACHABLE"}
)
TRANSIENT_STATUS = frozenset({429, 502, 503, 504})

# Waits for seconds on behalf of a call; False if the gateway is stopping.
Pause = Callable[[Call, float], Awaitable[bool]]


class CallRetry(Extension):
    """Calls again up to the tool's number of attempts, after growing pauses, or after the seconds that the server
    named; not when these are longer than the longest pause. The outcome and the record have the number of attempts.
    Each attempt takes a slot and has a deadline of its own; a pause holds none. `settings` are the operator's, by
    patterns over ids; the first that matches replaces what the tool declares."""

    def __init__(self, settings: Mapping[str, RetrySettings], pause: Pause) -> None:
        self._settings = settings
        self._pause = pause
        self._refused: set[str] = set()

    def applies_to(self, tool: Tool) -> bool:
        policy = self._policy(tool)
        if policy is None and not self._refused.issuperset(tool.ids) and not self._settings.keys().isdisjoint(tool.ids):
            self._refused.update(tool.ids)
            log.warning("tools.retry: %s may do something twice; add 'repeatable: true' if that is harmless", tool.id)
        return policy is not None and policy.attempts > 1

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        outcome, attempt = await proceed(call), 1
        if outcome.error is None:
            return outcome
        policy = self._policy(call.target)
        while policy is not None and outcome.error is not None and attempt < policy.attempts:
            seconds = _pause_seconds(policy, outcome.error, attempt)
            if seconds is None or not await self._pause(call, seconds):
                break
            outcome, attempt = await proceed(call), attempt + 1
        return outcome if attempt == 1 else outcome.replace(attempts=attempt)

    def _policy(self, tool: Tool) -> RetryPolicy | None:
        """Return the policy of a tool. An upstream's word that a tool is idempotent is taken: a server that lies could
        do it twice by itself."""
        for pattern, settings in self._settings.items():
            if any(fnmatchcase(name, pattern) for name in tool.ids):
                return settings.policy(tool.idempotent or tool.permission is Permission.READ_ONLY)
        return tool.retry


def _pause_seconds(policy: RetryPolicy, error: GatewayError, attempt: int) -> float | None:
    """Return the seconds before the next attempt; None if there is none."""
    passing = error.code in TRANSIENT or error.details.get("status") in TRANSIENT_STATUS
    if not (error.code in policy.codes if policy.codes else passing):
        return None
    named = error.details.get("retry_after")
    if isinstance(named, int | float):
        return float(named) if named <= policy.longest_seconds else None
    return backoff_with_jitter(attempt, policy.first_seconds, policy.longest_seconds)
