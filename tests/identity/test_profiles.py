"""Profiles, limits of roles, isolation between principals, and what a proxy says of a request."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from eventually import async_eventually
from serve.servers import HANDSHAKE, Client, request

from gateway import Gateway
from gateway.errors import Invalid
from gateway.extensions import quotas
from gateway.identity import OWNER
from gateway.serve.http.authentication import ForwardedHeaders

from .gateways import ERAS, ROADS, guarded

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]

PROFILES = {
    "echo": {"tools": {"allow": ["stall__echo", "stall__object"]}, "output_schemas": False},
    "reader": {"permission": "read-only"},
    "wide": {},
}


@pytest.mark.promise("G6")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("road", ROADS)
async def test_profile_of_the_url_narrows_what_is_listed_and_called(tmp_path: Path, road: str, era: str) -> None:
    async with guarded(tmp_path, profiles=PROFILES) as fixture:
        whole = fixture.holder(None, road, era)
        narrow = fixture.holder(None, road, era, url="/mcp/echo")
        everything = await whole.tools()
        assert await narrow.tools() == ["stall__echo", "stall__object"]
        assert await narrow.value("stall__echo", {"n": 1}) == {"n": 1}
        assert await narrow.value("stall__number") == "UNKNOWN_TOOL"
        listed = {tool["name"]: tool for tool in (await whole.result("tools/list"))["tools"]}
        assert "outputSchema" in listed["stall__object"]
        listed = {tool["name"]: tool for tool in (await narrow.result("tools/list"))["tools"]}
        assert "outputSchema" not in listed["stall__object"]
        assert "structuredContent" in await whole.call("stall__object")
        assert "structuredContent" not in await narrow.call("stall__object")
        reader = fixture.holder(None, road, era, url="/mcp/reader")
        assert "write_file" in everything and "write_file" not in await reader.tools()
        assert await fixture.holder(None, road, era, url="/mcp/wide").tools() == everything
        unknown = await Client(fixture.apps[road]).ask(request("tools/list"), url="/mcp/nosuch")
        assert (unknown.status, unknown.message["error"]["code"]) == (404, "UNKNOWN_PROFILE")


@pytest.mark.parametrize("road", ROADS)
async def test_session_of_one_profile_cannot_be_used_at_the_url_of_another(tmp_path: Path, road: str) -> None:
    async with guarded(tmp_path, profiles=PROFILES) as fixture:
        narrow = fixture.holder(None, road, HANDSHAKE, url="/mcp/echo")
        await narrow.tools()
        client = Client(fixture.apps[road])
        client.session = dict(narrow.session)
        assert (await client.ask(request("tools/list", envelope={}))).status == 404
        whole = fixture.holder(None, road, HANDSHAKE)
        await whole.tools()
        client.session = dict(whole.session)
        assert (await client.ask(request("tools/list", envelope={}), url="/mcp/echo")).status == 404


async def test_profile_of_a_key_holds_at_every_url(tmp_path: Path) -> None:
    async with guarded(tmp_path, profiles=PROFILES) as fixture:
        key = await fixture.key("ann", profile="echo")
        for url in ("/mcp", "/mcp/echo", "/mcp/wide"):
            assert await fixture.holder(key, url=url).tools() == ["stall__echo", "stall__object"]
        assert await fixture.holder(key, url="/mcp/reader").value("stall__echo") == {}
        assert await fixture.holder(key, url="/mcp/reader").value("write_file") == "UNKNOWN_TOOL"


async def test_profile_of_the_command_line_holds_for_the_owner_too(tmp_path: Path) -> None:
    profiles = {"files": {"permission": "read-only", "tools": {"deny": ["read_file"]}, "output_schemas": False}}
    settings = {"data_dir": str(tmp_path), "profiles": profiles, "profile": "files"}
    async with Gateway.open(settings) as gateway:
        names = {entry.name for entry in gateway.catalog}
        assert "list_directory" in names and not names & {"read_file", "write_file"}
        refused = (await gateway.call("read_file", {"path": "a"})).error
        assert refused is not None and refused.code == "TOOL_DISABLED" and "profile" in refused.message
        assert not gateway.catalog.output_schemas


@pytest.mark.parametrize("road", ROADS)
async def test_calls_above_the_limit_of_a_role_are_refused_until_later(
    tmp_path: Path, road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(quotas.Quotas.__init__, "__defaults__", (lambda: now,))
    roles = {"slow": {"limits": {"calls_per_minute": 3}}, "user": {}}
    async with guarded(tmp_path, roles=roles) as fixture:
        ann, bob = await fixture.person("ann", "slow", road), await fixture.person("bob", "slow", road)
        free = await fixture.person("cat", "user", road)
        older = fixture.holder(ann.headers["authorization"].removeprefix("Bearer "), road, HANDSHAKE)
        await ann.call("write_file", {"path": "a.txt", "content": "text"}, chat="c")
        assert [await ann.value("stall__echo") for _ in range(2)] == [{}] * 2
        for method, params in (
            ("tools/call", {"name": "stall__count", "arguments": {}}),
            ("tools/call", {"name": "nosuch", "arguments": {}}),
            ("resources/read", {"uri": "workspace://c/a.txt"}),
        ):
            refused = await ann.ask(method, params)
            assert (refused.status, refused.headers["retry-after"]) == (429, "20"), method
            error = refused.message["error"]
            assert error["code"] == -32010 and error["data"]["code"] == "RATE_LIMITED"
            assert error["data"]["details"]["retry_after"] == 20
            assert "your role allows 3 calls a minute; try again in 20 s" in error["message"]
        records = await fixture.gateway.records.list_calls(principal="ann")
        kept = {record.args for record in records if record.error_code == "RATE_LIMITED"}
        assert kept == {None}, "nobody fills the disk with arguments of refused calls"
        result = await older.call("stall__count")
        assert result["isError"] and result["_meta"]["dev.toolgate/error"]["details"]["retry_after"] == 20
        assert await bob.value("stall__echo") == {}, "each principal has its own"
        assert [await free.value("stall__echo") for _ in range(5)] == [{}] * 5
        for name, code in (("nosuch", "UNKNOWN_TOOL"), ("stall__typed", "INVALID_ARGUMENTS")):  # these count, too
            now += 21
            assert await ann.value(name, {"wrong": 1}) == code
            assert (await ann.ask("tools/call", {"name": "stall__echo", "arguments": {}})).status == 429
        now += 21
        assert await ann.value("stall__echo") == {}


async def test_concurrent_calls_of_a_role_are_limited_and_a_cancelled_one_counts_no_more(tmp_path: Path) -> None:
    roles = {"single": {"limits": {"concurrent_calls": 1}}}
    async with guarded(tmp_path, roles=roles) as fixture:
        ann, bob = await fixture.person("ann", "single"), await fixture.person("bob", "single")
        for ends in ("answered", "cancelled"):
            fixture.source.begun.clear()
            fixture.source.go.clear()
            client = Client(ann.app)
            waiting = client.send(request("tools/call", {"name": "stall__wait"}), ann.headers)
            await fixture.source.begun.wait()
            refused = await ann.ask("tools/call", {"name": "stall__echo", "arguments": {}})
            assert (refused.status, refused.headers["retry-after"]) == (429, "1")
            assert await bob.value("stall__echo") == {}
            if ends == "answered":
                fixture.source.go.set()
                await waiting.answer()
            else:
                waiting.leave()
                waiting.done.cancel()
                await async_eventually(lambda: fixture.source.ended)
            await async_eventually(lambda: _answers(ann))


async def _answers(person: Any) -> bool:
    return bool((await person.ask("tools/call", {"name": "stall__echo", "arguments": {}})).status == 200)


async def test_bytes_of_results_delay_the_calls_after_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(quotas.Quotas.__init__, "__defaults__", (lambda: now,))
    roles = {"thin": {"limits": {"bytes_per_minute": 2000}}}
    async with guarded(tmp_path, roles=roles) as fixture:
        ann = await fixture.person("ann", "thin")
        text = {"text": "x" * 1500}  # counted as argument and as result
        assert await ann.value("stall__echo", text) == text
        refused = (await ann.ask("tools/call", {"name": "stall__echo", "arguments": {}})).message["error"]["data"]
        assert refused["code"] == "RATE_LIMITED" and "2000 bytes a minute" in refused["message"]
        now += refused["details"]["retry_after"] + 1
        assert await ann.value("stall__echo") == {}


@pytest.mark.parametrize("era", ERAS)
async def test_principals_share_no_chat_and_each_has_a_default_one(tmp_path: Path, era: str) -> None:
    async with guarded(tmp_path) as fixture:
        ann, bob = await fixture.person("ann", era=era), await fixture.person("bob", era=era)
        for person, text in ((ann, "of ann"), (bob, "of bob")):
            written = await person.call("write_file", {"path": "a.txt", "content": text})
            assert not written["isError"], written
        read = (await ann.call("read_file", {"path": "a.txt"}))["content"][0]["text"]
        assert "of ann" in read and "of bob" not in read
        assert await bob.value("read_file", {"path": "a.txt"}, chat="anns-own") == "FILE_NOT_FOUND"
        await ann.call("write_file", {"path": "b.txt", "content": "x"}, chat="shared-name")
        assert await bob.value("read_file", {"path": "b.txt"}, chat="shared-name") == "CHAT_FORBIDDEN"


@pytest.mark.parametrize("era", ERAS)
async def test_refused_calls_claim_no_chat_and_nobody_takes_those_of_the_owner(tmp_path: Path, era: str) -> None:
    rules = [
        {"tool": "write_file", "when": {"path": "secret*"}, "then": "deny"},
        {"tool": "write_file", "when": {"path": "asked*"}, "then": "ask"},
    ]
    approval = {"mode": "never", "rules": rules, "without_elicitation": "deny"}
    async with guarded(tmp_path, approval=approval, auth={"required": False}) as fixture:
        ann, bob = await fixture.person("ann", era=era), await fixture.person("bob", era=era)
        for path, code in (("secret.txt", "DENIED_BY_RULE"), ("asked.txt", "CONFIRMATION_REQUIRED")):
            assert await bob.value("write_file", {"path": path, "content": "x"}, chat="plans") == code
        chats = fixture.gateway.chats
        assert await chats.owner("plans") is None
        assert not (await ann.call("write_file", {"path": "a.txt", "content": "x"}, chat="plans"))["isError"]
        assert await chats.owner("plans") == "ann"
        assert await bob.value("read_file", {"path": "a.txt"}, chat="plans") == "CHAT_FORBIDDEN"
        owner = fixture.holder(None, era=era)
        of_client = OWNER.client_chat("cursor")
        for chat in ("default", of_client, "folder-0123456789abcdef"):
            for name in ("stall__echo", "list_directory"):
                assert await bob.value(name, {}, chat=chat) == "CHAT_FORBIDDEN"
            url = f"/api/chats/{chat}/files/a.txt"
            assert (await Client(fixture.apps["sdk"]).ask(b"x", bob.headers, url=url, method="PUT")).status == 403
            uri = {"uri": f"workspace://{chat}/a.txt"}
            assert "error" in (await bob.ask("resources/read", uri)).message
            assert not (await owner.call("write_file", {"path": "a.txt", "content": "mine"}, chat=chat))["isError"]
            assert await chats.owner(chat) == "local"


async def test_attached_folder_belongs_to_the_owner_whoever_is_first(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("of the owner")
    async with guarded(tmp_path, workspace=str(folder)) as fixture:
        chat = fixture.gateway.chat
        assert chat is not None
        bob, owner = await fixture.person("bob"), await fixture.person("local", "admin")
        assert await bob.value("read_file", {"path": "a.txt"}, chat=chat) == "CHAT_FORBIDDEN"
        read = await owner.call("read_file", {"path": "a.txt"}, chat=chat)
        assert "of the owner" in read["content"][0]["text"]


def test_forwarded_headers_count_only_from_a_trusted_proxy() -> None:
    forwarded = ForwardedHeaders(["10.0.0.0/8", "::1"])

    def apply(peer: str, **headers: str) -> tuple[str, str]:
        given = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope: dict[str, Any] = {"client": (peer, 1), "scheme": "http", "headers": given}
        forwarded.apply(scope)
        return scope["client"][0], scope["scheme"]

    said = {"x_forwarded_for": "6.6.6.6, 1.2.3.4, 10.0.0.9", "x_forwarded_proto": "https"}
    assert apply("8.8.8.8", **said) == ("8.8.8.8", "http")
    assert apply("10.1.1.1", **said) == ("1.2.3.4", "https"), "what the client adds itself comes first"
    assert apply("::ffff:10.1.1.1", **said) == ("1.2.3.4", "https")
    assert apply("::1", x_forwarded_for="nonsense") == ("::1", "http")
    assert apply("::1", x_forwarded_proto="ftp") == ("::1", "http")
    with pytest.raises(Invalid, match="trusted_proxies"):
        ForwardedHeaders(["proxy.example"])


async def test_credentials_are_never_sent_to_an_upstream(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(65536))
        writer.write(b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    upstream = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]
    servers = {"lab": {"url": f"http://127.0.0.1:{port}/mcp"}}
    async with upstream, guarded(tmp_path, mcpServers=servers) as fixture:
        key = await fixture.key("ann")
        ann = fixture.holder(key)
        await ann.ask("resources/list")
        await ann.ask("tools/call", {"name": "lab__x", "arguments": {}})
        assert seen and not any(key.encode() in data or b"uthorization" in data for data in seen)
