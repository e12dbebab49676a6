"""Permissions: a call may do no more than its category, its profile and its caller all allow."""

from __future__ import annotations

from collections.abc import Mapping

from ..calls import Call
from ..errors import Forbidden
from ..tools import Category, Permission
from . import Extension


class Permissions(Extension):
    """Refuses a call whose tool needs more than the least of the levels that apply to it."""

    def __init__(self, categories: Mapping[str, Category], profile: Permission = Permission.EXECUTE) -> None:
        self._categories = categories
        self._profile = profile

    async def before_execute(self, call: Call) -> None:
        tool = call.target
        category = self._categories[tool.category]
        if not category.enabled:
            raise Forbidden(f"{tool.id}: category {category.name!r} is off", code="TOOL_DISABLED")
        for level, whose in (
            (category.permission, f"category {category.name!r}"),
            (self._profile, "this profile"),
            (call.caller.permission, f"caller {call.caller.principal!r}"),
        ):
            if not level.allows(tool.permission):
                raise Forbidden(
                    f"{tool.id} needs {tool.permission.value}; {whose} allows only {level.value}",
                    needed=tool.permission.value,
                    allowed=level.value,
                )
