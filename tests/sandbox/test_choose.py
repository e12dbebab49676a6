"""Which sandbox is used, and what is said when there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.config import SandboxSettings
from gateway.errors import Unavailable
from gateway.sandbox import Program, Sandbox, choose
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.landlock import Landlock, version
from gateway.sandbox.process import unavailable
from gateway.sandbox.run import run

from .conftest import make

pytestmark = pytest.mark.anyio
Candidates = list[tuple[str, Callable[[], Sandbox]]]
REFUSAL = "bwrap: No permissions to create new namespace, likely because the kernel does not allow it"


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Candidates], None]:
    """Makes this a machine with those sandboxes, of which nothing is known yet."""

    def offering(candidates: Candidates) -> None:
        def offered() -> Iterator[tuple[str, Callable[[], Sandbox]]]:
            yield from candidates

        monkeypatch.setattr(choose, "_candidates", offered)
        monkeypatch.setattr(choose, "_known", [])
        monkeypatch.setattr(choose, "_allowed", [])

    return offering


def refused_bwrap(folder: Path) -> Sandbox:
    """A bubblewrap on a machine that refuses it namespaces."""
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n[ $1 = --help ] && exec /usr/bin/bwrap --help\necho '{REFUSAL}' >&2\nexit 1\n")
    program.chmod(0o755)
    return Bubblewrap(str(program))


async def test_the_first_that_works_is_used_and_remembered(offer: Callable[[Candidates], None], tmp_path: Path) -> None:
    make("landlock")
    offer([("bwrap", lambda: refused_bwrap(tmp_path)), ("landlock", Landlock)])
    chosen = await choose.choose(SandboxSettings())
    assert chosen.name == "landlock"
    assert await choose.choose(SandboxSettings()) is chosen
    survey = await choose.survey()
    assert survey.sandbox is chosen
    assert survey.tried == (
        choose.Tried("bwrap", "user namespaces are disabled here", f"the program does not start: {REFUSAL}"),
    )


async def test_without_a_sandbox_nothing_runs(offer: Callable[[Candidates], None], tmp_path: Path) -> None:
    offer([("bwrap", lambda: refused_bwrap(tmp_path)), ("landlock", no_landlock)])
    with pytest.raises(Unavailable) as refused:
        await choose.choose(SandboxSettings())
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
    assert [tried["backend"] for tried in refused.value.details["tried"]] == ["bwrap", "landlock"]
    assert refused.value.details["tried"][0]["raw"].endswith(REFUSAL)
    assert any("apt install bubblewrap" in fix for fix in refused.value.details["fix"])


async def test_only_an_operator_can_do_without(
    offer: Callable[[Candidates], None], caplog: pytest.LogCaptureFixture
) -> None:
    offer([("landlock", no_landlock)])
    with caplog.at_level(logging.WARNING):
        chosen = await choose.choose(SandboxSettings(allow_unsandboxed=True))
        assert await choose.choose(SandboxSettings(allow_unsandboxed=True)) is chosen
    assert chosen.name == "unconfined"
    assert chosen.weaknesses
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert (await run(chosen, Program(("/bin/true",)), timeout=10)).exit.code == 0


async def test_this_machine_offers_one(offer: Callable[[Candidates], None]) -> None:
    make("bwrap")
    offer([("bwrap", Bubblewrap)])
    assert (await choose.choose(SandboxSettings())).name == "bwrap"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("bwrap: setting up uid map: Permission denied", "AppArmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor"),
        ("bwrap: Creating new namespace failed: Resource temporarily unavailable", "user namespaces are disabled"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "forbids mounting /proc"),
        ("bubblewrap is not installed", "not installed"),
        ("bwrap: something new", "bwrap: something new"),
    ],
)
def test_what_bubblewrap_says_is_put_in_words(said: str, meant: str) -> None:
    assert meant in choose._cause(said)


def no_landlock() -> Sandbox:
    raise unavailable("the kernel has no Landlock")


def test_a_kernel_says_what_its_landlock_can_do() -> None:
    assert version() >= 0
