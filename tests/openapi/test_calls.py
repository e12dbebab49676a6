"""Imported operations called through the gateway against a stub that checks each request by the document."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import anyio
import pytest
import uvicorn
from eventually import async_eventually

from gateway import Gateway
from gateway.bundles import HttpTool
from gateway.bundles.openapi import ImportOptions, OpenApiImport, import_document
from gateway.config import Settings

from .documents import OPERATIONS, Document, needs_data, unpack
from .sampling import FILE, sample_arguments
from .stub import Checker, Received

NIGHTLY = bool(os.environ.get("TOOLGATE_NIGHTLY"))
SAMPLE = ["tictactoe.yaml", "uspto.yaml", "museum.yaml", "petstore.yaml", "httpbin.yaml", "spotify.yaml"]
_PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000a49444154789c6300010000050001"
    "0d0a2db40000000049454e44ae426082"
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class StubServer:
    """Takes every request, and keeps it."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.wants_image = False
        self.port = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        target = scope["raw_path"].decode("ascii")
        target += f"?{scope['query_string'].decode('ascii')}" if scope["query_string"] else ""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if b"grant_type=client_credentials" in body:
            answer, kind = (
                b'{"access_token": "granted-token", "token_type": "bearer", "expires_in": 3600}',
                b"application/json",
            )
        else:
            self.received.append(Received(scope["method"], target, headers, body))
            answer, kind = (_PIXEL, b"image/png") if self.wants_image else (b"{}", b"application/json")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else answer})


@asynccontextmanager
async def serve(stub: StubServer) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(stub, port=0, log_level="error", lifespan="off"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await async_eventually(lambda: server.started)
        stub.port = server.servers[0].sockets[0].getsockname()[1]
        yield
        server.should_exit = True


def fetch_nothing(url: str) -> bytes:
    raise AssertionError(f"the importer fetches {url}")


def write_toolset(name: str, number: int, directory: Path, port: int) -> tuple[OpenApiImport, Document, Path]:
    """Import a document, and edit its folder so that every request goes to the stub."""
    scratch = directory / f"document-{number}"
    scratch.mkdir()
    path = unpack(name, scratch)
    imported = import_document(str(path), fetch_nothing, ImportOptions(f"api{number}"))
    folder = directory / f"toolset-{number}"
    imported.write(folder)
    manifest = folder / "toolset.yaml"
    text = re.sub(
        r'((?:base_url|url_template|token_url): "?)https?://[^/"\n]+',
        rf"\1http://127.0.0.1:{port}",
        manifest.read_text(),
    )
    manifest.write_text(text)
    return imported, Document(path), folder


def place_of(tool: HttpTool) -> str:
    """The operation of a tool, which its description ends with."""
    return (tool.description or "").rpartition("\n")[2]


def missing_values(request: Received, arguments: dict[str, Any], skip: set[str]) -> list[str]:
    """The arguments whose texts are nowhere in the request."""
    whole = " ".join([request.target, *request.headers.values(), request.body.decode("latin-1")])
    seen = unquote_plus(whole) + whole + whole.encode("latin-1", "replace").decode("unicode_escape", "replace")
    texts = [(name, text) for name, value in arguments.items() if name not in skip for text in leaves(value)]
    return [f"{name}={text}" for name, text in texts if text.partition("/")[0] not in seen]


def leaves(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in leaves(item)]
    if isinstance(value, list):
        return [text for item in value for text in leaves(item)]
    return [value] if isinstance(value, str) else []


@needs_data
@pytest.mark.anyio
@pytest.mark.promise("B8")
@pytest.mark.slow
@pytest.mark.parametrize("names", [[name] for name in OPERATIONS] if NIGHTLY else [SAMPLE], ids=lambda names: names[0])
async def test_imported_operations_send_what_their_documents_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    stub = StubServer()
    async with serve(stub):
        written = [write_toolset(name, number, tmp_path, stub.port) for number, name in enumerate(names)]
        for imported, _, _ in written:
            for variable in imported.toolset.variables():
                value = f"127.0.0.1:{stub.port}" if variable.endswith("_HOST") else f"secret-of-{variable.lower()}"
                monkeypatch.setenv(variable, value)
        settings = Settings.model_validate(
            {
                "data_dir": tmp_path / "data",
                "approval": {"mode": "never"},
                "http": {"allowed_hosts": [f"127.0.0.1:{stub.port}"], "allow_private": True},
                "toolsets": [str(folder) for _, _, folder in written],
            }
        )
        async with Gateway.open(settings) as gateway:
            await gateway.call("write_file", {"path": FILE, "content": "the file"})
            called, problems, unsampled = 0, [], []
            for imported, document, _ in written:
                results = await call_all(gateway, stub, imported, document)
                called += results[0]
                problems += results[1]
                unsampled += results[2]
    total = sum(OPERATIONS[name] for name in names)
    print(f"{called} of {total} operations called, {len(unsampled)} without a sample")
    assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:60])
    assert called >= 0.9 * total, f"{called} called; no sample for {unsampled[:20]}"


async def call_all(
    gateway: Gateway, stub: StubServer, imported: OpenApiImport, document: Document
) -> tuple[int, list[str], list[str]]:
    """Call every tool of a toolset once; the number of calls, what was wrong, and tools without sample arguments."""
    checker = Checker(document)
    operations = {
        f"{method.upper()} {path}": (method, path, node, item) for method, path, node, item in document.operations()
    }
    problems, unsampled, called = [], [], 0
    for tool in imported.toolset.tools:
        assert isinstance(tool, HttpTool)
        arguments = sample_arguments(tool.input_schema or {})
        if arguments is None:
            unsampled.append(place_of(tool))
            continue
        stub.received.clear()
        stub.wants_image = tool.response.output == "image"
        outcome = await gateway.call(f"{imported.toolset.id}:{tool.id}", arguments)
        called += 1
        found = [f"failed: {outcome.error}"] if outcome.error is not None else []
        files = {name for name, value in arguments.items() if value == FILE}
        is_cut = any("cut" in note for note in imported.notes.get(tool.id, ()))
        for request in stub.received:
            wrong = checker.check(request, *operations[place_of(tool)])
            found += [problem for problem in wrong if not (is_cut and problem.startswith("body"))]
            found += [f"not sent: {text}" for text in missing_values(request, arguments, files)]
        found += [] if len(stub.received) == 1 else [f"{len(stub.received)} requests"]
        problems += [f"{imported.toolset.id} {place_of(tool)}: {problem}" for problem in found[:3]]
    return called, problems, unsampled
