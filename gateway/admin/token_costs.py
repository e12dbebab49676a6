"""The tokens that lists of tools cost: of each tool's definition, and of the whole list that each profile gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gateway.access import ListMode
from gateway.catalog import Catalog, CatalogEntry, mcp_tool
from gateway.discovery import DESCRIPTION_LIMIT, count_tokens, short_list, shorten
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway


# The name of the list of clients without a profile.
DEFAULT = "default"


class ListCost(Value):
    """Token counts of the list of a profile, or under the name `default` of the list without one: `tokens` of all its
    tools, `output_schemas` of the output schemas among them, `short_tokens` of the short list, in modes that have
    one."""

    name: str
    mode: ListMode
    tools: int
    tokens: int
    output_schemas: int
    short_tokens: int | None


def count_tool_tokens(entry: CatalogEntry, catalog: Catalog) -> int:
    """Return the tokens of a tool as the list of a catalog has it."""
    return count_tokens(shorten(mcp_tool(entry.name, entry.tool), catalog))


def list_costs(gateway: Gateway) -> list[ListCost]:
    """Return the costs of the list without a profile and of those of all profiles."""
    own = {name: gateway.roles.profile_access(name) for name in gateway.roles.profiles}
    return [_measure(name, gateway.catalog.for_principal(access)) for name, access in ({DEFAULT: None} | own).items()]


def find_long_descriptions(catalog: Catalog) -> Iterator[CatalogEntry]:
    """Find tools whose descriptions some clients cut."""
    return (entry for entry in catalog if len(entry.tool.description) > DESCRIPTION_LIMIT)


def _measure(name: str, catalog: Catalog) -> ListCost:
    mode = catalog.lists.mode or "full"
    listed = [shorten(mcp_tool(entry.name, entry.tool), catalog) for entry in catalog]
    schemas = sum(count_tokens(tool["outputSchema"]) for tool in listed if "outputSchema" in tool)
    short = None if mode == "full" else count_tokens(short_list(catalog))
    return ListCost(name, mode, len(catalog), count_tokens(listed), schemas, short)
