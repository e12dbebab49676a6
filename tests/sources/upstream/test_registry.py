"""All upstreams together: named in settings, by hand and by toolsets, offered on the operator's terms, and pinned."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from eventually import async_eventually
from journeys.servers import labs

from gateway import Gateway
from gateway.admin.upstreams import override_server_tool, restart_upstream
from gateway.catalog import Catalog
from gateway.errors import Invalid
from gateway.protocol import LATEST_HANDSHAKE_VERSION, MODERN_PROTOCOL_VERSIONS
from gateway.sources.upstreams.definitions import Kind
from sources.toolset.writing import require_sandbox, write_toolset

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def gateway_to(directory: Path, follow: bool = False, **servers: dict[str, Any]) -> AsyncIterator[Gateway]:
    settings = {
        "data_dir": str(directory / "data"),
        "approval": {"mode": "unsafe_only"},
        "categories": {"mild": {"permission": "execute"}},
        "mcpServers": servers,
    }
    async with Gateway.open(settings, follow=follow) as gateway:
        yield gateway


def listed(gateway: Gateway) -> set[str]:
    """The names of upstreams' tools."""
    return {entry.name for entry in gateway.catalog if entry.tool.kind == "mcp"}


async def refusal(gateway: Gateway, name: str) -> str:
    outcome = await gateway.call(name, {}, confirmed=True)
    assert outcome.error is not None
    return str(outcome.error)


async def accept(gateway: Gateway, server: str, name: str) -> None:
    pins = gateway.upstreams.pins
    held = (await pins.find(server, Kind.TOOL.value, name)).pin.held_digest
    assert held is not None
    await pins.accept(server, Kind.TOOL.value, name, held, "ann")


async def test_names_filters_and_overrides_are_the_operators(tmp_path: Path) -> None:
    only = {"tools": {"allow": ["e*", "plain", "count"], "deny": ["count"]}}
    changes = {
        "echo": {"name": "Echo!", "description": "Says it again.", "category": "mild", "requires_confirmation": True}
    }
    async with gateway_to(
        tmp_path,
        lab={**labs.on_stdio(), **only},
        bare={**labs.on_stdio(), "prefix": "", "tools": {"allow": ["plain"]}},
        other={**labs.on_stdio(), "prefix": "o", "overrides": changes, "tools": {"allow": ["echo", "plain"]}},
    ) as gateway:
        assert listed(gateway) == {"lab__echo", "lab__plain", "plain", "o__echo", "o__plain"}
        [echo] = [tool for tool in gateway.catalog.to_mcp_tools() if tool["name"] == "o__echo"]
        assert (echo["title"], echo["description"]) == ("Echo!", "Says it again.")
        assert gateway.catalog.find("o__echo").tool.category == "mild"
        assert "CONFIRMATION_REQUIRED" in str((await gateway.call("o__echo", {})).error)
        assert (await gateway.call("o__echo", {}, confirmed=True)).ok
        assert (await gateway.call("other:plain", {})).ok
        assert "the filter of 'lab' excludes it" in await refusal(gateway, "lab__count")


async def test_a_category_that_only_a_server_names_is_as_one_that_only_a_toolset_names(tmp_path: Path) -> None:
    only = {"category": "novel", "tools": {"allow": ["plain"]}}
    async with gateway_to(
        tmp_path,
        mild={**labs.on_stdio(), **only, "permission": "read-write"},
        wild={**labs.on_stdio(), **only},
    ) as gateway:
        assert listed(gateway) == {"mild__plain"}
        assert (await gateway.call("mild__plain", {}, confirmed=True)).ok
        assert "toolgate category set novel --level" in await refusal(gateway, "wild__plain")


@pytest.mark.promise("G9")
async def test_who_comes_back_under_a_name_of_the_settings_is_measured_by_what_was_accepted(tmp_path: Path) -> None:
    """Settings are one process's: what one no longer names, another may still rely on, so nothing is forgotten."""
    async with gateway_to(tmp_path, lab=labs.on_stdio(LAB_WORDS="As ever.")) as gateway:
        assert "lab__echo" in listed(gateway)
    async with gateway_to(tmp_path) as gateway:
        assert listed(gateway) == set()
    async with gateway_to(tmp_path, lab={**labs.on_stdio(LAB_WORDS="Another."), "lazy": False}) as gateway:
        await async_eventually(lambda: "lab__echo" not in listed(gateway))
        assert "lab__plain" in listed(gateway)
        assert "no longer the one that was accepted" in await refusal(gateway, "lab__echo")


