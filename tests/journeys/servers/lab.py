"""A server written without the SDK, so that every byte is its own: `lab.py stdio|http modern|handshake`.

It speaks one era only, starts in a moment, and says and does what no library would. With HTTP it prints its port.
`LAB_FILE` is where it notes what happened to it; `LAB_WORDS` is the description of one of its tools; `LAB_HABITS`
are words that make it behave badly.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

TRANSPORT, ERA = sys.argv[1:3] if __name__ == "__main__" else ("stdio", "modern")
MODERN = "2026-07-28"
HABITS = os.environ.get("LAB_HABITS", "").split()
Send = Callable[[dict[str, Any]], Awaitable[None]]
# Who is told of changes: how, under which subscription, and of what; None is what the session subscribed to.
Listener = tuple[Send, Any, dict[str, Any] | None]

BIG = 2**60 + 1
PLAIN: dict[str, Any] = {
    "content": [
        {
            "type": "text",
            "text": "grüße",
            "annotations": {"audience": ["user"], "priority": 0.5, "mood": "calm"},
            "_meta": {"lab.example/block": [1, None]},
            "future": {"key": 1},
        },
    ],
    "structuredContent": {"none": None, "big": BIG, "deep": [{"a": []}]},
    "isError": False,
    "_meta": {"lab.example/result": {"x": 1}},
    "tomorrow": ["kept"],
}
REFUSED: dict[str, Any] = {"content": [{"type": "text", "text": "not today"}], "isError": True, "why": "kept too"}
FORM = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
QUESTIONS: dict[str, dict[str, Any]] = {
    "elicitation/create": {"mode": "form", "message": "what?", "requestedSchema": FORM},
    "sampling/createMessage": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "hello"}}],
        "maxTokens": 5,
    },
    "roots/list": {},
}
tools = ["plain", "refused", "fault", "count", "chatter", "nap", "ask", "echo", "grow", "touch", "large", "crash"]
tools += ["hologram", "recite"]
prompts = ["plain", "ask"]
resources = ["plain", "ask"]
subscribed: dict[str, int] = {}
listeners: dict[object, Listener] = {}
level = "warning"


def note(text: str) -> None:
    if path := os.environ.get("LAB_FILE"):
        with open(path, "a") as file:
            file.write(f"{text}\n")


def note_all(what: str, uris: Iterable[str]) -> None:
    for uri in uris:
        note(f"{what} {uri}")


def listed() -> list[dict[str, Any]]:
    found = []
    for name in tools:
        words = os.environ.get("LAB_WORDS", "") if name == "echo" else ""
        schema: dict[str, Any] = {"type": "object", "x-lab": True}
        if "headers" in HABITS:
            schema["properties"] = {"region": {"type": "string", "x-mcp-header": "Region"}}
        found.append(
            {
                "name": name,
                "description": words or f"The {name} tool.",
                "inputSchema": schema,
                "annotations": {"readOnlyHint": name == "plain", "scent": "pine"},
                "_meta": {"lab.example/tool": name, **({"ui": {"resourceUri": "ui://a"}} if "pages" in HABITS else {})},
                "colour": "blue",
            }
        )
    return found


class Asked(Exception):
    """What a modern server answers in place of a result."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result


class Recited(Exception):
    """A `result` or an `error` in place of the answer."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said


class Request:
    """One request under way. `ask` puts a question to the client as the era does it."""

    def __init__(self, message: dict[str, Any], send: Send, questions: Questions) -> None:
        self.id = message["id"]
        self.method = message["method"]
        self.params: dict[str, Any] = message.get("params") or {}
        self.meta: dict[str, Any] = self.params.get("_meta") or {}
        self.send = send
        self._questions = questions

    async def tell(self, method: str, **params: Any) -> None:
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, number: int, params: dict[str, Any]) -> dict[str, Any]:
        if ERA != "modern":
            return await self._questions.ask(self.send, method, params)
        got: list[Any] = json.loads(self.params.get("requestState") or "[]")
        if "q" in (self.params.get("inputResponses") or {}):
            got.append(self.params["inputResponses"]["q"])
        if number < len(got):
            return dict(got[number])
        asked = {"q": {"method": method, **({"params": params} if params else {})}}
        raise Asked({"resultType": "input_required", "inputRequests": asked, "requestState": json.dumps(got)})


class Questions:
    """What a handshake-era server has asked its client."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def ask(self, send: Send, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = f"ask-{len(self._open)}"
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        await send({"jsonrpc": "2.0", "id": number, "method": method, **({"params": params} if params else {})})
        said = await answer
        if "error" in said:
            return {"error": said["error"]}
        return dict(said["result"])

    def answered(self, message: dict[str, Any]) -> None:
        if (answer := self._open.get(str(message.get("id")))) is not None and not answer.done():
            answer.set_result(message)


