"""run_code and run_command: what a program is given, what it may not have, and what is told of its end."""

from __future__ import annotations

import asyncio
import json
import socket
import uuid
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIME_LIMITS, TIMEOUT, async_eventually
from sandbox.siege import running

from gateway.sources.builtin.code import call_context

from .tool_client import ToolClient, open_client, opened

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C2")]


async def python(client: ToolClient, code: str, **more: Any) -> Any:
    return await client.value("run_code", language="python", code=code, **more)


async def bash(client: ToolClient, code: str, **more: Any) -> Any:
    return await client.value("run_code", language="bash", code=code, **more)


async def test_python_answers_with_all_that_is_promised(client: ToolClient) -> None:
    code = "import sys\nprint(sys.argv[1:])\nprint('no', file=sys.stderr)\nsys.exit(3)"
    outcome = await client.call("run_code", language="python", code=code, args=["a b", "$c"])
    value = outcome.value
    assert isinstance(value.pop("duration"), int)
    assert value == {
        "stdout": "['a b', '$c']\n",
        "stderr": "no\n",
        "exitCode": 3,
        "timedOut": False,
        "killed": None,
        "stdoutTruncated": False,
        "stderrTruncated": False,
        "sandbox": client.code_tools._host.sandbox.name,  # type: ignore[union-attr]
    }
    assert outcome.content is not None
    assert outcome.content[0]["text"].startswith("['a b', '$c']\n[stderr]\nno\n[exit code 3, ")


async def test_bash_gets_arguments_and_keeps_its_stdin(client: ToolClient) -> None:
    value = await bash(
        client, 'read line || echo "nothing to read"\necho "$0 $1 $#"\nno-such-program', args=["x y", "z"]
    )
    assert value["stdout"] == "nothing to read\nmain.sh x y 2\n"
    assert value["stderr"] == "main.sh: line 3: no-such-program: command not found\n"
    assert value["exitCode"] == 127


async def test_a_long_program_fits(client: ToolClient) -> None:
    padding = "# " + "x" * 400_000
    assert (await bash(client, f"{padding}\necho bash"))["stdout"] == "bash\n"
    assert (await python(client, f"{padding}\nprint('python')"))["stdout"] == "python\n"


async def test_a_traceback_shows_the_program_and_nothing_of_ours(client: ToolClient) -> None:
    value = await python(client, "def f():\n    return 1 / 0\n\nf()\n")
    assert value["exitCode"] == 1
    assert "return 1 / 0" in value["stderr"]
    assert value["stderr"].count("  File ") == 2


async def test_variables_are_set_and_ours_are_not_there(client: ToolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "of the gateway")
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    seen = json.loads((await python(client, code, env={"COLOUR": "red = blue"}))["stdout"])
    assert seen["COLOUR"] == "red = blue"
    assert "SECRET" not in seen
    assert (await bash(client, 'echo "$COLOUR$SECRET"', env={"COLOUR": "red"}))["stdout"] == "red\n"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "BASH_ENV", "ENV", "A=B", "", "a b", "DYLD_X"])
async def test_a_variable_that_would_run_something_else_is_refused(tmp_path: Path, name: str) -> None:
    async with open_client(tmp_path) as at:
        for language in ("python", "bash"):
            error = await at.refusal("run_code", language=language, code="", env={name: "x"})
            assert error.code == "INVALID_ENVIRONMENT"
            assert repr(name) in error.message


async def test_a_nul_character_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        for arguments in ({"code": "a\0b"}, {"code": "", "args": ["\0"]}, {"code": "", "env": {"A": "\0"}}):
            assert (await at.refusal("run_code", language="bash", **arguments)).status == 400


async def test_what_no_program_could_be_started_with_is_refused(tmp_path: Path) -> None:
    async with open_client(tmp_path) as at:
        for language in ("bash", "python"):
            for arguments in ({"args": ["x" * 200_000]}, {"args": ["x" * 90_000] * 9}, {"env": {"A": "ü" * 90_000}}):
                assert (await at.refusal("run_code", language=language, code="", **arguments)).code == "TOO_LARGE"


