"""A server that lists what a JSON file says: `listed.py FILE`, over stdio, of the handshake era.

`FILE` has `tools`, `prompts`, `instructions`, and `after`: a file that must exist before it answers anything. A call
returns the name and the arguments that arrived.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

SAID: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())

while SAID.get("after") and not Path(SAID["after"]).exists():
    time.sleep(0.01)

for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    params = message.get("params") or {}
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "prompts": {}},
            "serverInfo": {"name": "listed", "version": "1"},
            "instructions": SAID.get("instructions"),
        },
        "tools/list": {"tools": SAID.get("tools", [])},
        "prompts/list": {"prompts": SAID.get("prompts", [])},
        "tools/call": {"content": [{"type": "text", "text": json.dumps(params)}], "structuredContent": params},
        "ping": {},
    }
    result = results.get(message["method"])
    answer = {"result": result} if result is not None else {"error": {"code": -32601, "message": "Method not found"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
