"""apply_patch."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.calls import Outcome

pytestmark = pytest.mark.promise("C1")
Calling = Callable[..., Outcome]
Asking = Callable[..., str | None]

MODIFY = "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n-one\n+ONE\n two\n"
CREATE = "--- /dev/null\n+++ b/new/deep/b.txt\n@@ -0,0 +1 @@\n+made\n"
DELETE = "--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"
RENAME = "diff --git a/old.txt b/sub/moved.txt\nrename from old.txt\nrename to sub/moved.txt\n"


@pytest.fixture
def files(workspace: Path) -> Path:
    (workspace / "a.txt").write_text("one\ntwo\n")
    (workspace / "gone.txt").write_text("bye\n")
    (workspace / "old.txt").write_text("kept\n")
    (workspace / "old.txt").chmod(0o750)
    return workspace


def contents(workspace: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(workspace)): path.read_bytes() if path.is_file() else None for path in workspace.rglob("*")
    }


def refused(outcome: Outcome) -> str:
    assert outcome.error is not None, outcome.value
    return outcome.error.code


def test_a_patch_changes_creates_deletes_and_renames(call: Calling, files: Path) -> None:
    outcome = call("apply_patch", patch=MODIFY + CREATE + DELETE + RENAME, confirmed=True)
    assert outcome.value == {
        "files": [
            {"path": "a.txt", "action": "modify"},
            {"path": "new/deep/b.txt", "action": "create"},
            {"path": "gone.txt", "action": "delete"},
            {"path": "sub/moved.txt", "action": "rename", "from": "old.txt"},
        ]
    }
    assert contents(files) == {
        "a.txt": b"ONE\ntwo\n",
        "new": None,
        "new/deep": None,
        "new/deep/b.txt": b"made\n",
        "sub": None,
        "sub/moved.txt": b"kept\n",
    }
    assert stat.S_IMODE((files / "sub/moved.txt").stat().st_mode) == 0o750


def test_only_a_patch_that_deletes_asks(ask: Asking, files: Path) -> None:
    assert ask("apply_patch", patch=MODIFY + CREATE + RENAME) is None
    assert ask("apply_patch", patch=MODIFY + DELETE) == "apply_patch deletes 'gone.txt'"


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("--- a/missing\n+++ b/missing\n@@ -1 +1 @@\n-a\n+b\n", "FILE_NOT_FOUND"),
        ("--- a/old.txt\n+++ b/old.txt\n@@ -1 +1 @@\n-other\n+b\n", "PATCH_DOES_NOT_APPLY"),
        ("--- /dev/null\n+++ b/old.txt\n@@ -0,0 +1 @@\n+b\n", "FILE_EXISTS"),
        ("--- /dev/null\n+++ b/old.txt/x\n@@ -0,0 +1 @@\n+b\n", "NOT_A_DIRECTORY"),
        ("--- a/old.txt\n+++ /dev/null\n@@ -1,0 +0,0 @@\n", "PATCH_DOES_NOT_APPLY"),
        ("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-a\n+b\n", "INVALID_PATCH"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "INVALID_PATH"),
    ],
)
def test_a_patch_that_fails_late_leaves_everything_as_it_was(call: Calling, files: Path, last: str, code: str) -> None:
    before = contents(files)
    assert refused(call("apply_patch", patch=MODIFY + CREATE + DELETE + last)) == code
    assert contents(files) == before


def test_the_executable_bit_is_taken_from_a_patch(call: Calling, files: Path) -> None:
    header = "diff --git a/a.txt b/a.txt\nold mode 100644\nnew mode 100755\n"
    created = "diff --git a/run b/run\nnew file mode 100755\n--- /dev/null\n+++ b/run\n@@ -0,0 +1 @@\n+x\n"
    assert call("apply_patch", patch=header + created).ok
    assert os.access(files / "a.txt", os.X_OK)
    assert os.access(files / "run", os.X_OK)


def test_line_ends_stay_as_they_are(call: Calling, files: Path) -> None:
    (files / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    assert call("apply_patch", patch=MODIFY).ok
    assert (files / "a.txt").read_bytes() == b"ONE\r\ntwo\r\n"
