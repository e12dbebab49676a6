"""read_file."""

import base64
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from amounts import amount
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.calls import Outcome
from gateway.sources.builtin.read_files import RESULT_LIMIT

pytestmark = pytest.mark.promise("C1")
Calling = Callable[..., Outcome]


def text(outcome: Outcome) -> str:
    assert outcome.content is not None
    return str(outcome.content[0]["text"])


def test_a_file_is_read_with_its_size_and_time(call: Calling, workspace: Path) -> None:
    (workspace / "a.txt").write_bytes("grün\r\n\ufeffzwei".encode())
    os.utime(workspace / "a.txt", (0, 1_700_000_000))
    outcome = call("read_file", path="a.txt")
    assert outcome.value == {
        "content": "grün\r\n\ufeffzwei",
        "size": 14,
        "modified": "2023-11-14T22:13:20.000Z",
        "truncated": False,
        "offset": 1,
        "totalLines": 2,
    }
    assert text(outcome) == "grün\r\n\ufeffzwei"


def test_lines_are_read_from_an_offset_and_the_answer_says_how_to_go_on(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("".join(f"line {number}\n" for number in range(1, 101)))
    outcome = call("read_file", path="a", offset=10, limit=2)
    assert outcome.value["content"] == "line 10\nline 11\n"
    assert (outcome.value["nextOffset"], outcome.value["totalLines"], outcome.value["truncated"]) == (12, 100, True)
    assert text(outcome).endswith("[lines 10-11 of 100; continue with offset=12]")
    last = call("read_file", path="a", offset=100, limit=5)
    assert (last.value["content"], last.value["truncated"]) == ("line 100\n", False)
    past = call("read_file", path="a", offset=500)
    assert (past.value["content"], past.value["totalLines"]) == ("", 100)
    assert "the file has 100 lines" in text(past)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=amount(40, 15), deadline=None)
@given(st.lists(st.text(alphabet="aü\r\n", max_size=12), max_size=12).map("\n".join), st.integers(1, 4))
def test_reading_on_from_each_offset_gives_the_whole_file(call: Calling, workspace: Path, body: str, step: int) -> None:
    (workspace / "a").write_bytes(body.encode())
    content, offset = "", 1
    while True:
        value = call("read_file", path="a", offset=offset, limit=step).value
        content += value["content"]
        if not value["truncated"]:
            break
        offset = value["nextOffset"]
    assert content == body
    assert value["totalLines"] == body.count("\n") + (bool(body) and not body.endswith("\n"))


def test_a_long_file_is_cut_at_a_line_and_can_be_read_on(call: Calling, workspace: Path) -> None:
    line = "x" * 99 + "\n"
    (workspace / "a").write_text(line * 5000)
    first = call("read_file", path="a").value
    assert len(first["content"]) == RESULT_LIMIT // 100 * 100
    second = call("read_file", path="a", offset=first["nextOffset"]).value
    assert first["content"] + second["content"] == line * 5000


def test_one_endless_line_is_cut_within_no_character(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("x" + "ü" * RESULT_LIMIT + "\nlast\n")
    outcome = call("read_file", path="a")
    assert set(outcome.value["content"]) == {"x", "ü"}
    assert (outcome.value["nextOffset"], outcome.value["totalLines"]) == (2, 2)
    assert f"encoding='base64', offset={RESULT_LIMIT}" in text(outcome)
    assert call("read_file", path="a", offset=2).value["content"] == "last\n"


def test_bytes_are_read_as_base64(call: Calling, workspace: Path) -> None:
    data = bytes(range(256)) * 2000
    (workspace / "a.bin").write_bytes(data)
    read, offset = b"", 0
    while True:
        value = call("read_file", path="a.bin", encoding="base64", offset=offset).value
        read += base64.b64decode(value["content"])
        if not value["truncated"]:
            break
        offset = value["nextOffset"]
    assert read == data
    part = call("read_file", path="a.bin", encoding="base64", offset=3, limit=2).value
    assert base64.b64decode(part["content"]) == b"\x03\x04"


@pytest.mark.promise("C6")
def test_what_is_not_utf8_is_refused_and_base64_offered(call: Calling, workspace: Path) -> None:
    (workspace / "a.bin").write_bytes(b"abc\xff\xfe")
    refused = call("read_file", path="a.bin").error
    assert refused is not None
    assert refused.code == "NOT_UTF8"
    assert refused.message == "'a.bin' is not UTF-8 text; read it with encoding='base64'"


def test_a_sparse_tebibyte_costs_nothing(call: Calling, workspace: Path) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(1 << 40)
    first = call("read_file", path="huge").value
    assert (first["size"], first["truncated"], len(first["content"])) == (1 << 40, True, RESULT_LIMIT)
    assert "totalLines" not in first
    assert call("read_file", path="huge", encoding="base64", offset=(1 << 40) - 1).value["content"] == "AA=="
    assert call("read_file", path="huge", encoding="base64", offset=2**53).value["content"] == ""
    refused = call("read_file", path="huge", offset=2).error
    assert refused is not None
    assert refused.code == "OFFSET_TOO_FAR"


@pytest.mark.promise("C6")
def test_what_is_no_file_is_refused_for_what_it_is(call: Calling, workspace: Path) -> None:
    (workspace / "dir").mkdir()
    for path, code in (("dir", "IS_DIRECTORY"), ("gone", "FILE_NOT_FOUND"), ("/etc/passwd", "INVALID_PATH")):
        refused = call("read_file", path=path).error
        assert refused is not None
        assert refused.code == code
