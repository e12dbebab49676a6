"""Each person logs in to an upstream server as themselves: through a link that their client shows, in both eras."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from eventually import TIMEOUT
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from oauth.world import Behaviour, World, logged_in

from gateway.calls import LOCAL
from gateway.oauth.store import Logins

from .served import Person, Served, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P2")]


@pytest.fixture(scope="module")
def _world() -> Iterator[World]:
    running = World()
    yield running
    running.stop()


@pytest.fixture
def world(_world: World) -> World:
    _world.now = Behaviour()
    return _world


@asynccontextmanager
async def serve_lab(world: World, data_dir: Path, **settings: Any) -> AsyncIterator[Served]:
    """A gateway whose owner is logged in to the server `lab`."""
    await logged_in(world, data_dir)
    servers = {"lab": {"url": world.account().url, **settings}}
    async with serve(data_dir, mcpServers=servers) as served:
        yield served


@asynccontextmanager
async def connect(served: Served, key: str, mode: Any, **options: Any) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT) as http:
        transport = streamable_http_client(served.url, http_client=http)
        async with Client(transport, mode=mode, **options) as client:
            yield client


async def log_in(person: Person, url: str) -> httpx2.Response:
    """Open the link, show the key, and go through the login of the server."""
    page = await person.open(url)
    if 'name="key"' in page.text:
        page = await person.submit(page, "key", key=person.key)
    if page.status_code != 200:
        return page
    answer = await person.submit(page, "start")
    while answer.is_redirect:
        answer = await person.http.get(answer.headers["location"])
    return answer


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_person_logs_in_through_a_link_and_the_call_goes_on(mode: Any, world: World, tmp_path: Path) -> None:
    async with serve_lab(world, tmp_path) as served:
        people = {name: Person(await served.make_key(name)) for name in ("ann", "bob")}
        shown: list[str] = []

        for name, person in people.items():

            async def elicit(_: Any, params: Any, person: Person = person) -> ElicitResult:
                shown.append(params.message)
                page = await log_in(person, params.url)
                assert "is logged in to lab" in page.text, page.text
                return ElicitResult(action="accept")

            async with connect(served, person.key, mode, elicitation_callback=elicit) as client:
                for text in ("first", "second"):
                    result = await client.call_tool("lab__echo", {"text": f"{name} {text}"})
                    assert not result.is_error, result
        assert len(shown) == 2 and all("lab" in message for message in shown)

        logins = Logins(tmp_path)
        tokens = {principal: logins.find("lab", principal) for principal in (LOCAL, *people)}
        assert len({login.access_token for login in tokens.values() if login}) == 3
        used = set(world.now.seen)
        assert {login.access_token for login in tokens.values() if login} <= used
        # The gateway's own keys reach nobody.
        assert not [token for token in used if token.startswith("tg")]
        kept = "".join(path.read_text() for path in logins.directory.iterdir())
        assert kept and not [token for token in used if token in kept]


async def test_client_that_shows_no_links_gets_it_in_the_error(world: World, tmp_path: Path) -> None:
    async with serve_lab(world, tmp_path) as served:
        person = Person(await served.make_key("ann"))
        async with connect(served, person.key, "auto") as client:
            refused = await client.call_tool("lab__echo", {"text": "x"})
            assert refused.is_error
            error = refused.meta["dev.toolgate/error"]  # type: ignore[index]
            assert error["code"] == "UPSTREAM_UNAUTHORIZED"
            assert (await log_in(person, error["details"]["login_url"])).status_code == 200
            assert not (await client.call_tool("lab__echo", {"text": "x"})).is_error


async def test_declined_login_ends_the_call(world: World, tmp_path: Path) -> None:
    async def decline(_: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="decline")

    async with serve_lab(world, tmp_path) as served:
        key = await served.make_key("ann")
        async with connect(served, key, "auto", elicitation_callback=decline) as client:
            refused = await client.call_tool("lab__echo", {"text": "x"})
            assert refused.is_error and "declined" in str(refused.content)


async def test_link_serves_only_the_person_it_was_made_for(world: World, tmp_path: Path) -> None:
    async with serve_lab(world, tmp_path) as served:
        ann, bob = Person(await served.make_key("ann")), Person(await served.make_key("bob"))
        async with connect(served, ann.key, "auto") as client:
            refused = await client.call_tool("lab__echo", {"text": "x"})
        url = refused.meta["dev.toolgate/error"]["details"]["login_url"]  # type: ignore[index]

        stranger = await log_in(bob, url)
        assert stranger.status_code == 403 and "made for ann" in stranger.text
        assert (await served.http.get(url[:-3])).status_code == 400
        # The redirect of a login that this browser did not start is refused, whatever its state.
        page = await ann.submit(await ann.open(url), "key", key=ann.key)
        started = await ann.submit(page, "start")
        answer = await ann.http.get(started.headers["location"])
        stolen = await bob.http.get(answer.headers["location"])
        assert stolen.status_code == 403
        forged = answer.headers["location"].replace("state=", "state=x")
        assert (await ann.http.get(forged)).status_code == 403
        assert Logins(tmp_path).find("lab", "ann") is None
        assert (await ann.http.get(answer.headers["location"])).status_code == 200
        assert Logins(tmp_path).find("lab", "ann") is not None


async def test_link_asks_for_the_key_where_requests_need_none(world: World, tmp_path: Path) -> None:
    await logged_in(world, tmp_path)
    servers = {"lab": {"url": world.account().url}}
    async with serve(tmp_path, mcpServers=servers, auth={"required": False}) as served:
        ann = Person(await served.make_key("ann"))
        async with connect(served, ann.key, "auto") as client:
            refused = await client.call_tool("lab__echo", {"text": "x"})
        url = refused.meta["dev.toolgate/error"]["details"]["login_url"]  # type: ignore[index]
        assert (await log_in(ann, url)).status_code == 200
        assert Logins(tmp_path).find("lab", "ann") is not None


async def test_shared_server_uses_the_owners_login_for_everybody(world: World, tmp_path: Path) -> None:
    async with (
        serve_lab(world, tmp_path, sharing="all") as served,
        connect(served, await served.make_key("ann"), "auto") as client,
    ):
        assert not (await client.call_tool("lab__echo", {"text": "x"})).is_error


def test_login_of_an_earlier_version_is_read_and_encrypted_when_it_is_stored(tmp_path: Path) -> None:
    logins = Logins(tmp_path)
    logins.directory.mkdir(parents=True)
    names = ("url", "issuer", "token_endpoint", "client_id")
    stored = {"server": "lab", "access_token": "secret", **dict.fromkeys(names, "x")}
    logins.path("lab").write_text(json.dumps(stored))
    login = logins.find("lab")
    assert login is not None and login.access_token == "secret"
    logins.save(login)
    assert "secret" not in logins.path("lab").read_text()
    assert logins.find("lab") == login
