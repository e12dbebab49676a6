"""Servers, authorization servers and files that are not what they should be."""

from __future__ import annotations

import asyncio
import json
import resource
import shlex
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from eventually import TIMEOUT
from mcp_client.conftest import CLIENT_IDENTITY

from gateway.config import OAuthSettings, UpstreamSettings
from gateway.errors import GatewayError
from gateway.mcp_client import HttpEndpoint, Unauthorized, open_client
from gateway.oauth import bearer as bearing
from gateway.oauth import callback_server as browsing
from gateway.oauth.bearer import challenge_parameter, valid_scopes
from gateway.oauth.discovery import Challenge, discover
from gateway.oauth.flow import sign_in, sign_out
from gateway.oauth.http import OAuthResponse
from gateway.oauth.store import LoginAccount, Logins
from gateway.sources.upstreams.secret_store import UpstreamCredentials
from gateway.sources.upstreams.spec import Spec

from .world import Browser, World, aged, bearer, logged_in

pytestmark = pytest.mark.anyio

ROBOT = {"grant": "client_credentials", "client_id": "robot", "client_secret": "${SECRET}"}
ESCAPE = "\x1b]0;owned\x07"


class Site:
    """Answers with what stands at each URL, and never on any network."""

    def __init__(self, **pages: Any) -> None:
        self._pages = {name.replace("_", "-"): answer for name, answer in pages.items()}

    async def get(self, url: str) -> OAuthResponse:
        answer = next((answer for name, answer in self._pages.items() if f"/.well-known/{name}" in url), None)
        return OAuthResponse(404, {}, "") if answer is None else OAuthResponse(200, answer, "")

    def check(self, url: str) -> None:
        """All will do."""


def metadata(issuer: str) -> dict[str, Any]:
    return {"issuer": issuer, "authorization_endpoint": f"{issuer}/a", "token_endpoint": f"{issuer}/t"}


# What an authorization server may answer.


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [(10**400, None), (-5, None), (0, None), (1e308, None), ("soon", None), ([1], None), ("3600", 3600), (0.5, 0.5)],
    ids=["endless", "negative", "none", "huge", "words", "list", "text", "fraction"],
)
async def test_a_lifetime_nobody_can_mean_costs_no_token(
    world: World, tmp_path: Path, answer: Any, seconds: float | None
) -> None:
    _, logins = await logged_in(world, tmp_path)
    aged(logins, seconds_left=-1)
    world.now.grant = {"expires_in": answer}
    line = await bearer(world, logins).refresh_header()
    kept = logins.find("lab")
    assert kept is not None
    assert kept.access_token.encode() in line
    assert kept.refresh_token in world.now.refresh
    assert (kept.expires_at and kept.expires_at - kept.obtained_at) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "token", ["a\r\nx-evil: 1", "caf\u00e9", "two words", ""], ids=["lines", "accent", "space", "empty"]
)
async def test_a_token_that_does_not_stay_in_its_line_is_none(world: World, tmp_path: Path, token: str) -> None:
    world.now.grant = {"access_token": token}
    browser = Browser()
    with pytest.raises(GatewayError) as refused:
        await sign_in(world.account(), Logins(tmp_path), browser, seconds=5)
    await browser.closed()
    assert refused.value.code == "LOGIN_UNAVAILABLE"


async def test_scopes_are_words_and_nothing_a_terminal_obeys(world: World, tmp_path: Path) -> None:
    world.now.challenge = {"scope": "read caf\u00e9"}
    world.now.grant = {"scope": f"read {ESCAPE} \ud800 write"}
    login, _ = await logged_in(world, tmp_path)
    assert login.scope == "read write"
    assert world.now.asked[0]["scope"] == "read"
    answer = {"resource": "https://mcp.example/mcp", "authorization_servers": ["https://as.example"]}
    site = Site(
        oauth_protected_resource={**answer, "scopes_supported": ["list", f"{ESCAPE}x"]},
        oauth_authorization_server=metadata("https://as.example"),
    )
    found = await discover(site, "https://mcp.example/mcp", Challenge())  # type: ignore[arg-type]
    assert found.scope() == "list"
    assert valid_scopes("x" * 10_000) is None


