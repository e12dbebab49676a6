"""Validation: arguments and results are checked against the tool's schemas and the size limits."""

from __future__ import annotations

from collections.abc import Callable

from gateway.calls import Call, Outcome
from gateway.errors import Invalid, ToolFailed
from gateway.extensions import Extension
from gateway.tools import Tool


class Validation(Extension):
    """Refuses unknown tools, invalid arguments or results, and those that are too large.

    An upstream judges its arguments itself: what its schema refuses is repaired where possible, and passed on unless
    `reads_arguments` says that a policy depends on the arguments of the tool.
    """

    def __init__(
        self, request_bytes: int, response_bytes: int, reads_arguments: Callable[[Tool], bool] = lambda _: True
    ) -> None:
        self._request_bytes = request_bytes
        self._response_bytes = response_bytes
        self._reads_arguments = reads_arguments

    def before_execute(self, call: Call) -> Call | None:
        tool = call.target
        size = len(call.arguments_json)
        if size > self._request_bytes:
            raise Invalid(
                f"{tool.id}: the arguments are {size} bytes, the limit is {self._request_bytes} (limits.request_bytes)",
                code="REQUEST_TOO_LARGE",
                bytes=size,
                limit=self._request_bytes,
            )
        return None if tool.accepts(call.arguments) else self._repair(call, tool)

    def _repair(self, call: Call, tool: Tool) -> Call:
        arguments = tool.repair_arguments(call.arguments)
        if tool.wire is None or self._reads_arguments(tool):
            tool.check_arguments(arguments)
        return call.replace(arguments=arguments)

    def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        if outcome.error is not None and outcome.wire is None:
            return outcome
        tool = call.target
        if tool.output_schema is not None and outcome.wire is None:  # an upstream's result is passed on unchanged
            tool.check_output(outcome.value)
        size = outcome.size
        if size > self._response_bytes:
            raise ToolFailed(
                f"{tool.id}: the result is {size} bytes, the limit is {self._response_bytes} (limits.response_bytes)",
                code="RESPONSE_TOO_LARGE",
                bytes=size,
                limit=self._response_bytes,
            )
        return outcome
