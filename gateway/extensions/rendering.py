"""Rendering: the plan of how to show the outcome of a tool that has a renderer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import anyio.to_thread

from gateway.calls import Call, Outcome
from gateway.errors import GatewayError, InputRequired, Invalid
from gateway.extensions import Extension
from gateway.render import make_plan
from gateway.secrets import KNOWN, mask_in, redact
from gateway.tools import Renderer, Tool
from gateway.value import Value

# Bytes of arguments and value above which a plan is made in a thread.
INLINE_BYTES = 64 * 1024


class Directories(Value):
    """The paths under which a tool sees the chat's workspace and its toolset; None if it uses relative paths."""

    workspace: str | None = None
    toolset: str | None = None


RELATIVE = Directories()
IN_SANDBOX = Directories("/workspace", "/toolset")


def directories_in_sandbox(call: Call) -> Directories:
    """Return the directories of a toolset's tool in a sandbox that has its own file system."""
    return RELATIVE if call.target.home is None else IN_SANDBOX


class Rendering(Extension):
    """Adds the plan to outcomes, errors included. A call that waits for a person has no plan.

    No plan contains known secrets or secrets of the arguments, even if a config or the tool repeats one. They are
    masked before the plan is made, because a plan cuts off long texts.
    """

    mode = "observer"

    def __init__(self, directories: Callable[[Call], Directories] = directories_in_sandbox) -> None:
        self._directories = directories

    def applies_to(self, tool: Tool) -> bool:
        return tool.renderer is not None

    def after_execute(self, call: Call, outcome: Outcome) -> Awaitable[Outcome] | Outcome | None:
        renderer = None if call.tool is None else call.tool.renderer
        if renderer is None or isinstance(outcome.error, InputRequired):
            return None
        add_plan = partial(_add_plan, renderer, call, outcome, self._directories(call))
        return add_plan() if _size(call, outcome) <= INLINE_BYTES else anyio.to_thread.run_sync(add_plan)


def _size(call: Call, outcome: Outcome) -> int:
    try:
        return len(call.arguments_json) + len(outcome.value_json)
    except Invalid:  # the value is not JSON; the plan will say so
        return 0


def _add_plan(renderer: Renderer, call: Call, outcome: Outcome, directories: Directories) -> Outcome:
    document, secrets = redact(call.arguments_json)
    arguments = KNOWN.mask_json(document.decode())
    if arguments != call.arguments_json.decode():
        call = call.replace(arguments=json.loads(arguments))
    masked = _mask_secrets(outcome, secrets)
    plan = make_plan(renderer, call, masked, workspace=directories.workspace, toolset=directories.toolset)
    return outcome.replace(render_plan=plan.to_dict())


def _mask_secrets(outcome: Outcome, secrets: Sequence[str]) -> Outcome:
    error = outcome.error
    if error is not None:
        masked = GatewayError(KNOWN.mask(mask_in(error.message, secrets)), code=error.code)
        masked.details = KNOWN.mask_value(mask_in(error.details, secrets))
        return replace(outcome, error=masked)
    if secrets:
        outcome = replace(outcome, value=mask_in(outcome.value, secrets))
    try:
        document = outcome.value_json.decode()
    except Invalid:  # the value is not JSON; the plan will say so
        return outcome
    masked_document = KNOWN.mask_json(document)
    return outcome if masked_document == document else replace(outcome, value=json.loads(masked_document))