@pytest.mark.promise("G9")
async def test_a_changed_definition_is_withheld_until_somebody_accepts_it(tmp_path: Path) -> None:
    async with gateway_to(tmp_path, lab=labs.on_stdio(LAB_WORDS="As ever.")):
        pass
    changed = {**labs.on_stdio(LAB_WORDS="Quite another."), "lazy": False}
    async with gateway_to(tmp_path, follow=True, lab=changed) as gateway:
        await async_eventually(lambda: "lab__echo" not in listed(gateway))
        assert "lab__plain" in listed(gateway)
        assert "no longer the one that was accepted" in await refusal(gateway, "lab__echo")
        assert (await gateway.call("lab__plain", {})).ok
        async with gateway_to(tmp_path, lab=changed) as another:
            await accept(another, "lab", "echo")
        await async_eventually(lambda: "lab__echo" in listed(gateway))
        assert (await gateway.call("lab__echo", {})).ok


@pytest.mark.promise("G9")
async def test_held_at_first_sight_nothing_is_offered_until_it_is_accepted(tmp_path: Path) -> None:
    held = {**labs.on_stdio(), "pinning": "hold"}
    async with gateway_to(tmp_path, follow=True, lab=held) as gateway:
        assert listed(gateway) == set()
        assert "nobody has accepted it yet" in await refusal(gateway, "lab__plain")
        await accept(gateway, "lab", "plain")
        await async_eventually(lambda: listed(gateway) == {"lab__plain"})


