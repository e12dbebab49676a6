"""Which files a client of the handshake era finds in its next HTTP session."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.identity import OWNER, Principal
from gateway.serve.mcp.request import client_chat

from .clients import over_http, refusal, value
from .processes import Listening
from .wire import ERAS, HANDSHAKE, call, open_session, post, request

pytestmark = pytest.mark.promise("G3")


@pytest.fixture
def name() -> str:
    """A client that no other test is."""
    return f"client {uuid.uuid4().hex}"


def write(url: str, session: Mapping[str, str]) -> None:
    answer = post(url, call(HANDSHAKE, 1, "write_file", {"path": "notes.txt", "content": "kept"}), session)
    assert answer.message["result"]["structuredContent"]["created"]


def read(url: str, session: Mapping[str, str]) -> dict[str, Any]:
    """The result of reading the file: its content, or the error."""
    result = post(url, call(HANDSHAKE, 2, "read_file", {"path": "notes.txt"}), session).message["result"]
    found = result["_meta"]["dev.toolgate/error"] if result["isError"] else result["structuredContent"]
    assert isinstance(found, dict)
    return found


def list_tools(url: str, session: Mapping[str, str]) -> None:
    assert post(url, request(HANDSHAKE, 0, "tools/list"), session).message["result"]["tools"]


def test_a_client_with_a_session_per_call_finds_its_files(listening: Listening, name: str) -> None:
    list_tools(listening.url, open_session(listening.url, name))
    first, second = open_session(listening.url, name), open_session(listening.url, name)
    write(listening.url, first)
    assert read(listening.url, second)["content"] == "kept"
    assert read(listening.url, open_session(listening.url, name))["content"] == "kept"


def test_a_session_stays_in_its_chat_when_it_lists_tools_after_a_call(listening: Listening, name: str) -> None:
    session = open_session(listening.url, name)
    write(listening.url, session)
    list_tools(listening.url, session)  # the Python SDK 1.x does so to validate a structured result
    assert read(listening.url, session)["content"] == "kept"


def test_two_conversations_in_sessions_that_are_kept_do_not_share_files(listening: Listening, name: str) -> None:
    one, other = open_session(listening.url, name), open_session(listening.url, name)
    for session in (one, other):
        list_tools(listening.url, session)
    write(listening.url, one)
    assert read(listening.url, one)["content"] == "kept"
    error = read(listening.url, other)
    assert error["code"] == "FILE_NOT_FOUND"
    assert "?chat=NAME" in error["message"]
    assert read(listening.url, open_session(listening.url, name))["code"] == "FILE_NOT_FOUND"


def test_two_clients_do_not_share_files(listening: Listening, name: str) -> None:
    write(listening.url, open_session(listening.url, name))
    assert read(listening.url, open_session(listening.url, f"{name}!"))["code"] == "FILE_NOT_FOUND"


@pytest.mark.parametrize("header", ["Authorization", "X-Forwarded-For"])
def test_clients_behind_a_proxy_do_not_share_files(listening: Listening, name: str, header: str) -> None:
    one, other = (open_session(listening.url, name, {header: "203.0.113.7"}) for _ in range(2))
    write(listening.url, one)
    assert read(listening.url, one)["content"] == "kept"
    assert read(listening.url, other)["code"] == "FILE_NOT_FOUND"


def test_only_one_person_is_behind_a_loopback_address() -> None:
    assert client_chat(OWNER, "mcp", {}, "127.0.0.1") == client_chat(OWNER, "mcp", {}, "::1") is not None
    assert client_chat(OWNER, "mcp", {}, "192.168.1.7") is None
    assert client_chat(OWNER, "mcp", {}, "") is None
    ada, bob = (
        client_chat(Principal(principal), "mcp", {"authorization": "Bearer x"}, "192.168.1.7") for principal in "ab"
    )
    assert ada is not None
    assert ada != bob


def test_the_chat_of_the_url_is_used_in_every_session(listening: Listening, name: str, chat: str) -> None:
    url = f"{listening.url}?chat={chat}"
    one, other = open_session(url, name), open_session(url, f"{name} 2")
    list_tools(url, one)
    write(url, one)
    assert read(url, other)["content"] == "kept"


@pytest.mark.anyio
@pytest.mark.parametrize("era", ERAS)
async def test_the_next_connection_of_an_sdk_client_finds_its_files(listening: Listening, era: str) -> None:
    path = f"{uuid.uuid4().hex}.txt"
    async with over_http(listening.url, era) as client:
        await value(client, "write_file", {"path": path, "content": "kept"})
    async with over_http(listening.url, era) as client:
        assert (await value(client, "read_file", {"path": path}))["content"] == "kept"
        error = await refusal(client, "read_file", {"path": f"{path}.gone"})
    assert ("?chat=NAME" in error["message"]) is (era == HANDSHAKE)
