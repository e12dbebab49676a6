"""Isolation between principals: nothing of another one is reached by its id, or by guesses near it, on any surface."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from amounts import amount
from serve.servers import Client

from gateway.identity import ChatNames, Principal
from gateway.names import chat_directory
from gateway.serve.rest.routes import list_endpoints

from .gateways import ERAS, ROADS, Guarded, Person, guarded

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]

GUESSES = amount(2, 1, nightly=200)
MARK = "classified-7f3a"  # in every file, argument, result and name of Ann's
CHAT = "chat of ann"
FILE = "notes.txt"
# Denied, or not there; for a body that is no request the refusal may also name the body.
REFUSED = {400, 403, 404, 405, 409, 411, 412, 413, 415, 422, 428}


async def run(person: Person, name: str, arguments: Mapping[str, Any], **meta: str) -> tuple[str, str]:
    """Call a tool; return the code of its error, empty for success, and its text."""
    result = await person.call(name, arguments, **meta)
    error = result.get("_meta", {}).get("dev.toolgate/error", {}) if result.get("isError") else {}
    return error.get("code", ""), str(result["content"])


async def make_secrets(fixture: Guarded, ann: Person) -> dict[str, list[str]]:
    """Let Ann have a file, versions, records, a render plan's call and a waiting approval; return their ids."""
    for path in (FILE, f"{MARK}.txt"):
        assert (await run(ann, "write_file", {"path": path, "content": MARK}, chat=CHAT))[0] == ""
    assert (await run(ann, "delete_file", {"path": f"{MARK}.txt"}, chat=CHAT))[0] != ""
    records = await fixture.gateway.records.list_calls(principal="ann")
    approvals = await fixture.gateway.approvals.records.entries(waiting=True, principal="ann", limit=10)
    manifests = [each for record in records for each in (record.pre_manifest_id, record.post_manifest_id) if each]
    assert records and approvals and manifests
    return {
        "call_id": [record.id for record in records],
        "approval_id": [approval.id for approval in approvals],
        "chat": [CHAT],
        "manifest": manifests,
    }


def guess(ids: list[str], chance: random.Random) -> Iterator[str]:
    """Yield the ids, what is made of them, their beginnings, and changes of them."""
    for known in ids:
        yield known
        yield chat_directory(known)  # the folder of a chat, which anybody can derive from its id
        for _ in range(GUESSES):
            place = chance.randrange(4, len(known))
            yield chance.choice(
                [
                    known[:place],
                    known.upper(),
                    f"{known} ",
                    f"{known}/",
                    f"./{known}",
                    f"{known[:place]}%",
                    f"{known}\x00",
                ]
            )


def fill(path: str, ids: Mapping[str, str]) -> str:
    """Return the path of an endpoint with these ids; other parameters name Ann's file."""
    return re.sub(r"\{(\+?)(\w+)\}", lambda found: quote(ids.get(found[2], FILE), safe=""), path)


@pytest.fixture
def settings() -> dict[str, Any]:
    rules = [{"tool": "delete_file", "then": "queue"}]
    return {"approval": {"mode": "unsafe_only", "rules": rules, "queue_wait": 0}}


async def test_nothing_of_another_principal_is_reached_over_rest(tmp_path: Path, settings: dict[str, Any]) -> None:
    chance = random.Random(5)
    async with guarded(tmp_path, **settings) as fixture:
        ids = await make_secrets(fixture, await fixture.person("ann"))
        headers = {"authorization": f"Bearer {await fixture.key('bob')}"}
        transport = httpx.ASGITransport(fixture.web.app)
        tried = 0
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as bob:
            for endpoint in list_endpoints():
                if "/events" in endpoint.path:
                    continue  # see below
                names = re.findall(r"\{\+?(\w+)\}", endpoint.path)
                for name in [name for name in names if name in ids] or [""]:
                    for value in guess(ids.get(name, [CHAT]), chance):
                        url = fill(endpoint.path, {name: value})
                        if endpoint.method != "GET" and not name:
                            continue  # acts on nothing of Ann's
                        query = {"chat": value, "call": value, "manifest": ids["manifest"][0], "before": value}
                        for params in ({}, query):
                            response = await bob.request(endpoint.method, url, params=params)
                            tried += 1
                            place = f"{endpoint.method} {url} {params}: {response.status_code}"
                            assert MARK not in response.text, place
                            assert sys.prefix not in response.text, f"{place}: the path of the interpreter"
                            if name and value in ids[name] and not params:
                                assert response.status_code in REFUSED, place
        assert tried > 50
        (record,) = await fixture.gateway.approvals.records.entries(waiting=True, principal="ann", limit=10)
        assert record.status == "waiting"


