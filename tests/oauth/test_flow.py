"""A person signs in: what is asked, what is believed, what the browser is told, and what is kept."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from gateway.errors import GatewayError
from gateway.oauth.flow import sign_in, sign_out
from gateway.oauth.store import Logins

from .world import Browser, World, logged_in

pytestmark = pytest.mark.anyio


async def refusal(world: World, directory: Path, browser: Browser | None = None, **oauth: Any) -> GatewayError:
    """Why nobody is signed in; then nothing is kept, either."""
    logins, browser = Logins(directory), browser or Browser()
    with pytest.raises(GatewayError) as refused:
        await sign_in(world.account(**oauth), logins, browser, seconds=5)
    await browser.closed()
    assert logins.find("lab") is None
    return refused.value


async def test_a_first_login_registers_proves_itself_and_is_kept_for_its_owner_alone(
    world: World, tmp_path: Path
) -> None:
    logins, browser = Logins(tmp_path), Browser()
    login = await sign_in(world.account(), logins, browser, seconds=10)
    await browser.closed()

    asked = {key: value for key, [value] in parse_qs(urlsplit(browser.shown[0]).query).items()}
    assert asked["code_challenge_method"] == "S256"
    assert asked["resource"] == world.account().url
    assert asked["scope"] == "read"
    assert urlsplit(asked["redirect_uri"]).hostname == "127.0.0.1"
    [client] = world.now.clients.values()
    assert client["redirect_uris"] == [asked["redirect_uri"]]
    assert client["token_endpoint_auth_method"] == "none"
    exchange = world.now.asked[-1]
    assert exchange["resource"] == world.account().url

    assert logins.find("lab") == login
    assert login.url == world.account().url
    assert login.issuer == world.issuer
    assert login.access_token in world.now.access
    assert login.refresh_token in world.now.refresh
    assert login.expires_at is not None
    path = logins.path("lab")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert login.access_token not in repr(login)

    [page] = browser.pages
    assert page.status_code == 200
    assert "signed in" in page.text
    assert "close this window" in page.text
    with pytest.raises(httpx2.ConnectError):  # the page is gone with the login
        httpx2.get(asked["redirect_uri"])


async def test_a_client_of_the_settings_is_used_and_its_secret_not_kept(world: World, tmp_path: Path) -> None:
    account = world.account(client_id="ours", client_secret="${SECRET}", scopes=["a", "b"])
    login, logins = await logged_in(world, tmp_path, account)
    assert world.now.counts.get("registrations") is None
    assert world.now.asked[0]["scope"] == "a b"
    assert world.now.asked[-1]["authorization"].startswith("Basic ")
    assert login.client_id == "ours"
    assert "s3cret" not in logins.path("lab").read_text()


async def test_a_document_of_ours_stands_for_a_registration_where_that_is_understood(
    world: World, tmp_path: Path
) -> None:
    document = "https://toolgate.example/client.json"
    login, _ = await logged_in(world, tmp_path, world.account(client_metadata_url=document))
    assert login.client_id != document
    world.now.metadata = {"client_id_metadata_document_supported": True}
    login, _ = await logged_in(world, tmp_path, world.account(client_metadata_url=document))
    assert login.client_id == document
    assert world.now.counts["registrations"] == 1


async def test_more_scopes_are_asked_for_besides_those_one_has(world: World, tmp_path: Path) -> None:
    _, logins = await logged_in(world, tmp_path)
    browser = Browser()
    login = await sign_in(world.account(), logins, browser, scopes=["write"], seconds=10)
    await browser.closed()
    assert login.scope == "read write"


async def test_an_answer_with_another_state_is_not_for_us_and_the_login_stays_open(
    world: World, tmp_path: Path
) -> None:
    async def visit(url: str) -> None:
        [redirect] = parse_qs(urlsplit(url).query)["redirect_uri"]
        async with httpx2.AsyncClient() as client:
            strange = [
                await client.get(f"{redirect}?code=evil&state=guess"),
                await client.get(f"{redirect}?code=evil"),
                await client.get(redirect.replace("/callback", "/")),
                await client.post(f"{redirect}?code=evil&state=guess"),
            ]
        assert [each.status_code for each in strange] == [400, 400, 404, 404]
        await browser.open(url)

    browser = Browser(visit)
    login = await sign_in(world.account(), Logins(tmp_path), browser, seconds=10)
    await browser.closed()
    assert login.access_token in world.now.access


@pytest.mark.parametrize("iss", [None, "https://mixed.example"], ids=["none", "another"])
async def test_an_answer_of_another_issuer_is_refused(world: World, tmp_path: Path, iss: str | None) -> None:
    world.now.answer = {"iss": iss}
    browser = Browser()
    refused = await refusal(world, tmp_path, browser)
    assert refused.code == "WRONG_ISSUER"
    assert world.now.counts.get("authorization_code") is None
    assert browser.pages[0].status_code == 400


async def test_what_the_authorization_server_says_is_told_and_escaped(world: World, tmp_path: Path) -> None:
    world.now.answer = {"code": None, "error": "access_denied", "error_description": "<script>no</script>\x1b[2J"}
    browser = Browser()
    refused = await refusal(world, tmp_path, browser)
    assert refused.code == "LOGIN_FAILED"
    assert "access_denied <script>no</script>" in refused.message
    assert "\x1b" not in refused.message
    assert "&lt;script&gt;" in browser.pages[0].text
    assert "<script>" not in browser.pages[0].text
    assert "did not work" in browser.pages[0].text


@pytest.mark.parametrize("methods", [None, ["plain"]], ids=["unsaid", "plain"])
async def test_a_server_without_s256_is_not_signed_in_to(
    world: World, tmp_path: Path, methods: list[str] | None
) -> None:
    world.now.metadata = {"code_challenge_methods_supported": methods}
    assert (await refusal(world, tmp_path)).code == "NO_PKCE"
    assert world.now.clients == {}


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        pytest.param({"protected": {"resource": "https://mcp.example/mcp"}}, "WRONG_RESOURCE", id="another-host"),
        pytest.param({"metadata": {"issuer": "https://else.example"}}, "WRONG_ISSUER", id="another-issuer"),
        pytest.param({"protected": {"authorization_servers": ["http://192.0.2.1/as"]}}, "INSECURE_URL", id="http"),
        pytest.param({"challenge": {"resource_metadata": "file:///etc/passwd"}}, "INVALID_URL", id="file"),
        pytest.param({"metadata": {"authorization_endpoint": "http://x.example/"}}, "INSECURE_URL", id="browser"),
        pytest.param({"metadata": {"token_endpoint": "http://x.example/"}}, "INSECURE_URL", id="token"),
        pytest.param({"huge": True}, "RESPONSE_TOO_LARGE", id="huge"),
        pytest.param({"metadata": {"registration_endpoint": None}}, "CLIENT_ID_NEEDED", id="no-registration"),
        pytest.param({"where": "nowhere", "openid": True}, "NO_LOGIN_OFFERED", id="no-server"),
        pytest.param({"token_status": 500}, "LOGIN_UNAVAILABLE", id="no-token"),
    ],
)
async def test_what_a_server_says_is_not_simply_believed(
    world: World, tmp_path: Path, behaviour: dict[str, Any], code: str
) -> None:
    for name, value in behaviour.items():
        setattr(world.now, name, value)
    browser = Browser()
    assert (await refusal(world, tmp_path, browser)).code == code
    assert bool(browser.shown) == (code == "LOGIN_UNAVAILABLE")  # nobody is sent to a browser in vain


async def test_whoever_must_be_registered_by_hand_is_told_how(world: World, tmp_path: Path) -> None:
    world.now.metadata = {"registration_endpoint": None}
    refusal_text = (await refusal(world, tmp_path)).message
    assert "http://127.0.0.1:8421/callback" in refusal_text
    assert "`toolgate upstream login lab --port 8421`" in refusal_text


async def test_a_login_nobody_comes_back_from_ends_with_a_word(world: World, tmp_path: Path) -> None:
    async def visit(url: str) -> None:
        """Closed at once."""

    with pytest.raises(GatewayError) as refused:
        await sign_in(world.account(), Logins(tmp_path), Browser(visit), seconds=0.1)
    assert refused.value.code == "LOGIN_TIMED_OUT"
    assert "toolgate upstream login lab" in refused.value.message


@pytest.mark.parametrize("where", ["path", "root", "nowhere"])
async def test_an_authorization_server_is_found_wherever_it_is_named(world: World, tmp_path: Path, where: str) -> None:
    """Nowhere: servers of 2025-03-26 are their own."""
    world.now.where = where
    if where == "nowhere":
        world.now.metadata = {"issuer": world.base}
        world.now.answer = {"iss": world.base}
    login, _ = await logged_in(world, tmp_path)
    assert login.issuer == (world.base if where == "nowhere" else world.issuer)
    assert login.resource == world.account().url


async def test_an_openid_provider_will_do(world: World, tmp_path: Path) -> None:
    world.now.openid = True
    login, _ = await logged_in(world, tmp_path)
    assert login.issuer == world.issuer


async def test_metadata_is_found_where_the_challenge_says_and_may_name_the_whole_server(
    world: World, tmp_path: Path
) -> None:
    world.now.challenge = {"resource_metadata": f"{world.base}/elsewhere"}
    world.now.protected = {"resource": world.base}
    login, _ = await logged_in(world, tmp_path)
    assert login.resource == world.base
    assert world.now.asked[0]["resource"] == world.base


async def test_no_redirect_is_followed_and_what_else_is_known_is_tried(world: World, tmp_path: Path) -> None:
    world.now.challenge = {"resource_metadata": f"{world.base}/moved"}
    login, _ = await logged_in(world, tmp_path)
    assert login.resource == world.account().url  # by the path, not by where the redirect leads
    world.now.metadata = {"token_endpoint": f"{world.base}/moved"}
    logins = Logins(tmp_path / "else")
    browser = Browser()
    with pytest.raises(GatewayError) as refused:
        await sign_in(world.account(), logins, browser, seconds=5)
    await browser.closed()
    assert refused.value.code == "LOGIN_FAILED"
    assert "/elsewhere" not in world.now.counts


async def test_logging_out_forgets_and_revokes(world: World, tmp_path: Path) -> None:
    login, logins = await logged_in(world, tmp_path)
    assert await sign_out(world.account(), "lab", logins)
    assert logins.find("lab") is None
    assert login.access_token not in world.now.access
    assert login.refresh_token not in world.now.refresh
    with pytest.raises(GatewayError) as refused:
        await sign_out(world.account(), "lab", logins)
    assert refused.value.code == "NOT_LOGGED_IN"


async def test_logging_out_works_when_nobody_takes_the_tokens_back(world: World, tmp_path: Path) -> None:
    world.now.metadata = {"revocation_endpoint": "http://127.0.0.1:9/revoke"}
    _, logins = await logged_in(world, tmp_path)
    assert not await sign_out(world.account(), "lab", logins)
    assert logins.find("lab") is None


async def test_a_visitor_who_says_nothing_or_too_much_keeps_nobody_from_signing_in(
    world: World, tmp_path: Path
) -> None:
    async def visit(url: str) -> None:
        parts = urlsplit(parse_qs(urlsplit(url).query)["redirect_uri"][0])
        silent = await asyncio.open_connection(parts.hostname, parts.port)
        _, loud = await asyncio.open_connection(parts.hostname, parts.port)
        loud.write(b"GET /" + b"x" * 100_000)
        await browser.open(url)
        for writer in (silent[1], loud):
            writer.close()

    browser = Browser(visit)
    await sign_in(world.account(), Logins(tmp_path), browser, seconds=10)
    await browser.closed()
    assert browser.pages[0].status_code == 200


def test_a_file_that_cannot_be_read_names_the_fix(tmp_path: Path) -> None:
    logins = Logins(tmp_path)
    logins.directory.mkdir()
    for content in ("{", json.dumps({"unknown": 1})):
        logins.path("lab").write_text(content)
        with pytest.raises(GatewayError) as refused:
            logins.find("lab")
        assert refused.value.code == "SECRETS_UNREADABLE"
        assert "toolgate upstream login lab" in refused.value.message
