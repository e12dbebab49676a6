"""Messages of both eras written by hand, where a client library would hide what goes over the wire."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .processes import PATIENCE

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
ERAS = [MODERN, HANDSHAKE]

INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": "hello",
    "method": "initialize",
    "params": {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": {"name": "journeys", "version": "1"},
    },
}
INITIALIZED: dict[str, Any] = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def request(era: str, number: int | str, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A request as that era writes it: 2026-07-28 says in each one who is asking."""
    params = dict(params or {})
    if era == MODERN:
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "journeys", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
            **params.get("_meta", {}),
        }
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(
    era: str, number: int | str, name: str, arguments: Mapping[str, Any], chat: str | None = None
) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": dict(arguments)}
    if chat is not None:
        params["_meta"] = {"dev.toolgate/chat": chat}
    return request(era, number, "tools/call", params)


def nested(era: str, depth: int) -> bytes:
    """A call whose one argument is `depth` lists inside each other; no library would write it."""
    message = json.dumps(call(era, "deep", "read_file", {"path": "HERE"}))
    return message.replace('"HERE"', "[" * depth + "]" * depth).encode()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        """The JSON-RPC answer, whether it came as JSON or as an event stream."""
        text = self.body.decode()
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            text = json.dumps(next(event for event in events if "method" not in event))
        message = json.loads(text)
        assert isinstance(message, dict)
        return message


def exchange(url: str, method: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """One HTTP request with exactly these headers (and the length), on a connection of its own."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
    try:
        given = {name.lower(): value for name, value in (headers or {}).items()}
        connection.putrequest(method, url.removeprefix(f"http://{parts.netloc}"), skip_host="host" in given)
        for name, value in {"content-length": str(len(body)), **given}.items():
            connection.putheader(name, value)
        connection.endheaders()
        connection.send(body)
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def post(url: str, message: Mapping[str, Any] | bytes, headers: Mapping[str, str] | None = None) -> Answer:
    """POST one message the way a client does; a 2026-07-28 request repeats its method and name in headers."""
    standard = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
    if not isinstance(message, bytes):
        standard |= routing_of(message)
        message = json.dumps(message).encode()
    return exchange(url, "POST", message, {**standard, **(headers or {})})


def routing(era: str) -> dict[str, str]:
    """The headers of a `read_file` call in that era, for a body no library can read."""
    if era == HANDSHAKE:
        return {}
    return {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "read_file"}


def open_session(
    url: str,
    client: str = "journeys",
    beside: Mapping[str, str] | None = None,
    capabilities: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Shake hands; the headers every later request of the session carries, with those `beside`."""
    info = {"name": client, "version": "1"}
    params = {**INITIALIZE["params"], "clientInfo": info, "capabilities": capabilities or {}}
    answer = post(url, {**INITIALIZE, "params": params}, beside)
    assert answer.status == 200, answer
    session = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
    headers = {**(beside or {}), **session}
    assert post(url, INITIALIZED, headers).status == 202
    return headers


def routing_of(message: Mapping[str, Any]) -> dict[str, str]:
    """The routing headers of a 2026-07-28 message; none for any other."""
    params = message.get("params", {})
    if "io.modelcontextprotocol/protocolVersion" not in params.get("_meta", {}):
        return {}
    name = {"mcp-name": params["name"]} if "name" in params else {}
    return {"mcp-protocol-version": MODERN, "mcp-method": message["method"], **name}
