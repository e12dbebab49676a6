"""`toolgate call`: the record of tool calls, as a person reads it."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner, Result

from gateway import Gateway
from gateway.calls import Call, Outcome
from gateway.cli import toolgate
from gateway.cli.call import format_time
from gateway.errors import NotFound

CALL = Call(name="notes__add", arguments={"whole": True}, chat="c")
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
    [line] = [line for line in show(data).splitlines() if line.startswith("page ")]
    assert line.split(None, 1)[1] == f"document, at render://{CALL.id} (--json shows it)"
    assert "a long text" not in show(data)


def test_values_that_are_no_text_are_shown_as_json(data: Path) -> None:
    [line] = [line for line in show(data).splitlines() if line.startswith("arguments ")]
    assert line.split(None, 1)[1] == '{"whole": true}'


def test_without_an_id_the_newest_call_is_shown(data: Path) -> None:
    def newest(*options: str) -> Result:
        return CliRunner().invoke(toolgate, ["call", "show", "--data-dir", str(data), *options])

    assert newest().stdout == show(data)
    labels = {line[:18].strip() for line in newest().stdout.splitlines()}
    assert {"call", "tool's name", "started", "took", "chat"} <= labels and not any("_" in label for label in labels)
    assert json.loads(newest("--json").stdout)["tool_name"] == CALL.name
    nothing = newest("--chat", "nothing")
    assert isinstance(nothing.exception, NotFound) and nothing.exception.message.startswith("no call is recorded yet")


def test_as_json_the_plan_is_whole(data: Path) -> None:
    assert json.loads(show(data, "--json"))["render_plan"] == PLAN


def test_calls_in_an_attached_folder_are_listed_by_its_path_from_anywhere(tmp_path: Path) -> None:
    folder, data = tmp_path / "project", str(tmp_path / "data")
    folder.mkdir()

    async def call() -> None:
        async with Gateway.open({"data_dir": data, "workspace": str(folder)}) as gateway:
            await gateway.call("write_file", {"path": "a.txt", "content": "text"})

    anyio.run(call)
    header, row = CliRunner().invoke(toolgate, ["call", "list", "--data-dir", data]).stdout.splitlines()
    assert header.split() == ["ID", "STARTED", "(UTC)", "TOOL", "STATUS", "ERROR", "TOOK", "CHAT"]
    assert row.endswith("/project")
    short, day, moment, *_ = row.split()
    assert len(f"{day} {moment}") == 19
    listed = json.loads(CliRunner().invoke(toolgate, ["call", "list", "--data-dir", data, "--json"]).stdout)
    shown = CliRunner().invoke(toolgate, ["call", "show", short, "--data-dir", data, "--json"])
    assert json.loads(shown.stdout)["id"] == listed[0]["id"]
    earlier = CliRunner().invoke(toolgate, ["call", "list", "--before", short, "--data-dir", data, "--json"])
    assert json.loads(earlier.stdout) == []
    assert listed[0]["folder"] == str(folder.resolve()) and listed[0]["chat_id"].startswith("folder-")


def test_calls_of_one_chat_are_listed_by_either_option(data: Path) -> None:
    def listed(*options: str) -> list[str]:
        found = CliRunner().invoke(toolgate, ["call", "list", "--json", "--data-dir", str(data), *options])
        return [call["id"] for call in json.loads(found.stdout)]

    assert listed() == listed("--chat", "c") == listed("--of-chat", "c") == [CALL.id]
    assert listed("--chat", "nothing") == listed("--of-chat", "nothing") == []
    (data / "toolgate.yaml").write_text("chat: nothing\n")
    assert listed("--config", str(data / "toolgate.yaml")) == [CALL.id]


@pytest.mark.parametrize(("milliseconds", "text"), [(0.44, "0.4 ms"), (9_999.9, "9999.9 ms"), (41_646.5, "41.6 s")])
def test_long_times_are_in_seconds(milliseconds: float, text: str) -> None:
    assert format_time(milliseconds) == text