def text(said: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(said)}]}


async def call(request: Request) -> dict[str, Any]:
    name, arguments = request.params["name"], request.params.get("arguments") or {}
    match name:
        case "plain":
            return PLAIN
        case "refused":
            return REFUSED
        case "hologram":
            return {"content": [{"type": "hologram", "beams": 3}]}
        case "recite":  # says what it is told to, whatever that is
            raise Recited(arguments)
        case "fault":
            raise LookupError
        case "echo":
            return {**text("echo"), "structuredContent": {"params": request.params, "pid": os.getpid()}}
        case "count":
            token, steps = request.meta.get("progressToken"), int(arguments.get("steps", 3))
            for step in range(1, steps + 1):  # without a pause, several reports can arrive in one read
                report = {"progressToken": token, "progress": step, "total": steps, "message": "on"}
                await request.tell("notifications/progress", **report)
                if "pause" in arguments:
                    await asyncio.sleep(arguments["pause"])
            return text("counted")
        case "chatter":
            wanted = request.meta.get("io.modelcontextprotocol/logLevel") if ERA == "modern" else level
            for said in ("debug", "info", "error"):
                if wanted == "debug" or said == "error":
                    await request.tell("notifications/message", level=said, logger="lab", data={"said": said})
            return text(wanted)
        case "nap":
            note(f"nap {arguments.get('name')}")
            if token := request.meta.get("progressToken"):
                await request.tell("notifications/progress", progressToken=token, progress=0)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                note(f"cancelled {arguments.get('name')}")
                raise
            return text("awake")
        case "ask":
            return text(await asked(request, arguments))
        case "grow":
            what = arguments.get("what", "tools")
            grown = {"tools": tools, "prompts": prompts, "resources": resources}[what]
            new = f"extra{len(grown)}"
            grown.append(new)
            if arguments.get("back"):
                grown.remove(new)
            await changed(f"{what}/list_changed", f"{what}ListChanged")
            return text(new)
        case "touch":
            await changed("resources/updated", "resourceSubscriptions", uri=arguments["uri"])
            return text("touched")
        case "large":
            return large(arguments)
        case "crash":
            os._exit(3)
    if name in tools:
        return text(name)
    raise KeyError(name)


async def asked(request: Request, arguments: dict[str, Any]) -> list[Any]:
    """The answers to as many questions as the arguments say."""
    answers = []
    try:
        for number in range(int(arguments.get("rounds", 1))):
            params = {**QUESTIONS[arguments["method"]], **arguments.get("with", {})}
            if "name" in arguments:
                params["message"] = f"{arguments['name']} {number}"
            answers.append(await request.ask(arguments["method"], number, params))
        if arguments.get("nap"):
            note(f"answered {arguments.get('name')}")
            await asyncio.sleep(60)
    except asyncio.CancelledError:
        note(f"cancelled ask {arguments.get('name')}")
        raise
    return answers


