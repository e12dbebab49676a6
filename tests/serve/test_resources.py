"""A chat's files as resources: listed, read, completed and followed, in both protocol eras."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from eventually import TIMEOUT, async_eventually
from mcp import Client
from mcp.server.subscriptions import ResourcesListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp.shared.uri_template import UriTemplate

from gateway import Gateway
from gateway.calls import LOCAL, Caller
from gateway.serve.mcp.handlers import Handlers, McpServer
from gateway.serve.mcp.render_resources import PLAN, SIZE, VIEW
from gateway.serve.mcp.resources import FILE, MANIFEST, PAGE, VERSION
from gateway.serve.mcp.uris import SPAN_LIMIT, file_uri

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G4")]

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
ODD = ["grüße & co.txt", "a b.txt", "50% #1?.txt", "100%25.txt", "[x] {y}.txt", "日本/語.txt", "~+=;,@:!$'()*.txt"]


@asynccontextmanager
async def connected(gateway: Gateway, era: Any, chat: str = "c", **options: Any) -> AsyncIterator[Client]:
    face = McpServer(Handlers(gateway.executor, gateway.versions, chat))
    async with Client(face.sdk, mode=era, cache=None, **options) as client:
        yield client


async def write(gateway: Gateway, path: str, content: str, chat: str = "c") -> str:
    """The manifest after it."""
    arguments = {"path": path, "content": content, "createDirs": True}
    outcome = await gateway.call("write_file", arguments, chat=chat, confirmed=True)
    assert outcome.error is None and outcome.post_manifest is not None
    return outcome.post_manifest


async def content(client: Client, uri: str) -> str | bytes:
    [read] = (await client.read_resource(uri)).contents
    assert read.uri == uri
    return read.text if isinstance(read, types.TextResourceContents) else base64.b64decode(read.blob)


async def refusal(client: Client, uri: str) -> types.ErrorData:
    with pytest.raises(MCPError) as refused:
        await client.read_resource(uri)
    return refused.value.error


def folder(gateway: Gateway, chat: str = "c") -> Path:
    return gateway.settings.data_dir / "chats" / chat / "workspace"


class Listener:
    """What a client of either era is told of, waited for."""

    def __init__(self, client: Client, received: list[Any]) -> None:
        self.client, self.received = client, received
        self.arrived = anyio.Condition()

    async def add(self, event: Any) -> None:
        async with self.arrived:
            self.received.append(event)
            self.arrived.notify_all()

    async def wait_for(self, *expected: Any) -> None:
        with anyio.fail_after(TIMEOUT):
            async with self.arrived:
                while not set(expected) <= set(self.received):
                    await self.arrived.wait()


@asynccontextmanager
async def following(gateway: Gateway, era: Any, *uris: str, chat: str = "c") -> AsyncIterator[Listener]:
    """A client that follows these files and its chat's list of files."""
    received: list[Any] = []

    async def take(message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            await listener.add(ResourceUpdated(message.params.uri))
        elif isinstance(message, types.ResourceListChangedNotification):
            await listener.add(ResourcesListChanged())

    async with connected(gateway, era, chat, message_handler=take) as client:
        listener = Listener(client, received)
        if era == "legacy":
            await client.list_resources()
            for uri in uris:
                await client.subscribe_resource(uri)
            yield listener
        else:  # the client hands what comes on the stream to its message handler too
            async with client.listen(resources_list_changed=True, resource_subscriptions=uris):
                yield listener


@ERAS
async def test_resources_their_changes_and_completions_are_announced(gateway: Gateway, era: Any) -> None:
    async with connected(gateway, era) as client:
        resources = client.server_capabilities.resources
        assert resources is not None and resources.subscribe and resources.list_changed
        assert client.server_capabilities.completions is not None
        templates = (await client.list_resource_templates()).resource_templates
    assert [template.uri_template for template in templates] == [FILE, VERSION, MANIFEST, PLAN, VIEW]
    assert all(template.description and "offset=" in template.description for template in templates[:2])


@ERAS
async def test_file_is_listed_with_type_size_and_modification_time(gateway: Gateway, era: Any) -> None:
    await write(gateway, "src/main.ts", "let x")
    os.utime(folder(gateway) / "src/main.ts", (0, 0))
    async with connected(gateway, era) as client:
        listed = await client.list_resources()
    assert [resource.model_dump(exclude_none=True) for resource in listed.resources] == [
        {
            "name": "main.ts",
            "title": "src/main.ts",
            "uri": "workspace://c/src/main.ts",
            "mime_type": "text/x-typescript",
            "size": 5,
            "annotations": {"last_modified": "1970-01-01T00:00:00.000Z"},
        }
    ]


@ERAS
@pytest.mark.parametrize("chat", ["c", "Ä chat/with? all#of%it"])
async def test_every_listed_name_is_read_back_by_its_uri(gateway: Gateway, era: Any, chat: str) -> None:
    for name in ODD:
        await write(gateway, name, f"I am {name}", chat)
    async with connected(gateway, era, chat) as client:
        listed = (await client.list_resources()).resources
        assert sorted(str(resource.title) for resource in listed) == sorted(ODD)
        for resource in listed:
            assert resource.uri.isascii()
            assert await content(client, resource.uri) == f"I am {resource.title}"


@ERAS
async def test_file_name_that_is_not_utf8_is_listed_and_read(gateway: Gateway, era: Any) -> None:
    await write(gateway, "plain.txt", "")
    Path(os.fsdecode(os.fsencode(folder(gateway)) + b"/\xff\n.txt")).write_text("odd")
    async with connected(gateway, era) as client:
        listed = (await client.list_resources()).resources
        assert [resource.uri for resource in listed] == ["workspace://c/plain.txt", "workspace://c/%FF%0A.txt"]
        assert await content(client, "workspace://c/%FF%0A.txt") == "odd"


@ERAS
async def test_long_list_is_paged_and_changes_do_not_shift_pages(gateway: Gateway, era: Any) -> None:
    await write(gateway, "z.txt", "")
    for number in range(PAGE + 20):
        path = folder(gateway) / f"d{number % 3}" / f"{number:04}.txt"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    async with connected(gateway, era) as client:
        first = await client.list_resources()
        (folder(gateway) / "d0/0000.txt").unlink()
        second = await client.list_resources(cursor=first.next_cursor)
        with pytest.raises(MCPError) as refused:
            await client.list_resources(cursor="../x")
    assert refused.value.error.code == types.INVALID_PARAMS
    titles = [str(resource.title) for page in (first, second) for resource in page.resources]
    assert len(first.resources) == PAGE and second.next_cursor is None
    assert titles == sorted(set(titles)) and len(titles) == PAGE + 21


@ERAS
async def test_links_and_caches_of_tools_are_not_listed(gateway: Gateway, era: Any) -> None:
    await write(gateway, "node_modules/x/index.js", "x")
    await write(gateway, "real.txt", "real")
    (folder(gateway) / "link.txt").symlink_to("real.txt")
    os.mkfifo(folder(gateway) / "pipe")
    async with connected(gateway, era) as client:
        assert [resource.title for resource in (await client.list_resources()).resources] == ["real.txt"]
        assert await content(client, "workspace://c/node_modules/x/index.js") == "x"


@ERAS
async def test_listing_an_unused_chat_does_not_create_it(gateway: Gateway, era: Any) -> None:
    async with connected(gateway, era, "unused") as client:
        assert (await client.list_resources()).resources == []
        assert "no files yet" in (await refusal(client, "workspace://unused/a.txt")).message
    assert not folder(gateway, "unused").exists()
    async with connected(gateway, era, "theirs") as client:
        await gateway.versions.require_owner("theirs", "someone")
        with pytest.raises(MCPError, match="CHAT_FORBIDDEN"):
            await client.list_resources()


@ERAS
async def test_resource_list_is_of_the_chat_in_the_request(gateway: Gateway, era: Any) -> None:
    await write(gateway, "here.txt", "", "c")
    await write(gateway, "there.txt", "", "other")
    async with connected(gateway, era) as client:
        meta: Any = {"dev.toolgate/chat": "other"}
        listed = (await client.list_resources(meta=meta)).resources
    assert [resource.uri for resource in listed] == ["workspace://other/there.txt"]


@ERAS
async def test_binary_file_is_read_as_a_blob(gateway: Gateway, era: Any) -> None:
    await write(gateway, "plain", "text")
    (folder(gateway) / "picture.png").write_bytes(b"\x89PNG\0\xff")
    (folder(gateway) / "zeros").write_bytes(bytes(8))
    async with connected(gateway, era) as client:
        read = [(await client.read_resource(f"workspace://c/{name}")).contents[0] for name in ("plain", "picture.png")]
        assert [one.mime_type for one in read] == ["text/plain", "image/png"]
        assert await content(client, "workspace://c/picture.png") == b"\x89PNG\0\xff"
        assert await content(client, "workspace://c/zeros") == bytes(8)


@ERAS
async def test_a_large_file_is_read_in_ranges_only(gateway: Gateway, era: Any) -> None:
    await write(gateway, "before", "")
    whole = os.urandom(8) + b"\xff" + os.urandom(SPAN_LIMIT) + b"\xff"  # no range below happens to be text
    (folder(gateway) / "big.bin").write_bytes(whole)
    manifest = await write(gateway, "after", "")
    async with connected(gateway, era) as client:
        for version in ("", f"&manifest={manifest}"):
            refused = await refusal(
                client, f"workspace://c/big.bin?{version[1:]}" if version else "workspace://c/big.bin"
            )
            assert f"{len(whole)} bytes" in refused.message and "offset=0&length=" in refused.message
            uri = f"workspace://c/big.bin?offset={{}}{version}"
            assert await content(client, uri.format(0)) == whole[:SPAN_LIMIT]
            assert await content(client, uri.format(SPAN_LIMIT)) == whole[SPAN_LIMIT:]
            assert await content(client, uri.format("5&length=7")) == whole[5:12]
            assert await content(client, uri.format(len(whole))) == ""
        [read] = (await client.read_resource("workspace://c/big.bin?length=1")).contents
        assert read.meta == {SIZE: len(whole)}


@ERAS
async def test_invalid_range_is_refused(gateway: Gateway, era: Any) -> None:
    await write(gateway, "a.txt", "a")
    async with connected(gateway, era) as client:
        for query in ("length=0", "length=x", "offset=-1", f"length={SPAN_LIMIT + 1}", "offset=1&offset=2", "x=1", "x"):
            assert (await refusal(client, f"workspace://c/a.txt?{query}")).code == types.INVALID_PARAMS


@ERAS
async def test_earlier_version_is_read_by_a_manifest_id_or_its_prefix(gateway: Gateway, era: Any) -> None:
    first = await write(gateway, "notes/a b.txt", "one")
    second = await write(gateway, "notes/a b.txt", "two")
    async with connected(gateway, era) as client:
        assert await content(client, "workspace://c/notes/a%20b.txt") == "two"
        assert await content(client, f"workspace://c/notes/a%20b.txt?manifest={first}") == "one"
        assert await content(client, f"workspace://c/notes/a%20b.txt?manifest={second[:-1]}") == "two"
        assert "IS_DIRECTORY" in (await refusal(client, f"workspace://c/notes?manifest={first}")).message
        assert "FILE_NOT_FOUND" in (await refusal(client, f"workspace://c/none?manifest={first}")).message
        assert "MANIFEST_NOT_FOUND" in (await refusal(client, "workspace://c/none?manifest=ffffffff")).message


@ERAS
async def test_manifest_has_files_and_changes(gateway: Gateway, era: Any) -> None:
    first = await write(gateway, "a.txt", "one")
    second = await write(gateway, "b.txt", "two")
    async with connected(gateway, era) as client:
        manifest = json.loads(await content(client, f"manifest://{second}"))
        assert (await refusal(client, "manifest://nothing")).message.startswith("MANIFEST_NOT_FOUND")
    assert manifest.pop("source_ref") and manifest.pop("created_at")
    digests = manifest.pop("files")
    assert digests.keys() == {"a.txt", "b.txt"} and all(len(digest) == 64 for digest in digests.values())
    assert manifest == {
        "id": second,
        "chat": "c",
        "parent": first,
        "source": "tool_run",
        "meta": {},
        "changes": {"added": ["b.txt"], "changed": [], "deleted": []},
    }


@pytest.mark.parametrize(("era", "code"), [("auto", types.INVALID_PARAMS), ("legacy", -32002)])
async def test_missing_resource_gets_the_error_code_of_the_version(gateway: Gateway, era: Any, code: int) -> None:
    await write(gateway, "src/a.txt", "a")
    async with connected(gateway, era) as client:
        missing = await refusal(client, "workspace://c/src/b.txt")
        elsewhere = await refusal(client, "file:///etc/passwd")
        directory = await refusal(client, "workspace://c/src")
    assert (missing.code, missing.data["uri"]) == (code, "workspace://c/src/b.txt")
    assert "'src/b.txt' does not exist" in missing.message
    assert elsewhere.code == code
    assert (directory.code, directory.message) == (-32602, "IS_DIRECTORY: 'src' is a directory; name a file in it")


OUTSIDE = [
    "c/../secret.txt",
    "c/%2e%2e/secret.txt",
    "c/%2E%2E%2Fsecret.txt",
    "c/d/..%2f..%2fsecret.txt",
    "c//etc/passwd",
    "c/%2fetc/passwd",
    "c/./d/x",
    "c/d%00x",
    "c/link/secret.txt",
    "c/link.txt",
    "c/.toolgate-x",
    "c/",
    "c",
    "",
]


@ERAS
async def test_no_uri_leads_out_of_the_workspace(gateway: Gateway, era: Any) -> None:
    await write(gateway, "d/x", "x")
    secret = folder(gateway).parent / "secret.txt"
    secret.write_text("SECRET")
    (folder(gateway) / "link").symlink_to(secret.parent)
    (folder(gateway) / "link.txt").symlink_to(secret)
    manifest = await write(gateway, "d/y", "y")
    async with connected(gateway, era) as client:
        for place in OUTSIDE:
            for query in ("", f"?manifest={manifest}", "?offset=0"):
                refused = await refusal(client, f"workspace://{place}{query}")
                assert refused.code in (types.INVALID_PARAMS, -32002), place
                assert "SECRET" not in str(refused) and str(secret.parent) not in str(refused), place


@ERAS
async def test_another_principals_chat_is_refused_and_its_manifests_are_unknown(gateway: Gateway, era: Any) -> None:
    arguments = {"path": "a.txt", "content": "theirs"}
    outcome = await gateway.call("write_file", arguments, chat="theirs", caller=Caller(principal="someone"))
    assert outcome.error is None
    async with connected(gateway, era) as client:
        for uri in ("workspace://theirs/a.txt", f"workspace://theirs/a.txt?manifest={outcome.post_manifest}"):
            assert (await refusal(client, uri)).message.startswith("CHAT_FORBIDDEN")
        known = await refusal(client, f"manifest://{outcome.post_manifest}")
        assert known.message == f"MANIFEST_NOT_FOUND: there is no manifest '{outcome.post_manifest}'"
        with pytest.raises(MCPError, match="CHAT_FORBIDDEN"):
            await client.complete(
                types.ResourceTemplateReference(uri=FILE), {"name": "path", "value": ""}, {"chat": "theirs"}
            )


@ERAS
async def test_completed_path_is_a_valid_template_value(gateway: Gateway, era: Any) -> None:
    for name in ODD:
        await write(gateway, name, name)
    async with connected(gateway, era) as client:

        async def complete(begun: str, **chosen: str) -> types.Completion:
            ref = types.ResourceTemplateReference(uri=FILE)
            return (await client.complete(ref, {"name": "path", "value": begun}, chosen or None)).completion

        every = await complete("")
        assert (every.total, every.has_more, len(every.values)) == (len(ODD), False, len(ODD))
        for value in every.values:
            uri = UriTemplate.parse(FILE).expand({"chat": "c", "path": value})
            assert await content(client, uri) in ODD
        assert (await complete("日本/")).values == ["日本/語.txt"]
        assert (await complete("50% #")).values == (await complete("50%25 %23")).values == ["50%25 %231%3F.txt"]
        assert (await complete("gr", chat="elsewhere")).values == []


@ERAS
async def test_completion_has_at_most_a_hundred_values_and_their_total(gateway: Gateway, era: Any) -> None:
    await write(gateway, "z", "")
    for number in range(120):
        (folder(gateway) / f"f{number:03}").touch()
    async with connected(gateway, era) as client:
        completed = await client.complete(types.ResourceTemplateReference(uri=VERSION), {"name": "path", "value": "f"})
    assert completed.completion.values == [f"f{number:03}" for number in range(100)]
    assert (completed.completion.total, completed.completion.has_more) == (120, True)


@ERAS
async def test_manifests_are_completed_latest_first_and_other_things_refused(gateway: Gateway, era: Any) -> None:
    manifests = [await write(gateway, "a.txt", str(number)) for number in range(3)]
    async with connected(gateway, era) as client:

        async def complete(template: str, name: str, value: str) -> list[str]:
            ref = types.ResourceTemplateReference(uri=template)
            return (await client.complete(ref, {"name": name, "value": value})).completion.values

        assert await complete(VERSION, "manifest", "") == await complete(MANIFEST, "id", "") == manifests[::-1]
        assert await complete(VERSION, "manifest", manifests[1]) == [manifests[1]]
        assert await complete(FILE, "chat", "") == ["c"]
        for template, name in ((FILE, "manifest"), ("x://{y}", "y")):
            with pytest.raises(MCPError, match="cannot be completed"):
                await complete(template, name, "")


@ERAS
async def test_subscribed_file_and_changed_list_are_notified(gateway: Gateway, era: Any) -> None:
    uri = file_uri("c", "notes/a b.txt")
    async with following(gateway, era, uri) as listener:
        await write(gateway, "notes/a b.txt", "one")
        await listener.wait_for(ResourceUpdated(uri), ResourcesListChanged())
        listener.received.clear()
        await write(gateway, "other.txt", "")
        await listener.wait_for(ResourcesListChanged())
        listener.received.clear()
        (folder(gateway) / "empty").mkdir()
        await write(gateway, "other.txt", "changed, which is followed by nobody")
        await write(gateway, "notes/a b.txt", "two")
        await listener.wait_for(ResourceUpdated(uri))
        assert listener.received == [ResourceUpdated(uri)]
        assert await content(listener.client, uri) == "two"


@ERAS
async def test_restored_version_is_notified(gateway: Gateway, era: Any) -> None:
    first = await write(gateway, "a.txt", "one")
    await write(gateway, "a.txt", "two")
    async with following(gateway, era, "workspace://c/a.txt") as listener:
        async with gateway.versions.hold("c", LOCAL) as files:
            await files.checkout(first)
        await listener.wait_for(ResourceUpdated("workspace://c/a.txt"))
        assert await content(listener.client, "workspace://c/a.txt") == "one"


@ERAS
async def test_notification_has_the_uri_as_subscribed(gateway: Gateway, era: Any) -> None:
    spelled = "workspace://c/%61%20b.txt?offset=0"
    async with following(gateway, era, spelled) as listener:
        await write(gateway, "a b.txt", "one")
        await listener.wait_for(ResourceUpdated(spelled))


@ERAS
async def test_other_chats_are_not_notified(gateway: Gateway, era: Any) -> None:
    async with following(gateway, era, "workspace://c/a.txt") as listener:
        await write(gateway, "a.txt", "elsewhere", "other")
        await write(gateway, "a.txt", "here")
        await listener.wait_for(ResourceUpdated("workspace://c/a.txt"), ResourcesListChanged())
        assert len(listener.received) == 2


@ERAS
async def test_chat_that_gets_another_owner_is_notified_to_its_owner_only(gateway: Gateway, era: Any) -> None:
    async with following(gateway, era, "workspace://later/a.txt", "workspace://c/a.txt", chat="later") as listener:
        arguments = {"path": "a.txt", "content": "theirs"}
        outcome = await gateway.call("write_file", arguments, chat="later", caller=Caller(principal="someone"))
        assert outcome.error is None
        await write(gateway, "a.txt", "mine")
        await listener.wait_for(ResourceUpdated("workspace://c/a.txt"))
        assert listener.received == [ResourceUpdated("workspace://c/a.txt")]


async def test_a_subscription_to_someone_elses_chat_is_refused_in_the_handshake_era(gateway: Gateway) -> None:
    await gateway.versions.require_owner("theirs", "someone")
    async with connected(gateway, "legacy") as client:
        with pytest.raises(MCPError, match="CHAT_FORBIDDEN"):
            await client.subscribe_resource("workspace://theirs/a.txt")


async def test_forbidden_subscription_is_not_acknowledged_to_a_modern_client(gateway: Gateway) -> None:
    await gateway.versions.require_owner("theirs", "someone")
    uris = ["workspace://c/a.txt", "workspace://theirs/a.txt", "workspace://c/../a.txt", "nonsense"]
    async with connected(gateway, "auto") as client, client.listen(resource_subscriptions=uris) as changes:
        assert changes.honored.resource_subscriptions == ["workspace://c/a.txt"]


async def test_unsubscribed_file_is_not_notified(gateway: Gateway) -> None:
    async with following(gateway, "legacy", "workspace://c/a.txt", "workspace://c/b.txt") as listener:
        await listener.client.unsubscribe_resource("workspace://c/a.txt")
        await write(gateway, "a.txt", "one")
        await write(gateway, "b.txt", "one")
        await listener.wait_for(ResourceUpdated("workspace://c/b.txt"))
        assert ResourceUpdated("workspace://c/a.txt") not in listener.received


@ERAS
async def test_calls_do_not_compare_files_without_subscribers(gateway: Gateway, era: Any) -> None:
    def watched() -> bool:
        return gateway.versions.watched

    async with connected(gateway, era) as client:
        await client.list_tools()
        await client.list_resource_templates()
        assert not watched()
    async with following(gateway, era, "workspace://c/a.txt"):
        assert watched()
    await async_eventually(lambda: not watched())


async def test_client_that_does_not_read_does_not_delay_other_notifications(gateway: Gateway) -> None:
    face = McpServer(Handlers(gateway.executor, gateway.versions, "c"))
    to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](9)
    to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "deaf", "version": "1"}}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(face.sdk.run, from_client, to_client, face.sdk.create_initialization_options())
        for message in (
            types.JSONRPCRequest(jsonrpc="2.0", id=1, method="initialize", params=hello),
            types.JSONRPCNotification(jsonrpc="2.0", method="notifications/initialized"),
            types.JSONRPCRequest(jsonrpc="2.0", id=2, method="resources/list"),
        ):
            await to_server.send(SessionMessage(message))
        for _ in range(2):
            await from_server.receive()
        async with Client(face.sdk, mode="auto") as client:
            uri = "workspace://c/a.txt"
            async with client.listen(resource_subscriptions=[uri]) as changes:
                for number in range(3):
                    await write(gateway, "a.txt", str(number))
                    with anyio.fail_after(TIMEOUT):
                        assert await anext(aiter(changes)) == ResourceUpdated(uri)
        await from_server.aclose()
        await to_server.aclose()
