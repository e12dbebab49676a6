"""One connection of the SDK's server over lines, for stdio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from gateway.protocol.jsonrpc import INVALID_REQUEST, PARSE_ERROR, RequestId, RpcError
from gateway.serve.mcp.sdk import SdkServer


class SdkStream:
    """Feeds lines to the server and writes its messages as lines. `asked` is called with the id of each request,
    `answered` once it needs no answer any more."""

    def __init__(
        self,
        server: SdkServer,
        write: Callable[[bytes], Awaitable[None]],
        asked: Callable[[RequestId], None],
        answered: Callable[[RequestId], None],
    ) -> None:
        self._server = server
        self._write = write
        self._asked = asked
        self._answered = answered
        self._replayed: set[RequestId] = set()
        self._to_server, self._from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self._to_client, self._from_server = anyio.create_memory_object_stream[SessionMessage](0)

    async def run(self) -> None:
        """Serve until the input is closed."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_messages)
            options = self._server.create_initialization_options()
            await self._server.run(self._from_client, self._to_client, options)

    async def feed(self, line: bytes) -> RpcError | None:
        """Pass a line to the server; return the error of a line that is no message."""
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValidationError as error:
            first = error.errors()[0]
            if first["type"] == "json_invalid":
                return RpcError(PARSE_ERROR, str(first["msg"]))
            return RpcError(INVALID_REQUEST, "not a JSON-RPC 2.0 message")
        self._note(message)
        await self._to_server.send(SessionMessage(message))
        return None

    async def replay(self, message: Mapping[str, Any]) -> None:
        """Show the server a message that was answered elsewhere already; its own answer is dropped."""
        parsed = types.jsonrpc_message_adapter.validate_python(dict(message), by_name=False)
        if isinstance(parsed, types.JSONRPCRequest):
            self._replayed.add(parsed.id)
        await self._to_server.send(SessionMessage(parsed))

    def close(self) -> None:
        """End the input; the server ends what is in progress."""
        self._to_server.close()

    async def _write_messages(self) -> None:
        async with self._from_server:
            async for item in self._from_server:
                message = item.message
                answer = message if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) else None
                answered = answer.id if answer is not None else None
                if answered is not None and answered in self._replayed:
                    self._replayed.discard(answered)
                    continue
                await self._write(message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                if answered is not None:
                    self._answered(answered)

    def _note(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCRequest):
            if message.method != "subscriptions/listen":  # answered only when it ends
                self._asked(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            cancelled = (message.params or {}).get("requestId")
            if isinstance(cancelled, int | str):
                self._answered(cancelled)
