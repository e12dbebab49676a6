"""Rendering: after a call of a tool that has a renderer, the plan of how to show what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread

from gateway.calls import Call, Outcome, Proceed
from gateway.errors import GatewayError, InputRequired, Invalid
from gateway.extensions import Extension
from gateway.render import make_plan
from gateway.secrets import KNOWN, mask_in, redact
from gateway.tools import Renderer, Tool

# Bytes of arguments and value up to which a plan is made at once; a larger one is made in a thread.
IN_PLACE = 64 * 1024


@dataclass(frozen=True)
class Directories:
    """Where a tool sees the chat's workspace and its toolset; None for one that works with relative paths."""

    workspace: str | None = None
    toolset: str | None = None


ELSEWHERE = Directories()
IN_SANDBOX = Directories("/workspace", "/toolset")


def as_mounted(call: Call) -> Directories:
    """What a toolset's tool sees in a sandbox that has a file system of its own."""
    return ELSEWHERE if call.target.home is None else IN_SANDBOX


class Rendering(Extension):
    """Adds the plan to outcomes, errors included; a call that still waits for a person has none.

    No plan holds known secrets, or secrets of the arguments: neither in its input, nor where a config or the tool
    itself repeats one. They are masked before the plan is made, since a plan cuts long texts.
    """

    mode = "observer"

    def __init__(self, directories: Callable[[Call], Directories] = as_mounted) -> None:
        self._directories = directories

    def concerns(self, tool: Tool) -> bool:
        return tool.renderer is not None

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        outcome = await proceed(call)
        renderer = None if call.tool is None else call.tool.renderer
        if renderer is None or isinstance(outcome.error, InputRequired):
            return outcome
        seen = self._directories(call)
        if _size(call, outcome) <= IN_PLACE:
            return outcome.with_plan(_plan(renderer, call, outcome, seen))
        return outcome.with_plan(await anyio.to_thread.run_sync(_plan, renderer, call, outcome, seen))


def _size(call: Call, outcome: Outcome) -> int:
    try:
        return len(call.arguments_json) + len(outcome.value_json)
    except Invalid:  # a value that is no JSON; the plan will say so
        return 0


def _plan(renderer: Renderer, call: Call, outcome: Outcome, seen: Directories) -> dict[str, Any]:
    document, secrets = redact(call.arguments_json)
    arguments = KNOWN.mask_json(document.decode())
    if arguments != call.arguments_json.decode():
        call = call.with_arguments(json.loads(arguments))
    outcome = _masked(outcome, secrets)
    return make_plan(renderer, call, outcome, workspace=seen.workspace, toolset=seen.toolset).to_dict()


def _masked(outcome: Outcome, secrets: Sequence[str]) -> Outcome:
    error = outcome.error
    if error is not None:
        told = GatewayError(KNOWN.mask(mask_in(error.message, secrets)), code=error.code)
        told.details = KNOWN.mask_value(mask_in(error.details, secrets))
        return replace(outcome, error=told)
    if secrets:
        outcome = replace(outcome, value=mask_in(outcome.value, secrets))
    try:
        document = outcome.value_json.decode()
    except Invalid:  # no JSON; the plan says so
        return outcome
    masked = KNOWN.mask_json(document)
    return outcome if masked == document else replace(outcome, value=json.loads(masked))