async def test_an_environment_that_leads_elsewhere_is_passed_over(client: ToolClient, tmp_path: Path) -> None:
    for target in ("/nowhere", str(tmp_path)):
        (client.folder / ".venv").symlink_to(target)
        assert (await python(client, "print(1)"))["stdout"] == "1\n"
        (client.folder / ".venv").unlink()
    (client.folder / ".venv/bin").mkdir(parents=True)
    (client.folder / ".venv/pyvenv.cfg").touch()
    (client.folder / ".venv/bin/python").symlink_to(tmp_path / "python")
    assert (await python(client, "print(1)"))["stdout"] == "1\n"


async def test_the_workspace_is_there_to_read_and_write_and_to_import_from(client: ToolClient) -> None:
    (client.folder / "mine.py").write_text("ANSWER = 42\n")
    value = await python(
        client, "import mine; open('out.txt', 'w').write(str(mine.ANSWER)); print(open('mine.py').read())"
    )
    assert value["stdout"] == "ANSWER = 42\n\n"
    assert (client.folder / "out.txt").read_text() == "42"
    assert sorted(path.name for path in client.folder.iterdir()) == ["mine.py", "out.txt"], "no traces beside it"
    await bash(client, "cat out.txt > copy.txt; mkdir made; chmod +x copy.txt")
    assert (client.folder / "copy.txt").read_text() == "42"


async def test_nothing_else_of_the_machine_is_there(client: ToolClient, tmp_path: Path) -> None:
    secret = tmp_path / "data" / "secret"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("hidden")
    (client.folder / "link").symlink_to(secret)
    control = await bash(client, "cat link/.. 2>&1; echo ran")
    assert control["stdout"].endswith("ran\n")
    for path in (str(secret), "link", "../data/secret", "/etc/shadow"):
        value = await bash(client, 'cat "$1"', args=[path])
        assert (value["stdout"], value["exitCode"]) == ("", 1), path
    value = await bash(client, 'echo x > "$1/new"', args=[str(tmp_path)])
    assert value["exitCode"] != 0
    assert not (tmp_path / "new").exists()


async def test_the_packages_of_the_gateway_are_not_there(client: ToolClient) -> None:
    for module in ("gateway", "pydantic", "anyio"):
        value = await python(client, f"import {module}")
        assert "ModuleNotFoundError" in value["stderr"]


async def test_there_is_no_network(client: ToolClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=5)"
        value = await python(client, code)
    assert value["exitCode"] == 1, value
    assert "Error" in value["stderr"]


async def test_code_may_use_the_loopback_of_its_own_network(tmp_path: Path) -> None:
    code = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"), daemon=True).start()