def large(arguments: dict[str, Any]) -> dict[str, Any]:
    """A result of so many bytes, of the kind that is asked for."""
    size = int(arguments["size"])
    match arguments.get("kind", "text"):
        case "lines":
            return {"content": [{"type": "text", "text": "".join(f"line {n}\n" for n in range(size // 8))}]}
        case "image":
            data = base64.b64encode(bytes(size)).decode()
            return {"content": [{"type": "image", "mimeType": "image/png", "data": data}]}
        case "structured":
            value = {"rows": ["x" * 99] * (size // 102)}
            return {**text(value), "structuredContent": value}
        case "failure":
            return {"content": [{"type": "text", "text": "x" * size}], "isError": True}
    return {"content": [{"type": "text", "text": "x" * size}]}


async def get_prompt(request: Request) -> dict[str, Any]:
    name = request.params["name"]
    if name not in prompts:
        raise KeyError(name)
    said = await asked(request, request.params.get("arguments") or {}) if name == "ask" else name
    content = {"type": "text", "text": json.dumps(said), "future": 1}
    return {"description": f"The {name} prompt.", "messages": [{"role": "user", "content": content}], "tomorrow": 1}


async def read(request: Request) -> dict[str, Any]:
    uri = request.params["uri"]
    name, _, query = uri.removeprefix("lab://").partition("?")
    if name not in resources:
        raise KeyError(name)
    said = await asked(request, dict(parse_qsl(query))) if name == "ask" else name
    return {"contents": [{"uri": uri, "mimeType": "application/json", "text": json.dumps(said)}]}


async def changed(what: str, wish: str, **params: Any) -> None:
    """Tell all who want to hear of it."""
    for send, number, wanted in list(listeners.values()):
        if wanted is None and what == "resources/updated" and not subscribed.get(params["uri"]):
            continue
        if wanted is not None and not (params["uri"] in wanted.get(wish, ()) if params else wanted.get(wish)):
            continue
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": number}} if ERA == "modern" else {}
        with suppress(ConnectionError):
            await send({"jsonrpc": "2.0", "method": f"notifications/{what}", "params": {**params, **meta}})


async def answer(request: Request) -> dict[str, Any]:
    global level
    told = {"listChanged": True}
    # But it has no templates of resources.
    capabilities = {"tools": told, "prompts": told, "resources": {**told, "subscribe": True}, "logging": {}}
    match request.method:
        case "server/discover" if ERA == "modern":
            info = {"io.modelcontextprotocol/serverInfo": {"name": "lab", "version": "1"}}
            return {"supportedVersions": [MODERN], "capabilities": capabilities, "_meta": info, "ttlMs": 0}
        case "initialize" if ERA != "modern":
            note(f"initialize {','.join(request.params['capabilities'].get('extensions', ()))}")
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": capabilities,
                "serverInfo": {"name": "lab", "version": "1"},
            }
        case "ping":
            return {}
        case "logging/setLevel":
            level = request.params["level"]
            return {}
        case "tools/list":
            if "mute" in HABITS:
                await asyncio.sleep(600)
            return {"tools": listed(), "ttlMs": 0, "cacheScope": "private"}
        case "tools/call":
            return await call(request)
        case "prompts/list":
            return {"prompts": [{"name": name, "scent": "pine"} for name in prompts], "ttlMs": 0}
        case "prompts/get":
            return await get_prompt(request)
        case "resources/list":
            found = [{"uri": f"lab://{name}", "name": name, "scent": "pine"} for name in resources]
            return {"resources": found, "ttlMs": 0, "cacheScope": "private"}
        case "resources/read":
            return await read(request)
        case "resources/subscribe" | "resources/unsubscribe" if ERA != "modern":
            uri = request.params["uri"]
            subscribed[uri] = subscribed.get(uri, 0) + (1 if request.method == "resources/subscribe" else -1)
            note_all(request.method, [uri])
            return {}
        case "subscriptions/listen" if ERA == "modern":
            number, wanted = request.id, request.params["notifications"]
            followed = wanted.get("resourceSubscriptions", ())
            note_all("resources/subscribe", followed)
            meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": number}}
            await request.tell("notifications/subscriptions/acknowledged", notifications=wanted, **meta)
            listeners[request] = request.send, number, wanted
            try:
                await asyncio.sleep(3600)
            finally:
                del listeners[request]
                note_all("resources/unsubscribe", followed)
    raise NotImplementedError(request.method)


async def respond(request: Request) -> None:
    try:
        result = await answer(request)
        shape = {"resultType": "complete", **result} if ERA == "modern" else result
        said: dict[str, Any] = {"result": shape}
    except Asked as asked:
        said = {"result": asked.result}
    except Recited as recited:
        said = recited.said
    except LookupError as error:
        said = {
            "error": {"code": -32077, "message": "the lab is closed", "data": {"until": [9, None], "e": str(error)}}
        }
    except NotImplementedError:
        said = {"error": {"code": -32601, "message": "Method not found"}}
    await request.send({"jsonrpc": "2.0", "id": request.id, **said})


async def over_stdio() -> None:
    reader = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    questions, under_way = Questions(), dict[Any, asyncio.Task[None]]()

    async def send(message: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    if ERA != "modern":
        listeners["pipe"] = send, None, None
    while line := await reader.readline():
        message = json.loads(line)
        if "method" not in message:
            questions.answered(message)
        elif "id" in message:
            under_way[message["id"]] = loop.create_task(respond(Request(message, send, questions)))
        elif message["method"] == "notifications/cancelled":
            under_way[message["params"]["requestId"]].cancel()


class Session:
    """What one session of the handshake era has under way."""

    def __init__(self) -> None:
        self.questions = Questions()
        self.under_way: dict[Any, asyncio.Task[None]] = {}


sessions: dict[str, Session] = {}


async def over_http() -> None:
    server = await asyncio.start_server(served, "127.0.0.1", int(os.environ.get("LAB_PORT", "0")))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        await exchange(head[0].split()[0], headers, json.loads(body or b"null"), reader, writer)
    writer.close()


async def exchange(
    verb: str, headers: dict[str, str], message: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    def reply(status: str, *more: str) -> None:
        writer.write("\r\n".join([f"HTTP/1.1 {status}", *more, "connection: close", "", ""]).encode())

    async def send(said: dict[str, Any]) -> None:
        writer.write(b"data: " + json.dumps(said).encode() + b"\n\n")
        await writer.drain()

    stream = "content-type: text/event-stream"
    name = headers.get("mcp-session-id", "")
    session = sessions.get(name)
    if ERA == "modern" or (message or {}).get("method") == "initialize":
        if headers.get("mcp-protocol-version", MODERN if ERA == "modern" else "") not in (MODERN, "") or verb != "POST":
            reply("405 Method Not Allowed", "content-length: 0")
            return
        if ERA != "modern":
            session = sessions[name := f"session-{len(sessions)}"] = Session()
        reply("200 OK", stream, *([f"mcp-session-id: {name}"] if name else []))
        task = asyncio.ensure_future(respond(Request(message, send, Questions())))
        gone = asyncio.ensure_future(reader.read(1))  # in the newest era, to hang up is to cancel
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
    elif session is None and name:
        reply("404 Not Found", "content-length: 0")
    elif session is None:
        known = {"code": -32022, "message": "no", "data": {"supported": ["2025-11-25"], "requested": MODERN}}
        error = json.dumps({"jsonrpc": "2.0", "id": (message or {}).get("id"), "error": known}).encode()
        reply("400 Bad Request", "content-type: application/json", f"content-length: {len(error)}")
        writer.write(error)
    elif verb == "GET":
        reply("200 OK", stream)
        listeners[name] = send, None, None
        await reader.read(1)
        del listeners[name]
    elif verb == "POST" and "id" in message and "method" in message:
        reply("200 OK", stream)
        task = session.under_way[message["id"]] = asyncio.ensure_future(
            respond(Request(message, send, session.questions))
        )
        await asyncio.wait([task])
    else:
        reply("202 Accepted", "content-length: 0")
        if verb == "POST" and "method" not in message:
            session.questions.answered(message)
        elif verb == "POST" and message["method"] == "notifications/cancelled":
            session.under_way[message["params"]["requestId"]].cancel()


def main() -> None:
    note("start")
    if "dies" in HABITS:
        sys.exit("no")
    if "hangs" in HABITS:
        time.sleep(600)
    if "silent" in HABITS:
        sys.exit(sys.stdin.read() and 0)
    asyncio.run(over_stdio() if TRANSPORT == "stdio" else over_http())


if __name__ == "__main__":
    main()
