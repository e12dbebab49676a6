"""What a server defines, read page by page."""

from __future__ import annotations

from typing import Any

from gateway.mcp_client import Link, McpFault
from gateway.sources.upstreams.definitions import COUNT_LIMIT

# By the capability that promises it: how a list is asked for, and under which key it comes.
LISTS = {
    "tools": ("tools/list", "tools"),
    "prompts": ("prompts/list", "prompts"),
    "resources": ("resources/templates/list", "resourceTemplates"),
}

METHOD_NOT_FOUND = -32601
PAGES = 200


async def listed(link: Link, what: str) -> tuple[Any, ...]:
    """All pages of a list the server says it has. Not every server that has resources has templates."""
    if what not in link.capabilities:
        return ()
    method, key = LISTS[what]
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(PAGES):
        try:
            page = await link.request(method, {"cursor": cursor} if cursor else None)
        except McpFault as fault:
            if fault.code == METHOD_NOT_FOUND and what != "tools":
                break
            raise
        items = page.get(key)
        found += items if isinstance(items, list) else []
        cursor = page.get("nextCursor")
        if not isinstance(cursor, str) or len(found) > COUNT_LIMIT:
            break
    return tuple(found)
