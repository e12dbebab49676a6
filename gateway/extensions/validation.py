"""Validation: arguments and results are checked against the tool's schemas and the size limits."""

from __future__ import annotations

from gateway.calls import Call, Outcome
from gateway.errors import Invalid, ToolFailed
from gateway.extensions import Extension
from gateway.extensions.large_results import result_size


class Validation(Extension):
    """Refuses unknown tools, invalid arguments or results, and those that are too large."""

    def __init__(self, request_bytes: int, response_bytes: int) -> None:
        self._request_bytes = request_bytes
        self._response_bytes = response_bytes

    async def before_execute(self, call: Call) -> None:
        tool = call.target
        size = len(call.arguments_json)
        if size > self._request_bytes:
            raise Invalid(
                f"{tool.id}: the arguments are {size} bytes, the limit is {self._request_bytes} (limits.request_bytes)",
                code="REQUEST_TOO_LARGE",
                bytes=size,
                limit=self._request_bytes,
            )
        tool.check_arguments(call.arguments)

    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        if outcome.error is not None and outcome.wire is None:
            return outcome
        tool = call.target
        if tool.output_schema is not None and outcome.wire is None:  # an upstream's result is passed on unchanged
            tool.check_output(outcome.value)
        size = result_size(outcome)
        if size > self._response_bytes:
            raise ToolFailed(
                f"{tool.id}: the result is {size} bytes, the limit is {self._response_bytes} (limits.response_bytes)",
                code="RESPONSE_TOO_LARGE",
                bytes=size,
                limit=self._response_bytes,
            )
        return outcome
