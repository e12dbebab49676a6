"""`serve --log-format json`: every line of stderr and of the log file is JSON, one for each call, without secrets."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from journeys import wire
from journeys.processes import on_http


@pytest.mark.promise("X3")
def test_json_log_has_a_line_for_each_call_and_masks_secrets(tmp_path: Path) -> None:
    secret = "hunter2-and-more-of-it"
    with on_http(tmp_path, "--log-format", "json", "--log-file", "gateway.log") as gateway:
        for number, name in enumerate(("list_directory", "invented")):
            arguments = {"path": ".", "password": secret}
            wire.post(gateway.url, wire.call(wire.MODERN, number, name, arguments, "chat-1"))
        os.kill(gateway.pid, signal.SIGTERM)
        gateway.wait()
    lines = gateway.log.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert records == [json.loads(line) for line in (tmp_path / "gateway.log").read_text().splitlines()]
    assert "toolgate serves" in records[0]["message"]
    calls = {record["call"]["tool"]: record for record in records if "call" in record}
    listed, unknown = calls["list_directory"], calls["invented"]
    assert (listed["level"], listed["logger"], listed["call"]["chat"]) == ("info", "gateway.calls", "chat-1")
    assert (listed["call"]["principal"], listed["call"]["surface"]) == ("local", "mcp")
    assert unknown["call"]["error_code"] == "UNKNOWN_TOOL"
    assert listed["call"]["duration_ms"] >= 0
    assert secret not in "".join(lines)