async def test_event_streams_tell_nothing_of_another_principal(tmp_path: Path, settings: dict[str, Any]) -> None:
    async with guarded(tmp_path, **settings) as fixture:
        ann, bob = await fixture.person("ann"), await fixture.person("bob")
        app, chat = fixture.apps["sdk"], quote(CHAT)
        asked = ("", "?principal=ann", f"?chat={chat}", f"?text={MARK}")
        streams = [
            Client(app).send(None, bob.headers, url=url, method="GET")
            for url in (*(f"/api/calls/events{query}" for query in asked), "/api/events")
        ]
        for stream in streams:
            await stream.until(b"event: tools" if stream is streams[-1] else b"event: ready")
        ids = await make_secrets(fixture, ann)
        call = json.dumps({"tool": "read_file", "args": {"path": FILE}}).encode()
        followed = await Client(app).ask(call, ann.headers, url=f"/api/chats/{chat}/stream")
        events = re.findall(rb"^id: (\S+)", followed.body, re.MULTILINE)
        assert MARK.encode() in followed.body and events
        for event in (each.decode() for each in events):
            for url, more in ((f"?last_event_id={event}", {}), ("", {"last-event-id": event})):
                headers = {**bob.headers, **more}
                answer = await Client(app).ask(None, headers, url=f"/api/chats/{chat}/stream{url}", method="GET")
                assert (answer.status, answer.message["error"]["code"]) == (404, "EVENT_NOT_KEPT")
        assert (await run(bob, "stall__echo", {"n": 1}))[0] == ""
        (own,) = await fixture.gateway.records.list_calls(principal="bob")
        for stream in (streams[0], streams[-1]):  # by then they have sent all that is before it
            await stream.until(own.id.encode())
        for stream in streams:
            for secret in (MARK, CHAT, *ids["call_id"], *ids["approval_id"]):
                assert secret.encode() not in stream.body
            assert b'"waiting":1' not in stream.body
            stream.leave()
            stream.done.cancel()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("road", ROADS)
async def test_nothing_of_another_principal_is_reached_over_mcp(
    tmp_path: Path, settings: dict[str, Any], road: str, era: str
) -> None:
    chance = random.Random(6)
    async with guarded(tmp_path, **settings) as fixture:
        ids = await make_secrets(fixture, await fixture.person("ann"))
        bob = await fixture.person("bob", road=road, era=era)
        uris = [
            *(f"render://{each}{view}" for each in guess(ids["call_id"], chance) for view in ("", "/view")),
            *(f"manifest://{each}" for each in guess(ids["manifest"], chance)),
            *(f"workspace://{quote(each, safe='')}/{FILE}" for each in guess(ids["chat"], chance)),
            *(f"workspace://{quote(CHAT)}/{FILE}?manifest={each}" for each in ids["manifest"]),
        ]
        for uri in uris:
            answer = await bob.ask("resources/read", {"uri": uri})
            assert answer.status == 400 or "error" in answer.message, uri
            assert MARK not in str(answer.message), uri
        for chat in guess(ids["chat"], chance):
            for name, arguments in (("read_file", {"path": FILE}), ("list_directory", {"path": "."})):
                params = {"name": name, "arguments": arguments, "_meta": {"dev.toolgate/chat": chat}}
                answer = await bob.ask("tools/call", params)
                assert MARK not in str(answer.message), chat
        for manifest in ids["manifest"]:
            assert (await run(bob, "workspace_restore", {"manifest": manifest}))[0] != ""
        for listed in ("resources/list", "resources/templates/list"):
            assert MARK not in str((await bob.ask(listed)).message)


async def test_default_chat_of_a_principal_cannot_be_used_by_another_first(tmp_path: Path) -> None:
    async with guarded(tmp_path) as fixture:
        bob, ann = await fixture.person("bob"), await fixture.person("ann")
        derivable = Principal("ann").default_chat  # what anybody can compute
        assert (await run(bob, "list_directory", {"path": "."}, chat=derivable))[0] == ""
        assert (await run(ann, "write_file", {"path": "a", "content": "mine"}))[0] == ""
        (row,) = await fixture.gateway.chats.list("ann", None, 10)
        assert row.id.startswith("default-ann-")
        assert row.id != derivable
    async with guarded(tmp_path) as fixture:  # the same in every process
        ann = fixture.holder(await fixture.key("ann"))
        assert "mine" in (await run(ann, "read_file", {"path": "a"}))[1]
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(fixture.web.app), base_url="http://127.0.0.1", headers=dict(ann.headers)
        ) as rest:
            answer = await rest.post("/api/tools/read_file/invoke", json={"args": {"path": "a"}})
        assert "mine" in answer.text


async def test_default_chat_with_a_name_of_an_older_version_is_kept(tmp_path: Path) -> None:
    older = Principal("ann").default_chat
    async with guarded(tmp_path) as fixture:
        assert await fixture.gateway.chats.claim(older, "ann") == "ann"
    async with guarded(tmp_path) as fixture:
        await run(await fixture.person("ann"), "write_file", {"path": "a", "content": "mine"})
        assert [row.id for row in await fixture.gateway.chats.list("ann", None, 10)] == [older]


def test_chat_names_differ_by_key_principal_and_client() -> None:
    names = [
        Principal(principal, chats=ChatNames(lambda key=key: key)).client_chat(client)  # type: ignore[misc]
        for key in (b"1" * 32, b"2" * 32)
        for principal in ("ann", "bob")
        for client in ("cursor", "claude")
    ]
    assert len(set(names)) == len(names)


async def test_refused_call_does_not_make_its_caller_the_owner_of_a_chat(tmp_path: Path) -> None:
    roles = {"reader": {"permission": "read-only"}}
    async with guarded(tmp_path, roles=roles) as fixture:
        bob, ann = await fixture.person("bob", "reader"), await fixture.person("ann")
        for name, arguments in (("no_such_tool", {}), ("write_file", {"path": "a", "content": ""}), ("read_file", {})):
            assert (await run(bob, name, arguments, chat="new"))[0] != ""
        assert await fixture.gateway.chats.owner("new") is None
        assert (await run(ann, "write_file", {"path": "a", "content": "x"}, chat="new"))[0] == ""
        assert await fixture.gateway.chats.owner("new") == "ann"
        assert (await run(bob, "list_directory", {"path": "."}, chat="new"))[0] == "CHAT_FORBIDDEN"
