"""Approval: a person agrees before a dangerous call runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..calls import Call, Outcome, Proceed
from ..errors import InputRequired
from . import Extension

Mode = Literal["never", "unsafe_only", "always"]


class Approval(Extension):
    """Raises `InputRequired` where a person must agree; it never waits for one.

    A call that passes because it was agreed to (or because the operator asks nobody) is marked
    `confirmed`; one that passes because it is harmless is not, so the tool can hold it to that.
    """

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        if call.confirmed:
            return await proceed(call)
        if self._mode == "never":
            return await proceed(replace(call, confirmed=True))
        reason = await self._reason(call)
        if reason is None:
            return await proceed(call)
        raise InputRequired(
            f"{reason}. This call needs a person's consent, which cannot be asked for on this "
            "connection; the operator can allow such calls with 'approval: {mode: never}'",
            reason=reason,
        )

    async def _reason(self, call: Call) -> str | None:
        rule = call.target.requires_confirmation
        if callable(rule):
            reason = await rule(call)
            if reason is not None:
                return reason
        elif rule:
            return f"{call.target.id} always asks first"
        return f"{call.target.id} asks first, as every tool does (approval.mode)" if self._mode == "always" else None
