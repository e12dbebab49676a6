"""Real servers for clients: an SDK server over HTTP for the whole run, and children on demand."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventually import eventually

from gateway.mcp_client import ClientIdentity, StdioEndpoint

SERVERS = Path(__file__).parent / "servers"
MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
CLIENT_IDENTITY = ClientIdentity("links", "1", {"elicitation": {}, "sampling": {}, "roots": {}})


def server(name: str, *arguments: str, **env: str) -> StdioEndpoint:
    return StdioEndpoint(sys.executable, (str(SERVERS / name), *arguments), env=env)


class HttpServer:
    """`everything.py` over HTTP, which can be killed and started again at the same address."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [sys.executable, str(SERVERS / "everything.py"), "http", str(self.port)]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        eventually(self._answers)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/nothing", timeout=5)
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def http_server() -> Iterator[HttpServer]:
    running = HttpServer()
    yield running
    running.kill()


@pytest.fixture
def own_http_server() -> Iterator[HttpServer]:
    running = HttpServer()
    yield running
    running.kill()
