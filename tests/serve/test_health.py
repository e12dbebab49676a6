"""Health: each part with what is wrong and since when, as events with a beginning and an end, on every surface."""

from __future__ import annotations

import json
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from eventually import async_eventually, eventually
from journeys.processes import on_http

from gateway import Gateway
from gateway.admin.health import check_health
from gateway.admin.health_monitor import HealthCheck
from gateway.cli import toolgate

pytestmark = [pytest.mark.promise("X3"), pytest.mark.promise("G7")]

TINY = Path(__file__).parents[1] / "journeys" / "servers" / "tiny.py"


def kept_server(switch: Path) -> dict[str, Any]:
    """A server that is kept connected, and starts only while the file is there."""
    program = f"import os, runpy; os.path.exists({str(switch)!r}) or exit(3); runpy.run_path({str(TINY)!r})"
    return {"kept": {"command": sys.executable, "args": ["-c", program], "lazy": False}}


def find(checks: list[HealthCheck], subject: str) -> HealthCheck:
    return next(check for check in checks if check.subject == subject)


@pytest.mark.anyio
async def test_health_problem_begins_and_ends_once_and_other_processes_see_it(tmp_path: Path) -> None:
    switch = tmp_path / "switch"
    settings = {"data_dir": str(tmp_path / "data"), "mcpServers": kept_server(switch)}
    async with Gateway.open(settings, follow=True) as gateway:
        first = find(await gateway.check_parts(), "upstream")
        assert (first.state, first.name, first.blocks) == ("fail", "kept", True)
        assert first.since is not None
        assert find(await gateway.check_parts(), "upstream").since == first.since
        assert find(await gateway.check_parts(), "store").state == "ok"
        async with Gateway.open({"data_dir": str(tmp_path / "data")}) as other:
            reported = find(await check_health(other), "upstream")
            assert (reported.state, reported.name, reported.since) == ("note", "kept", first.since)
        switch.touch()

        async def works_again() -> bool:
            return find(await gateway.check_parts(), "upstream").state == "ok"

        await async_eventually(works_again)
        [event] = [event for event in await gateway.health.list_events() if event.subject == "upstream"]
        assert (event.name, event.began_at) == ("kept", first.since)
        assert event.ended_at is not None


@pytest.mark.anyio
async def test_health_problems_of_a_gateway_end_with_it(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path / "data"), "mcpServers": kept_server(tmp_path / "switch")}
    async with Gateway.open(settings, follow=True) as gateway:
        await gateway.check_parts()
    async with Gateway.open({"data_dir": str(tmp_path / "data")}) as gateway:
        events = await gateway.health.list_events()
        assert "upstream" in {event.subject for event in events}
        assert all(event.ended_at is not None for event in events)


def test_health_is_the_same_list_at_readyz_over_rest_and_in_doctor(tmp_path: Path) -> None:
    switch, file = tmp_path / "switch", tmp_path / "toolgate.yaml"
    file.write_text(yaml.safe_dump({"mcpServers": kept_server(switch)}))
    with on_http(tmp_path, "--config", str(file)) as gateway:
        base = gateway.url.removesuffix("/mcp")

        def get(path: str, host: str = "127.0.0.1") -> tuple[int, Any]:
            request = urllib.request.Request(base + path, headers={"host": host})
            try:
                with urllib.request.urlopen(request) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as refusal:
                with refusal:
                    return refusal.code, json.load(refusal)

        status, answer = get("/readyz")
        assert (status, answer["ok"], answer["error"]["code"]) == (503, False, "NOT_READY")
        parts = {part["subject"]: part for part in answer["parts"]}
        assert [*parts] == ["store", "journal", "sandbox", "upstream"]
        assert (parts["upstream"]["name"], parts["upstream"]["state"]) == ("kept", "fail")
        assert "parts" not in get("/readyz", "10.1.2.3")[1]
        _, shown = get("/api/health")
        [check] = [check for check in shown["checks"] if check["subject"] == "upstream"]
        assert [check[key] for key in ("name", "state", "since")] == ["kept", "fail", parts["upstream"]["since"]]
        assert check["since"] in {event["began_at"] for event in shown["events"] if event["ended_at"] is None}
        line = ["doctor", "--json", "--data-dir", str(tmp_path / "data"), "--config", str(file)]
        checks = json.loads(CliRunner().invoke(toolgate, line).stdout)
        same = [check["message"] for check in shown["checks"] if check["subject"] in ("store", "journal", "sqlite")]
        assert [check["message"] for check in checks if check["subject"] in ("store", "journal", "sqlite")] == same
        [probed] = [check for check in checks if check["subject"] == "upstream"]
        assert (probed["name"], probed["state"]) == ("kept", "fail")
        switch.touch()
        eventually(lambda: get("/readyz")[0] == 200)


@pytest.mark.anyio
@pytest.mark.parametrize(("mebibytes", "amount"), [(100, "100 MiB"), (1023, "1023 MiB"), (73_813, "72.1 GiB")])
async def test_health_names_free_space_in_a_unit_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mebibytes: int, amount: str
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=mebibytes * 2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        message = find(await check_health(gateway), "data").message
    assert f", {amount} free" in message
