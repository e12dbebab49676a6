"""Secrets that an upstream server or a toolset's tool repeats: returned to the caller, neither stored nor logged."""

from __future__ import annotations

import base64
import io
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import quote

import anyio
import mcp_types as types
import pytest
from click.testing import CliRunner
from mcp import Client
from mcp.shared.exceptions import MCPError

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.cli import toolgate
from gateway.db.call_records import DOCUMENT_LIMIT, PREVIEW_LIMIT
from gateway.secrets import KNOWN, REDACTED, MaskingFormatter
from gateway.serve.mcp.handlers import Handlers, McpServer

from .toolset.writing import install, require_sandbox, write_toolset

PASSWORD = "sw0rdf1sh"
SERVER = dedent(
    """
    # Repeats its TOKEN in every way a server can.
    import base64, json, os, sys
    from urllib.parse import quote

    TOKEN = os.environ["TOKEN"]
    SAID = " ".join([TOKEN, quote(TOKEN, safe=""), base64.b64encode(TOKEN.encode()).decode(),
        base64.b64encode(f"ann:{TOKEN}".encode()).decode(), json.dumps({"a": TOKEN}), "https://ann:sw0rdf1sh@host/x"])

    def send(**message):
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def call(name, params):
        send(method="notifications/message", params={"level": "error", "data": SAID})
        if token := params.get("_meta", {}).get("progressToken"):
            send(method="notifications/progress", params={"progressToken": token, "progress": 1, "message": SAID})
        print(SAID, file=sys.stderr, flush=True)
        print(SAID, flush=True)
        if name == "die":
            sys.exit(SAID)
        if name == "fault":
            return {"error": {"code": -32000, "message": SAID, "data": SAID}}
        content = [{"type": "text", "text": SAID}]
        if name == "structured":
            return {"result": {"content": content, "structuredContent": {"said": SAID, TOKEN: [TOKEN]}}}
        return {"result": {"content": content, "isError": name == "fail"}}

    for line in sys.stdin:
        request = json.loads(line)
        params = request.get("params") or {}
        match request["method"]:
            case "initialize":
                info = {"name": "echo", "version": "1"}
                told = {"result": {"protocolVersion": params["protocolVersion"],
                    "capabilities": {"tools": {}, "logging": {}}, "serverInfo": info}}
            case "tools/list":
                names = ("echo", "structured", "fail", "fault", "die")
                told = {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}}
            case "tools/call":
                told = call(params["name"], params)
            case _:
                told = {"error": {"code": -32601, "message": "Method not found"}}
        if "id" in request:
            send(id=request["id"], **told)
    """
)
MANIFEST = dedent(
    """
    id: lab
    name: Lab
    version: 1.0.0
    secrets: [LAB_TOKEN]
    tools:
      - {id: echo, entrypoint: "code:echo", renderer: {type: code, content: $return}}
      - {id: fail, entrypoint: "code:fail", renderer: {type: code, content: $return}}
    """
)
CODE = dedent(
    '''
    import base64, os, sys
    from urllib.parse import quote
    from covalt_toolset import get_context, tool

    URL = "https://ann:{}@host/".format("".join(["sw0rd", "f1sh"]))

    @tool
    def echo(argument: str = "") -> dict:
        """Echo."""
        token = os.environ["LAB_TOKEN"]
        get_context().progress(1, 2, token)
        print(token, file=sys.stderr)
        encoded = base64.b64encode(token.encode()).decode()
        return {"token": token, "said": f"{token} {quote(token)} {encoded} {URL}", token: 1}

    @tool
    def fail() -> dict:
        """Fail."""
        raise ValueError(f"refused with {os.environ['LAB_TOKEN']} at {URL}")
    '''
)


def forms(token: str) -> list[str]:
    encoded = base64.b64encode(token.encode()).decode().rstrip("=")
    return [token, quote(token, safe=""), encoded[:-1], json.dumps(token)[1:-1], PASSWORD]


