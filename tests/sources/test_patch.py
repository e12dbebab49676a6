"""Unified diffs as text: what difflib and git write is read, and only what fits is applied."""

import difflib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Conflict, GatewayError, Invalid
from gateway.sources.builtin import patch
from gateway.sources.builtin.patch import FilePatch, Hunk
from gateway.workspace.diff import split_lines, unified_diff

texts = st.lists(
    st.sampled_from(["a", "b", "ab", "", "--- x", "+++ y", "@@ -1 +1 @@", "\\ x", " ", "ü\r"]), max_size=14
)
bodies = st.tuples(texts, st.booleans()).map(lambda pair: "\n".join(pair[0]) + ("\n" if pair[1] and pair[0] else ""))


def from_difflib(before: str, after: str, context: int) -> str:
    lines = difflib.unified_diff(split_lines(before), split_lines(after), "a/f", "b/f", n=context)
    ended = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return "".join(ended)


@settings(deadline=None)
@given(bodies, bodies, st.integers(0, 4))
def test_what_difflib_writes_leads_from_one_text_to_the_other(before: str, after: str, context: int) -> None:
    if before == after:
        return
    (file,) = patch.parse(from_difflib(before, after, context))
    assert patch.apply(file, before) == after


@settings(deadline=None)
@given(bodies, bodies)
def test_our_own_diff_leads_from_one_text_to_the_other(before: str, after: str) -> None:
    written = unified_diff("f", before, after)
    if before == after:
        assert written == ""
        return
    (file,) = patch.parse(written)
    assert patch.apply(file, before) == after


@settings(deadline=None)
@given(bodies, bodies, bodies)
def test_a_patch_applies_where_its_lines_have_moved_to(before: str, after: str, above: str) -> None:
    head = f"unique\n{above}\nends\n"
    if before == after:
        return
    (file,) = patch.parse(from_difflib(before, after, 3))
    try:
        moved = patch.apply(file, head + before)
    except Conflict:
        return
    assert moved != head + before


@settings(deadline=None)
@given(st.text(alphabet="ab \n-+@\\/,0123diff-git", max_size=200) | st.text(max_size=80))
def test_no_text_is_a_surprise(text: str) -> None:
    try:
        for file in patch.parse(text):
            patch.apply(file, "a\nb\n")
    except GatewayError as refused:
        assert refused.code in ("INVALID_PATCH", "PATCH_DOES_NOT_APPLY")


def test_git_headers_are_read() -> None:
    text = """commit message

diff --git a/old name.py b/new name.py
similarity index 90%
rename from old name.py
rename to new name.py
index 1..2 100644
--- a/old name.py
+++ b/new name.py
@@ -1 +1 @@ def section():
-a
+b
diff --git a/run.sh b/run.sh
new file mode 100755
index 000..1
--- /dev/null
+++ b/run.sh
@@ -0,0 +1 @@
+echo
diff --git a/gone b/gone
deleted file mode 100644
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-x
\\ No newline at end of file
diff --git a/empty b/empty
new file mode 100644
index 000..e69
diff --git a/mode b/mode
old mode 100644
new mode 100755
diff --git "a/\\303\\274.txt" "b/\\303\\274.txt"
--- "a/\\303\\274.txt"
+++ "b/\\303\\274.txt"
@@ -1 +1 @@
-a
+b
--
2.39
"""
    change = (Hunk(0, ("a\n",), ("b\n",)),)
    assert patch.parse(text) == [
        FilePatch("old name.py", "new name.py", change),
        FilePatch(None, "run.sh", (Hunk(0, (), ("echo\n",)),), executable=True),
        FilePatch("gone", None, (Hunk(0, ("x",), ()),)),
        FilePatch(None, "empty", (), executable=False),
        FilePatch("mode", "mode", (), executable=True),
        FilePatch("ü.txt", "ü.txt", change),
    ]
    assert [file.action for file in patch.parse(text)] == ["rename", "create", "delete", "create", "modify", "modify"]


def test_plain_diffs_are_read_with_and_without_prefixes() -> None:
    hunk = "@@ -1 +1 @@\n-a\n+b\n"
    named = {
        "--- a/x/y\t2024-01-01\n+++ b/x/y\t2024-01-02\n": ("x/y", "x/y"),
        "--- x/y\n+++ x/y\n": ("x/y", "x/y"),
        "--- a/x\n+++ a/x\n": ("a/x", "a/x"),
        "--- /dev/null\n+++ b/x\n": (None, "x"),
        "--- /dev/null\n+++ x\n": (None, "x"),
    }
    for names, (old, new) in named.items():
        (file,) = patch.parse(names + hunk)
        assert (file.old, file.new) == (old, new)
    (file,) = patch.parse(("--- a/x\n+++ b/x\n" + hunk).replace("\n", "\r\n"))
    assert file.hunks == (Hunk(0, ("a\n",), ("b\n",)),)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "names no file"),
        ("hello", "names no file"),
        ("--- a/x\n+++ b/x\n", "no '@@' line"),
        ("@@ -1 +1 @@\n-a\n+b\n", "line 1 of the patch: a hunk without"),
        ("--- a/x\n+++ b/x\n@@ nonsense @@\n", "line 3 of the patch: not a hunk header"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1 @@\n-a\n+b\n", "ends in the middle"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n+b\n@@ -9 +9 @@\n-c\n+d\n", "line 6 of the patch: a line of a hunk"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n-b\n+c\n", "more lines than its header says"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n\\ No newline\n-b\n+c\n", "follows the one that has no newline"),
        (
            "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n",
            "only regular files",
        ),
        ("diff --git a/x b/x\nindex 1..2\nGIT binary patch\nliteral 3\n", "binary patches"),
        ("diff --git a/x b/y\ncopy from x\ncopy to y\n", "binary patches and copies"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "both paths"),
    ],
)
def test_what_is_no_patch_is_refused_by_line(text: str, fault: str) -> None:
    with pytest.raises(Invalid) as refused:
        patch.parse(text)
    assert refused.value.code == "INVALID_PATCH"
    assert fault in refused.value.message


def test_a_hunk_goes_to_the_nearest_place_and_none_is_made_up() -> None:
    (file,) = patch.parse("--- a/f\n+++ b/f\n@@ -5,2 +5,2 @@\n x\n-y\n+z\n")
    assert patch.apply(file, "x\ny\n" + "-\n" * 5 + "x\ny\n") == "x\ny\n" + "-\n" * 5 + "x\nz\n"
    with pytest.raises(Conflict) as refused:
        patch.apply(file, "x\nY\n")
    assert refused.value.message.startswith("hunk 1 of 'f' (line 5, beginning 'x') does not match the file")


def test_placing_a_hunk_takes_no_longer_for_repeated_lines() -> None:
    file = FilePatch("f", "f", (Hunk(0, ("x\n",) * 20_000 + ("y\n",), ()),))
    with pytest.raises(Conflict):
        patch.apply(file, "x\n" * 100_000)
