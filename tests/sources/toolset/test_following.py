"""A toolset still being written: edits are offered within a second, bad ones change nothing, nor do other folders."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT, async_eventually

from gateway import Gateway
from gateway.cli.logs import EVENTS

from .writing import require_sandbox, write_toolset

pytestmark = pytest.mark.anyio

MANIFEST = "id: lab\nname: Lab\nversion: 1.0.0\ntools:\n  - {{id: {tool}, entrypoint: 'code:{tool}'}}\n"
CODE = '''
from covalt_toolset import tool

@tool(access="none")
def {tool}() -> int:
    """One."""
    return {value}
'''


def edit(folder: Path, tool: str, value: object) -> Path:
    return write_toolset(folder, MANIFEST.format(tool=tool), code=CODE.format(tool=tool, value=value))


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    await require_sandbox()
    edit(tmp_path / "lab", "one", 1)
    settings = {"data_dir": str(tmp_path / "data"), "toolsets": [str(tmp_path / "lab")]}
    async with Gateway.open(settings, follow=True) as gateway:
        await watched(gateway, tmp_path / "lab")
        yield gateway


async def watched(gateway: Gateway, folder: Path) -> None:
    """Wait until the folder is watched: until writing the same manifest again makes the follower install it."""
    library, installed = gateway.toolsets.library, asyncio.Event()
    install = library.install

    async def noticed(*arguments: Any, **options: Any) -> Any:
        installed.set()
        return await install(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "install", noticed)
        manifest = folder / "toolset.yaml"
        with anyio.fail_after(TIMEOUT):
            while not installed.is_set():
                manifest.write_text(manifest.read_text())
                with anyio.move_on_after(1):
                    await installed.wait()


def offered(gateway: Gateway) -> set[str]:
    return {entry.tool.id for entry in gateway.catalog if entry.tool.owner}


@pytest.mark.slow
async def test_an_edit_is_offered_and_announced(gateway: Gateway, tmp_path: Path) -> None:
    reports: list[set[str]] = []
    gateway.executor.watch(lambda catalog: reports.append({entry.tool.id for entry in catalog if entry.tool.owner}))
    assert (await gateway.call("lab:one")).value == 1
    edit(tmp_path / "lab", "two", 2)
    await async_eventually(lambda: offered(gateway) == {"lab:two"})
    assert reports[-1] == {"lab:two"}
    assert (await gateway.call("lab:two")).value == 2


@pytest.mark.slow
async def test_only_the_code_changes_and_the_next_call_runs_it(gateway: Gateway, tmp_path: Path) -> None:
    assert (await gateway.call("lab:one")).value == 1
    edit(tmp_path / "lab", "one", 11)
    digests = {gateway.catalog.find("lab:one").tool.home}
    await async_eventually(lambda: gateway.catalog.find("lab:one").tool.home not in digests)
    assert (await gateway.call("lab:one")).value == 11


async def test_a_bad_edit_changes_nothing_until_it_is_mended(
    gateway: Gateway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, EVENTS[-1])
    (tmp_path / "lab/tools/code.py").write_text("def one(:\n")
    await async_eventually(lambda: "stays as it was" in caplog.text)
    await async_eventually(lambda: "code.py line 1" in caplog.text)  # a file may be read while it is being written
    assert (await gateway.call("lab:one")).value == 1
    edit(tmp_path / "lab", "two", 2)
    await async_eventually(lambda: offered(gateway) == {"lab:two"})
    assert f"the toolset in {tmp_path / 'lab'} is valid again, and offered as it is now" in caplog.text


@pytest.mark.slow
async def test_what_another_process_does_is_noticed(gateway: Gateway, tmp_path: Path) -> None:
    other = write_toolset(
        tmp_path / "other",
        MANIFEST.format(tool="three").replace("id: lab", "id: other"),
        code=CODE.format(tool="three", value=3),
    )
    async with Gateway.open({"data_dir": str(gateway.settings.data_dir)}) as second:
        library = second.toolsets.library
        await library.install(other, source_type="local", source_ref=str(other))
        await async_eventually(lambda: "other:three" in offered(gateway))
        await library.enable("other", False)
        await async_eventually(lambda: "other:three" not in offered(gateway))
        await library.uninstall("lab")
        await async_eventually(lambda: not offered(gateway))