print(socket.create_connection(server.getsockname(), 30).recv(5).decode())
"""
    async with open_client(tmp_path, "bwrap") as client:  # only there a program has one
        assert (await python(client, code))["stdout"] == "hello\n"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import urllib.request\nurllib.request.urlopen('http://example.org')"),
        ("bash", "curl -sS http://example.org || git ls-remote http://example.org/a.git"),
    ],
)
async def test_an_error_for_want_of_a_network_names_the_setting(client: ToolClient, language: str, code: str) -> None:
    outcome = await client.call("run_code", language=language, code=code)
    assert outcome.content is not None
    last = outcome.content[0]["text"].splitlines()[-1]
    assert last == "[programs have no network here; the operator turns it on with sandbox.network: true]", outcome
    outcome = await client.call("run_code", language="python", code="print('resolve host'); 1/0")
    assert outcome.content is not None
    assert "network" not in outcome.content[0]["text"]


async def test_what_takes_too_long_is_ended_and_what_it_said_is_kept(client: ToolClient) -> None:
    for run, code in (
        (python, "print('begun')\nwhile True: pass"),
        (bash, "trap '' TERM INT; echo begun; sleep 600"),
    ):
        for seconds in TIME_LIMITS:
            value = await run(client, code, timeout=seconds)
            assert (value["exitCode"], value["timedOut"], value["killed"]) == (124, True, "timeout")
            if value["stdout"]:
                break
        assert value["stdout"] == "begun\n"


async def test_more_time_than_the_operator_allows_is_refused(tmp_path: Path) -> None:
    async with open_client(tmp_path, sandbox={"timeout": 5}) as at:
        error = await at.refusal("run_code", language="bash", code="", timeout=6)
        assert error.code == "INVALID_ARGUMENTS"
        assert at.tools["run_code"].input_schema["properties"]["timeout"]["maximum"] == 5


async def test_a_signal_is_told_as_a_shell_tells_it(client: ToolClient) -> None:
    value = await python(client, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert (value["exitCode"], value["killed"]) == (139, None)
    assert (await bash(client, "exit 255"))["exitCode"] == 255


async def test_memory_is_limited(tmp_path: Path) -> None:
    async with open_client(tmp_path, sandbox={"memory_mb": 128}) as at:
        value = await python(at, "print('begun')\nkept = [b'x' * 2**20 for _ in range(4000)]\nprint('survived')")
        assert value["stdout"] == "begun\n"
        assert value["killed"] == "memory" or "MemoryError" in value["stderr"]


async def test_of_long_output_the_middle_is_left_out(client: ToolClient) -> None:
    code = "print('first')\nprint('x' * 3_000_000)\nprint('last')\nprint('short', file=__import__('sys').stderr)"
    value = await python(client, code)
    assert value["stdout"].startswith("first\n")
    assert value["stdout"].endswith("\nlast\n")
    assert "bytes left out" in value["stdout"]
    assert len(value["stdout"]) < 300_000
    assert (value["stdoutTruncated"], value["stderrTruncated"], value["exitCode"]) == (True, False, 0)


async def test_output_without_end_is_ended(client: ToolClient) -> None:
    value = await bash(client, "yes", timeout=30)
    assert (value["killed"], value["timedOut"], value["stdoutTruncated"]) == ("output", False, True)


async def test_what_is_no_text_is_shown_as_such(client: ToolClient) -> None:
    value = await python(client, "import sys; sys.stdout.buffer.write(b'\\xff\\xfeok')")
    assert value["stdout"] == "��ok"


async def test_whoever_waits_sees_the_output_while_it_runs(client: ToolClient) -> None:
    received: list[tuple[float, str | None]] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        received.append((done, message))
        (client.folder / "go").touch()

    code = "import os, time\nprint('first')\nwhile not os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    value = await client.value("run_code", language="python", code=code, progress=progress, timeout=TIMEOUT)
    assert value["stdout"] == "first\nsecond\n"
    # The end of the line is written after it.
    assert (received[0][1] or "").rstrip() == "first", "it was told before the program could end"


@pytest.mark.slow
async def test_reports_are_few_and_short_and_one_who_does_not_listen_holds_up_nothing(client: ToolClient) -> None:
    received: list[str | None] = []

    async def deaf(done: float, total: float | None = None, message: str | None = None) -> None:
        received.append(message)
        await asyncio.sleep(3600)

    async def quick(done: float, total: float | None = None, message: str | None = None) -> None:
        received.append(message)

    code = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: print('x' * 99)"
    with anyio.fail_after(TIMEOUT):
        await client.value("run_code", language="python", code=code, progress=deaf)
        assert len(received) == 1
        value = await client.value("run_code", language="python", code=code, progress=quick)
        seconds = value["duration"] / 1000
    assert 1 < len(received) <= 2 + seconds / call_context.REPORT_INTERVAL
    assert all(message is not None and len(message) <= 2000 for message in received)


DETACHED = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", TOKEN], start_new_session=True)
open("there", "w").close()
while True:
    pass
"""


async def test_who_calls_it_off_leaves_nothing_running(client: ToolClient) -> None:
    token = uuid.uuid4().hex
    for language, code in (
        ("bash", f"setsid bash -c 'sleep 600; : {token}' & touch there; wait"),
        ("python", DETACHED.replace("TOKEN", repr(token))),
    ):
        (client.folder / "there").unlink(missing_ok=True)
        task = asyncio.ensure_future(client.call("run_code", language=language, code=code))
        await async_eventually(lambda: (client.folder / "there").exists() and running(token))
        task.cancel()
        await asyncio.wait([task], timeout=TIMEOUT / 2)  # its own time limit is 60 s
        assert task.cancelled()
        await async_eventually(lambda: not running(token), TIMEOUT / 2)