async def test_a_lazy_server_that_is_restarted_is_listed_again_in_its_newest_era(tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_text("As ever.")
    server = tmp_path / "server.py"  # it speaks both eras
    server.write_text(
        dedent(
            f"""
            from pathlib import Path
            from mcp.server import MCPServer
            server = MCPServer("lab")
            server.add_tool(lambda: 1, name="echo", description=Path({str(words)!r}).read_text())
            server.run("stdio")
            """
        )
    )
    lab = {"command": sys.executable, "args": [str(server)], "pinning": "off"}
    async with gateway_to(tmp_path, lab=lab):
        pass
    async with gateway_to(tmp_path, follow=True, lab=lab) as gateway:
        await gateway.upstreams.store.save_listing("lab", era=LATEST_HANDSHAKE_VERSION)
        words.write_text("Quite another.")
        await restart_upstream(gateway, "lab")
        await async_eventually(lambda: "Quite another." in (gateway.catalog.find("lab__echo").tool.description or ""))
        assert gateway.upstreams.by_name["lab"].era in MODERN_PROTOCOL_VERSIONS


@pytest.mark.slow
async def test_a_server_added_by_hand_comes_and_goes_without_a_restart(tmp_path: Path) -> None:
    declared = labs.on_stdio(LAB_FILE=str(tmp_path / "notes"))
    async with gateway_to(tmp_path, follow=True) as gateway, gateway_to(tmp_path) as elsewhere:
        await elsewhere.upstreams.store.add("hand", declared)
        await async_eventually(lambda: "hand__plain" in listed(gateway))
        assert (await gateway.call("hand__plain", {})).ok
        await elsewhere.upstreams.store.enable("hand", False)
        await async_eventually(lambda: listed(gateway) == set())
        await labs.gone(str(tmp_path))
        assert "UNKNOWN_TOOL" in await refusal(gateway, "hand__plain")


async def test_server_stays_connected_and_listed_while_its_tools_are_overridden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, offered = tmp_path / "notes", list[set[str]]()
    async with gateway_to(tmp_path, follow=True) as gateway:
        await gateway.upstreams.store.add("hand", labs.on_stdio(LAB_FILE=str(notes)))
        await async_eventually(lambda: "hand__plain" in listed(gateway))
        assert (await gateway.call("hand__plain", {})).ok
        started, swap = labs.notes(notes).count("start"), gateway.executor.swap

        def record(catalog: Catalog) -> None:
            offered.append({entry.name for entry in catalog})
            swap(catalog)

        monkeypatch.setattr(gateway.executor, "swap", record)
        original = gateway.catalog.find("hand__plain").tool.description
        for description in ("Something else.", None):
            await override_server_tool(gateway, "hand", "plain", {"description_override": description})
            await gateway.reload()
            assert gateway.catalog.find("hand__plain").tool.description == (description or original)
        await gateway.upstreams.store.change("hand", {**labs.on_stdio(LAB_FILE=str(notes)), "timeout": 77})
        await gateway.reload()
        assert gateway.upstreams.by_name["hand"].spec.settings.timeout == 77
        assert offered and all("hand__plain" in names for names in offered)
        assert (await gateway.call("hand__plain", {})).ok
        assert labs.notes(notes).count("start") == started + 1, "only the change of its timeout starts it anew"


async def test_the_settings_word_counts_even_when_it_is_off(tmp_path: Path) -> None:
    off = {**labs.on_stdio(), "enabled": False}
    async with gateway_to(tmp_path, lab=off) as gateway:
        await gateway.upstreams.store.add("lab", labs.on_stdio())
        assert await gateway.upstreams.specs() == []


@pytest.mark.slow
@pytest.mark.promise("T6")
async def test_servers_of_a_toolset_live_and_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toolset = write_toolset(tmp_path / "lab-set", MANIFEST.format(python=sys.executable))
    (toolset / "bin").mkdir()
    (toolset / "bin/lab.py").write_text(labs.LAB.read_text())
    await require_sandbox()
    (tmp_path / "notes").touch()
    monkeypatch.setenv("LAB_SECRET", str(tmp_path / "notes"))
    async with gateway_to(tmp_path, follow=True) as gateway, gateway_to(tmp_path) as elsewhere:
        library = elsewhere.toolsets.library
        installed = await library.install(toolset, source_type="local", source_ref=str(toolset))
        await async_eventually(lambda: "toolset allow lab-set" in " ".join(map(str, gateway.catalog.problems)))
        assert listed(gateway) == set()
        await library.allow_servers(
            "lab-set", {server.id: installed.server_digest(server) for server in installed.servers}, "ann"
        )
        await async_eventually(lambda: "tool-lab__plain" in listed(gateway))
        assert listed(gateway) == {"tool-lab__plain", "tool-lab__echo"}
        assert gateway.catalog.find("tool-lab__echo").tool.title == "Echo of the set"
        assert (await gateway.call("tool-lab__plain", {})).ok
        assert [note for note in labs.notes(tmp_path / "notes") if note == "start"] == ["start"]
        stored = b"".join(file.read_bytes() for file in (tmp_path / "data").glob("toolgate.db*"))
        assert str(tmp_path / "notes").encode() not in stored
        assert "variable LAB_MISSING is not set" in str(gateway.upstreams.by_name["lost"].error)
        await library.enable("lab-set", False)
        await async_eventually(lambda: listed(gateway) == set())
        await labs.gone(str(tmp_path))
        await library.enable("lab-set", True)
        await async_eventually(lambda: "tool-lab__plain" in listed(gateway))
        await library.uninstall("lab-set")
        await async_eventually(lambda: listed(gateway) == set())


@pytest.mark.slow
@pytest.mark.promise("H2")
async def test_a_server_of_a_toolset_runs_in_the_sandbox_unless_it_says_otherwise(tmp_path: Path) -> None:
    await require_sandbox()
    (tmp_path / "secret").write_text("a secret")
    for name, declared in (("inside", ""), ("outside", "\n    sandbox: false")):
        manifest = READER.format(name=name, python=sys.executable, declared=declared)
        toolset = write_toolset(tmp_path / name, manifest)
        shutil.copy(Path(__file__).parents[2] / "mcp_client/servers/reaching.py", toolset)
        async with gateway_to(tmp_path) as gateway:
            library = gateway.toolsets.library
            installed = await library.install(toolset, source_type="local", source_ref=str(toolset))
            digests = {server.id: installed.server_digest(server) for server in installed.servers}
            await library.allow_servers(installed.id, digests, "a person")
        async with gateway_to(tmp_path) as gateway:
            outcome = await gateway.call(f"{name}-server__read", {"path": str(tmp_path / "secret")}, confirmed=True)
            assert ("a secret" in str(outcome)) == (name == "outside"), outcome
            outcome = await gateway.call(f"{name}-server__list", {"path": "."}, confirmed=True)
            assert "reaching.py" in str(outcome)


@pytest.mark.slow
async def test_one_server_that_cannot_be_remembered_spoils_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_to(tmp_path, lab=labs.on_stdio(), other=labs.on_stdio()):
        pass

    async def forgetful(server: str) -> Any:
        if server == "lab":
            raise Invalid("cannot be read")
        return await load_listing(server)

    async with gateway_to(tmp_path) as gateway:
        board = gateway.upstreams
        load_listing = board.store.load_listing
        monkeypatch.setattr(board.store, "load_listing", forgetful)
        for name in ("lab", "other"):
            await board.store.add(name, labs.on_stdio())
        await board.sync()
        await gateway.refresh()
        assert "other__plain" in listed(gateway)


MANIFEST = """
id: lab-set
name: Lab
version: 1.0.0
mcp_servers:
  - id: tool-lab
    command: {python}
    args: [-S, bin/lab.py, stdio, handshake]
    env: {{LAB_FILE: "${{LAB_SECRET}}"}}
    sandbox: {{paths: ["${{LAB_SECRET}}:rw"]}}
    tools: {{allow: [plain, echo]}}
  - id: lost
    command: {python}
    args: [-S, bin/lab.py, "${{LAB_MISSING}}", handshake]
tool_overrides:
  - {{tool_id: "tool-lab:echo", name_override: Echo of the set}}
"""

READER = """
id: {name}
name: Reader
version: 1.0.0
mcp_servers:
  - id: {name}-server
    command: {python}
    args: [-S, reaching.py]{declared}
"""
