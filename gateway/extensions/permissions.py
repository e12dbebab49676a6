"""Permissions: a call may do no more than its category, its profile and its caller all allow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from gateway.calls import Call
from gateway.errors import Forbidden
from gateway.extensions import Extension
from gateway.tools import Category, Permission, Tool

# Make `principal` the owner of `chat` if it has none; answers who owns it.
Claim = Callable[[str, str], Awaitable[str]]

REMEMBERED = 10_000


class Ownership(Extension):
    """Refuses a call into somebody else's chat. Owners never change, so they are remembered."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._owners: OrderedDict[str, str] = OrderedDict()

    async def before_execute(self, call: Call) -> None:
        owner = self._owners.get(call.chat)
        if owner is None:
            owner = self._owners[call.chat] = await self._claim(call.chat, call.caller.principal)
            if len(self._owners) > REMEMBERED:
                self._owners.popitem(last=False)
        if owner != call.caller.principal:
            raise Forbidden(f"chat {call.chat!r} belongs to someone else; use another chat id", code="CHAT_FORBIDDEN")


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
        needed = tool.permission
        if not category.permission.allows(needed):
            raise _too_little(tool, category.permission, f"category {category.name!r}")
        if not self._profile.allows(needed):
            raise _too_little(tool, self._profile, "this profile")
        if not call.caller.permission.allows(needed):
            raise _too_little(tool, call.caller.permission, f"caller {call.caller.principal!r}")


def _too_little(tool: Tool, level: Permission, whose: str) -> Forbidden:
    return Forbidden(
        f"{tool.id} needs {tool.permission.value}; {whose} allows only {level.value}",
        needed=tool.permission.value,
        allowed=level.value,
    )
