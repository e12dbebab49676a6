"""Attacks on the built-in authorization server: none of them yields a token, a redirect elsewhere or a grant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import httpcore2
import pytest

from gateway.authorization.clients import Clients, _parse_document, is_redirect_uri
from gateway.sealing import Sealer
from gateway.serve.http.app import FORM_LIMIT

from .served import REDIRECT, OAuthProbe, Person, Served, hidden_fields, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]


async def test_code_counts_once_and_its_replay_ends_what_it_gave(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = await _registered(served)
        code = await probe.get_code(Person(await served.make_key()))
        tokens = (await probe.exchange(code)).json()
        assert (await probe.exchange(code)).json()["error"] == "invalid_grant"
        assert (await served.list_tools(tokens["access_token"])).status_code == 401
        assert (await probe.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"


async def test_code_exchanged_many_times_at_once_yields_one_set_of_tokens_at_most(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = await _registered(served)
        code = await probe.get_code(Person(await served.make_key()))
        answers = await asyncio.gather(*(probe.exchange(code) for _ in range(8)))
        assert sum(answer.status_code == 200 for answer in answers) <= 1


async def test_code_counts_only_with_its_verifier_and_redirect(tmp_path: Path) -> None:
    cases = [
        ({"code_verifier": "x" * 64}, "invalid_grant"),
        ({"code_verifier": ""}, "invalid_grant"),
        ({"redirect_uri": "http://127.0.0.1:7778/callback"}, "invalid_request"),
        ({"redirect_uri": "https://evil.example/callback"}, "invalid_request"),
        ({"code": "tgc_wrong"}, "invalid_grant"),
    ]
    async with serve(tmp_path) as served:
        probe = await _registered(served)
        person = Person(await served.make_key())
        for changes, error in cases:
            refused = await probe.exchange(**{"code": await probe.get_code(person), **changes})
            assert (refused.status_code, refused.json()["error"]) == (400, error)


@pytest.mark.parametrize("path", ["/register", "/token", "/revoke", "/consent"])
async def test_body_of_a_stranger_in_chunks_is_refused_at_its_limit(tmp_path: Path, path: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(8):
            yield b"x" * (FORM_LIMIT // 4)

    async with serve(tmp_path) as served:
        await served.make_key()
        headers = {"content-type": "application/x-www-form-urlencoded", "origin": served.base}
        answer = await served.http.post(f"{served.base}{path}", content=chunks(), headers=headers)
        assert answer.status_code == 413, answer.text


async def test_code_and_tokens_are_worthless_for_another_client(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe, thief = await _registered(served), await _registered(served)
        person = Person(await served.make_key())
        code = await probe.get_code(person)
        stolen = await thief.exchange(code, code_verifier=probe.verifier)
        assert stolen.json()["error"] == "invalid_grant"
        tokens = (await probe.exchange(code)).json()
        assert (await thief.refresh(tokens["refresh_token"])).json()["error"] == "invalid_grant"
        form = {"token": tokens["access_token"], "client_id": thief.client_id}
        await served.http.post(f"{served.base}/revoke", data=form)
        assert (await served.list_tools(tokens["access_token"])).status_code == 200  # nobody else can end it, either


UNREGISTERED = [
    "https://evil.example/callback",
    "http://127.0.0.1:7777/callback/../evil",
    "http://127.0.0.1:7777/callback?next=https://evil.example",
    "http://127.0.0.1:7777/callback#@evil.example",
    "http://127.0.0.1:7777@evil.example/callback",
    "http://127.0.0.1:7777\\@evil.example/callback",
    "http://127.0.0.1.evil.example/callback",
    "http://localhost:7777/callback",
    "https://127.0.0.1:7777/callback",
    "//evil.example/callback",
    "javascript:alert(1)",
    "",
]


async def test_browser_is_sent_to_no_redirect_uri_that_is_not_registered(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        await served.make_key()
        probe = await _registered(served)
        for uri in UNREGISTERED:
            for changes in ({}, {"code_challenge": None}, {"resource": "https://evil.example"}, {"response_type": "x"}):
                refused = await served.http.get(probe.authorize_url(redirect_uri=uri, **changes))
                assert refused.status_code == 400, (uri, refused.headers)
                assert "location" not in refused.headers


async def test_program_on_the_persons_machine_may_use_any_port(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = await _registered(served)
        other = "http://127.0.0.1:45123/callback"
        location = await Person(await served.make_key()).agree(probe.authorize_url(redirect_uri=other))
        assert location.startswith(f"{other}?")


FAULTY: list[tuple[dict[str, str | None], str]] = [
    ({"code_challenge": None}, "invalid_request"),
    ({"code_challenge": "short"}, "invalid_request"),
    ({"code_challenge_method": "plain"}, "invalid_request"),
    ({"response_type": "token"}, "unsupported_response_type"),
    ({"resource": "https://other.example/mcp"}, "invalid_target"),
    ({"resource": "{base}/api"}, "invalid_target"),
    ({"resource": "{base}/mcp/a/b"}, "invalid_target"),
    ({"resource": "{base}/mcp?x=1"}, "invalid_target"),
    ({"state": "x" * 5000}, "invalid_request"),
]


async def test_faulty_request_is_returned_to_the_client_with_state_and_issuer(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        await served.make_key()
        probe = await _registered(served)
        for changes, error in FAULTY:
            given = {name: value and value.format(base=served.base) for name, value in changes.items()}
            refused = await served.http.get(probe.authorize_url(**given))
            assert refused.status_code == 302, changes
            assert refused.headers["location"].startswith(f"{REDIRECT}?")
            params = dict(parse_qsl(urlsplit(refused.headers["location"]).query))
            assert (params["error"], params["iss"]) == (error, served.base)
            assert params["state"] == given.get("state", "of the client")


async def test_form_of_another_site_or_browser_decides_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = await _registered(served)
        person = Person(await served.make_key())
        page = await person.submit(await person.open(probe.authorize_url()), "key", key=person.key)
        fields = {**hidden_fields(page.text), "action": "allow"}
        own = {"origin": served.base}
        for headers, changes in [
            ({"origin": "https://evil.example"}, {}),
            ({"origin": "http://localhost:6274"}, {}),  # a page that may use the gateway, but not agree
            ({"origin": "null"}, {}),
            ({}, {}),
            (own, {"token": ""}),
            (own, {"token": "0" * 64}),
            (own, {"request": "forged"}),
        ]:
            answer = await person.http.post(f"{served.base}/consent", data={**fields, **changes}, headers=headers)
            assert answer.status_code in (400, 403), (headers, changes)
        # Without the cookie of this browser the person is asked who they are.
        answer = await served.http.post(f"{served.base}/consent", data=fields, headers=own)
        assert "/consent?request=" in answer.headers["location"]
        assert await served.gateway._parts.grants.list_live() == []


async def test_client_cannot_agree_with_its_own_token(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = await _registered(served)
        tokens = await probe.get_tokens(Person(await served.make_key()))
        person = Person(tokens["access_token"])
        answer = await person.submit(await person.open(probe.authorize_url()), "key", key=person.key)
        assert answer.status_code == 401 and "not valid here" in answer.text


async def test_token_is_for_mcp_alone(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        probe = await _registered(served)
        tokens = await probe.get_tokens(Person(await served.make_key()))
        headers = {"authorization": f"Bearer {tokens['access_token']}"}
        answer = await served.http.get(f"{served.base}/readyz", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "WRONG_RESOURCE")


async def test_registration_with_unsafe_redirects_is_refused(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        for uris in (
            ["http://evil.example/callback"],
            ["javascript:alert(1)"],
            ["https://a.example/#fragment"],
            ["https://user:word@a.example/"],
            [f"https://a.example/{number}" for number in range(40)],
            ["https://a.example/" + "x" * 600],
            [],
        ):
            refused = await OAuthProbe(served).register(redirect_uris=uris)
            assert refused.status_code == 400, uris


async def test_registrations_are_not_stored_and_cannot_be_forged(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        await served.make_key()
        probe = await _registered(served)
        for client_id in (probe.client_id[:-2], probe.client_id + "A", "tgd_AAAA", "nobody", "x" * 20_000):
            refused = await served.http.get(probe.authorize_url(client_id=client_id))
            assert refused.status_code == 400 and "location" not in refused.headers


class Names:
    """A network in which names have addresses, and that records who is reached."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.names = names
        self.reached: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        return self.names.get(host, [host])

    async def connect(self, address: str, port: int, timeout: float | None) -> httpcore2.AsyncNetworkStream:
        self.reached.append(address)
        raise httpcore2.ConnectError("nobody is there")


