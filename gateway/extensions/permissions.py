"""Permissions: the owner of a chat, and the levels of category, profile and caller."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Mapping
from itertools import product
from typing import Protocol

from gateway.calls import Call, Caller
from gateway.db.chats import foreign_chat_error, reserved_owner
from gateway.errors import Forbidden
from gateway.extensions import Extension
from gateway.tools import Category, Permission, Tool

OWNER_CACHE = 10_000


class ChatOwners(Protocol):
    """The principals that chats belong to."""

    async def owner(self, chat: str) -> str | None:
        """Return the principal that owns the chat; None while nobody does."""
        ...

    async def claim(self, chat: str, principal: str) -> str:
        """Make `principal` the owner of a chat that has none, unless it is kept for another; return its owner."""
        ...


class Ownership(Extension):
    """Refuses a call in somebody else's chat: a chat and its files belong to the principal that first used it. Owners
    never change, so they are cached."""

    def __init__(self, chats: ChatOwners) -> None:
        self.owners: OrderedDict[str, str] = OrderedDict()
        self._chats = chats

    def before_execute(self, call: Call) -> Awaitable[None] | None:
        owner = self.owners.get(call.chat)
        if owner is None:
            return self._find_owner(call)
        if owner != call.caller.principal:
            raise foreign_chat_error(call.chat)
        return None

    async def claim(self, call: Call) -> None:
        """Make the caller the owner of a chat that has none."""
        owner = self.owners[call.chat] = await self._chats.claim(call.chat, call.caller.principal)
        if len(self.owners) > OWNER_CACHE:
            self.owners.popitem(last=False)
        if owner != call.caller.principal:
            raise foreign_chat_error(call.chat)

    async def _find_owner(self, call: Call) -> None:
        owner = await self._chats.owner(call.chat) or reserved_owner(call.chat)
        if owner not in (None, call.caller.principal):
            raise foreign_chat_error(call.chat)


class ChatClaim(Extension):
    """Makes the caller the owner of a chat that has none. It stands behind the gates that refuse calls: whoever is
    refused owns nothing."""

    def __init__(self, ownership: Ownership) -> None:
        self._owners = ownership.owners
        self._claim = ownership.claim

    def before_execute(self, call: Call) -> Awaitable[None] | None:
        return None if call.chat in self._owners else self._claim(call)


class Permissions(Extension):
    """Refuses a call whose tool needs a higher level than its category, profile or caller allows."""

    def __init__(self, categories: Mapping[str, Category], profile: Permission = Permission.EXECUTE) -> None:
        self._categories = categories
        self._profile = profile
        # The levels of a category and a caller, and the level that these and the profile allow.
        self._allowed = frozenset(
            levels
            for levels in product(Permission, repeat=3)
            if all(each.allows(levels[2]) for each in (*levels, profile))
        )

    def before_execute(self, call: Call) -> None:
        tool = call.target
        category = self._categories[tool.category]
        if not category.enabled:
            raise Forbidden(f"{tool.id}: category {category.name!r} is off", code="TOOL_DISABLED")
        if (category.permission, call.caller.permission, tool.permission) not in self._allowed:
            raise self._permission_error(tool, category, call.caller)

    def _permission_error(self, tool: Tool, category: Category, caller: Caller) -> Forbidden:
        levels = {
            f"category {category.name!r}": category.permission,
            "this profile": self._profile,
            f"caller {caller.principal!r}": caller.permission,
        }
        place, level = next((place, level) for place, level in levels.items() if not level.allows(tool.permission))
        return Forbidden(
            f"{tool.id} needs {tool.permission.value}; {place} allows only {level.value}",
            needed=tool.permission.value,
            allowed=level.value,
        )
