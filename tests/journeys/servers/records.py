"""A small MCP server of one kind of records, in either era, without the SDK: `python records.py NOUN PLURAL NEXT`. The
record `ada` refers to a record of the kind NEXT."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

NAMES = ("ada", "bob", "eve")


def list_tools(noun: str, plural: str) -> list[dict[str, Any]]:
    def tool(name: str, description: str, read: bool, *arguments: str) -> dict[str, Any]:
        properties = {each: {"type": "string", "description": f"The {each} of the {noun}"} for each in arguments}
        schema = {"type": "object", "properties": properties, "required": list(arguments)}
        hints = {"readOnlyHint": read, "destructiveHint": False}
        return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}

    return [
        tool(f"list_{plural}", f"List all {plural} with their names.", True),
        tool(f"get_{noun}", f"Get one {noun} by its name, with its details and what it refers to.", True, "name"),
        tool(f"create_{noun}", f"Create a new {noun} with a name and a text.", False, "name", "text"),
        tool(f"rename_{noun}", f"Rename a {noun}.", False, "name", "text"),
        tool(f"archive_{noun}", f"Archive a {noun} that is no longer needed.", False, "name"),
        tool(f"count_{plural}", f"Count the {plural} of this year.", True),
    ]


def answer(noun: str, following: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    verb = name.partition("_")[0]
    if verb == "list":
        return {"names": list(NAMES)}
    if verb == "get":
        filler = " ".join(f"{noun} {arguments['name']} line {number}." for number in range(30))
        return {"name": arguments["name"], "refers_to": f"{arguments['name']}-{following}", "text": filler}
    return {"done": f"{verb} {noun} {arguments.get('name', '')}", "text": arguments.get("text", "")}


def main() -> None:
    noun, plural, following = sys.argv[1:]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        method, params, result = message["method"], message.get("params", {}), dict[str, Any]()
        if method == "initialize":
            info = {"name": plural, "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
            result["instructions"] = f"Keeps the {plural} of the company."
        elif method == "tools/list":
            result = {"tools": list_tools(noun, plural)}
        elif method == "tools/call":
            value = answer(noun, following, params["name"], params["arguments"])
            text = {"type": "text", "text": json.dumps(value)}
            result = {"content": [text], "structuredContent": value, "isError": False}
        else:
            error = {"code": -32601, "message": "Method not found"}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}), flush=True)
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
