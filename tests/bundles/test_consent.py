"""Consent to the MCP servers of toolsets: what it covers, where it counts, and how a server is shown."""

from __future__ import annotations

import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bundles.installed import InstalledToolset, describe_server, quote, server_digest
from gateway.bundles.library import ToolsetLibrary
from gateway.bundles.spec import Server
from gateway.errors import Conflict, NotFound

from .libraries import HEAD, folder, install, opened

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T6")]

PROGRAM: dict[str, Any] = {"id": "s", "command": "run"}
REMOTE: dict[str, Any] = {"id": "s", "url": "https://host.example/mcp"}
OTHERWISE: dict[str, Any] = {
    "id": "other",
    "name": "Other",
    "command": "walk",
    "args": ["-v"],
    "env": {"LEVEL": "${LEVEL}"},
    "cwd": "bin",
    "url": "https://other.example/mcp",
    "headers": {"X-Key": "${KEY}"},
    "transport": "sse",
    "enabled": False,
    "requires_confirmation": False,
    "prefix": "",
    "category": "editing",
    "permission": "execute",
    "timeout": 5.0,
    "lazy": False,
    "sandbox": {"paths": ["/srv:rw"]},
    "tools": {"allow": ["a*"]},
}
SERVERS = "mcp_servers:\n- {{id: one, command: run, args: [{}]}}\n- {{id: two, command: run, sandbox: false}}\n"


def server(fields: dict[str, Any]) -> Server:
    return Server.model_validate(fields, strict=False)


@pytest.mark.parametrize("field", Server.model_fields)
def test_the_digest_of_a_server_covers_each_declared_field(field: str) -> None:
    before = REMOTE if field in ("url", "headers", "transport") else PROGRAM
    after = server({**before, field: OTHERWISE[field]})
    assert server_digest("demo", after, "c") != server_digest("demo", server(before), "c")
    assert dict(describe_server(after)) != dict(describe_server(server(before))) or field == "id"


def test_the_digest_of_a_server_covers_its_toolset_and_outside_the_sandbox_the_content() -> None:
    outside, inside = server({**PROGRAM, "sandbox": False}), server({**PROGRAM, "sandbox": {"network": ["a.example"]}})
    assert server_digest("demo", inside, "c") != server_digest("other", inside, "c")
    assert server_digest("demo", inside, "c") == server_digest("demo", inside, "d")
    assert server_digest("demo", outside, "c") != server_digest("demo", outside, "d")
    assert server_digest("demo", server(REMOTE), "c") == server_digest("demo", server(REMOTE), "d")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1), max_size=5))
def test_a_quoted_command_is_printable_ascii_and_means_the_same_to_a_shell(arguments: list[str]) -> None:
    line = " ".join(map(quote, arguments))
    assert line.isascii()
    assert line.isprintable() or not line
    assert "  " not in line
    echo = ["bash", "-c", f"printf '%s\\0' {line}"]
    output = subprocess.run(echo, capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}).stdout
    assert output.decode().split("\0")[:-1] == (arguments or [""])


def test_a_description_shows_the_command_the_variables_and_the_rights() -> None:
    fields = {**PROGRAM, "args": ["a b", "x\u202ey", "п"], "env": {"TOKEN": "${AWS_SECRET}"}}
    shown = dict(describe_server(server(fields)))
    assert shown["command"] == r"run 'a b' $'x\u202ey' $'\u043f'"
    assert shown["environment"] == "TOKEN='${AWS_SECRET}'"
    assert shown["rights"] == "in the sandbox; folders: none; hosts: none"
    given = {"paths": ["${HOME}/notes:rw"], "network": ["*.example.org"]}
    shown = dict(describe_server(server({**PROGRAM, "sandbox": given})))
    assert shown["rights"] == "in the sandbox; folders: '${HOME}/notes:rw'; hosts: '*.example.org'"
    shown = dict(describe_server(server({**PROGRAM, "sandbox": False})))
    assert shown["rights"] == "WARNING: outside the sandbox, with all rights of your account"
    shown = dict(describe_server(server({**REMOTE, "headers": {"X-Key": "${KEY}"}})))
    assert (shown["url"], shown["headers"]) == ("https://host.example/mcp", "X-Key='${KEY}'")


