"""Rate limits of several processes on one data directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway import Gateway
from gateway.extensions import rate_limit
from gateway.extensions.rate_limit import PROBES, WINDOW, RateTable

pytestmark = pytest.mark.promise("P3", "B11")

LIMITED = """
limits: {calls_per_minute: {list_directory: 2}}
"""


def call_by_cli(directory: Path) -> str:
    command = [sys.executable, "-m", "gateway", "tool", "call", "list_directory", "path=."]
    options = ["--data-dir", str(directory / "data"), "--config", str(directory / "limited.yaml")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    return "OK" if done.returncode == 0 else done.stderr.split()[1].rstrip(":")


@pytest.mark.anyio
async def test_rate_limit_holds_across_commands_and_a_gateway_that_runs(tmp_path: Path) -> None:
    (tmp_path / "limited.yaml").write_text(LIMITED)
    assert call_by_cli(tmp_path) == "OK"
    settings = {"data_dir": tmp_path / "data", "limits": {"calls_per_minute": {"list_directory": 2}}}
    async with Gateway.open(settings) as gateway:
        assert (await gateway.call("list_directory", {"path": "."})).ok
        refused = await gateway.call("list_directory", {"path": "."})
        assert refused.error is not None and refused.error.code == "RATE_LIMITED"
        assert call_by_cli(tmp_path) == "RATE_LIMITED"


SPEND = """
import asyncio, sys
from pathlib import Path
from gateway.calls import Call
from gateway.errors import RateLimited
from gateway.extensions.rate_limit import RateLimit, RateTable
from gateway.tools import Category, Permission, Tool

async def main():
    tool = Tool("t", "", category="k")
    table = RateTable(Path(sys.argv[1]), lambda: 2)
    limit = RateLimit({"k": Category("k", Permission.EXECUTE)}, {"t": 600}, lambda: 1e9, lambda: table)
    passed = 0
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(600):
        try:
            await limit.before_execute(Call(name="t", arguments={}, tool=tool))
            passed += 1
        except RateLimited:
            pass
    print(passed)

asyncio.run(main())
"""


def test_rate_limit_is_exact_among_processes_that_call_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SPEND, str(tmp_path)]
    processes = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(3)]
    passed = 0
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        passed += int(process.communicate()[0])
    assert passed == 600


def test_rate_table_takes_the_lock_only_while_others_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [1]
    table = RateTable(tmp_path, lambda: processes[0])
    assert not table.is_shared()
    processes[0] = 2
    other = RateTable(tmp_path, lambda: processes[0])
    assert table.is_shared() and other.is_shared()
    other.close()
    processes[0] = 1
    monkeypatch.setattr(rate_limit, "ALONE_CHECK", -1.0)
    assert not table.is_shared()
    table.close()


def test_rate_table_keeps_a_bucket_until_it_is_full_and_survives_a_clock_set_back(tmp_path: Path) -> None:
    table, key = RateTable(tmp_path), ("tool", "t", "local")
    first = table.find(key)
    table.set_full_at(first, 130.0)
    assert table.find(key) == first and table.full_at(first, 110.0) == 130.0
    assert table.full_at(first, 200.0) == 200.0, "as good as none"
    assert table.full_at(first, -1e6) == WINDOW - 1e6
    again = RateTable(tmp_path)
    assert again.full_at(again.find(key), 110.0) == 130.0
    places = {table.find(("tool", f"t{number}", "local")) for number in range(50_000)}
    assert len(places) <= rate_limit.SLOTS, f"each of {PROBES} places is used again once it is free"
    for each in (table, again):
        each.close()


def test_rate_table_finds_a_bucket_again_that_another_process_gave_away(tmp_path: Path) -> None:
    table, other, key = RateTable(tmp_path), RateTable(tmp_path), ("tool", "t", "local")
    first = table.find(key)
    other._memory[first : first + 16] = b"somebody else's."
    other.set_full_at(first, 60.0)
    table.set_full_at(table.find(key), 5.0)
    assert other.full_at(other.find(key), 1.0) == 5.0 and other.find(key) != first
    for each in (table, other):
        each.close()


def test_rate_table_works_without_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rate_limits").mkdir()
    table = RateTable(tmp_path)
    place = table.find(("tool", "t", "local"))
    table.set_full_at(place, 2.0)
    assert table.full_at(place, 1.0) == 2.0 and "rate limits hold for this process only" in caplog.text
    table.close()
