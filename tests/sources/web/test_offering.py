"""Nothing of the web is offered or reached until the settings say so; then the whole gateway does it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from net.sites import Site, answer, serving

from gateway import Gateway, config
from gateway.admin.workspaces import open_workspace
from gateway.errors import Invalid
from gateway.sources.builtin.source import load
from gateway.tools import Access, Permission

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C3")]

SEARCH = {"provider": "searxng", "url": "http://localhost:8888"}


def settings(tmp_path: Path, web: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"data_dir": str(tmp_path / "data"), "web": web or {}, **more}


def here(site: Site) -> dict[str, Any]:
    return {"allowed_hosts": [f"127.0.0.1:{site.port}"], "allow_private": True}


@pytest.mark.parametrize(
    ("web", "offered"),
    [
        ({}, set()),
        ({"allow_private": True}, set()),
        ({"allowed_hosts": ["*.python.org"]}, {"web_fetch", "web_download"}),
        ({"search": SEARCH}, {"web_search"}),
        ({"allowed_hosts": ["*"], "search": SEARCH}, {"web_fetch", "web_download", "web_search"}),
    ],
)
async def test_only_what_can_reach_something_is_offered(tmp_path: Path, web: dict[str, Any], offered: set[str]) -> None:
    async with Gateway.open(settings(tmp_path, web)) as gateway:
        assert {entry.name for entry in gateway.catalog if entry.name.startswith("web_")} == offered


async def test_reading_is_read_only_and_what_writes_stands_with_what_writes(tmp_path: Path) -> None:
    async with Gateway.open(settings(tmp_path, {"allowed_hosts": ["*"], "search": SEARCH})) as gateway:
        tools = {name: gateway.catalog.find(name).tool for name in ("web_fetch", "web_search", "web_download")}
    assert {name: (tool.category, tool.permission, tool.open_world) for name, tool in tools.items()} == {
        "web_fetch": ("web", Permission.READ_ONLY, True),
        "web_search": ("web", Permission.READ_ONLY, True),
        "web_download": ("editing", Permission.READ_WRITE, True),
    }
    assert {tool.access for tool in tools.values()} == {Access.NONE}
    reader = {"profiles": {"reader": {"permission": "read-only"}}, "profile": "reader"}
    async with Gateway.open(settings(tmp_path, {"allowed_hosts": ["*"]}, **reader)) as gateway:
        assert [entry.name for entry in gateway.catalog if entry.name.startswith("web_")] == ["web_fetch"]


@pytest.mark.parametrize("builtin", load("web"), ids=lambda each: each.tool.id)
def test_schemas_compile_and_say_only_what_matters(builtin: Any) -> None:
    tool = builtin.tool
    tool.compile()
    assert tool.input_schema["additionalProperties"] is False
    assert all("description" in each for each in tool.input_schema["properties"].values())
    assert "'title':" not in str(tool.input_schema) + str(tool.output_schema).replace("'title': {", "")
    assert 80 < len(tool.description) < 600


@pytest.mark.parametrize(
    ("web", "complaint"),
    [
        ({"allowed_hosts": ["https://a.test/"]}, r"web\.allowed_hosts: 'https://a\.test/' is not a host name"),
        ({"search": {"provider": "google"}}, r"web\.search\.provider"),
        ({"search": {"provider": "searxng"}}, "searxng needs 'url'"),
        ({"search": {"provider": "searxng", "url": "localhost:8888"}}, "must start with"),
        ({"search": {"provider": "brave"}}, r"brave needs 'key': write \$\{VAR\}"),
        ({"search": {"provider": "duckduckgo", "key": "x"}}, "takes no 'key'"),
        ({"allowed_host": []}, "did you mean 'allowed_hosts'"),
    ],
)
async def test_settings_that_cannot_be_are_refused_with_the_fix(
    tmp_path: Path, web: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(Invalid, match=complaint):
        async with Gateway.open(settings(tmp_path, web)):
            pass


def test_a_key_in_the_settings_is_not_shown() -> None:
    loaded = config.load(None, {"web": {"search": {"provider": "brave", "key": "hidden-key"}}})
    assert "hidden-key" not in repr(loaded) + str(loaded) + loaded.model_dump_json()


def test_a_process_that_reaches_no_web_loads_nothing_for_it() -> None:
    look = (
        "import sys, gateway.gateway; print([m for m in sys.modules if m in {'httpx2', 'selectolax'} or '.web.' in m])"
    )
    run = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert run.stdout.replace("'gateway.config.settings'", "").strip() == "[]"


async def test_a_page_is_fetched_through_the_whole_gateway(tmp_path: Path) -> None:
    page = answer(200, b"<h1>Hi</h1>", "Content-Type: text/html")
    async with serving({"/": page}) as site, Gateway.open(settings(tmp_path, here(site))) as gateway:
        outcome = await gateway.call("web_fetch", {"url": site["/"]})
        assert (outcome.error, outcome.value["body"]) == (None, "# Hi")
        refused = await gateway.call("web_fetch", {"url": "http://localhost/"})
        assert refused.error is not None
        assert refused.error.code == "HOST_NOT_ALLOWED"


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 5000


async def test_a_file_is_saved_as_a_version_of_the_workspace(tmp_path: Path) -> None:
    replies = {"/a.png": answer(200, PNG, "Content-Type: image/png"), "/empty": answer(200)}
    async with serving(replies) as site, Gateway.open(settings(tmp_path, here(site))) as gateway:
        outcome = await gateway.call("web_fetch", {"url": site["/a.png"]}, chat="demo")
        assert outcome.error is not None
        assert outcome.error.code == "NOT_TEXT"
        asked = {"url": site["/a.png"], "path": "img/a.png", "createDirs": True}
        outcome = await gateway.call("web_download", asked, chat="demo")
        assert outcome.error is None
        saved = {"path": "img/a.png", "size": len(PNG), "created": True, "contentType": "image/png"}
        assert outcome.value == {**saved, "url": site["/a.png"]}
        assert outcome.post_manifest not in (None, outcome.pre_manifest)
        root = gateway.workspaces.path("demo")
        assert (root / "img/a.png").read_bytes() == PNG
        history = await gateway.call("workspace_history", {}, chat="demo")
        assert history.value["versions"][0]["changes"]["added"]["paths"] == ["img/a.png"]
        outcome = await gateway.call("web_download", {"url": site["/empty"], "path": "e"}, chat="demo")
        assert (outcome.error, (root / "e").read_bytes()) == (None, b"")


async def test_a_file_that_is_there_is_overwritten_only_when_a_person_agrees(tmp_path: Path) -> None:
    async with serving({"/": answer(200, b"new")}) as site, Gateway.open(settings(tmp_path, here(site))) as gateway:
        root = gateway.workspaces.path("demo")
        (root / "a").write_bytes(b"old")
        arguments = {"url": site["/"], "path": "a"}
        refused = await gateway.call("web_download", arguments, chat="demo")
        assert refused.error is not None
        assert refused.error.code == "CONFIRMATION_REQUIRED"
        assert (root / "a").read_bytes() == b"old"
        assert site.asked == []
        agreed = await gateway.call("web_download", arguments, chat="demo", confirmed=True)
        assert (agreed.error, agreed.value["created"], (root / "a").read_bytes()) == (None, False, b"new")


async def test_an_ignored_file_that_a_download_overwrites_comes_back_by_undo(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / ".gitignore").write_text("*.local\n")
    (folder / "a.local").write_text("mine")
    async with (
        serving({"/": answer(200, b"new")}) as site,
        Gateway.open({**settings(tmp_path, here(site)), "workspace": folder}) as gateway,
    ):
        done = await gateway.call("web_download", {"url": site["/"], "path": "a.local"}, confirmed=True)
        assert done.ok and "a copy is kept for `toolgate workspace undo`" in str(done.content)
        assert (folder / "a.local").read_text() == "new"
        undone = await (await open_workspace(gateway)).undo()
        assert undone.restored is not None and (folder / "a.local").read_text() == "mine"


async def test_a_file_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (root / "a").write_bytes(b"mine")
        writer.write(answer(200, b"new"))

    async with serving({"/": slowly}) as site, Gateway.open(settings(tmp_path, here(site))) as gateway:
        root = gateway.workspaces.path("demo")
        outcome = await gateway.call("web_download", {"url": site["/"], "path": "a"}, chat="demo")
        assert outcome.error is not None
        assert (outcome.error.code, (root / "a").read_bytes()) == ("FILE_EXISTS", b"mine")


@pytest.mark.parametrize("path", ["../a", "/etc/a", "", "d", "l"])
async def test_no_path_leads_out_of_the_workspace(tmp_path: Path, path: str) -> None:
    async with serving({"/": answer(200, b"new")}) as site, Gateway.open(settings(tmp_path, here(site))) as gateway:
        root = gateway.workspaces.path("demo")
        (root / "d").mkdir()
        (root / "l").symlink_to(tmp_path / "outside")
        outcome = await gateway.call("web_download", {"url": site["/"], "path": path}, chat="demo", confirmed=True)
        assert outcome.error is not None
        assert outcome.error.status in (400, 403, 409)
        assert not (tmp_path / "outside").exists()


async def test_a_file_that_does_not_come_whole_leaves_nothing(tmp_path: Path) -> None:
    replies = {
        "/half": b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\nConnection: close\r\n\r\nhalf",
        "/large": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        "/gone": answer(404),
    }
    async with serving(replies) as site, Gateway.open(settings(tmp_path, here(site))) as gateway:
        root = gateway.workspaces.path("demo")
        for url, code in (("/half", "CONNECTION_LOST"), ("/large", "RESPONSE_TOO_LARGE"), ("/gone", "URL_NOT_FOUND")):
            outcome = await gateway.call("web_download", {"url": site[url], "path": "a"}, chat="demo")
            assert outcome.error is not None
            assert outcome.error.code == code
        assert list(root.iterdir()) == []
