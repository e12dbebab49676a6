"""Tokens in use: carried by every request, renewed once for all, never lost, never sent elsewhere."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import TIMEOUT, async_eventually
from mcp_client.conftest import CLIENT_IDENTITY, HANDSHAKE, MODERN

from gateway.config import Settings, UpstreamSettings
from gateway.errors import GatewayError
from gateway.gateway import Gateway
from gateway.mcp_client import McpClient, Unauthorized, open_client
from gateway.oauth.bearer import BearerToken
from gateway.oauth.flow import sign_in
from gateway.oauth.store import Logins
from gateway.sources.upstreams.connection import UpstreamConnection
from gateway.sources.upstreams.secret_store import UpstreamCredentials
from gateway.sources.upstreams.spec import Spec

from .world import Browser, World, aged, bearer, logged_in

pytestmark = pytest.mark.anyio

WAYS = [
    pytest.param("/mcp", "streamable-http", MODERN, id="modern"),
    pytest.param("/mcp", "streamable-http", HANDSHAKE, id="handshake"),
    pytest.param("/sse", "sse", HANDSHAKE, id="sse"),
]


def access(world: World, directory: Path, path: str = "/mcp", **content: Any) -> UpstreamCredentials:
    settings = UpstreamSettings.model_validate({"url": f"{world.base}{path}", **content})
    environment = {"SECRET": "s3cret-of-the-client", "TOKEN": "own"}
    return UpstreamCredentials(Spec.of("lab", settings, "the test"), environment, Logins(directory))


@asynccontextmanager
async def linked(at: UpstreamCredentials, era: str | None = None) -> AsyncIterator[McpClient]:
    client = await open_client(at.endpoint(), identity=CLIENT_IDENTITY, version=era)
    try:
        yield client
    finally:
        await client.close()
        await at.close()


async def echo(client: McpClient, text: str = "hi") -> str:
    result = await client.request("tools/call", {"name": "echo", "arguments": {"text": text}}, timeout=TIMEOUT)
    return str(result["content"][0]["text"])


@pytest.mark.parametrize(("path", "transport", "era"), WAYS)
async def test_a_login_opens_every_kind_of_server(
    world: World, tmp_path: Path, path: str, transport: str, era: str
) -> None:
    at = access(world, tmp_path, path, type=transport)
    with pytest.raises(Unauthorized) as refused:
        await open_client(at.endpoint(), identity=CLIENT_IDENTITY, version=era)
    assert "run `toolgate upstream login lab`" in refused.value.message
    login, _ = await logged_in(world, tmp_path, at.account())
    async with linked(at, era) as client:
        assert client.protocol_version == era
        assert await echo(client) == "hi"
    assert set(world.now.seen) == {login.access_token}


@pytest.mark.parametrize(("path", "transport", "era"), WAYS)
async def test_a_token_that_is_refused_in_the_middle_of_its_life_is_renewed_once_for_all_who_call(
    world: World, tmp_path: Path, path: str, transport: str, era: str
) -> None:
    at = access(world, tmp_path, path, type=transport)
    login, logins = await logged_in(world, tmp_path, at.account())
    async with linked(at, era) as client:
        await echo(client)
        world.now.expire()
        world.now.token_delay = 0.1
        assert await asyncio.gather(*(echo(client, str(n)) for n in range(20))) == [str(n) for n in range(20)]
    assert world.now.counts["refresh_token"] == 1
    kept = logins.find("lab")
    assert kept is not None
    assert kept.access_token != login.access_token
    assert kept.refresh_token in world.now.refresh
    assert kept.scope == "read"


async def test_a_token_is_renewed_before_its_end_once_for_all_and_written_down_before_it_is_used(
    world: World, tmp_path: Path
) -> None:
    login, logins = await logged_in(world, tmp_path)
    aged(logins, seconds_left=10)
    unwritten: list[str] = []

    def heard(token: str) -> None:
        kept = logins.find("lab")
        if kept is None or kept.access_token != token:
            unwritten.append(token)

    world.now.heard = heard
    world.now.token_delay = 0.1
    async with linked(access(world, tmp_path), MODERN) as client:
        await asyncio.gather(*(echo(client) for _ in range(20)))
    assert world.now.counts["refresh_token"] == 1
    assert login.access_token not in world.now.seen
    assert unwritten == []


async def test_two_who_renew_at_once_are_as_one(world: World, tmp_path: Path) -> None:
    """As in two processes: nothing but the files is shared. The server takes each refresh token once."""
    _, logins = await logged_in(world, tmp_path)
    aged(logins, seconds_left=-1)
    world.now.token_delay = 0.1
    lines = await asyncio.gather(*(bearer(world, Logins(tmp_path)).refresh_header() for _ in range(5)))
    assert len(set(lines)) == 1
    assert world.now.counts["refresh_token"] == 1


async def test_a_caller_who_gives_up_does_not_lose_the_token_on_its_way(world: World, tmp_path: Path) -> None:
    _, logins = await logged_in(world, tmp_path)
    before = aged(logins, seconds_left=-1)
    world.now.token_delay = 1.0
    mine = bearer(world, logins)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mine.refresh_header(), 0.05)
    await mine.close()
    kept = logins.find("lab")
    assert kept is not None
    assert kept.refresh_token != before.refresh_token
    assert kept.refresh_token in world.now.refresh


async def test_a_server_that_does_not_rotate_leaves_the_refresh_token_good(world: World, tmp_path: Path) -> None:
    login, logins = await logged_in(world, tmp_path)
    world.now.rotates = False
    for _ in range(2):
        aged(logins, seconds_left=-1)
        await bearer(world, logins).refresh_header()
    kept = logins.find("lab")
    assert kept is not None
    assert kept.refresh_token == login.refresh_token


async def test_a_login_that_was_revoked_has_ended_and_is_not_tried_again(world: World, tmp_path: Path) -> None:
    await logged_in(world, tmp_path)
    at = access(world, tmp_path)
    async with linked(at, MODERN) as client:
        world.now.refresh.clear()
        world.now.expire()
        for _ in range(3):
            with pytest.raises(GatewayError) as refused:
                await echo(client)
            assert refused.value.code == "UPSTREAM_UNAUTHORIZED"
            assert refused.value.message == "the login to 'lab' has ended: run `toolgate upstream login lab`"
        assert world.now.counts["refresh_token"] == 1
        await logged_in(world, tmp_path)
        assert await echo(client) == "hi"


async def test_a_refresh_nobody_answers_is_no_end(world: World, tmp_path: Path) -> None:
    login, logins = await logged_in(world, tmp_path)
    world.now.token_status = 503
    aged(logins, seconds_left=10)
    assert login.access_token.encode() in await bearer(world, logins).refresh_header()  # it still holds
    aged(logins, seconds_left=-1)
    mine = bearer(world, logins)
    for _ in range(2):
        with pytest.raises(GatewayError) as refused:
            await mine.refresh_header()
        assert refused.value.code == "LOGIN_UNAVAILABLE"
        assert "could not be renewed" in refused.value.message
    assert world.now.counts["refresh_token"] == 2  # the second caller was told at once
    world.now.token_status = 0
    assert await bearer(world, logins).refresh_header()


async def test_what_an_authorization_server_says_is_told_without_what_we_sent_it(world: World, tmp_path: Path) -> None:
    _, logins = await logged_in(world, tmp_path)
    login = aged(logins, seconds_left=-1)
    assert login.refresh_token is not None
    world.now.token_error = {"error": "invalid_request", "error_description": "got {refresh_token},\n sorry"}
    with pytest.raises(Unauthorized) as refused:
        await bearer(world, logins).refresh_header()
    assert "invalid_request got …, sorry" in refused.value.message
    assert login.refresh_token not in str(refused.value.to_dict())
    assert logins.find("lab") == login  # that may have been a passing fault


async def test_a_token_refused_as_soon_as_it_was_renewed_is_not_renewed_for_ever(world: World, tmp_path: Path) -> None:
    await logged_in(world, tmp_path)
    async with linked(access(world, tmp_path), MODERN) as client:
        world.now.refuse_all = True
        for _ in range(3):
            with pytest.raises(Unauthorized):
                await echo(client)
    assert world.now.counts["refresh_token"] == 1


async def test_a_missing_scope_is_named_with_what_to_type(world: World, tmp_path: Path) -> None:
    await logged_in(world, tmp_path)
    async with linked(access(world, tmp_path), MODERN) as client:
        world.now.required_scope = "write"
        with pytest.raises(Unauthorized) as refused:
            await echo(client)
    assert "'write'" in refused.value.message
    assert "`toolgate upstream login lab --scope write`" in refused.value.message


async def test_a_scope_that_was_missing_is_asked_for_besides_those_one_has(world: World, tmp_path: Path) -> None:
    """SEP-2350: a challenge names what one operation needs, and the client adds it to what it has."""
    _, logins = await logged_in(world, tmp_path)
    async with linked(access(world, tmp_path), MODERN) as client:
        world.now.required_scope = "write"
        for _ in range(2):
            with pytest.raises(Unauthorized, match="requires the scope 'write'"):
                await echo(client)
        world.now.required_scope = "delete"
        with pytest.raises(Unauthorized, match="requires the scope 'delete'"):
            await echo(client)
    for _ in range(2):  # the second login keeps what the first one got
        browser = Browser()
        login = await sign_in(world.account(), logins, browser, seconds=10)
        await browser.closed()
        assert _requested(world) == "read write delete"
        assert (login.scope, login.missing_scope) == ("read write delete", None)
    browser = Browser()
    await sign_in(world.account(scopes=["read"]), logins, browser, seconds=10)
    await browser.closed()
    assert _requested(world) == "read"


def _requested(world: World) -> str:
    """The scopes of the last authorization request."""
    return [asked["scope"] for asked in world.now.asked if "code_challenge" in asked][-1]


async def test_a_scope_of_the_server_is_nothing_a_shell_would_run(world: World, tmp_path: Path) -> None:
    _, logins = await logged_in(world, tmp_path)
    for scope, shown in (("a;reboot", "--scope 'a;reboot'`"), ("\x1b[2J", "login lab`")):
        with pytest.raises(Unauthorized) as refused:
            await bearer(world, logins).handle_refusal(b"", 403, f'Bearer error="insufficient_scope", scope="{scope}"')
        assert refused.value.message.endswith(shown)


async def test_tokens_of_one_url_are_never_sent_to_another(world: World, tmp_path: Path) -> None:
    await logged_in(world, tmp_path)
    moved = access(world, tmp_path, "/else/mcp")
    with pytest.raises(Unauthorized):
        await open_client(moved.endpoint(), identity=CLIENT_IDENTITY)
    assert world.now.seen == []
    async with linked(access(world, tmp_path)) as client:
        assert await echo(client) == "hi"


async def test_an_authorization_header_of_the_settings_counts_before_a_login(world: World, tmp_path: Path) -> None:
    await logged_in(world, tmp_path)
    own = access(world, tmp_path, headers={"authorization": "Bearer ${TOKEN}"})
    with pytest.raises(Unauthorized) as refused:
        await open_client(own.endpoint(), identity=CLIENT_IDENTITY)
    assert set(world.now.seen) == {"own"}
    assert "check the credentials in its headers" in refused.value.message


async def test_a_refusal_that_is_not_about_tokens_says_nothing_of_a_login(world: World, tmp_path: Path) -> None:
    world.now.bare = True
    with pytest.raises(Unauthorized) as refused:
        await open_client(access(world, tmp_path).endpoint(), identity=CLIENT_IDENTITY)
    assert "login" not in refused.value.message


async def test_the_gateway_signs_in_by_itself_where_no_person_is_needed(world: World, tmp_path: Path) -> None:
    content = {"grant": "client_credentials", "client_id": "robot", "client_secret": "${SECRET}", "scopes": ["run"]}
    at = access(world, tmp_path, oauth=content)
    async with linked(at, MODERN) as client:
        assert await echo(client) == "hi"
        world.now.expire()
        assert await echo(client) == "hi"
    assert world.now.counts["client_credentials"] == 2
    assert {each["scope"] for each in world.now.asked} == {"run"}
    logins = Logins(tmp_path)
    aged(logins, seconds_left=5)
    await bearer(world, logins, at.account()).refresh_header()
    assert world.now.counts["client_credentials"] == 3
    assert "s3cret" not in logins.path("lab").read_text()


async def test_a_secret_that_is_refused_or_not_set_names_the_fix(world: World, tmp_path: Path) -> None:
    content = {"grant": "client_credentials", "client_id": "nobody", "client_secret": "${SECRET}"}
    with pytest.raises(Unauthorized) as refused:
        await open_client(access(world, tmp_path, oauth=content).endpoint(), identity=CLIENT_IDENTITY)
    assert "invalid_client" in refused.value.message
    assert "check its oauth settings" in refused.value.message
    with pytest.raises(GatewayError) as missing:
        await open_client(
            access(world, tmp_path, oauth={**content, "client_secret": "${GONE}"}).endpoint(), identity=CLIENT_IDENTITY
        )
    assert missing.value.code == "MISSING_VARIABLE"


async def test_the_login_of_another_process_is_seen_soon_and_a_fresh_token_is_not_looked_at(
    world: World, tmp_path: Path
) -> None:
    _, logins = await logged_in(world, tmp_path)
    mine = bearer(world, logins)
    first = await mine.refresh_header()
    assert mine.header == first
    before = mine.changed
    again, _ = await logged_in(world, tmp_path)
    assert (before, mine.changed) == (False, True)
    assert mine.header == first  # for some seconds
    mine._valid_until = 0.0
    assert again.access_token.encode() in await mine.refresh_header()


async def test_a_server_is_tried_at_once_when_somebody_has_logged_in() -> None:
    is_repaired = False

    async def failing() -> McpClient:
        raise Unauthorized("log in first")

    upstream = UpstreamConnection("lab", failing, lambda client: None, may_retry=lambda: is_repaired)
    for _ in range(5):
        upstream._not_before = 0.0
        with pytest.raises(GatewayError) as refused:
            await upstream.connect()
        assert refused.value.code == "UPSTREAM_UNAUTHORIZED"
    assert upstream.wait > 5
    is_repaired = True
    assert upstream.wait == 0
    await upstream.close()


async def test_a_running_gateway_takes_a_login_and_shows_its_tokens_to_nobody(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"{world.base}/mcp"
    content = {"mcpServers": {"lab": {"url": url, "requires_confirmation": False}}, "data_dir": str(tmp_path)}
    async with Gateway.open(Settings.model_validate(content)) as gateway:
        await gateway.ready()
        assert gateway.catalog.get("lab__echo") is None
        await logged_in(world, tmp_path)
        await async_eventually(lambda: gateway.catalog.get("lab__echo"))
        outcome = await gateway.call("lab__echo", {"text": "hello"})
        assert outcome.error is None
        world.now.expire()
        assert (await gateway.call("lab__echo", {"text": "again"})).error is None
        world.now.expire()
        world.now.refresh.clear()
        ended = (await gateway.call("lab__echo", {"text": "over"})).error
        assert ended is not None
        assert ended.code == "UPSTREAM_UNAUTHORIZED"
        assert "run `toolgate upstream login lab`" in ended.message
        seen = [repr(ended), str(ended.to_dict())]
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "logins"]
    written_text = b"".join([*written, caplog.text.encode(), *(text.encode() for text in seen)])
    assert world.now.secrets()
    assert [secret for secret in world.now.secrets() if secret.encode() in written_text] == []


def test_the_proof_costs_next_to_nothing(world: World, tmp_path: Path) -> None:
    mine = BearerToken(world.account(), Logins(tmp_path))
    mine.reload()
    started = time.thread_time()
    for _ in range(10_000):
        assert mine.header is not None
    assert (time.thread_time() - started) / 10_000 < 20e-6
