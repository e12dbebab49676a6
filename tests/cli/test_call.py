"""`toolgate call`: the record of tool calls, as a person reads it."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.cli import toolgate

CALL = Call(name="notes__add", arguments={}, chat="c")
PLAN = {"renderer": "document", "config": {"content": "a long text"}}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    async def record() -> None:
        async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
            await gateway.records.record_finished(CALL, Outcome(value=1, render_plan=PLAN))

    anyio.run(record)
    return tmp_path


def show(data: Path, *options: str) -> str:
    shown = CliRunner().invoke(toolgate, ["call", "show", CALL.id, "--data-dir", str(data), *options])
    assert shown.exit_code == 0, shown.output
    return shown.stdout


def test_a_call_is_shown_with_its_renderer_and_where_its_plan_is(data: Path) -> None:
    [line] = [line for line in show(data).splitlines() if line.startswith("render_plan")]
    assert line.split(None, 1)[1] == f"document, at render://{CALL.id} (--json shows it)"
    assert "a long text" not in show(data)


def test_as_json_the_plan_is_whole(data: Path) -> None:
    assert json.loads(show(data, "--json"))["render_plan"] == PLAN
