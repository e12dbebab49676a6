"""Toolgate: one MCP server in front of every tool you have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.gateway import Gateway

__version__ = "0.1.0"
__all__ = ["Gateway", "__version__"]


def __getattr__(name: str) -> Any:
    # The command line starts in a fraction of the time when the whole gateway is imported only where used.
    if name == "Gateway":
        from gateway.gateway import Gateway

        return Gateway
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
