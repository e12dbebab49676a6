"""A toolset's own packages: from a real registry where one is reachable, and refusals where none is needed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventually import async_eventually

from gateway.errors import GatewayError, Invalid, Unavailable
from gateway.runtime import PackageEnvironments, uv
from gateway.runtime.environments import digest_of

from .conftest import Bench

pytestmark = pytest.mark.anyio

TINY = ("iniconfig>=2",)


@pytest.fixture
async def environments(tmp_path: Path) -> AsyncIterator[PackageEnvironments]:
    made = PackageEnvironments(tmp_path / "environments")
    yield made
    await made.close()


async def installed(environments: PackageEnvironments, requirements: tuple[str, ...] = TINY) -> Path:
    """The packages; the test is skipped where no registry can be reached."""
    try:
        folder = await environments.ensure(requirements)
    except Unavailable as error:
        pytest.skip(f"no packages can be had here: {error.message}")
    assert folder is not None
    return folder


async def test_nothing_required_is_nothing_installed(environments: PackageEnvironments, tmp_path: Path) -> None:
    assert await environments.ensure(()) is None
    assert not (tmp_path / "environments").exists()


@pytest.mark.slow
async def test_packages_are_locked_by_hash_and_found_by_the_tool(boxed: Bench) -> None:
    await installed(boxed.runtime.environments)
    boxed.write("""
        import iniconfig
        import os
        from importlib.metadata import version

        def run():
            return [version("iniconfig"), sorted(name for name in os.environ if name.startswith("UV_"))]
    """)
    seen, variables = await boxed.runtime.call(boxed.job("run", {}, requirements=TINY))
    assert variables == []
    lock = (boxed.folder / "runtime/environments" / digest_of(TINY) / "lock.txt").read_text()
    assert f"iniconfig=={seen}" in lock and "--hash=sha256:" in lock


@pytest.mark.slow
async def test_the_second_who_needs_the_same_finds_it(environments: PackageEnvironments, tmp_path: Path) -> None:
    told: list[str | None] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        told.append(message)

    first = await installed(environments)
    other = PackageEnvironments(tmp_path / "environments")
    assert await other.ensure(TINY, progress) == first
    assert told == []
    assert (first / "iniconfig/__init__.py").is_file()


@pytest.mark.slow
async def test_two_processes_building_the_same_build_it_once(environments: PackageEnvironments, tmp_path: Path) -> None:
    await installed(environments)
    fresh = tmp_path / "fresh"
    told: list[str | None] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        told.append(message)

    both = [PackageEnvironments(fresh), PackageEnvironments(fresh)]
    folders = await asyncio.gather(*(each.ensure(TINY, progress) for each in both))
    assert folders[0] == folders[1]
    steps = [message for message in told if not (message or "").startswith("packages: ")]
    assert steps == ["resolving packages…", "installing 1 package…", "packages installed"]
    assert any((message or "").startswith("packages: + iniconfig==") for message in told)
    assert [path.name for path in fresh.iterdir() if path.name.endswith(".aside")] == []


@pytest.mark.slow
async def test_a_build_that_was_killed_leaves_nothing_that_looks_whole(
    environments: PackageEnvironments, tmp_path: Path
) -> None:
    await installed(environments)
    folder = tmp_path / "killed"
    code = (
        "import asyncio, sys; from pathlib import Path; from gateway.runtime import PackageEnvironments\n"
        f"asyncio.run(PackageEnvironments(Path(sys.argv[1])).ensure({TINY!r}))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(folder), cwd=Path(__file__).parents[2]
    )
    await async_eventually(lambda: list(folder.glob("*.aside")))
    process.kill()
    await process.wait()
    assert not (folder / digest_of(TINY)).exists()
    again = PackageEnvironments(folder)
    assert await again.ensure(TINY) is not None
    assert list(folder.glob("*.aside")) == []


@pytest.mark.slow
async def test_a_sweep_keeps_what_is_named_and_removes_the_rest(
    environments: PackageEnvironments, tmp_path: Path
) -> None:
    kept = await installed(environments)
    other = await installed(environments, ("iniconfig<99", "iniconfig>=2"))
    leftover = tmp_path / "environments" / f"{digest_of(TINY)}.dead.aside"
    leftover.mkdir()
    assert environments.sweep({digest_of(TINY)}) == [digest_of(("iniconfig<99", "iniconfig>=2"))]
    assert kept.is_dir()
    assert not other.exists()
    assert not leftover.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requirement", "told"),
    [
        ("iniconfig==99.99", "there is no version of iniconfig==99.99"),
        ("a-package-that-nobody-ever-wrote-1729", "there is no package 'a-package-that-nobody-ever-wrote-1729'"),
        ("docopt==0.6.2", "sandbox.allow_source_packages"),
    ],
)
async def test_what_cannot_be_had_is_refused_readably(
    environments: PackageEnvironments, requirement: str, told: str
) -> None:
    await installed(environments)
    with pytest.raises(Invalid, match=told) as refused:
        await environments.ensure((requirement,))
    assert refused.value.code == "DEPENDENCY_FAILED"
    assert "\n" not in refused.value.message


@pytest.mark.slow
async def test_a_registry_that_does_not_answer_is_said_to_be_unavailable(
    environments: PackageEnvironments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(Unavailable) as refused:
        await environments.ensure(TINY)
    assert refused.value.code == "DEPENDENCY_FAILED"
    assert "secret" not in str(refused.value.to_dict())


async def test_a_cancelled_caller_does_not_stop_the_build_and_closing_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "uv"
    slow.write_text("#!/bin/sh\ntouch started\nsleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(uv, "find", lambda: str(slow))
    environments = PackageEnvironments(tmp_path / "environments")
    caller = asyncio.ensure_future(environments.ensure(TINY))
    await async_eventually(lambda: list((tmp_path / "environments").glob("*.aside")))
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    assert list((tmp_path / "environments").glob("*.aside"))
    await environments.close()
    assert not list((tmp_path / "environments").glob("*.aside"))


async def test_without_uv_the_refusal_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GatewayError, match="pip install uv") as refused:
        await PackageEnvironments(tmp_path / "environments").ensure(TINY)
    assert refused.value.code == "DEPENDENCY_FAILED"


def test_the_programs_environment_carries_no_secrets_of_ours() -> None:
    names = ["PATH", "UV_INDEX_URL", "https_proxy", "API_KEY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH"]
    assert [name for name in names if uv.inherits(name)] == ["PATH", "UV_INDEX_URL", "https_proxy"]
