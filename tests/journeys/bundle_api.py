"""A REST client of `/tools`, the rows of its specification, and an HTTP server for HTTP tools to call."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from gateway.names import new_id

from .processes import PATIENCE, Listening, on_http

Test = TypeVar("Test", bound=Callable[..., Any])
Json = dict[str, Any]

# Every row of the tables of the specification, and every rule.
ROWS = {
    "term-tool": "A callable action; the call may perform an outbound HTTP request.",
    "term-type": "Each tool has a type.",
    "term-bundle": "A named container that groups tools under a single on/off switch.",
    "term-slug": "A short human-friendly identifier.",
    "term-version": "An opaque label that distinguishes revisions of the same slug.",
    "term-builtin": "Content of a built-in tool is read-only; only isEnabled may change.",
    "data-ids": "bundleID and toolID are present and are UUIDv7.",
    "data-url": "urlTemplate must start with http:// or https://.",
    "data-placeholders": "Placeholders come from call arguments, or app-scoped secrets.",
    "data-hosts": "The destination host must match the allowed hosts.",
    "data-runes": "Slugs: Unicode letters, digits, ASCII dash; dots in versions; nothing else.",
    "data-case": "Slugs and versions are case-sensitive.",
    "data-length": "At most 64 runes.",
    "data-unordered": "Versions have no order.",
    "data-unique": "Within one bundle <slug, version> is unique.",
    "data-repeat": "Across bundles the same pair may repeat.",
    "data-created": "CreatedAt is the first insertion and immutable.",
    "data-modified": "ModifiedAt is the last structural change.",
    "bundle-put": "PUT /bundles/{bundleID}: create or replace.",
    "bundle-patch": "PATCH /bundles/{bundleID}: toggle the enabled flag.",
    "bundle-delete": "DELETE /bundles/{bundleID}: soft-delete.",
    "bundle-get": "GET /bundles: bundleIDs, includeDisabled, pageSize, pageToken.",
    "tool-put": "PUT: conflict error if the same <slug, version> exists.",
    "tool-patch": "PATCH {isEnabled}: only enable or disable.",
    "tool-delete": "DELETE: hard-delete.",
    "tool-get": "GET one tool.",
    "tool-invoke": "POST invoke {args}.",
    "tool-list": "GET /tools: tags, bundleIDs, includeDisabled, recommendedPageSize, pageToken.",
    "tool-search": "GET /tools/search: q, includeDisabled, pageSize, pageToken.",
    "rule-conflict": "PUT with an existing pair leaves the existing tool unchanged.",
    "rule-immutable": "PUT, DELETE and other PATCHes of builtins are refused.",
    "rule-ranking": "prefix > whole word > fuzzy > recency.",
    "rule-index": "The search keeps an index of its own, and asks nobody.",
    "rule-disabled-search": "Disabled rows are excluded unless includeDisabled=true.",
    "rule-soft-delete": "Soft-delete marks softDeletedAt.",
    "rule-reap": "A background task reaps after two days if still empty.",
    "rule-disabled-bundle": "PUT and PATCH inside disabled bundles are refused.",
    "rule-arguments": "args that break argSchema are refused with 400.",
    "rule-dispatch": "Local tools are called, HTTP tools send a request with retries.",
    "rule-output": "The response is validated against outputSchema.",
    "rule-answer": "The answer is {ok: true, value} or {ok: false, error}.",
    "rule-usage": "lastCalledAt and callCount are updated asynchronously.",
    "other-missing": "A tool whose function is gone is disabled, and nothing of it is changed.",
    "other-offline": "User-defined data is stored offline, and survives a restart.",
    "other-processes": "The uniqueness guarantee is global across processes.",
    "other-builtins": "Builtins are served by the normal APIs.",
}
HELD: set[str] = set()


def row(*ids: str) -> Callable[[Test], Test]:
    """Mark a test as the one that holds these rows."""
    assert set(ids) <= ROWS.keys()
    HELD.update(ids)
    return pytest.mark.row(*ids)


SHELL: Json = {"displayName": "Echo", "type": "shell", "shellImpl": {"command": ["echo", "${text}"]}}
SHELL["argSchema"] = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def http_tool(url: str, **more: Any) -> Json:
    """A tool that sends the argument `city` to a server."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    request = {"method": "GET", "urlTemplate": url, "query": {"city": "${city}"}, **more.pop("request", {})}
    return {"displayName": "Weather", "type": "http", "argSchema": schema, "httpImpl": {"request": request}, **more}


class BundleClient(httpx.Client):
    """Requests to `/tools` of a gateway."""

    def __init__(self, gateway: Listening) -> None:
        super().__init__(base_url=gateway.url.removesuffix("/mcp"), timeout=PATIENCE)
        self.gateway = gateway

    def put_bundle(self, bundle_id: str | None = None, **more: Any) -> Json:
        bundle_id = bundle_id or new_id()
        body = {"slug": f"b{bundle_id[-12:]}", "displayName": "A bundle", "isEnabled": True, "description": "", **more}
        response = self.put(f"/tools/bundles/{bundle_id}", json=body)
        assert response.status_code in (200, 201), response.text
        found: Json = response.json()
        return found

    def put_tool(self, bundle: str, slug: str = "echo", version: str = "1", body: Json = SHELL, **more: Any) -> Json:
        response = self.put(tool_path(bundle, slug, version), json={**body, **more})
        assert response.status_code == 201, response.text
        found: Json = response.json()
        return found

    def builtin(self, slug: str) -> Json:
        """A builtin tool as it is listed."""
        listed = self.every("/tools/tools", includeDisabled="true", recommendedPageSize=1000)
        return next(tool for tool in listed if tool["isBuiltIn"] and tool["slug"] == slug)

    def every(self, path: str, **query: Any) -> list[Json]:
        """The items of all pages."""
        items: list[Json] = []
        while True:
            response = self.get(path, params=query)
            assert response.status_code == 200, response.text
            items += response.json()["items"]
            query["pageToken"] = response.json()["nextPageToken"]
            if query["pageToken"] is None:
                return items


def tool_path(bundle: str, slug: str = "echo", version: str = "1") -> str:
    return f"/tools/bundles/{bundle}/tools/{slug}/version/{version}"


def error_code(response: httpx.Response, status: int) -> str:
    """The code of an error, after checking its status and shape."""
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer["ok"] is False
    assert answer["error"].keys() == {"code", "message", "details"}
    code: str = answer["error"]["code"]
    return code


@contextmanager
def serve_bundles(directory: Path, *options: str, settings: str = "") -> Iterator[BundleClient]:
    """A gateway and a client of it."""
    file = directory / "toolgate.yaml"
    file.write_text(settings)
    with on_http(directory, "--config", str(file), *options) as gateway, BundleClient(gateway) as client:
        yield client


class WeatherHandler(BaseHTTPRequestHandler):
    """Answers what it was asked; every second request of `/flaky` fails."""

    requests: list[str]
    attempts = 0

    def do_GET(self) -> None:
        if self.path.startswith("/flaky"):
            type(self).attempts += 1
        fails = self.path.startswith("/flaky") and self.attempts % 2
        key = self.headers.get("x-key")
        body = json.dumps({"path": self.path, "degrees": 21, "key": key}).encode()
        self.send_response(503 if fails else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serve_weather() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), WeatherHandler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
