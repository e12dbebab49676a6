"""MCP servers of a toolset on the command line: nothing starts one before a person agreed, and then they are there."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from click.testing import CliRunner
from eventually import TIMEOUT
from journeys.servers.marks import Marks
from sources.toolset.writing import require_sandbox

from gateway.cli import toolgate

pytestmark = [pytest.mark.timeout(600), pytest.mark.promise("T6"), pytest.mark.slow]

LOOKING = (
    "toolset list",
    "toolset show marks",
    "toolset check marks",
    "toolset export marks -o out.zip",
    "toolset disable marks",
    "toolset enable marks",
    "doctor",
    "tool list",
    "tool show read_file",
    "upstream list",
    "call list",
    "approval list",
    "workspace log",
)
QUESTION = "May Toolgate start this program (marker)? [y/N]:"


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Marks:
    monkeypatch.chdir(tmp_path)
    return Marks(tmp_path)


def invoke(marks: Marks, command: str, refused: str = "") -> str:
    """What a command prints, run in this process to save time; with `refused`, what it must be refused with."""
    done = CliRunner().invoke(toolgate, command.split(), env=marks.environment)
    assert refused in str(done.exception) if refused else done.exit_code == 0, (command, done.output, done.exception)
    return done.stdout


def look_around(marks: Marks) -> None:
    for command in LOOKING:
        invoke(marks, command)


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, marks: Marks, *arguments: str) -> None:
        self._terminal, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *arguments],
            cwd=marks.home,
            env=marks.environment,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self.shown = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while text not in self.shown:
            ready, _, _ = select.select([self._terminal], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{text!r} never came:\n{self.shown}"
            assert self._read(), f"the command ended without {text!r}:\n{self.shown}"

    def answer(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def finish(self) -> str:
        """Everything that was shown, after the command has ended well."""
        while self._read():
            pass
        assert self.process.wait(TIMEOUT) == 0, self.shown
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def _read(self) -> bool:
        try:
            chunk = os.read(self._terminal, 65536)
        except OSError:  # how Linux reports that the other side is closed
            return False
        self.shown += chunk.decode()
        return bool(chunk)


@contextmanager
def at_terminal(marks: Marks, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(marks, *arguments)
    try:
        yield terminal
    finally:
        terminal.close()


def test_a_toolsets_server_is_started_by_no_command_before_consent(marks: Marks) -> None:
    anyio.run(require_sandbox)
    installed = marks.toolgate("toolset", "install", "marks").stdout
    assert f"{sys.executable} -S -E server.py first" in installed
    assert "WHERE='${HOME}'" in installed
    assert "WARNING: outside the sandbox, with all rights of your account" in installed
    assert "held back, not started or connected: marker" in installed
    assert "toolgate toolset allow marks" in installed
    assert json.loads(invoke(marks, "tool call marks__say text=hi")) == {"said": "hi"}
    look_around(marks)
    assert "on; servers held back: 1" in invoke(marks, "toolset list")
    assert "toolset allow marks" in invoke(marks, "doctor")
    assert "held back" in invoke(marks, "upstream list")
    invoke(marks, "upstream test")
    invoke(marks, "upstream test marker", refused="toolset allow marks")
    invoke(marks, "upstream add marker -- true", refused="a toolset brings an upstream 'marker'")
    invoke(marks, "tool call marker__who", refused="UNKNOWN_TOOL")
    invoke(marks, "toolset allow marks", refused="use --yes")
    assert "1 problem with tools; 'toolgate doctor' lists them" in marks.toolgate("tool", "list").stderr
    assert marks.starts == 0
    invoke(
        marks, "upstream add marker --no-test -- true", refused="choose another name, or: toolgate toolset uninstall"
    )
    invoke(marks, "toolset uninstall marks")
    invoke(marks, "upstream add marker --no-test -- true")


def test_an_allowed_server_is_connected_to_once_and_then_remembered(marks: Marks) -> None:
    marks.write(tools=False)
    assert "marker is allowed; 1 tools" in marks.toolgate("toolset", "install", "marks", "--yes").stdout
    assert marks.starts == 1
    assert "pid" in invoke(marks, "tool call marker__who --json")
    assert marks.starts == 2
    look_around(marks)
    assert "marker__who" in invoke(marks, "tool list")
    [server] = json.loads(invoke(marks, "toolset show marks --json"))["servers"]
    assert (server["state"], server["agreed"]["by"].partition(",")[2]) == ("allowed", " --yes")
    with sqlite3.connect(marks.home / ".local/share/toolgate/toolgate.db") as connection:
        connection.execute("DELETE FROM upstream_memory")
    look_around(marks)
    assert marks.starts == 2
    assert "pid" in invoke(marks, "tool call marker__who --json")
    assert marks.starts == 3
    assert "held back from now on: marker" in invoke(marks, "toolset disallow marks")
    invoke(marks, "tool call marker__who", refused="UNKNOWN_TOOL")
    assert marks.starts == 3


def test_the_question_is_asked_at_a_terminal_and_again_after_each_change(marks: Marks) -> None:
    marks.write(tools=False)
    with at_terminal(marks, "toolset", "install", "marks") as terminal:
        terminal.answer("y\n")  # typed before the question: no answer to it
        terminal.read_until(QUESTION)
        assert "server.py first" in terminal.shown
        terminal.answer("n\n")
        assert "toolgate toolset allow marks" in terminal.finish()
    assert marks.starts == 0
    with at_terminal(marks, "toolset", "allow", "marks") as terminal:
        terminal.read_until(QUESTION)
        terminal.answer("y\n")
        assert "marker is allowed; 1 tools" in terminal.finish()
    assert marks.starts == 1
    with at_terminal(marks, "toolset", "install", "marks") as terminal:
        assert "unchanged" in terminal.finish()
    for code in ("", "# another\n"):  # first the arguments change, then the program alone
        marks.write(argument="second", code=code, tools=False)
        before = marks.starts
        with at_terminal(marks, "toolset", "install", "marks") as terminal:
            terminal.read_until(QUESTION)
            assert marks.starts == before
            invoke(marks, "tool call marker__who", refused="UNKNOWN_TOOL")
            terminal.answer("y\n")
            terminal.finish()
        assert marks.starts == before + 1


def test_a_server_stays_held_back_when_the_question_is_killed(marks: Marks) -> None:
    marks.write(tools=False)
    with at_terminal(marks, "toolset", "install", "marks") as terminal:
        terminal.read_until(QUESTION)
        terminal.process.send_signal(signal.SIGKILL)
        terminal.process.wait()
    [server] = json.loads(invoke(marks, "toolset show marks --json"))["servers"]
    assert server["state"] == "held back"
    assert marks.starts == 0


def test_two_processes_can_allow_a_server_at_once(marks: Marks) -> None:
    marks.write(tools=False)
    marks.toolgate("toolset", "install", "marks")
    command = [sys.executable, "-m", "gateway", "toolset", "allow", "marks", "--yes"]
    both = [
        subprocess.Popen(command, cwd=marks.home, env=marks.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    shown = [process.communicate(timeout=TIMEOUT)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], shown
    [server] = json.loads(invoke(marks, "toolset show marks --json"))["servers"]
    assert server["state"] == "allowed"
