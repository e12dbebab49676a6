"""edit_file."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.calls import Outcome

pytestmark = pytest.mark.promise("C1")
Calling = Callable[..., Outcome]


def edit(old: str, new: str, **more: bool) -> dict[str, object]:
    return {"oldText": old, "newText": new, **more}


def refused(outcome: Outcome) -> tuple[str, str]:
    assert outcome.error is not None, outcome.value
    return outcome.error.code, outcome.error.message


def test_edits_are_applied_in_order_and_shown(call: Calling, workspace: Path) -> None:
    (workspace / "a.py").write_text("one\ntwo\nthree\n")
    outcome = call("edit_file", path="a.py", edits=[edit("two", "2"), edit("2\nthree", "2\n3")])
    assert outcome.value == {
        "path": "a.py",
        "replacements": 2,
        "diff": "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+3\n",
    }
    assert (workspace / "a.py").read_text() == "one\n2\n3\n"


def test_a_miss_changes_nothing_and_shows_the_closest_line(call: Calling, workspace: Path) -> None:
    (workspace / "a.py").write_text("def start():\n    return 1\n\ndef stop():\n    return 2\n")
    code, message = refused(call("edit_file", path="a.py", edits=[edit("1", "9"), edit("def stopp():", "x")]))
    assert code == "NO_MATCH"
    assert message == "edit 2 of 'a.py': oldText is not in the file; the closest line is 4: 'def stop():'"
    assert "return 1" in (workspace / "a.py").read_text()
    _, indented = refused(call("edit_file", path="a.py", edits=[edit("\treturn 2", "x")]))
    assert "line 5 equals its first line" in indented
    _, nothing = refused(call("edit_file", path="a.py", edits=[edit("完全", "x")]))
    assert "read the file again" in nothing


def test_an_ambiguous_edit_says_how_often_and_where(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("x\ny\nx\n")
    code, message = refused(call("edit_file", path="a", edits=[edit("x", "z")]))
    assert code == "AMBIGUOUS_MATCH"
    assert "occurs 2 times (lines 1, 3)" in message
    assert call("edit_file", path="a", edits=[edit("x", "z", replaceAll=True)]).value["replacements"] == 2
    assert (workspace / "a").read_text() == "z\ny\nz\n"


def test_line_ends_byte_order_mark_and_permissions_stay(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\nend")
    (workspace / "a").chmod(0o750)
    call("edit_file", path="a", edits=[edit("one\ntwo", "1\n2\n3"), edit("end", "e\r\nnd")])
    assert (workspace / "a").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n3\r\n\r\ne\r\nnd"
    assert stat.S_IMODE((workspace / "a").stat().st_mode) == 0o750
    (workspace / "mixed").write_bytes(b"one\r\ntwo\nthree\r\n")
    call("edit_file", path="mixed", edits=[edit("two\nthree", "2\n3")])
    assert (workspace / "mixed").read_bytes() == b"one\r\n2\n3\r\n"


def test_a_dry_run_shows_and_changes_nothing(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("one")
    before = (workspace / "a").stat()
    outcome = call("edit_file", path="a", edits=[edit("one", "two")], dryRun=True)
    assert "-one" in outcome.value["diff"]
    assert (workspace / "a").stat() == before or (workspace / "a").read_text() == "one"
    assert os.listdir(workspace) == ["a"]


def test_what_is_no_text_or_too_large_is_not_edited(call: Calling, workspace: Path) -> None:
    (workspace / "bin").write_bytes(b"a\xff")
    with (workspace / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert refused(call("edit_file", path="bin", edits=[edit("a", "b")]))[0] == "NOT_UTF8"
    assert refused(call("edit_file", path="huge", edits=[edit("a", "b")]))[0] == "FILE_TOO_LARGE"
    assert refused(call("edit_file", path="bin", edits=[]))[0] == "INVALID_ARGUMENTS"
    assert refused(call("edit_file", path="bin", edits=[edit("", "b")]))[0] == "INVALID_ARGUMENTS"
    (workspace / "a").write_text("a" * 1000)
    grown = refused(call("edit_file", path="a", edits=[edit("a", "a" * 10_000, replaceAll=True)]))
    assert grown[0] == "FILE_TOO_LARGE"


def test_a_long_diff_is_cut(call: Calling, workspace: Path) -> None:
    (workspace / "a").write_text("x\n" * 100_000)
    value = call("edit_file", path="a", edits=[edit("x", "y", replaceAll=True)]).value
    assert value["replacements"] == 100_000
    assert len(value["diff"]) < 40_000
    assert "more characters" in value["diff"]
