"""Metrics: what a scrape of a running gateway shows, to whom, and that nobody can make it large."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from amounts import NIGHTLY, amount
from eventually import eventually
from journeys.processes import environment, on_http
from opcodes import count_opcodes
from otlp_receiver import receive_spans
from prometheus_client.parser import text_string_to_metric_families as parse
from starlette.requests import Request

from gateway import Gateway
from gateway.admin.metrics import write_metrics
from gateway.calls import Call, Caller
from gateway.extensions import telemetry
from gateway.identity import OWNER, Principal
from gateway.identity.roles import Roles
from gateway.serve.http.app import metrics_route

pytestmark = [pytest.mark.anyio, pytest.mark.promise("X3")]


async def scrape(gateway: Gateway) -> dict[str, dict[tuple[str, ...], float]]:
    """Each sample by its name and the values of its labels."""
    body, content_type = await write_metrics(gateway, "text/plain")
    assert content_type.startswith("text/plain; version=")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def test_calls_are_counted_by_tool_server_and_outcome(tmp_path: Path) -> None:
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        assert (await gateway.call("write_file", {"path": "a", "content": "b"})).ok
        for _ in range(2):
            assert not (await gateway.call("read_file", {"path": "nowhere"})).ok
        assert not (await gateway.call("invented", {})).ok
        found = await scrape(gateway)
    assert found["toolgate_calls_total"] == {
        ("OK", "builtin", "write_file"): 1,
        ("FILE_NOT_FOUND", "builtin", "read_file"): 2,
        ("UNKNOWN_TOOL", "unknown", "unknown"): 1,
    }
    assert found["toolgate_call_duration_seconds_count"] == {("builtin",): 3, ("unknown",): 1}
    assert found["toolgate_call_duration_seconds_bucket"]["+Inf", "builtin"] == 3
    assert found["toolgate_calls_running"] == found["toolgate_calls_queued"] == {(): 0}
    assert found["toolgate_database_bytes"][()] > 0
    assert found["toolgate_tools"][()] == len(gateway.catalog)
    assert "process_cpu_seconds_total" in found or sys.platform != "linux"


@pytest.mark.timeout(3600 if NIGHTLY else 600)
async def test_made_up_names_chats_and_principals_add_no_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_TOOLS", 1)
    async with Gateway.open({"data_dir": str(tmp_path)}) as gateway:
        assert (await gateway.call("write_file", {"path": "a", "content": "b"})).ok
        before = await scrape(gateway)
        for number in range(amount(50, nightly=100_000)):
            caller = Caller(principal=f"p{number}")
            await gateway.call(f"invented_{number}", {"n": number}, chat=f"chat-{number}", caller=caller)
        await gateway.call("read_file", {"path": "a"})  # one tool more than are counted apart
        after = await scrape(gateway)
    assert after["toolgate_calls_total"].keys() - before["toolgate_calls_total"].keys() == {
        ("UNKNOWN_TOOL", "unknown", "unknown"),
        ("OK", "unknown", "unknown"),
    }


async def test_metrics_cost_a_call_nothing_and_traces_little(tmp_path: Path) -> None:
    async def count(**telemetry: object) -> float:
        settings = {"data_dir": str(tmp_path / str(len(telemetry))), "telemetry": telemetry}
        async with Gateway.open(settings) as gateway:
            return await count_opcodes(lambda: gateway.call("list_directory", {}))

    off, on = await count(prometheus=False), await count(prometheus=True)
    with receive_spans() as receiver:
        traced = await count(prometheus=True, otel={"endpoint": receiver.url})
    assert abs(on - off) <= 0.02 * off
    assert on < traced < 1.12 * on


async def test_upstreams_and_queued_approvals_are_shown(tmp_path: Path) -> None:
    settings = {
        "data_dir": str(tmp_path),
        "approval": {"without_elicitation": "queue", "queue_wait": 0},
        "mcpServers": {"broken": {"command": "no-such-program"}, "off": {"command": "x", "enabled": False}},
    }
    async with Gateway.open(settings) as gateway:
        await gateway.call("write_file", {"path": "a", "content": "b"})
        await gateway.approval_flow.call_tool(Call(name="delete_file", arguments={"path": "a"}))
        found = await scrape(gateway)
    assert found["toolgate_upstream_up"] == {("broken", "failed"): 0, ("off", "off"): 0}
    assert found["toolgate_approvals_waiting"] == {(): 1}


async def test_metrics_are_for_administrators_and_roles_that_may_read_them(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path), "roles": {"scraper": {"permission": "read-only", "metrics": True}}}
    async with Gateway.open(settings) as gateway:
        roles = Roles(gateway.settings.roles, {})
        route = metrics_route(partial(write_metrics, gateway), roles)

        async def get(principal: Principal) -> int:
            scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "state": {}}
            answer = await route.endpoint(Request(scope | {"state": {"principal": principal}}))
            return int(answer.status_code)

        for allowed in (OWNER, roles.make_principal("p", "scraper"), roles.make_principal("a", "admin")):
            assert await get(allowed) == 200
        assert await get(roles.make_principal("u", "user")) == 403


def test_prometheus_takes_what_a_gateway_serves(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    with on_http(tmp_path) as gateway:
        url = gateway.url.removesuffix("/mcp") + "/metrics"
        curl = [sys.executable, "-c", f"import urllib.request as u; print(u.urlopen({url!r}).read().decode(), end='')"]
        text = subprocess.run(curl, check=True, capture_output=True, text=True, env=environment(tmp_path)).stdout
        assert "toolgate_calls_running 0.0" in text
        if promtool is not None:
            checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
            assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
        if NIGHTLY and (prometheus := shutil.which("prometheus")) is not None:
            scrape_for_a_minute(prometheus, url.removeprefix("http://"), tmp_path)


def scrape_for_a_minute(prometheus: str, target: str, directory: Path) -> None:
    """Let Prometheus scrape every five seconds, and ask it afterwards how that went."""
    host, _, path = target.partition("/")
    scraped = {"job_name": "toolgate", "metrics_path": f"/{path}", "static_configs": [{"targets": [host]}]}
    config = {"global": {"scrape_interval": "5s", "scrape_timeout": "5s"}, "scrape_configs": [scraped]}
    (directory / "prometheus.yml").write_text(json.dumps(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [prometheus, f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/tsdb"]
    with subprocess.Popen([*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL) as process:

        def query(text: str) -> list[float]:
            url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
            try:
                with urllib.request.urlopen(url) as answer:
                    return [float(each["value"][1]) for each in json.load(answer)["data"]["result"]]
            except OSError:
                return []

        try:
            eventually(lambda: query("count_over_time(up[10m])") >= [13], timeout=600)
            assert query("min_over_time(up[10m])") == [1]
            assert query("toolgate_calls_running") == [0]
            assert query("process_cpu_seconds_total")[0] > 0
        finally:
            process.terminate()


DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "dashboard.json"


async def test_dashboard_of_grafana_uses_metrics_and_labels_that_exist(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path), "mcpServers": {"off": {"command": "x", "enabled": False}}}
    async with Gateway.open(settings) as gateway:
        assert (await gateway.call("write_file", {"path": "a", "content": "b"})).ok
        body, _ = await write_metrics(gateway, "text/plain")
    samples = [sample for family in parse(body.decode()) for sample in family.samples]
    labels = {sample.name: {*sample.labels, "job", "instance"} for sample in samples}
    dashboard = json.loads(DASHBOARD.read_text())
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    texts += [variable["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    assert len(texts) > 15
    used = set()
    for text in texts:
        names = re.findall(r"\b((?:toolgate|process)_\w+)", text)
        assert names, text
        assert {*names} <= labels.keys(), text
        known = set.union(*(labels[name] for name in names))
        selected = re.findall(r"[{,] *(\w+) *(?:=~|!=|=)", text)
        grouped = [label.strip() for group in re.findall(r"\bby \(([^)]*)\)", text) for label in group.split(",")]
        queried = re.findall(r"label_values\(\w+, (\w+)\)", text)
        assert {*selected, *grouped, *queried} <= known, text
        used |= {*names}
    assert {name for name in labels if name.startswith("toolgate_")} - used == {
        *("toolgate_tools", "toolgate_tool_problems"),
        *("toolgate_call_duration_seconds_count", "toolgate_call_duration_seconds_sum"),
    }
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
