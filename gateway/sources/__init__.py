"""The protocol of tool sources. A source lists its tools and runs them; only the executor calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.calls import Call, Outcome
from gateway.tools import Tool


class Source(Protocol):
    """One origin of tools: builtin, a toolset, an upstream server, yours."""

    name: str

    async def list_tools(self) -> Sequence[Tool]:
        """The tools as they are now. Asked once per catalog, never per call."""
        ...

    async def call_tool(self, call: Call) -> Outcome:
        """Run `call.target`, which is a tool this source listed, with arguments that fit its schema.

        Raises a `GatewayError` or returns an error outcome when the tool says no."""
        ...