@pytest.mark.parametrize("answer", ["\ud800", ESCAPE, 7, ""], ids=["surrogate", "escape", "number", "empty"])
async def test_a_client_id_that_cannot_be_one_is_refused(world: World, tmp_path: Path, answer: Any) -> None:
    world.now.registration = {"client_id": answer}
    with pytest.raises(GatewayError) as refused:
        await sign_in(world.account(), Logins(tmp_path), Browser(), seconds=5)
    assert refused.value.code == "REGISTRATION_FAILED"


@pytest.mark.parametrize("status", [400, 429, 500])
async def test_a_refusal_never_tells_the_token_it_refuses(world: World, tmp_path: Path, status: int) -> None:
    _, logins = await logged_in(world, tmp_path)
    login = aged(logins, seconds_left=-1)
    assert login.refresh_token is not None
    world.now.token_error = {"error": "server_error", "error_description": "for {refresh_token}"}
    world.now.token_error_status = status
    with pytest.raises(GatewayError) as refused:
        await bearer(world, logins).refresh_header()
    assert "server_error for …" in refused.value.message
    assert login.refresh_token not in str(refused.value.to_dict())


@pytest.mark.parametrize("error", ["invalid_grant", "bad_refresh_token"])
async def test_a_no_that_looks_like_a_yes_is_a_no(world: World, tmp_path: Path, error: str) -> None:
    """GitHub refuses with HTTP 200, and by a word of its own."""
    _, logins = await logged_in(world, tmp_path)
    aged(logins, seconds_left=-1)
    world.now.token_error, world.now.token_error_status = {"error": error}, 200
    with pytest.raises(Unauthorized) as refused:
        await bearer(world, logins).refresh_header()
    assert refused.value.message == "the login to 'lab' has ended: run `toolgate upstream login lab`"


# Who gets what.


@pytest.mark.parametrize("oauth", [{}, ROBOT], ids=["person", "robot"])
async def test_the_settings_may_name_the_only_authorization_server_that_will_do(
    world: World, tmp_path: Path, oauth: dict[str, Any]
) -> None:
    """Without that, whichever the server names gets the client's secret."""
    account = world.account(**oauth, issuer="https://login.example")
    logins, browser = Logins(tmp_path), Browser()
    with pytest.raises(GatewayError) as refused:
        token = bearer(world, logins, account)
        await (token.refresh_header() if oauth else sign_in(account, logins, browser, seconds=5))
    assert "oauth.issuer" in refused.value.message
    assert (world.now.asked, world.now.clients, browser.shown) == ([], {}, [])
    account = world.account(**oauth, issuer=world.issuer)
    if oauth:
        assert await bearer(world, logins, account).refresh_header()
    else:
        await logged_in(world, tmp_path, account)


async def test_of_several_authorization_servers_the_one_of_the_settings_is_taken() -> None:
    named = ["https://one.example", "https://two.example/"]
    site = Site(
        oauth_protected_resource={"resource": "https://mcp.example", "authorization_servers": named},
        oauth_authorization_server=metadata("https://two.example"),
    )
    found = await discover(site, "https://mcp.example/mcp", Challenge(), "https://two.example")  # type: ignore[arg-type]
    assert found.issuer == "https://two.example"


@pytest.mark.parametrize("url", ["https://MCP.example:443/mcp?key=s3cret", "https://mcp.example/mcp#x"])
async def test_a_url_is_compared_as_what_it_names_and_its_query_told_to_nobody(url: str) -> None:
    origin = "https://mcp.example"
    site = Site(oauth_authorization_server=metadata(origin))
    found = await discover(site, url, Challenge())  # type: ignore[arg-type]
    assert (found.issuer, found.resource) == (origin, f"{origin}/mcp")
    answer = {"resource": f"{origin}/mcp", "authorization_servers": [origin]}
    site = Site(oauth_authorization_server=metadata(origin), oauth_protected_resource=answer)
    assert (await discover(site, url, Challenge())).resource == f"{origin}/mcp"  # type: ignore[arg-type]


async def test_a_server_that_registers_us_gets_no_code_that_was_given_to_another_client(
    world: World, tmp_path: Path
) -> None:
    """It may send the browser on to another authorization server, in the name of a client that is known there and
    comes back to `/callback`: to us, who would take the code to the wrong one."""

    async def visit(url: str) -> None:
        [redirect], [state] = (parse_qs(urlsplit(url).query)[name] for name in ("redirect_uri", "state"))
        known = urlsplit(redirect)._replace(path="/callback").geturl()
        async with httpx2.AsyncClient() as client:
            pages.append(await client.get(f"{known}?code=of-another&state={state}"))
        await browser.open(url)

    pages: list[httpx2.Response] = []
    browser = Browser(visit)
    login = await sign_in(world.account(), Logins(tmp_path), browser, seconds=TIMEOUT)
    await browser.closed()
    assert [page.status_code for page in pages] == [404]
    assert login.access_token in world.now.access
    browser = Browser()
    await sign_in(world.account(client_id="ours"), Logins(tmp_path), browser, seconds=TIMEOUT)
    await browser.closed()
    [known] = parse_qs(urlsplit(browser.shown[0]).query)["redirect_uri"]
    assert urlsplit(known).path == "/callback"


