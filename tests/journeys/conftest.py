"""Gateways to travel through: shared where a journey leaves nothing behind but files of its own chat."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Generator, Iterator

import pytest
from mcp import Client

from .clients import over_http, over_stdio
from .processes import LOGS, Listening, on_http
from .wire import HANDSHAKE, MODERN


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def chat() -> str:
    """A chat no other journey knows."""
    return f"chat-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """One gateway over HTTP with default settings, for every journey of this run."""
    with on_http(tmp_path_factory.mktemp("http")) as gateway:
        yield gateway


@pytest.fixture(
    params=[
        "stdio_modern",
        pytest.param("stdio_handshake", marks=pytest.mark.slow),
        pytest.param("http_modern", marks=pytest.mark.slow),
        "http_handshake",
    ]
)
def client(request: pytest.FixtureRequest) -> Client:
    """The Python SDK's client, connected: once per transport and era."""
    connected = request.getfixturevalue(request.param)
    assert isinstance(connected, Client)
    return connected


@pytest.fixture(scope="module")
async def stdio_modern(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with over_stdio(tmp_path_factory.mktemp("stdio-modern"), MODERN) as client:
        yield client


@pytest.fixture(scope="module")
async def stdio_handshake(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    async with over_stdio(tmp_path_factory.mktemp("stdio-handshake"), HANDSHAKE) as client:
        yield client


@pytest.fixture(scope="module")
async def http_modern(listening: Listening) -> AsyncIterator[Client]:
    async with over_http(listening.url, MODERN) as client:
        yield client


@pytest.fixture(scope="module")
async def http_handshake(listening: Listening) -> AsyncIterator[Client]:
    async with over_http(listening.url, HANDSHAKE) as client:
        yield client


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the gateways said meanwhile next to the test that failed."""
    report = yield
    if report.failed:
        for log in LOGS:
            if log.exists() and log.stat().st_mtime >= call.start:
                report.sections.append((f"gateway stderr, {log.parent.name}", log.read_text(errors="replace")[-4000:]))
    return report
