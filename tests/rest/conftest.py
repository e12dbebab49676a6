"""A gateway over HTTP as users start it, and a client of its REST surface."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from journeys.processes import PATIENCE, Listening, on_http

# A secret of the settings, which no answer may contain.
SECRET = "correct-horse-battery-staple-0123456789"

# Tools that need a person wait in the queue for a moment. Nothing listens where the registry would be.
SETTINGS: dict[str, Any] = {
    "registry": {"url": "http://127.0.0.1:9"},
    "approval": {
        "keys": [SECRET],
        "without_elicitation": "queue",
        "queue_wait": 0,
        "timeout": 120,
        "rules": [
            {"tool": "write_file", "when": {"path": "ask-*"}, "then": "ask", "why": "ask for these files"},
            {"tool": "*", "when": {"path": "secret/*"}, "then": "deny"},
        ],
    },
    "roles": {
        "operator": {"permission": "execute", "admin": True},
        "reader": {"permission": "read-only", "tools": {"allow": ["read_file", "list_directory"]}},
        "writer": {"permission": "read-write"},
    },
    "mcpServers": {
        "masked": {
            "url": "https://host.example/mcp",
            "headers": {"Authorization": f"Bearer {SECRET}"},
            "enabled": False,
        }
    },
}


class Rest(httpx.Client):
    """A client with the address of one gateway, and where its data is."""

    def __init__(self, gateway: Listening, data: Path, key: str | None = None) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        super().__init__(base_url=gateway.url.removesuffix("/mcp"), timeout=PATIENCE, headers=headers, trust_env=False)
        self.gateway = gateway
        self.data = data

    def ok(self, method: str, url: str, status: int = 200, **options: Any) -> Any:
        """The JSON of an answer that must have this status."""
        answer = self.request(method, url, **options)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    def refused(self, method: str, url: str, status: int, **options: Any) -> dict[str, Any]:
        """The error of an answer, after checking its form."""
        answer = self.request(method, url, **options)
        assert answer.status_code == status, answer.text
        body = answer.json()
        assert body["ok"] is False
        assert body["error"].keys() == {"code", "message", "details"}
        assert answer.headers["cache-control"] == "no-store"
        error = body["error"]
        assert isinstance(error, dict)
        return error


@contextmanager
def serve(directory: Path, **settings: Any) -> Iterator[Rest]:
    (directory / "toolgate.yaml").write_text(json.dumps(SETTINGS | settings))  # JSON is YAML
    with on_http(directory) as gateway, Rest(gateway, directory / "data") as rest:
        yield rest


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """One gateway for all tests that leave nothing behind but files of their own chat."""
    with serve(tmp_path_factory.mktemp("rest")) as served:
        yield served


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rest]:
    """A gateway for tests that change it: each has a toolset, a server or a tool of its own."""
    with serve(tmp_path_factory.mktemp("rest-own")) as served:
        yield served


@pytest.fixture
def chat() -> str:
    return f"chat-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"