async def test_a_visitor_who_says_nothing_is_not_waited_for(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers open connections in advance."""
    for seconds in ("REQUEST_SECONDS", "CLOSE_SECONDS"):
        monkeypatch.setattr(browsing, seconds, 2 * TIMEOUT)

    async def visit(url: str) -> None:
        parts = urlsplit(parse_qs(urlsplit(url).query)["redirect_uri"][0])
        silent.append(await asyncio.open_connection(parts.hostname, parts.port))
        await browser.open(url)

    silent: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    browser = Browser(visit)
    async with asyncio.timeout(TIMEOUT):
        await sign_in(world.account(), Logins(tmp_path), browser, seconds=TIMEOUT)
        await browser.closed()
        assert await silent[0][0].read() == b""
    silent[0][1].close()


# What a refusal says.


def test_what_stands_in_quotes_is_no_parameter() -> None:
    header = r'Basic realm="scope=all, error=\"x\"", Bearer Error="insufficient_scope", scope=run'
    assert (challenge_parameter(header, "scope"), challenge_parameter(header, "error")) == ("run", "insufficient_scope")
    assert challenge_parameter(header, "resource_metadata") is None
    started = time.process_time()
    for flood in ("a" * 65_000, "a " * 32_000, 'a="' * 20_000, "a=" + " " * 65_000):
        challenge_parameter(flood, "scope")
    assert time.process_time() - started < 2


async def test_each_way_to_prove_who_one_is_may_have_a_header_of_its_own(world: World, tmp_path: Path) -> None:
    world.now.also = "Negotiate"
    spec = Spec.of("lab", UpstreamSettings(url=f"{world.base}/mcp"), "the test")
    at = UpstreamCredentials(spec, {}, Logins(tmp_path))
    with pytest.raises(Unauthorized) as refused:
        await open_client(at.endpoint(), identity=CLIENT_IDENTITY)
    assert "toolgate upstream login lab" in refused.value.message


async def test_nobody_is_sent_to_sign_in_where_the_gateway_does(world: World, tmp_path: Path) -> None:
    account, logins = world.account(**ROBOT), Logins(tmp_path)
    mine = bearer(world, logins, account)
    line = await mine.refresh_header()
    lacking = 'Bearer error="insufficient_scope", scope="run"'
    for status, challenge, answer in (
        (403, lacking, "add it to its oauth.scopes"),
        (401, "Bearer", "its oauth settings"),
    ):
        with pytest.raises(Unauthorized) as refused:
            for _ in range(2):
                await mine.handle_refusal(line, status, challenge)
                line = await mine.refresh_header()
        assert answer in refused.value.message
        assert "upstream login" not in refused.value.message


def test_a_name_is_typed_so_that_a_shell_takes_it_for_one() -> None:
    account = LoginAccount("my; server", HttpEndpoint("https://mcp.example/mcp"), OAuthSettings())
    assert shlex.split(account.command) == ["toolgate", "upstream", "login", "my; server"]


# Files, clocks and others who are slow.


async def test_a_file_that_cannot_be_read_is_no_news_until_it_changes(world: World, tmp_path: Path) -> None:
    """Else a server whose login was broken by hand would be tried without a pause."""
    _, logins = await logged_in(world, tmp_path)
    path = logins.path("lab")
    good = path.read_bytes()
    path.write_text("{")
    at = UpstreamCredentials(Spec.of("lab", UpstreamSettings(url=f"{world.base}/mcp"), "the test"), {}, logins)
    for _ in range(2):
        with pytest.raises(GatewayError) as refused:
            at.endpoint()
        assert refused.value.code == "SECRETS_UNREADABLE"
        assert not at.has_changed()
    path.write_bytes(good)
    assert at.has_changed()
    client = await open_client(at.endpoint(), identity=CLIENT_IDENTITY)
    await client.close()


@pytest.mark.parametrize(
    "broken",
    [
        {"expires_at": "soon"},
        {"access_token": 7},
        {"access_token": "a\r\nb"},
        {"url": None},
        {"scope": ["x"]},
        "[" * 99_999,
    ],
    ids=["time", "number", "lines", "none", "list", "deep"],
)
async def test_a_login_that_was_mended_by_hand_breaks_nothing(world: World, tmp_path: Path, broken: Any) -> None:
    login, logins = await logged_in(world, tmp_path)
    path = logins.path("lab")
    text = broken if isinstance(broken, str) else json.dumps({**asdict(login), **broken})
    path.write_text(text)
    with pytest.raises(GatewayError) as refused:
        await bearer(world, logins).refresh_header()
    assert refused.value.code == "SECRETS_UNREADABLE"
    assert not await sign_out(world.account(), "lab", logins)
    assert not path.exists()


async def test_logging_out_of_nothing_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(GatewayError) as refused:
        await sign_out(None, "lab", Logins(tmp_path))
    assert refused.value.code == "NOT_LOGGED_IN"
    assert list(tmp_path.iterdir()) == []


async def test_a_token_that_holds_is_used_when_a_new_one_is_long_in_coming(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have been put to sleep in the middle of its turn."""
    _, logins = await logged_in(world, tmp_path)
    login = aged(logins, seconds_left=20)
    monkeypatch.setattr(bearing, "RENEW_WAIT_SECONDS", 0.05)
    mine = bearer(world, logins)
    async with Logins(tmp_path).lock("lab"), asyncio.timeout(TIMEOUT):
        assert login.access_token.encode() in await mine.refresh_header()
        assert mine.header is not None
    await mine.close()
    assert world.now.counts["refresh_token"] == 1
    assert login.access_token.encode() not in await mine.refresh_header()


async def test_whoever_waits_too_long_for_another_is_told(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, logins = await logged_in(world, tmp_path)
    aged(logins, seconds_left=-1)
    monkeypatch.setattr("gateway.oauth.store.LOCK_SECONDS", 0.1)
    async with Logins(tmp_path).lock("lab"):
        with pytest.raises(GatewayError) as refused:
            await bearer(world, logins).refresh_header()
    assert refused.value.code == "LOGIN_BUSY"
    assert await bearer(world, logins).refresh_header()


async def test_no_token_is_spent_on_one_that_cannot_be_written_down(world: World, tmp_path: Path) -> None:
    _, logins = await logged_in(world, tmp_path)
    login = aged(logins, seconds_left=-1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # as when the disk is full
    try:
        with pytest.raises(GatewayError) as refused:
            await bearer(world, logins).refresh_header()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused.value.code == "SECRETS_UNWRITABLE"
    assert login.refresh_token in world.now.refresh
    assert await bearer(world, logins).refresh_header()


async def test_processes_do_not_take_turns_at_renewing_for_a_server_that_refuses_all(
    world: World, tmp_path: Path
) -> None:
    await logged_in(world, tmp_path)
    both = [bearer(world, Logins(tmp_path)) for _ in range(2)]
    for _ in range(3):
        for mine in both:
            with pytest.raises(Unauthorized) as refused:
                for _ in range(4):
                    await mine.handle_refusal(await mine.refresh_header(), 401, "Bearer")
            assert "refuses the token that was just renewed" in refused.value.message
    assert world.now.counts["refresh_token"] == 1


async def test_a_file_that_was_written_again_is_not_taken_for_a_new_login(world: World, tmp_path: Path) -> None:
    _, logins = await logged_in(world, tmp_path)
    login = aged(logins, seconds_left=-1)
    mine = bearer(world, logins)
    async with logins.lock("lab"):
        waiting = asyncio.get_running_loop().create_task(mine.refresh_header())
        await asyncio.sleep(0.1)
        logins.save(login)
    assert login.access_token.encode() not in await waiting


async def test_a_clock_that_is_set_back_keeps_nobody_from_looking(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, logins = await logged_in(world, tmp_path)
    clock = SimpleNamespace(now=time.time(), passed=100.0)
    monkeypatch.setattr(bearing, "time", SimpleNamespace(time=lambda: clock.now, monotonic=lambda: clock.passed))
    mine = bearer(world, logins)
    await mine.refresh_header()
    assert mine.header
    clock.now, clock.passed = clock.now - 3600, clock.passed + bearing.RELOAD_SECONDS + 1
    assert mine.header is None
