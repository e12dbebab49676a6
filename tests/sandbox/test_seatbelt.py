"""The profile for macOS, as text: elsewhere there is nothing that could obey it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from gateway.errors import Invalid, Unavailable
from gateway.net.policy import NetworkPolicy
from gateway.sandbox import Mount, Program
from gateway.sandbox.run import run
from gateway.sandbox.seatbelt import EXECUTABLE, Seatbelt, profile

SCRATCH = Path("/private/tmp/toolgate-1")


def made(**options: object) -> str:
    return profile(Program(("/bin/true",), **options), SCRATCH)  # type: ignore[arg-type]


def rule(text: str, rights: str) -> str:
    """What is allowed of a right."""
    return "".join(re.findall(rf"^\(allow {re.escape(rights)}\n((?:  \(.*\n?)*)", text, re.MULTILINE))


def test_all_is_refused_that_is_not_named() -> None:
    text = made()
    assert text.startswith("(version 1)\n(deny default)\n")
    assert "network" not in text
    assert "(allow default)" not in text
    assert not re.search(
        r'\((subpath|literal) "/(Users|private|private/var|Library|private/etc|etc)"\)',
        rule(text, "file-read* file-map-executable"),
    )


def test_reads_and_writes_are_what_the_program_was_given(tmp_path: Path) -> None:
    folder, other = tmp_path / "ws", tmp_path / "given"
    folder.mkdir()
    other.mkdir()
    text = made(
        mounts=(Mount(folder, "/workspace", writable=True), Mount(other, "/given")), readable=(Path("/opt/python"),)
    )
    read, written = rule(text, "file-read* file-map-executable"), rule(text, "file-write*")
    for path in (folder, other, Path("/opt/python"), SCRATCH):
        assert f'(subpath "{path}")' in read
    assert [line.strip(" ()") for line in written.splitlines() if line] == [
        f'subpath "{folder}"',
        f'subpath "{SCRATCH}"',
    ]
    assert f'(literal "{tmp_path}")' in rule(text, "file-read-metadata")


def test_a_name_that_is_a_link_is_given_with_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    written = rule(made(mounts=(Mount(tmp_path / "link", "/w", writable=True),)), "file-write*")
    assert f'"{tmp_path}/real"' in written
    assert f'"{tmp_path}/link"' in written


def test_a_path_cannot_become_a_rule() -> None:
    evil = Path('/x") (subpath "/y')
    assert '(subpath "/x\\") (subpath \\"/y")' in made(readable=(evil,))
    assert '(subpath "/back\\\\slash")' in made(readable=(Path("/back\\slash"),))
    with pytest.raises(Invalid):
        made(readable=(Path("/two\nlines"),))


def test_parentheses_are_balanced(tmp_path: Path) -> None:
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', made(mounts=(Mount(tmp_path, "/w", writable=True),)))
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0


def test_without_the_program_there_is_no_such_sandbox(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        Seatbelt(str(tmp_path / "sandbox-exec"))


@pytest.mark.anyio
async def test_a_network_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "sandbox-exec"
    program.touch(0o755)
    if os.geteuid() == 0:
        with pytest.raises(Unavailable, match="root"):
            Seatbelt(str(program))
        return
    with pytest.raises(Unavailable) as refused:
        await Seatbelt(str(program)).start(Program(("/bin/true",), network=NetworkPolicy()))
    assert refused.value.code == "NETWORK_UNAVAILABLE"


@pytest.mark.anyio
@pytest.mark.skipif(sys.platform != "darwin", reason=f"{EXECUTABLE} is a program of macOS")
async def test_on_macos_it_holds(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "secret").write_text("secret")
    mount = Mount(tmp_path.resolve() / "ws", "/w", writable=True)
    code = f"echo in > file; cat {tmp_path}/secret; echo out > {tmp_path}/planted; echo done"
    finished = await run(
        Seatbelt(), Program(("/bin/sh", "-c", code), mounts=(mount,), cwd=str(mount.source)), timeout=20
    )
    assert finished.stdout == b"done\n"
    assert (tmp_path / "ws/file").exists()
    assert not (tmp_path / "planted").exists()
