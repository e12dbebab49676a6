"""Retry as an operator sets it: for builtins, upstream tools and tools of toolsets, where a second call is harmless."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from eventually import TIMEOUT, async_eventually
from net.sites import Reply, answer, serving

from gateway import Gateway
from gateway.admin.calls import cancel_call
from gateway.calls import Outcome
from gateway.config import Settings
from gateway.db.call_records import CallRecord
from gateway.errors import GatewayError

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X2")]

# A stdio server with one tool. Its process ends in the middle of the first call.
FRAGILE = """
import json, os, sys

HINTS, STATE = json.loads(sys.argv[1]), sys.argv[2]
RESULTS = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "f"}},
    "tools/list": {"tools": [{"name": "do", "inputSchema": {"type": "object"}, "annotations": HINTS}]},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}
RESULTS["initialize"]["serverInfo"]["version"] = "1"
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "tools/call" and not os.path.exists(STATE):
        open(STATE, "w").close()
        os._exit(3)
    if "id" in message:
        result = RESULTS.get(message["method"], {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
SERVERS = {"look": {"readOnlyHint": True}, "set": {"idempotentHint": True}, "add": {}, "said": {}, "once": {}}


def ended(outcome: Outcome) -> tuple[str, int]:
    return outcome.error.code if outcome.error is not None else "ok", outcome.attempts


async def test_retry_settings_apply_to_builtins_upstreams_and_toolsets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    (tmp_path / "shop").mkdir()
    busy = answer(503, b"busy", "Retry-After: 0")
    slow_down = answer(429, b"", "Retry-After: 0")
    fine = answer(200, b"fine", "Content-Type: text/plain")
    replies: dict[str, Reply | list[Reply]] = {
        "/page": [busy, slow_down, fine],
        "/gone": answer(404),
        "/get": [busy, fine],
        "/post": [busy, fine],
    }
    async with serving(replies) as site:
        host = f"127.0.0.1:{site.port}"
        get = {"id": "get", "type": "http", "url_template": site["/get"]}
        post = {**get, "id": "post", "method": "POST", "url_template": site["/post"]}
        manifest = {"id": "shop", "name": "Shop", "version": "1.0.0", "tools": [get, post]}
        (tmp_path / "shop/toolset.yaml").write_text(json.dumps(manifest))
        quick: dict[str, Any] = {"first_seconds": 0}
        settings = {
            "data_dir": str(tmp_path / "data"),
            "toolsets": [str(tmp_path / "shop")],
            "mcpServers": {
                name: {
                    "command": sys.executable,
                    "args": ["-S", "-E", str(tmp_path / "fragile.py"), json.dumps(hints), str(tmp_path / name)],
                }
                for name, hints in SERVERS.items()
            },
            "web": {"allowed_hosts": [host], "allow_private": True},
            "http": {"allowed_hosts": [host], "allow_private": True},
            "tools": {
                "retry": {
                    "said:*": {**quick, "repeatable": True},
                    "once:do": {"attempts": 1, "repeatable": True},
                    "add:do": quick,
                    "*:do": quick,
                    "web_fetch": quick,
                    "shop:get": {"attempts": 1},
                    "shop:post": {**quick, "repeatable": True, "codes": ["HTTP_503"]},
                }
            },
        }
        with caplog.at_level(logging.WARNING, "gateway.extensions.retry"):
            async with Gateway.open(settings) as gateway:
                fetched = await gateway.call("web_fetch", {"url": site["/page"]})
                assert (ended(fetched), "fine" in json.dumps(fetched.value)) == (("ok", 3), True)
                gone = await gateway.call("web_fetch", {"url": site["/gone"]})
                assert ended(gone)[1] == 1
                calls = {name: ended(await gateway.call(f"{name}:do")) for name in SERVERS}
                lost = ("UPSTREAM_LOST", 1)  # of one that may do something twice, and of one that is called once
                assert calls == {"look": ("ok", 2), "set": ("ok", 2), "add": lost, "said": ("ok", 2), "once": lost}
                assert ended(await gateway.call("shop:get")) == ("HTTP_503", 1)  # by default it makes three attempts
                assert ended(await gateway.call("shop:post")) == ("ok", 2)
                records = {record.tool_id: record.attempts for record in await gateway.records.list_calls()}
                assert (records["look:do"], records["shop:post"]) == (2, 2)
        (warning,) = [record.getMessage() for record in caplog.records if "retry" in record.name]
        assert warning.startswith("tools.retry: add:do may do something twice")


async def list_running(gateway: Gateway) -> list[CallRecord]:
    records = await gateway.records.list_calls()
    return records if len(records) == 2 else []


async def test_call_that_waits_for_its_next_attempt_is_cancelled_and_ends_with_the_gateway(tmp_path: Path) -> None:
    async with serving({"/page": answer(503)}) as site:
        settings = {
            "data_dir": str(tmp_path / "data"),
            "web": {"allowed_hosts": [f"127.0.0.1:{site.port}"], "allow_private": True},
            "tools": {"retry": {"web_fetch": {"first_seconds": 60, "longest_seconds": 300}}},
        }
        async with Gateway.open(settings) as gateway:
            calls = [asyncio.create_task(gateway.call("web_fetch", {"url": site["/page"]})) for _ in range(2)]
            await site.was_asked(2)
            first, _ = await async_eventually(partial(list_running, gateway))
            cancelled = await cancel_call(gateway, first.id, "ann")
            assert cancelled["status"] in ("running", "error")
            done, (other,) = await asyncio.wait(calls, timeout=TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
            assert [ended(task.result())[0] for task in done] == ["CANCELLED"]
        assert ended(await asyncio.wait_for(other, TIMEOUT))[0] == "BAD_STATUS"


def test_retry_settings_are_checked() -> None:
    with pytest.raises((ValueError, GatewayError), match="attempts"):
        Settings.model_validate({"tools": {"retry": {"web_fetch": {"attempts": 0}}}})
    with pytest.raises((ValueError, GatewayError), match="pauses"):
        Settings.model_validate({"tools": {"retry": {"web_fetch": {"pauses": 1}}}})
