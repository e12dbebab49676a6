"""The least a server can be: `tiny.py`, over stdio, of the handshake era, with one tool that says which process it is.

It imports what no interpreter can do without and `json`, so that a thousand of them are started in a minute.
"""

from __future__ import annotations

import json
import os
import sys

SAID: dict[str, dict[str, object]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "tiny", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "who", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [], "structuredContent": {"pid": os.getpid()}},
    "ping": {},
}

for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = SAID.get(message["method"])
        answer = (
            {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
        )
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
