"""A server of MCP Apps over stdio without any library: a tool with a view, one that only views may call, a plain one.
Its view is written like those of others: it uses the server's own names, and knows of no gateway. As `spy`, its view
tries to reach what is not its server's."""

import json
import sys
from pathlib import Path

VIEW = """<!doctype html>
<html><head><title>Counter</title></head><body>
<p id="tool"></p><p id="count"></p><p id="linked"></p><p id="listed"></p><p id="text"></p><button>More</button>
<script>
  const pending = new Map();
  let last = 0;
  const show = (id, text) => { document.getElementById(id).textContent = text; };
  const send = (message) => window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const request = (method, params) => new Promise((resolve) => {
    pending.set(++last, resolve);
    send({ id: last, method, params });
  });
  window.addEventListener("message", (event) => {
    if (event.source !== window.parent) return;
    const { id, method, params, result, error } = event.data;
    if (method === "ui/notifications/tool-result") {
      show("count", params.structuredContent.count);
      show("linked", params.content.find((block) => block.type === "resource_link").uri);
    } else if (method === undefined) pending.get(id)(error ? { failed: error.message } : result);
  });
  document.querySelector("button").onclick = async () => {
    const result = await request("tools/call", { name: "more", arguments: {} });
    show("count", result.failed ?? result.structuredContent.count);
    const read = await request("resources/read", { uri: "note://one" });
    show("text", `${read.contents[0].uri} ${read.contents[0].text}`);
  };
  request("ui/initialize", { protocolVersion: "2026-01-26", appInfo: { name: "c", version: "1" }, appCapabilities: {} })
    .then((answer) => {
      show("tool", answer.hostContext.toolInfo.tool.name);
      send({ method: "ui/notifications/initialized", params: {} });
    });
</script></body></html>"""

URI, TYPE = "ui://counter/view.html", "text/html;profile=mcp-app"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {}}
TOOLS = [
    {
        "name": "count",
        "description": "Count.",
        "inputSchema": SCHEMA,
        "_meta": {"ui": {"resourceUri": URI}, "ui/resourceUri": URI},
    },
    {"name": "more", "description": "Count on.", "inputSchema": SCHEMA, "_meta": {"ui": {"visibility": ["app"]}}},
    {"name": "draw_chart", "description": "Draw.", "inputSchema": SCHEMA},
    {"name": "plain", "description": "Nothing to see.", "inputSchema": SCHEMA},
]


def main() -> None:
    """Answer requests until the input ends."""
    count, declared = 0, {}
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params", {})
        if "id" not in message:
            continue
        result = None
        if method == "initialize":
            declared = params["capabilities"]
            result = {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "counter", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": TOOLS}
        elif method == "tools/call" and params["name"] == "draw_chart":
            result = {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
        elif method == "tools/call":
            count += 1
            link = {"type": "resource_link", "uri": "note://one", "name": "note"}
            result = {
                "content": [{"type": "text", "text": str(count)}, link],
                "structuredContent": {"count": count, "extensions": declared.get("extensions")},
                "_meta": {"ui": {"resourceUri": URI}},
            }
        elif method == "resources/list":
            result = {"resources": [{"uri": URI, "name": "view", "mimeType": TYPE}]}
        elif method == "resources/read" and params["uri"] == URI:
            meta = {"ui": {"csp": {"connectDomains": ["https://api.example"]}}}
            view = Path(__file__).with_name("spy.html").read_text() if "spy" in sys.argv else VIEW
            result = {"contents": [{"uri": URI, "mimeType": TYPE, "text": view, "_meta": meta}]}
        elif method == "resources/read" and params["uri"] == "note://one":
            result = {"contents": [{"uri": "note://one", "mimeType": "text/plain", "text": "a note"}]}
        error = {"code": -32601, "message": "Method not found"}
        answer = {"error": error} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)


main()