def held(installed: InstalledToolset) -> list[str]:
    return [server.id for server in installed.pending_servers]


async def allow(library: ToolsetLibrary, installed: InstalledToolset, *names: str) -> InstalledToolset:
    digests = {each.id: installed.server_digest(each) for each in installed.servers if each.id in names}
    return await library.allow_servers(installed.id, digests, "ann")


async def test_consent_lasts_until_what_was_agreed_to_changes(tmp_path: Path) -> None:
    source = folder(tmp_path / "demo", HEAD + SERVERS.format("a"), {"server.py": "1"})
    async with opened(tmp_path / "data") as library:
        installed = await install(library, source)
        assert held(installed) == ["one", "two"]
        assert installed.problem is not None
        assert "toolgate toolset allow demo" in installed.problem.message
        installed = await allow(library, installed, "one", "two")
        assert (held(installed), installed.problem) == ([], None)
        row = installed.consents["one"]
        assert (row.agreed_by, row.digest) == ("ann", installed.server_digest(installed.servers[0]))
        assert held(await install(library, source)) == []
        folder(source, HEAD + SERVERS.format("a"), {"server.py": "2"})
        assert held(await install(library, source)) == ["two"]
        folder(source, HEAD + SERVERS.format("b"), {"server.py": "1"})
        assert held(await install(library, source)) == ["one", "two"]
        folder(source, HEAD + SERVERS.format("a"), {"server.py": "1"})
        assert held(await install(library, source)) == []
        assert held(await library.disallow_servers("demo")) == ["one", "two"]
        await allow(library, await library.get("demo"), "one")
        await library.uninstall("demo")
        assert held(await install(library, source)) == ["one", "two"]
        with pytest.raises(NotFound):
            await library.disallow_servers("demos")


async def test_consent_to_a_server_that_has_changed_since_is_refused(tmp_path: Path) -> None:
    source = folder(tmp_path / "demo", HEAD + SERVERS.format("a"), {"server.py": "1"})
    async with opened(tmp_path / "data") as library, opened(tmp_path / "data") as elsewhere:
        shown = await install(library, source)
        folder(source, HEAD + SERVERS.format("b"), {"server.py": "1"})
        await install(elsewhere, source)
        with pytest.raises(Conflict, match="has changed since it was shown"):
            await allow(library, shown, "one")
        assert held(await library.get("demo")) == ["one", "two"]
        await allow(elsewhere, await elsewhere.get("demo"), "one")
        assert held((await library.list())[0]) == ["two"]


async def test_a_row_with_the_digest_of_another_server_is_no_consent(tmp_path: Path) -> None:
    alike = "mcp_servers:\n- {{id: {}, command: run}}\n- {{id: {}, command: run}}\n"
    first = folder(tmp_path / "demo", HEAD + alike.format("one", "two"), {})
    second = folder(tmp_path / "more", HEAD.replace("demo", "more") + alike.format("three", "four"), {})
    async with opened(tmp_path / "data") as library:
        await allow(library, await install(library, first), "one")
        await install(library, second)
        connection = sqlite3.connect(tmp_path / "data/toolgate.db", isolation_level=None)
        for toolset, name in (("demo", "two"), ("more", "three"), ("more", "one")):
            connection.execute(
                "INSERT INTO server_consents SELECT ?, ?, digest, agreed_by, agreed_at FROM server_consents "
                "WHERE server_id = 'one' AND toolset_id = 'demo'",
                (toolset, name),
            )
        connection.execute("INSERT INTO server_consents VALUES ('more', 'four', '', 'eve', '')")
        connection.close()
        assert held(await library.get("demo")) == ["two"]
        assert held(await library.get("more")) == ["three", "four"]
