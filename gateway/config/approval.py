"""Settings of approval: when a person is asked, and where."""

from __future__ import annotations

from typing import Literal

from .section import Section


class ApprovalSettings(Section):
    mode: Literal["never", "unsafe_only", "always"] = "unsafe_only"
    without_elicitation: Literal["deny", "queue"] = "deny"