@pytest.mark.parametrize(
    ("client_id", "reached"),
    [
        ("https://client.example/oauth.json", ["93.184.216.34"]),
        ("https://client.example:443/oauth.json", ["93.184.216.34"]),
        ("https://client.example:22/oauth.json", []),
        ("https://client.example:8443/oauth.json", []),
        ("https://inner.example/oauth.json", []),
        ("https://mixed.example/oauth.json", []),
        ("https://127.0.0.1/oauth.json", []),
        ("https://[::1]/oauth.json", []),
        ("https://169.254.169.254/latest/meta-data", []),
        ("https://10.0.0.1/x", []),
        ("https://2130706433/x", []),
        ("http://client.example/oauth.json", []),
        ("https://client.example", []),
        ("https://client.example/", []),
        ("https://client.example/a/../b", []),
        ("https://client.example/a#b", []),
        ("https://user@client.example/a", []),
        ("file:///etc/passwd", []),
    ],
)
async def test_client_metadata_document_is_fetched_from_public_addresses_only(
    client_id: str, reached: list[str], tmp_path: Path
) -> None:
    network = Names(
        {
            "client.example": ["93.184.216.34"],
            "inner.example": ["10.0.0.7"],
            "2130706433": ["127.0.0.1"],
            "mixed.example": ["93.184.216.36", "192.168.1.1"],
        }
    )
    clients = Clients(Sealer("test", [], tmp_path), {}, network)
    assert await clients.find(client_id) is None
    assert await clients.find(client_id) is None  # the failure is remembered for a while
    assert network.reached == reached