def assert_not_stored(directory: Path, token: str) -> None:
    """No file of the data directory holds the token in any form, SQLite's own and the journal included."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    assert directory / "toolgate.db" in files
    found = [(path.name, form) for path in files for form in forms(token) if form.encode() in path.read_bytes()]
    assert not found


@contextmanager
def captured_log() -> Iterator[io.StringIO]:
    """Everything logged at DEBUG, as the command writes it."""
    stream, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(stream), root.level
    handler.setFormatter(MaskingFormatter("%(name)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


async def no_progress(progress: float, total: float | None = None, message: str | None = None) -> None:
    """Asks for progress and drops it."""


@pytest.mark.anyio
@pytest.mark.parametrize(("token", "era"), [("s3cr3t-t0k3n/of+the&lab", "auto"), ('quo"ted\\t0k3n é', "legacy")])
async def test_a_token_that_an_upstream_repeats_is_returned_but_neither_stored_nor_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str, era: Any
) -> None:
    monkeypatch.setenv("ECHO_TOKEN", token)
    (tmp_path / "server.py").write_text(SERVER)
    server: dict[str, Any] = {
        "command": sys.executable,
        "args": [str(tmp_path / "server.py")],
        "env": {"TOKEN": "${ECHO_TOKEN}"},
        "lazy": False,
    }
    data = tmp_path / "data"
    settings = {"data_dir": str(data), "approval": {"mode": "never"}, "mcpServers": {"echo": server}}
    with captured_log() as log:
        async with Gateway.open(settings) as gateway:
            face = McpServer(Handlers(gateway.executor, gateway.versions, "c", relay=gateway.passthrough))
            async with Client(face.sdk, mode=era, cache=None) as client:
                call = partial(client.call_tool, arguments={"token2": 1, "seen": token}, progress_callback=no_progress)
                for name in ("echo", "structured", "fail"):
                    [block] = (await call(f"echo__{name}")).content
                    assert isinstance(block, types.TextContent)
                    assert token in block.text
                with pytest.raises(MCPError):
                    await call("echo__fault")
                died = await call("echo__die")
                assert died.is_error
                assert token not in str(died)
            records = await gateway.records.list_calls()
            assert len(records) == 5
            for record in records:
                assert REDACTED in (record.args or "")
                assert record.tool_name == "echo__die" or REDACTED in (record.result or record.error or "")
    assert_not_stored(data, token)
    assert REDACTED in log.getvalue()
    assert not [form for form in forms(token) if form in log.getvalue()]


@pytest.mark.anyio
async def test_a_secret_that_a_toolset_repeats_is_returned_but_neither_stored_nor_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await require_sandbox()
    token = "lab-s3cr3t/value"
    monkeypatch.setenv("LAB_TOKEN", token)
    data = tmp_path / "data"
    with captured_log() as log:
        async with Gateway.open({"data_dir": str(data), "approval": {"mode": "never"}}) as gateway:
            await install(gateway, write_toolset(tmp_path / "lab", MANIFEST, code=CODE))
            outcome = await gateway.call("lab__echo", {"argument": token}, progress=no_progress)
            assert outcome.ok, outcome.error
            assert outcome.value["token"] == token
            assert outcome.render_plan is not None
            failed = await gateway.call("lab__fail", {})
            assert failed.error is not None
            assert REDACTED in failed.error.message
            last, first = await gateway.records.list_calls()
            assert json.loads(first.result or "")["token"] == REDACTED
            assert REDACTED in (first.render_plan or "")
            assert REDACTED in (last.render_plan or "")
    assert_not_stored(data, token)
    assert not [form for form in forms(token) if form in log.getvalue()]


@pytest.mark.anyio
async def test_a_secret_at_the_end_of_a_large_results_preview_is_not_stored_in_part(tmp_path: Path) -> None:
    token = "pr3v13w-" + "0123456789" * 3
    KNOWN.add(token)
    data = tmp_path / "data"
    async with Gateway.open({"data_dir": str(data)}) as gateway:
        for shift in range(0, 60, 7):
            value = "a" * (PREVIEW_LIMIT - shift) + token + "b" * DOCUMENT_LIMIT
            call = Call(name="a", arguments={})
            await gateway.records.record_finished(call, Outcome(value=value))
            preview = json.loads((await gateway.records.get(call.id)).result or "")["preview"]
            assert token[:4] not in preview
            assert len(preview) > PREVIEW_LIMIT - 600


def test_doctor_masks_a_token_that_a_server_writes_before_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "d0ct0r-t0k3n"
    monkeypatch.setenv("DOCTOR_TOKEN", token)
    program = "import os, sys; sys.exit('bad token ' + os.environ['T'] + ' for https://ann:sw0rdf1sh@host/')"
    server = {"command": sys.executable, "args": ["-c", program], "env": {"T": "${DOCTOR_TOKEN}"}}
    settings = {"data_dir": str(tmp_path / "data"), "mcpServers": {"broken": server}}
    (tmp_path / "toolgate.yaml").write_text(json.dumps(settings))
    for options in ([], ["--json"]):
        shown = CliRunner().invoke(toolgate, ["doctor", "--config", str(tmp_path / "toolgate.yaml"), *options])
        assert f"bad token {REDACTED} for https://ann:{REDACTED}@host/" in shown.output
        assert token not in shown.output
        assert PASSWORD not in shown.output
    assert_not_stored(tmp_path / "data", token)


def test_call_show_masks_a_secret_that_was_recorded_before_it_was_known(tmp_path: Path) -> None:
    token, call = "l4t3-kn0wn-t0k3n", Call(name="a", arguments={})

    async def record() -> None:
        async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
            await gateway.records.record_finished(call, Outcome(value={"said": token}))

    anyio.run(record)
    KNOWN.add(token)
    for command in (["show", call.id], ["show", call.id, "--json"], ["list", "--json"]):
        shown = CliRunner().invoke(toolgate, ["call", *command, "--data-dir", str(tmp_path)])
        assert REDACTED in shown.stdout
        assert token not in shown.stdout
