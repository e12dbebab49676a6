"""Commands in the workspace: what they return, and that nothing of them goes on for ever."""

import io
import os
import time

import pytest
from tools.output import HEAD, TAIL, Output
from tools.shell import run_command

from covalt_toolset import BadArguments, context, invoke


@pytest.fixture(autouse=True)
def call(tmp_path):
    with context(workspace=tmp_path) as here:
        yield here


def run(command, **arguments):
    return invoke(run_command, {"command": command, **arguments})


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_command_runs_in_the_workspace(tmp_path):
    (tmp_path / "a.txt").write_text("hi\n")
    assert run("cat a.txt && pwd") == {
        "command": "cat a.txt && pwd",
        "output": f"hi\n{os.path.realpath(tmp_path)}\n",
        "exit_code": 0,
    }


def test_both_outputs_come_in_their_order_and_a_failure_is_an_answer():
    assert run("echo one; echo two >&2; echo three; exit 3") == {
        "command": "echo one; echo two >&2; echo three; exit 3",
        "output": "one\ntwo\nthree\n",
        "exit_code": 3,
    }


def test_a_command_that_is_not_there_says_so():
    ran = run("no-such-command-here")
    assert (ran["exit_code"], "no-such-command-here" in ran["output"]) == (127, True)


def test_a_command_that_was_killed_has_the_shells_code():
    assert run("kill -9 $$")["exit_code"] == 137


def test_nothing_waits_for_input():
    assert run("read answer || echo no input")["output"] == "no input\n"


def test_bytes_that_are_no_text_do_not_break_the_answer():
    assert run(r"printf 'a\377b'")["output"] == "a\ufffdb"


def test_a_command_is_stopped_when_its_time_is_up(call):
    started = time.monotonic()
    ran = run("echo begun; sleep 60 & sleep 60", timeout=2)
    assert time.monotonic() - started < 50
    assert ran["exit_code"] == 124
    assert ran["output"] == "begun\n\n[stopped after 2 seconds; give a larger 'timeout', at most 600]"
    assert [(report.total, report.message) for report in call.progress_reports][:1] == [(2, "begun")]


def test_what_is_left_in_the_background_is_ended(tmp_path):
    started = time.monotonic()
    ran = run("sleep 60 & echo $!")
    assert time.monotonic() - started < 50
    deadline = time.monotonic() + 30
    while is_running(int(ran["output"])) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(int(ran["output"]))


def test_a_long_output_keeps_its_beginning_and_its_end():
    ran = run("echo begin; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end")
    assert ran["output"].startswith("begin\nxxx")
    assert ran["output"].endswith("xxx\nend\n")
    assert "bytes left out; write long output to a file" in ran["output"]
    assert len(ran["output"]) < HEAD + TAIL + 200


@pytest.mark.parametrize("size", [0, 1, HEAD, HEAD + 1, HEAD + TAIL, HEAD + TAIL + 1, 1_000_000])
def test_of_any_output_no_byte_is_lost_uncounted(size):
    data = bytes(65 + index % 26 for index in range(size))
    output = Output()
    output.fill(io.BytesIO(data))
    text = output.text()
    head, gap, tail = text.partition("\n[… ")
    if not gap:
        assert text.encode() == data
        return
    count, _, tail = tail.partition(" bytes left out")
    tail = tail.partition("…]\n")[2]
    assert (head.encode(), tail.encode()) == (data[:HEAD], data[-len(tail) :])
    assert len(head) + int(count.replace(",", "")) + len(tail) == size


@pytest.mark.parametrize("command", ["", "  \n", "a\0b"])
def test_what_is_no_command_is_refused(command):
    with pytest.raises(ValueError, match="give a command line such as 'ls -la'"):
        run(command)


def test_the_limit_of_time_holds():
    with pytest.raises(BadArguments, match="'timeout' should be less than or equal to 600"):
        run("true", timeout=601)
