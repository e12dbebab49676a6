"""Permissions: the owner of a chat, and the levels of category, profile and caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

from gateway.calls import Call
from gateway.errors import Forbidden
from gateway.extensions import Extension
from gateway.tools import Category, Permission, Tool

# Makes `principal` the owner of `chat` if it has none; returns its owner.
Claim = Callable[[str, str], Awaitable[str]]

OWNER_CACHE = 10_000


class Ownership(Extension):
    """Refuses a call in somebody else's chat: a chat and its files belong to the principal that first used it. Owners
    never change, so they are cached."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._owners: OrderedDict[str, str] = OrderedDict()

    def before_execute(self, call: Call) -> Awaitable[None] | None:
        owner = self._owners.get(call.chat)
        if owner is None:
            return self._find_owner(call)
        self._refuse_other(call, owner)
        return None

    async def _find_owner(self, call: Call) -> None:
        owner = self._owners[call.chat] = await self._claim(call.chat, call.caller.principal)
        if len(self._owners) > OWNER_CACHE:
            self._owners.popitem(last=False)
        self._refuse_other(call, owner)

    def _refuse_other(self, call: Call, owner: str) -> None:
        if owner != call.caller.principal:
            raise Forbidden(f"chat {call.chat!r} belongs to someone else; use another chat id", code="CHAT_FORBIDDEN")


class Permissions(Extension):
    """Refuses a call whose tool needs a higher level than its category, profile or caller allows."""

    def __init__(self, categories: Mapping[str, Category], profile: Permission = Permission.EXECUTE) -> None:
        self._categories = categories
        self._profile = profile

    def before_execute(self, call: Call) -> None:
        tool = call.target
        category = self._categories[tool.category]
        if not category.enabled:
            raise Forbidden(f"{tool.id}: category {category.name!r} is off", code="TOOL_DISABLED")
        needed = tool.permission
        if not category.permission.allows(needed):
            raise _permission_error(tool, category.permission, f"category {category.name!r}")
        if not self._profile.allows(needed):
            raise _permission_error(tool, self._profile, "this profile")
        if not call.caller.permission.allows(needed):
            raise _permission_error(tool, call.caller.permission, f"caller {call.caller.principal!r}")


def _permission_error(tool: Tool, level: Permission, place: str) -> Forbidden:
    return Forbidden(
        f"{tool.id} needs {tool.permission.value}; {place} allows only {level.value}",
        needed=tool.permission.value,
        allowed=level.value,
    )
