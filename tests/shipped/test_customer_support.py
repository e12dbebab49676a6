"""The customer-support toolset against its service: tools, a refund that asks, a ticket shown as a document, roles."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from eventually import async_eventually, eventually
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import TextContent

from gateway import Gateway, config
from gateway.bundles.openapi import ImportOptions, import_document

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples/customer-support"
TOOLSET = ROOT / "toolsets/customer-support"
HANDWRITTEN = ["urgent_tickets", "show_ticket", "draft_reply"]

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P4")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def load_service() -> Any:
    found = importlib.util.spec_from_file_location("support_service", EXAMPLE / "service.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@asynccontextmanager
async def open_gateway(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """The service with a new database, and the example's gateway in front of it."""
    service = load_service()
    database = service.connect(str(folder / "support.db"))
    app = service.make_app(database, "service-token-1")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        await async_eventually(lambda: server.started)
        monkeypatch.setenv("CUSTOMER_SUPPORT_HOST", f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        monkeypatch.setenv("CUSTOMER_SUPPORT_TOKEN", "service-token-1")
        async with Gateway.open(config.load(EXAMPLE / "toolgate.yaml", {"data_dir": folder / "data"})) as gateway:
            yield gateway
        server.should_exit = True
    database.close()


def test_customer_support_is_what_the_command_makes_of_the_document_and_three_tools() -> None:
    options = ImportOptions("customer-support", server="http://${CUSTOMER_SUPPORT_HOST}")
    imported = import_document(str(EXAMPLE / "openapi.yaml"), lambda url: b"", options)
    merged = imported.merge(TOOLSET)
    changes = merged.changes
    assert changes is not None
    assert (changes.added, changes.removed, changes.changed) == ([], [], {})
    assert changes.kept == {"customer-support": ["category"], "create_refund": ["requires_confirmation"]}
    assert [tool.id for tool in merged.toolset.tools[len(imported.toolset.tools) :]] == HANDWRITTEN
    assert not imported.skipped


async def test_customer_support_works_on_tickets_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_gateway(tmp_path, monkeypatch) as gateway:

        async def call(tool: str, confirmed: bool = False, **arguments: Any) -> Any:
            outcome = await gateway.call(f"customer-support:{tool}", arguments, confirmed=confirmed)
            assert outcome.error is None, outcome.error
            return outcome.value

        (urgent,) = await call("urgent_tickets")
        assert (urgent["id"], urgent["subject"]) == (2, "Charged twice")
        assert [
            ticket["id"] for ticket in (await call("list_tickets", status=["open", "solved"], q="user"))["items"]
        ] == [3]
        created = await call("create_ticket", user_id=1, subject="Broken link", text="See the footer.", priority="low")
        await call("add_comment", ticket_id=created["id"], text="Fixed & deployed", public=True)
        assert (await call("update_ticket", ticket_id=created["id"], status="solved", assignee=None))[
            "status"
        ] == "solved"
        assert (await call("get_ticket", ticket_id=created["id"]))["comments"][0]["text"] == "Fixed & deployed"
        reply = await call("draft_reply", ticket_id=2, name="Cleo", points=["We refunded the second charge."])
        assert reply["path"] == "replies/ticket-2.md"
        refused = await gateway.call("customer-support:delete_ticket", {"ticket_id": 1})
        assert refused.error is not None and refused.error.code == "CONFIRMATION_REQUIRED"
        await call("delete_ticket", confirmed=True, ticket_id=1)
        missing = await gateway.call("customer-support:get_ticket", {"ticket_id": 1})
        assert missing.error is not None and "there is no ticket 1" in missing.error.message


async def test_customer_support_ticket_is_shown_as_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_gateway(tmp_path, monkeypatch) as gateway:
        shown = await gateway.call("customer-support:show_ticket", {"ticket_id": 2})
        assert shown.render_plan is not None
        assert shown.render_plan["renderer"] == "document"
        assert "# Ticket 2: Charged twice" in shown.render_plan["config"]["content"]
        assert "> The payment provider confirms two charges." in shown.render_plan["config"]["content"]


async def test_customer_support_refund_above_a_sum_asks_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_gateway(tmp_path, monkeypatch) as gateway:
        refund = "customer-support:create_refund"
        small = await gateway.call(refund, {"order_id": 2, "amount": 20, "reason": "charged twice"})
        assert small.error is None
        large = await gateway.call(refund, {"order_id": 3, "amount": 50.01, "reason": "charged twice"})
        assert large.error is not None and large.error.code == "CONFIRMATION_REQUIRED"
        assert large.error.message.startswith("a refund above 50 EUR needs a person (")
        agreed = await gateway.call(refund, {"order_id": 3, "amount": 50.01, "reason": "late"}, confirmed=True)
        assert agreed.value["left"] == pytest.approx(129.99)
        beyond = await gateway.call(refund, {"order_id": 2, "amount": 40, "reason": "charged twice"})
        assert beyond.error is not None and "only 29.50 EUR of order 2 are left" in beyond.error.message


def find_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def start_example(folder: Path, port: int) -> Iterator[Path]:
    """Run the example's one command; the file with its output."""
    python_path = os.pathsep.join([str(ROOT), str(ROOT / "toolsets"), os.environ.get("PYTHONPATH", "")])
    output = folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(EXAMPLE / "start.py"), "--port", str(port), "--data", str(folder / "data")],
            env={**os.environ, "PYTHONPATH": python_path, "HOME": str(folder)},
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield output
    finally:
        process.terminate()
        assert process.wait(60) == 0
        eventually(lambda: not is_running(process.pid))


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_customer_support_says_first_that_its_port_is_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, str(EXAMPLE / "start.py"), "--port", port, "--data", str(tmp_path / "data")]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"port {port} is in use; choose another with --port\n"
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
async def test_customer_support_starts_with_one_command_and_knows_its_roles(tmp_path: Path) -> None:
    port = find_port()
    with start_example(tmp_path, port) as output:
        await async_eventually(lambda: is_listening(port), timeout=300)
        agent, lead = [line for line in output.read_text().splitlines() if line.startswith("tg_")]
        url = f"http://127.0.0.1:{port}/mcp"
        for mode in ("auto", "legacy"):
            offered, urgent = await visit(url, agent, mode)
            assert {"customer-support__urgent_tickets", "customer-support__create_refund"} <= offered
            assert not offered & {"customer-support__delete_ticket", "customer-support__update_user", "read_file"}
            assert "Charged twice" in urgent
            offered, _ = await visit(url, lead, mode)
            assert {"customer-support__delete_ticket", "customer-support__update_user"} <= offered


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def visit(url: str, key: str, mode: str) -> tuple[set[str], str]:
    """The tools that a key sees, and the urgent tickets as text."""
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=120) as http:
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=mode, read_timeout_seconds=120, cache=None) as client:
            tools = await client.list_tools()
            result = await client.call_tool("customer-support__urgent_tickets", {})
            assert not result.is_error, result
            text = "".join(block.text for block in result.content if isinstance(block, TextContent))
            return {tool.name for tool in tools.tools}, text
