"""The handlers together with the SDK's server, which is loaded when something needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.serve.mcp.handlers import Handlers

if TYPE_CHECKING:
    from gateway.serve.mcp.sdk import SdkServer


class McpServer:
    """One gateway over MCP, for any number of connections."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers
        self._sdk: SdkServer | None = None

    @property
    def sdk(self) -> SdkServer:
        """The SDK's server, imported and made by the first request that needs it."""
        if self._sdk is None:
            # Imported here: a stdio client waits for the start, and most of what it asks for first needs none of it.
            from gateway.serve.mcp.sdk import SdkServer

            self._sdk = SdkServer(self.handlers)
        return self._sdk

    def close(self) -> None:
        """End the streams on which clients wait for changes."""
        if self._sdk is not None:
            self._sdk.close()