async def test_each_program_starts_afresh(client: ToolClient) -> None:
    leave = "import builtins, tempfile, os; builtins.left = 1; open(tempfile.gettempdir() + '/left', 'w').close()"
    await python(client, leave)
    await asyncio.sleep(0.3)  # time for the next interpreter to be ready
    look = "import builtins, tempfile, os; print(hasattr(builtins, 'left'), os.listdir(tempfile.gettempdir()))"
    assert (await python(client, look))["stdout"] == "False []\n"


@pytest.mark.slow
async def test_an_interpreter_that_code_left_is_held_to_the_time_of_its_call(client: ToolClient) -> None:
    leave = """
import os
os.makedirs(".venv/bin")
open(".venv/pyvenv.cfg", "w").close()
open(".venv/bin/python", "w").write("#!/bin/sh\\necho >> beats\\nexec sleep 600\\n")
"""
    await python(client, leave)
    (client.folder / ".venv/bin/python").chmod(0o755)
    for seconds in TIME_LIMITS:
        value = await python(client, "print(1)", timeout=seconds)
        assert (value["stdout"], value["timedOut"], value["exitCode"]) == ("", True, 124)
        if (client.folder / "beats").exists():
            break
    await asyncio.sleep(0.3)  # time for the next interpreter to be ready
    assert (client.folder / "beats").read_text() == "\n"


async def test_a_command_runs_where_it_is_told_after_a_person_has_agreed(client: ToolClient) -> None:
    (client.folder / "sub").mkdir()
    value = await client.value(
        "run_command", command="pwd | xargs basename; # " + "ü" * 90_000 + "\nexit 4", directory="sub"
    )
    assert (value["stdout"], value["exitCode"]) == ("sub\n", 4)
    assert (
        await client.reason("run_command", command="rm -r x", directory="sub")
        == "run_command runs a program in 'sub': rm -r x"
    )
    assert (await client.refusal("run_command", command="true", directory="nowhere")).code == "FILE_NOT_FOUND"
    assert (await client.refusal("run_command", command="true", directory="../..")).code == "INVALID_PATH"


async def test_the_machine_needs_no_python_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.sources.builtin.code.call_context.SEARCH_PATH", str(tmp_path / "nowhere"))
    async with open_client(tmp_path) as at:
        value = await python(at, "import sys; print(sys.prefix == sys.base_prefix)\nimport gateway")
        assert value["stdout"] == "True\n"
        assert "No module named 'gateway'" in value["stderr"]


@pytest.mark.promise("T1")
async def test_the_files_are_kept_before_and_after_whatever_becomes_of_the_program(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        code = "open('a.txt', 'w').write('1')"
        first = await gateway.call("run_code", {"language": "python", "code": code}, chat="c")
        code = "open('a.txt', 'w').write('2')\nraise SystemExit(1)"
        second = await gateway.call("run_code", {"language": "python", "code": code}, chat="c")
        assert first.pre_manifest != first.post_manifest
        assert (second.pre_manifest, second.value["exitCode"]) == (first.post_manifest, 1)
        assert second.post_manifest != second.pre_manifest
        slow = {"language": "bash", "code": "echo 3 > a.txt; sleep 600", "timeout": 1}
        third = await gateway.call("run_code", slow, chat="c")
        back = {"manifest": first.post_manifest}
        assert (third.pre_manifest, third.value["exitCode"]) == (second.post_manifest, 124)
        assert (await gateway.call("workspace_restore", back, chat="c", confirmed=True)).ok
        assert (tmp_path / "data/chats/c/workspace/a.txt").read_text() == "1"


@pytest.mark.promise("C5")
async def test_a_command_waits_for_a_person_and_code_does_not(tmp_path: Path) -> None:
    async with opened(tmp_path) as gateway:
        asked = await gateway.call("run_command", {"command": "touch x"}, chat="c")
        assert asked.error is not None and asked.error.code == "CONFIRMATION_REQUIRED"
        assert asked.error.details["reason"] == "run_command runs a program in '.': touch x"
        assert not (tmp_path / "data/chats/c/workspace/x").exists()
        assert (await gateway.call("run_command", {"command": "touch x"}, chat="c", confirmed=True)).ok
        assert (tmp_path / "data/chats/c/workspace/x").exists()
