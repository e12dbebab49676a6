"""Usage of the gateway: calls, errors, durations and bytes by tool, server, principal and day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from gateway.db.usage import Dimension, UsageFilter, UsageRow
from gateway.errors import Invalid

if TYPE_CHECKING:
    from gateway.gateway import Gateway

LIMIT = 1000


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Counts of the days from `since` to `until`, both included, in UTC: a row for each group, and all together. With
    `more`, there are groups beyond the limit."""

    since: str
    until: str
    total: UsageRow
    items: list[UsageRow]
    more: bool


async def report_usage(
    gateway: Gateway,
    by: Sequence[Dimension] = ("tool",),
    *,
    since: date | None = None,
    until: date | None = None,
    tool: str | None = None,
    server: str | None = None,
    principal: str | None = None,
    limit: int = 100,
) -> UsageReport:
    """Return the counts of ended calls, by default of the last seven days. `tool` is an id or a name."""
    last = until or datetime.now(UTC).date()
    first = since or last - timedelta(days=6)
    if first > last:
        raise Invalid(f"'since' is {first}, after 'until', which is {last}", code="INVALID_REQUEST")
    if not 1 <= limit <= LIMIT:
        raise Invalid(f"limit must be between 1 and {LIMIT}, not {limit}")
    entry = gateway.catalog.get(tool) if tool else None
    chosen = UsageFilter(first.isoformat(), last.isoformat(), entry.tool.id if entry else tool, server, principal)
    [total] = await gateway.usage.load((), chosen, 1)
    items = await gateway.usage.load(list(dict.fromkeys(by)), chosen, limit + 1) if by else []
    return UsageReport(chosen.since, chosen.until, total, items[:limit], len(items) > limit)
