"""Which sandbox is used, and what is said when there is none."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.config import SandboxSettings
from gateway.errors import Unavailable
from gateway.sandbox import Program, Sandbox, detect, seccomp
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

        monkeypatch.setattr(detect, "_candidates", offered)
        monkeypatch.setattr(detect, "_cached_survey", [])
        monkeypatch.setattr(detect, "_cached_unconfined", [])

    return offering


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where every user may look: root starts bubblewrap as another."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def refused_bwrap(folder: Path) -> Sandbox:
    """A bubblewrap on a machine that refuses it namespaces."""
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n[ $1 = --help ] && exec /usr/bin/bwrap --help\necho '{REFUSAL}' >&2\nexit 1\n")
    program.chmod(0o755)
    return Bubblewrap(str(program))


async def test_the_first_that_works_is_used_and_remembered(offer: Callable[[Candidates], None], folder: Path) -> None:
    make("landlock")
    offer([("bwrap", lambda: refused_bwrap(folder)), ("landlock", Landlock)])
    chosen = await detect.choose(SandboxSettings())
    assert chosen.name == "landlock"
    assert await detect.choose(SandboxSettings()) is chosen
    survey = await detect.survey()
    assert survey.sandbox is chosen
    assert survey.tried == (
        detect.FailedBackend("bwrap", "user namespaces are disabled here", f"the program did not start: {REFUSAL}"),
    )


async def test_without_a_sandbox_nothing_runs(offer: Callable[[Candidates], None], folder: Path) -> None:
    offer([("bwrap", lambda: refused_bwrap(folder)), ("landlock", no_landlock)])
    with pytest.raises(Unavailable) as refused:
        await detect.choose(SandboxSettings())
    assert refused.value.code == "SANDBOX_UNAVAILABLE"
    assert [tried["backend"] for tried in refused.value.details["tried"]] == ["bwrap", "landlock"]
    assert refused.value.details["tried"][0]["raw"].endswith(REFUSAL)
    assert any("apt install bubblewrap" in fix for fix in refused.value.details["fix"])


async def test_only_an_operator_can_do_without(
    offer: Callable[[Candidates], None], caplog: pytest.LogCaptureFixture
) -> None:
    offer([("landlock", no_landlock)])
    with caplog.at_level(logging.WARNING):
        chosen = await detect.choose(SandboxSettings(allow_unsandboxed=True))
        assert await detect.choose(SandboxSettings(allow_unsandboxed=True)) is chosen
    assert chosen.name == "unconfined"
    assert chosen.weaknesses
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert (await run(chosen, Program(("/bin/true",)), timeout=60)).exit.code == 0


async def test_this_machine_offers_one(offer: Callable[[Candidates], None]) -> None:
    make("bwrap")
    offer([("bwrap", Bubblewrap)])
    assert (await detect.choose(SandboxSettings())).name == "bwrap"


@pytest.mark.parametrize(
    ("printed", "meant"),
    [
        ("bwrap: setting up uid map: Permission denied", "AppArmor"),
        ("bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", "AppArmor"),
        ("bwrap: Creating new namespace failed: Resource temporarily unavailable", "user namespaces are disabled"),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "forbids mounting /proc"),
        ("bubblewrap is not installed", "not installed"),
        ("bwrap: something new", "bwrap: something new"),
    ],
)
def test_what_bubblewrap_says_is_put_in_words(printed: str, meant: str) -> None:
    assert meant in detect._cause(printed)


def no_landlock() -> Sandbox:
    raise unavailable("the kernel has no Landlock")


def test_a_kernel_says_what_its_landlock_can_do() -> None:
    assert version() >= 0


BARREN = """
import asyncio, ctypes, json, struct, sys
from pathlib import Path
from gateway.config import SandboxSettings
from gateway.errors import Unavailable
from gateway.sandbox import Mount, Program
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.detect import choose
from gateway.sandbox.supervisor_main import install, libc

def refused(number, error, bits=None):
    flags = [] if bits is None else [(0x20, 0, 0, 16), (0x45, 0, 1, bits)]
    return [(0x15, 0, len(flags) + 1 + (bits is not None), number), *flags, (6, 0, 0, 0x50000 | error)] + (
        [] if bits is None else [(6, 0, 0, 0x7FFF0000)]
    )

def barren():
    arm = __import__("platform").machine() == "aarch64"
    filter = [(0x20, 0, 0, 0), *refused(444, 38), *refused(435, 38), *refused(97 if arm else 272, 1)]
    filter += [*refused(220 if arm else 56, 1, 0x7E020000), (6, 0, 0, 0x7FFF0000)]
    libc.prctl(38, 1, 0, 0, 0)
    install(b"".join(struct.pack("<HBBI", *line) for line in filter))

async def main(folder):
    told = []
    try:
        await choose(SandboxSettings())
    except Unavailable as error:
        told.append([error.code, [tried["backend"] for tried in error.details["tried"]], len(error.details["fix"])])
    program = Program(("/usr/bin/touch", "ran"), mounts=(Mount(folder, "/w", writable=True),), cwd="/w")
    try:
        await (await Bubblewrap().start(program)).wait()
    except Unavailable as error:
        told.append(error.code)
    print(json.dumps(told))

barren()
asyncio.run(main(Path(sys.argv[1])))
"""


async def test_on_a_machine_that_refuses_every_sandbox_nothing_runs(tmp_path: Path) -> None:
    """The kernel itself refuses namespaces and Landlock to this gateway."""
    if not seccomp.is_supported():
        pytest.skip("no filter for this kind of machine")
    make("bwrap")
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BARREN, str(tmp_path), stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    output, _ = await gateway.communicate()
    refusal, direct = json.loads(output)
    assert refusal == ["SANDBOX_UNAVAILABLE", ["bwrap", "landlock"], len(detect.FIXES)]
    assert direct == "SANDBOX_UNAVAILABLE"
    assert list(tmp_path.iterdir()) == []
