"""Views of a catalog: what a principal may not call does not exist for it, in any list, call or error."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eventually import async_eventually
from hypothesis import given
from hypothesis import strategies as st
from journeys.servers import labs
from serve.servers import HANDSHAKE, Answer, Client, request

from gateway.access import AccessPolicy, AccessRule
from gateway.calls import Call, Outcome
from gateway.catalog import Catalog, CatalogEntry, CatalogPolicy, Draft
from gateway.config import ProfileSettings, RoleSettings
from gateway.db import timestamp
from gateway.db.approvals import ApprovalRecord
from gateway.errors import Unavailable
from gateway.identity import OWNER
from gateway.identity.roles import Roles
from gateway.names import assign, new_id
from gateway.serve.mcp.event_streams import EventStream, Interrupt, SessionStreams
from gateway.serve.rest.endpoint import STREAMS_OF_ONE, StreamSlots
from gateway.tools import Category, Permission, Tool

from .gateways import ERAS, ROADS, Guarded, Person, guarded

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G7")]

SERVERS = ["docs", "shop", "mail"]
CATEGORIES = ["web", "editing", "filesystem"]
WORDS = ["search", "delete_all", "read", "list"]
PATTERNS = ["*", "docs__*", "shop:*", "*__delete_*", "*search", "read", "mail__?ead", "[ds]*", "nothing"]

patterns = st.lists(st.sampled_from(PATTERNS), max_size=2)
rules = st.builds(
    AccessRule,
    st.sampled_from(list(Permission)),
    st.none() | st.frozensets(st.sampled_from(CATEGORIES)),
    st.none() | patterns,
    patterns,
    st.none() | st.lists(st.sampled_from(["docs", "s*", "*"]), max_size=2),
)
tools = st.builds(
    lambda server, word, category, permission: Tool(
        f"{server}:{word}" if server else word,
        "",
        kind="mcp" if server else "builtin",
        owner=server,
        category=category,
        permission=permission,
    ),
    st.none() | st.sampled_from(SERVERS),
    st.sampled_from(WORDS),
    st.sampled_from(CATEGORIES),
    st.sampled_from(list(Permission)),
)


class Nowhere:
    name = "nowhere"

    async def list_tools(self) -> Sequence[Tool]:
        return []

    async def call_tool(self, call: Call) -> Outcome:
        raise AssertionError(call)


def make_catalog(offered: Sequence[Tool], owners: Mapping[str, str] | None = None) -> Catalog:
    """Return a catalog. `owners` are the names that were given before."""
    categories = {name: Category(name, Permission.EXECUTE) for name in CATEGORIES}
    draft = Draft(CatalogPolicy(categories))
    for tool in offered:
        draft.consider(Nowhere(), tool)
    names = assign(draft.wishes, owners or {})
    return draft.finish(names, {**(owners or {}), **{name: tool_id for tool_id, name in names.items()}})


@given(st.lists(tools, unique_by=lambda tool: tool.id, max_size=12), st.lists(rules, min_size=1, max_size=2))
def test_view_is_the_catalog_of_a_gateway_that_has_only_the_visible_tools(
    offered: list[Tool], given_rules: list[AccessRule]
) -> None:
    policy = AccessPolicy(given_rules)
    whole = make_catalog(offered)
    view = whole.for_principal(policy)
    assert whole.for_principal(policy) is view and whole.for_principal(None) is whole
    visible = [tool for tool in offered if policy.allows(whole.find(tool.id).name, tool)]
    assert {entry.tool.id for entry in view} == {tool.id for tool in visible}
    alone = make_catalog(visible, {entry.name: entry.tool.id for entry in whole})
    assert view.to_mcp_tools() == alone.to_mcp_tools()
    for name in {*whole.accepted, *WORDS, "nothing", "docs__serch"}:
        expected, found = alone.get(name), view.get(name)
        assert (found and found.tool) == (expected and expected.tool), name
        if found is None:
            assert str(view.refusal(name)) == str(alone.refusal(name)), name


def is_allowed(rule: AccessRule, tool: Tool) -> bool:
    """The rule in words of one case each, to compare with."""
    from fnmatch import fnmatchcase

    names = {tool.id, tool.id.replace(":", "__")}

    def matches(given_patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for name in names for pattern in given_patterns)

    if not rule.permission.allows(tool.permission) or matches(rule.denied):
        return False
    if rule.categories is not None and tool.category not in rule.categories:
        return False
    if rule.tools is not None and not matches(rule.tools):
        return False
    on_server = tool.kind == "mcp" and rule.servers is not None
    return not on_server or any(fnmatchcase(tool.owner or "", pattern) for pattern in rule.servers or ())


@given(tools, st.lists(rules, min_size=1, max_size=3))
def test_policy_allows_what_each_of_its_rules_allows(tool: Tool, given_rules: list[AccessRule]) -> None:
    policy = AccessPolicy(given_rules)
    assert policy.allows(tool.id.replace(":", "__"), tool) == all(is_allowed(rule, tool) for rule in given_rules)


def test_views_of_5000_tools_for_100_roles_are_made_in_a_second() -> None:
    tools_of = [Tool(f"s{n % 50}:tool_{n}", "", kind="mcp", owner=f"s{n % 50}") for n in range(5000)]
    entries = [CatalogEntry(tool.id.replace(":", "__"), tool, Nowhere()) for tool in tools_of]
    whole = Catalog(entries, aliases={entry.name.partition("__")[2]: [entry.tool.id] for entry in entries})
    policies = [
        AccessPolicy([AccessRule(tools=["s1*", f"*_{n}*", "s?__*"], denied=[f"*_{n}", "*__delete_*"])])
        for n in range(100)
    ]
    began = time.process_time()
    views = [whole.for_principal(policy) for policy in policies]
    assert all(view.get("tool_1") is None or len(view) for view in views)
    assert time.process_time() - began < 1


def test_roles_and_profiles_narrow_each_other() -> None:
    roles = Roles(
        {"agent": RoleSettings(permission=Permission.READ_WRITE, admin=True), "all": RoleSettings(admin=True)},
        {"reader": ProfileSettings(permission=Permission.READ_ONLY), "wide": ProfileSettings()},
    )
    agent = roles.make_principal("ann", "agent")
    assert (agent.permission, agent.admin) == (Permission.READ_WRITE, False)
    assert roles.make_principal("bob", "agent").access is agent.access
    reader = roles.narrow(agent, "reader")
    assert (reader.permission, reader.profile, reader.admin) == (Permission.READ_ONLY, "reader", False)
    assert roles.narrow(reader, "wide").permission is Permission.READ_ONLY, "no profile lifts another"
    everything = roles.make_principal("ann", "all")
    assert everything.access is None and everything.admin
    assert roles.narrow(OWNER, "wide").access is None
    assert roles.narrow(OWNER, "reader").access is not None


ROLES = {
    "reader": {"permission": "read-only"},
    "echo": {"tools": {"allow": ["stall__echo", "stall:count"]}},
    "quiet": {"tools": {"deny": ["stall__*"]}},
    "files": {"categories": ["filesystem", "editing"]},
    "nothing": {"tools": {"deny": ["*"]}},
    "user": {},
}


async def survey(person: Person, whole: Sequence[str]) -> dict[str, Any]:
    """Return all that a person finds out about the tools."""
    listed = await person.tools()
    codes = {}
    for name in set(whole) - {"stall__ask", "stall__fault", "stall__save", "stall__wait"}:  # which do not answer
        result = await person.call(name, {"bad argument": 1})
        codes[name] = result["_meta"].get("dev.toolgate/error", {}).get("code")
    return {"listed": listed, "codes": codes}


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("road", ROADS)
async def test_hidden_tool_is_not_listed_and_refused_like_an_unknown_one(tmp_path: Path, road: str, era: str) -> None:
    async with guarded(tmp_path, roles=ROLES) as fixture:
        owner = await fixture.person("owner", "admin", road, era)
        everything = await owner.tools()
        for role in ROLES:
            person = await fixture.person(f"a-{role}", role, road, era)
            known = await survey(person, everything)
            visible = set(known["listed"])
            assert visible <= set(everything)
            for name, code in known["codes"].items():
                assert (code == "UNKNOWN_TOOL") == (name not in visible), (role, name, code)
            if role == "nothing":
                assert visible == set()
        hidden = await (await fixture.person("x", "echo", road, era)).call("stall__typed", {"n": 1})
        unknown = await (await fixture.person("x", "echo", road, era)).call("stall__nosuch", {"n": 1})
        said = [each["content"][0]["text"].replace("stall__typed", "stall__nosuch") for each in (hidden, unknown)]
        assert said[0] == said[1]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("road", ROADS)
async def test_random_roles_of_two_principals_never_show_what_is_refused(tmp_path: Path, road: str, era: str) -> None:
    chance = random.Random(f"{road} {era}")
    names = ["read_*", "write_file", "stall__*", "stall:e*", "*e*", "list_directory", "nothing"]
    roles = {
        f"role{number}": {
            "permission": chance.choice(["read-only", "read-write", "execute"]),
            "tools": {"allow": chance.sample(names, 2), "deny": chance.sample(names, 1)},
            "categories": chance.choice([None, ["filesystem"], ["filesystem", "editing", "toolsets", "upstream"]]),
        }
        for number in range(4)
    }
    async with guarded(tmp_path, roles=roles, profiles={"short": {"mode": "search"}}) as fixture:
        everything = [entry.name for entry in fixture.gateway.catalog]
        for role, other in itertools.pairwise(roles):
            ann = await fixture.person("ann", role, road, era)
            bob = await fixture.person("bob", other, road, era)
            for person in (ann, bob):
                known = await survey(person, everything)
                for name, code in known["codes"].items():
                    assert (code == "UNKNOWN_TOOL") == (name not in known["listed"]), (roles, name, code)
                await check_resources(person, "read_file" in known["listed"])
                await check_rest(person, known["listed"], everything)
                await check_short_list(person, known["listed"], everything)
            await check_isolation(fixture, ann, bob)


async def check_resources(person: Person, may_read: bool) -> None:
    templates = (await person.result("resources/templates/list"))["resourceTemplates"]
    assert any("workspace" in each["uriTemplate"] for each in templates) == may_read


async def check_rest(person: Person, listed: Sequence[str], whole: Sequence[str]) -> None:
    async def get(path: str) -> Answer:
        return await Client(person.app).ask(None, person.headers, url=path, method="GET")

    found = (await get("/api/tools?limit=1000")).message
    assert sorted(tool["name"] for tool in found["items"]) == sorted(listed)
    available = (await get("/api/available-tools?format=openai")).body.decode()
    for name in whole:
        assert (f'"{name}"' in available) == (name in listed)
    events = Client(person.app).send(None, person.headers, url="/api/events", method="GET")
    assert f'"tools":{len(listed)}}}'.encode() in await events.until(b'{"tools":')
    events.leave()
    events.done.cancel()
    hidden = next((name for name in whole if name not in listed), None)
    if hidden is not None:
        answers = [await get(f"/api/tools/{name}") for name in (hidden, "nosuch")]
        assert [(each.status, each.message["error"]["code"]) for each in answers] == [(404, "UNKNOWN_TOOL")] * 2
        items = (await get(f"/api/search?q={hidden}")).message["items"]
        assert hidden not in [item.get("name") for item in items]
        kinds = []
        for name in (hidden, "nosuch"):  # nor do the records of refused calls tell which of the two exists
            await person.call(name)
            [record, *_] = (await get(f"/api/calls?tool={name}")).message["items"]
            steps = (await get(f"/api/calls/{record['id']}/steps")).message["steps"]
            kinds.append([step["kind"] for step in steps])
        assert kinds == [["tool"]] * 2


async def check_short_list(person: Person, listed: Sequence[str], whole: Sequence[str]) -> None:
    """Where tools are found and called by others, hidden ones are not found, described or called either."""
    searching = replace(person, url=f"{person.url}/short", session={})
    offered = await searching.tools()
    for name in whole:
        found = (await searching.call("search_tools", {"query": name}))["content"][0]["text"].splitlines()
        is_found = any(line.startswith(f"{name}(") for line in found)
        assert is_found == ("search_tools" in offered and name in listed), (name, found)
        described = await searching.call("describe_tool", {"name": name})
        assert described["isError"] != ("describe_tool" in offered and name in listed), (name, described)
        for caller in ("call_read", "call_write", "call_dangerous") if name not in listed else ():
            assert await searching.value(caller, {"tool": name}) == "UNKNOWN_TOOL", (caller, name)


async def check_isolation(fixture: Guarded, ann: Person, bob: Person) -> None:
    owner = await fixture.person("owner")
    await owner.call("write_file", {"path": "secret.txt", "content": "mine"}, chat="owners")
    for person in (ann, bob):
        for name in await person.tools():
            if name in ("read_file", "list_directory", "workspace_log", "write_file"):
                arguments = {"path": "secret.txt", "content": ""} if name == "write_file" else {"path": "secret.txt"}
                refused = await person.call(name, arguments, chat="owners")
                assert refused["isError"], name
                code = refused["_meta"]["dev.toolgate/error"]["code"]
                assert code in ("CHAT_FORBIDDEN", "INVALID_ARGUMENTS"), (name, code)
        answer = await person.ask("resources/read", {"uri": "workspace://owners/secret.txt"})
        assert "error" in answer.message and "mine" not in answer.body.decode()
        completing: dict[str, Any] = {"ref": {"type": "ref/resource", "uri": "workspace://{chat}/{+path}"}}
        completing |= {"argument": {"name": "path", "value": ""}, "context": {"arguments": {"chat": "owners"}}}
        assert "secret.txt" not in (await person.ask("completion/complete", completing)).body.decode()


async def test_only_administrators_learn_the_parts_of_a_gateway_from_its_readiness(tmp_path: Path) -> None:
    async with guarded(tmp_path) as fixture:
        for role, keys in (("user", {"ok"}), ("admin", {"ok", "parts"})):
            person = await fixture.person(role, role)
            answer = await Client(person.app).ask(None, person.headers, url="/readyz", method="GET")
            assert answer.message.keys() - {"error"} == keys


async def test_nobody_but_administrators_takes_all_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b""

    slots, user, admin = StreamSlots(), replace(OWNER, id="ann", admin=False), OWNER
    streams = [slots.hold(user, endless()) for _ in range(STREAMS_OF_ONE)]
    for stream in streams:
        slots.require(user)
        await anext(stream)
    with pytest.raises(Unavailable):
        slots.require(user)
    slots.require(admin)
    await streams[0].aclose()  # type: ignore[attr-defined]
    slots.require(user)
    monkeypatch.setattr("gateway.serve.rest.endpoint.STREAMS_OF_ONE", 0)
    async with guarded(tmp_path) as fixture:
        person = await fixture.person("ann")
        for path in ("/api/events", "/api/calls/events"):
            answer = await Client(person.app).ask(None, person.headers, url=path, method="GET")
            assert (answer.status, answer.message["error"]["code"]) == (503, "TOO_MANY_STREAMS")


async def test_streams_of_a_modern_principal_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.serve.mcp.sdk.STREAMS_OF_ONE", 2)
    listen = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with guarded(tmp_path) as fixture:
        ann, bob = await fixture.person("ann"), await fixture.person("bob")
        streams = []
        for person in (ann, ann, bob):
            streams.append(Client(person.app).send(listen, person.headers))
            await streams[-1].until(b"subscriptions/acknowledged")
        refused = await Client(ann.app).ask(listen, ann.headers)
        assert "too many streams" in refused.message["error"]["message"]
        for stream in streams:
            stream.leave()
            stream.done.cancel()


async def test_approval_page_shows_hidden_characters_of_changes(tmp_path: Path) -> None:
    changes = "@@ -1 +1 @@\n-a\n+b\u202ec\u2028-never there\n\td"
    record = ApprovalRecord(
        id=new_id(), call_id=new_id(), chat_id="c", principal="ann", tool_id="write_file", via="queue",
        question="0" * 64, grounds="rule", tool_digest="0" * 64, remember=True, reason="a rule", message="Run?",
        args="{}", created_at=timestamp(1e9), expires_at=timestamp(9e9), nonce=new_id(), changes=changes,
    )  # fmt: skip
    async with guarded(tmp_path) as fixture:
        await fixture.gateway.approvals.records.ask(record, 10)
        admin = await fixture.person("root", "admin")
        answer = await Client(admin.app).ask(None, admin.headers, url=f"/approve/{record.id}", method="GET")
        page = answer.body.decode()
        assert '<span class="add">+b\\u202ec\\u2028-never there</span>' in page and "\td" in page
        assert page.count('<span class="del">') == 1 and "\u202e" not in page


@pytest.mark.parametrize("era", ERAS)
async def test_role_without_read_file_has_no_files_as_resources(tmp_path: Path, era: str) -> None:
    roles = {"writer": {"tools": {"allow": ["write_file"]}}, "user": {}}
    async with guarded(tmp_path, roles=roles) as fixture:
        writer, reader = await fixture.person("ann", "writer", era=era), await fixture.person("ann", "user", era=era)
        for person in (writer, reader):
            await person.call("write_file", {"path": "a.txt", "content": "text"}, chat="c")
        meta = {"_meta": {"dev.toolgate/chat": "c"}}
        uri = {"uri": "workspace://c/a.txt"}
        assert [each["uri"] for each in (await reader.result("resources/list", meta))["resources"]] == [uri["uri"]]
        assert (await writer.result("resources/list", meta))["resources"] == []
        assert (await reader.result("resources/read", uri))["contents"][0]["text"] == "text"
        refused = (await writer.ask("resources/read", uri)).message["error"]
        unknown = (await writer.ask("resources/read", {"uri": "workspace://new/a.txt"})).message["error"]
        assert refused["code"] == unknown["code"] and "FILE_NOT_FOUND" in refused["message"]
        completing: dict[str, Any] = {"ref": {"type": "ref/resource", "uri": "workspace://{chat}/{+path}"}}
        completing |= {"argument": {"name": "path", "value": ""}, "context": {"arguments": {"chat": "c"}}}
        assert (await reader.result("completion/complete", completing))["completion"]["values"] == ["a.txt"]
        assert (await writer.result("completion/complete", completing))["completion"]["values"] == []
        assert "+text" in (await reader.value("view_changes", chat="c"))["diff"]
        assert (await writer.value("view_changes", chat="c"))["diff"] == ""


async def test_files_over_rest_need_the_tools_that_do_the_same(tmp_path: Path) -> None:
    roles: dict[str, Any] = {
        "echo": {"tools": {"allow": ["stall__echo"]}},
        "reader": {"tools": {"allow": ["read_file", "list_directory"]}},
        "writer": {"categories": ["editing"]},
    }
    async with guarded(tmp_path, roles=roles) as fixture:
        statuses: dict[str, list[int]] = {}
        for role in (*roles, "user"):
            key = await fixture.key(f"{role}-key", role)
            await fixture.gateway.chats.claim(role, f"{role}-key")
            client, headers = Client(fixture.apps["sdk"]), {"authorization": f"Bearer {key}"}
            answers = [
                await client.ask(b"text", headers, url=f"/api/chats/{role}/files{path}", method=method)
                for method, path in (("PUT", "/a"), ("GET", ""), ("GET", "/b"))
            ]
            statuses[role] = [answer.status for answer in answers]
        assert statuses == {
            "echo": [403, 403, 403],
            "reader": [403, 200, 404],
            "writer": [201, 403, 403],
            "user": [201, 200, 404],
        }


async def test_hidden_tools_of_a_bundle_cannot_be_told_from_none(tmp_path: Path) -> None:
    roles = {"some": {"tools": {"deny": ["demo__two"]}}, "none": {"tools": {"deny": ["demo__*"]}}}
    bundle, unknown = (f"/tools/bundles/01890000-0000-7000-8000-00000000000{digit}" for digit in "12")
    request = {"urlTemplate": "https://api.example/"}
    tool = {"displayName": "T", "argSchema": {"type": "object"}, "type": "http", "httpImpl": {"request": request}}
    async with guarded(tmp_path, roles=roles) as fixture:
        people = {role: await fixture.person(role, role) for role in ("admin", "some", "none")}

        async def ask(role: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
            content = b"" if body is None else json.dumps(body).encode()
            return await Client(fixture.apps["sdk"]).ask(content, people[role].headers, url=path, method=method)

        def path_of(slug: str, base: str = bundle) -> str:
            return f"{base}/tools/{slug}/version/1"

        assert (await ask("admin", "PUT", bundle, {"slug": "demo", "displayName": "Demo"})).status == 201
        for slug in ("one", "two"):
            assert (await ask("admin", "PUT", path_of(slug), tool)).status == 201
        for role, hidden, missing in (
            ("some", path_of("two"), path_of("twx")),
            ("none", path_of("one"), path_of("one", unknown)),
        ):
            for method, end, body in (("GET", "", None), ("POST", "/invoke", {})):
                answers = [await ask(role, method, path + end, body) for path in (hidden, missing)]
                told = [
                    each.body.decode().replace("twx", "two").replace(unknown[-12:], bundle[-12:]) for each in answers
                ]
                assert answers[0].status == 404 and told[0] == told[1], told


async def test_ids_and_categories_tell_nothing_of_others(tmp_path: Path) -> None:
    async with guarded(tmp_path, roles={"echo": {"tools": {"allow": ["stall__echo"]}}}) as fixture:
        ann, bob = await fixture.person("ann", "echo"), await fixture.person("bob", "user")
        for _ in range(2):
            await bob.value("stall__echo", {"n": 1})
        bobs = [call.id for call in await fixture.gateway.records.list_calls(principal="bob")]
        common = bobs[0][:8]  # ids begin with the time
        assert bobs[1].startswith(common)
        answers = [
            await Client(ann.app).ask(None, ann.headers, url=f"/api/calls/{call_id}", method="GET")
            for call_id in (common, bobs[0], "ffffffff")
        ]
        assert [answer.message["error"]["code"] for answer in answers] == ["UNKNOWN_CALL"] * 3
        found = await Client(ann.app).ask(None, ann.headers, url="/api/categories", method="GET")
        assert [each["tools"] for each in found.message["items"]] == [1]


async def test_stream_in_an_impossible_chat_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[EventStream] = []
    open_stream = SessionStreams.open

    def note(streams: SessionStreams, interrupt: Interrupt) -> EventStream:
        opened.append(open_stream(streams, interrupt))
        return opened[-1]

    monkeypatch.setattr(SessionStreams, "open", note)
    async with guarded(tmp_path) as fixture:
        headers = {"authorization": f"Bearer {await fixture.key('ann')}"}
        client = Client(fixture.apps["sdk"])
        answer = await client.ask(b'{"tool": "x"}', headers, url="/api/chats/%07/stream")
        assert (answer.status, opened) == (400, [])


async def test_header_arguments_of_a_hidden_tool_are_not_checked(tmp_path: Path) -> None:
    """The error about a missing header would tell that the tool exists."""
    async with guarded(tmp_path, roles={"quiet": {"tools": {"deny": ["stall__*"]}}}) as fixture:
        for road in ROADS:
            quiet, user = await fixture.person("ann", "quiet", road), await fixture.person("bob", "user", road)
            call = {"name": "stall__marked", "arguments": {"where": "here"}}
            assert "error" in (await user.ask("tools/call", call)).message, "the header is missing"
            assert await quiet.value("stall__marked", {"where": "here"}) == "UNKNOWN_TOOL"


def test_catalog_without_output_schemas_is_its_profile() -> None:
    tool = Tool("a", "", output_schema={"type": "object"}, category="web", permission=Permission.READ_ONLY)
    whole = make_catalog([tool, replace(tool, id="b")])
    assert whole.output_schemas
    assert not whole.for_principal(AccessPolicy([AccessRule(output_schemas=False)])).output_schemas


UPSTREAM_ROLES = {
    "user": {},
    "quiet": {"servers": []},
    "tools": {"tools": {"deny": ["lab:resources/read", "lab__prompts_get"]}},
    "other": {"categories": ["filesystem"]},
    "all": {"tools": {"allow": ["lab__*"]}},
}


async def list_resources(person: Person) -> list[str]:
    return [each["uri"] for each in (await person.result("resources/list"))["resources"]]


@pytest.mark.parametrize("era", ERAS)
async def test_prompts_and_resources_of_a_hidden_server_do_not_exist(tmp_path: Path, era: str) -> None:
    servers = {"lab": labs.on_stdio("modern", LAB_FILE=str(tmp_path / "notes"))}
    async with guarded(tmp_path, roles=UPSTREAM_ROLES, mcpServers=servers) as fixture:
        user = await fixture.person("user", "user", era=era)
        uris = await async_eventually(lambda: list_resources(user))  # a list leaves out a server that is slow
        [prompt, *_] = [each["name"] for each in (await user.result("prompts/list"))["prompts"]]
        completing = {"ref": {"type": "ref/prompt", "name": prompt}, "argument": {"name": "x", "value": ""}}
        assert uris and prompt.startswith("lab__")
        for role in UPSTREAM_ROLES:
            person, visible = await fixture.person(role, role, era=era), role in ("user", "all")
            if visible:
                await async_eventually(lambda person=person: list_resources(person))  # type: ignore[misc]
            else:
                assert not set(uris) & set(await list_resources(person)), role
            assert bool((await person.result("prompts/list"))["prompts"]) == visible, role
            assert any(name.startswith("lab__") for name in await person.tools()) == (visible or role == "tools"), role
            if visible:
                continue
            for method, params, unknown in (
                ("prompts/get", {"name": prompt}, {"name": "lab__nosuch"}),
                ("resources/read", {"uri": uris[0]}, {"uri": "nosuch+x://y"}),
                ("completion/complete", completing, {**completing, "ref": {"type": "ref/prompt", "name": "no"}}),
            ):
                answers = [(await person.ask(method, each)).message for each in (params, unknown)]
                codes = [answer["error"].get("data", {}).get("code") for answer in answers]
                assert codes[0] == codes[1], (role, method, answers)
            if era == HANDSHAKE:
                refused = (await person.ask("resources/subscribe", {"uri": uris[0]})).message
                assert "error" in refused, refused
