"""What a client wants of a server, be it a tool's work, a prompt or a resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.calls import Call, Peer, to_json, value


@value
class Request:
    """One MCP request to `server`, in its own names. `call` says who makes it, for which chat, and how its client is
    reached; `about` names it to people. It may take `seconds`, those of questions to the client not counted; None
    leaves that to whoever calls. The operator has `trusted` the server or not."""

    method: str
    params: Mapping[str, Any]
    call: Call
    about: str
    server: str
    seconds: float | None = None
    trusted: bool = False

    @property
    def peer(self) -> Peer:
        return self.call.peer or NOBODY

    @property
    def identity(self) -> tuple[Any, ...]:
        """Whose request it is, and for what: an answer counts for nothing else."""
        return self.call.caller.principal, self.call.chat, self.about, self.method, to_json(self.params)

    def by(self, call: Call) -> Request:
        return replace(self, call=call)


# For calls that come from no MCP client.
NOBODY = Peer()