async def test_pages_and_endpoints_of_logins_tell_strangers_nothing(tmp_path: Path) -> None:
    async with serve(tmp_path) as served:
        await served.make_key()
        for method in ("GET", "POST", "PUT", "DELETE"):
            for path in ("/authorize", "/token", "/register", "/revoke", "/consent", "/connect/x", "/connect/callback"):
                answer = await served.http.request(method, f"{served.base}{path}", headers={"origin": served.base})
                assert answer.status_code in (400, 401, 403, 405), (method, path)
                assert "ann" not in answer.text and "location" not in answer.headers


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"{",
        b'{"client_id": "https://other.example/x", "redirect_uris": ["https://a.example/"]}',
        b'{"client_id": "https://c.example/x", "redirect_uris": "https://a.example/"}',
        b'{"client_id": "https://c.example/x", "redirect_uris": []}',
        b'{"client_id": "https://c.example/x", "client_secret": "s", "redirect_uris": ["https://a.example/"]}',
        b'{"client_id": "https://c.example/x", "token_endpoint_auth_method": "client_secret_post",'
        b' "redirect_uris": ["https://a.example/"]}',
        b"[" * 10_000,
    ],
)
def test_client_metadata_document_of_another_kind_is_refused(content: bytes) -> None:
    assert _parse_document("https://c.example/x", content) is None


def test_client_metadata_document_names_the_client_and_its_redirects() -> None:
    content = (
        b'{"client_id": "https://c.example/x", "client_name": "Good\\u202eClient",'
        b' "redirect_uris": ["https://c.example/back", "javascript:alert(1)"]}'
    )
    client = _parse_document("https://c.example/x", content)
    assert client is not None
    assert client.label == "Good<U+202E>Client"
    assert client.host == "c.example"
    assert [str(uri) for uri in client.redirect_uris or ()] == ["https://c.example/back"]


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://claude.ai/api/mcp/auth_callback", True),
        ("https://chatgpt.com/connector/oauth/abc", True),
        ("http://localhost:33418/", True),
        ("http://[::1]:8080/cb", True),
        ("cursor://anysphere.cursor-retrieval/oauth/callback", True),
        ("com.example.app:/oauth", True),
        ("http://localhost.evil.example/", False),
        ("http://10.0.0.1/", False),
        ("https:///nohost", False),
        ("https://a;sandbox/", False),
        ("https://localhost.evil.example/", True),
        ("data:text/html,x", False),
        ("https://a.example/\nLocation: x", False),
        ("https://a.example\\@b.example/", False),
        (7, False),
    ],
)
def test_redirect_uri_is_https_this_machine_or_an_own_scheme(uri: object, expected: bool) -> None:
    assert is_redirect_uri(uri) is expected


async def _registered(served: Served) -> OAuthProbe:
    probe = OAuthProbe(served)
    assert (await probe.register()).status_code == 201
    return probe
