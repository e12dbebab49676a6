"""How two versions differ, for people to read; and which paths are meant."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.errors import GatewayError
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.diff import Comparison, Difference, compare, summary
from gateway.workspace.globs import Selection, restore_selection
from gateway.workspace.tree import EMPTY, Changes, Tree, changes, diff, require_sound

from .folders import disturb, new_checkout, walk, write

pytestmark = pytest.mark.promise("T2")


def compared(place: Path, old: Tree, new: Tree, *paths: str, limit: int = 64 * 1024) -> Comparison:
    return compare(old, new, FileBlobs(place / "blobs").open, Selection(paths), limit=limit)


def statuses(comparison: Comparison) -> dict[str, str]:
    return {each.path: each.status for each in comparison.files}


def test_every_kind_of_difference_is_named(tmp_path: Path) -> None:
    checkout, files = new_checkout(tmp_path), tmp_path / "files"
    for path in ("edited", "gone", "src/old-name", "run.sh"):
        write(files / path, f"{path}\n")
    (files / "link").symlink_to("edited")
    (files / "swapped").symlink_to("edited")
    (files / "hollow").mkdir()
    old = checkout.snapshot()
    write(files / "edited", "edited\nagain\n")
    (files / "gone").unlink()
    (files / "src/old-name").rename(files / "new-name")
    (files / "run.sh").chmod(0o755)
    (files / "link").unlink()
    (files / "link").symlink_to("run.sh")
    (files / "swapped").unlink()
    write(files / "swapped", "a file\n")
    (files / "hollow").rmdir()
    (files / "empty").mkdir()
    found = compared(tmp_path, old, checkout.snapshot())
    assert found.files == (
        Difference("edited", "changed"),
        Difference("empty/", "added"),
        Difference("gone", "deleted"),
        Difference("hollow/", "deleted"),
        Difference("link", "changed"),
        Difference("new-name", "renamed", "src/old-name"),
        Difference("run.sh", "kind", note="file → executable file"),
        Difference("swapped", "changed", note="link → file"),
    )
    assert not found.truncated
    for said in (
        "--- a/edited\n+++ b/edited\n@@ -1,1 +1,2 @@\n edited\n+again\n",
        "deleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-gone\n",
        "-edited\n\\ No newline at end of file\n+run.sh\n",
        "rename from src/old-name\nrename to new-name\n",
        "old mode 100644\nnew mode 100755\n",
        "old mode 120000\nnew mode 100644\n",
        "empty directory added: empty/\n",
    ):
        assert said in found.text


@pytest.mark.skipif(not shutil.which("git"), reason="git gives the second opinion")
@pytest.mark.parametrize("seed", range(3))
def test_git_makes_the_new_version_of_the_old_one_and_the_diff(tmp_path: Path, seed: int) -> None:
    checkout, files, chance = new_checkout(tmp_path), tmp_path / "files", random.Random(seed)

    def change() -> Tree:
        for _ in range(30):
            name = "".join(chance.choice("abc ") for _ in range(2)).strip() or "d"
            path = files / chance.choice(["", "x", "y/z"]) / name
            if chance.random() < 0.3:
                path.unlink(missing_ok=True)
            else:
                lines = [chance.choice(["one", "two", "three", "ü\r", ""]) for _ in range(chance.randrange(1, 12))]
                write(path, "\n".join(lines) + chance.choice(["", "\n"]), chance.choice([0o644, 0o755]))
        return checkout.snapshot()

    old, new = change(), change()
    patch = write(tmp_path / "patch", compared(tmp_path, old, new).text)
    checkout.materialize(old)
    command = ["git", "apply", "--whitespace=nowarn", str(patch)]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    subprocess.run(command, cwd=files, check=True, capture_output=True, env=environment)
    assert walk(files) == new


def test_what_is_no_text_or_too_large_is_said_with_its_size(tmp_path: Path) -> None:
    checkout, files = new_checkout(tmp_path), tmp_path / "files"
    write(files / "image", b"\x89PNG\0")
    write(files / "latin", "grün".encode("latin-1"))
    write(files / "long", b"x\n")
    old = checkout.snapshot()
    write(files / "image", b"\x89PNG\0more")
    write(files / "latin", "grüner".encode("latin-1"))
    write(files / "long", b"x\n" * (512 * 1024 + 1))
    text = compared(tmp_path, old, checkout.snapshot()).text
    assert "Binary files a/image (5 bytes) and b/image (9 bytes) differ; not shown: no text\n" in text
    assert "Binary files a/latin (4 bytes) and b/latin (6 bytes) differ; not shown: no text\n" in text
    assert "Files a/long (2 bytes) and b/long (1048578 bytes) differ; not shown: larger than 1 MiB\n" in text


def test_a_long_diff_is_cut_at_the_end_of_a_line(tmp_path: Path) -> None:
    checkout, files = new_checkout(tmp_path), tmp_path / "files"
    for number in range(20):
        write(files / f"{number:02}", "word\n" * 50)
    tree = checkout.snapshot()
    found = compared(tmp_path, EMPTY, tree, limit=1000)
    assert found.truncated
    assert 900 < len(found.text) <= 1000
    assert found.text.endswith("\n")
    assert len(found.files) == 20
    whole = compared(tmp_path, EMPTY, tree)
    assert not whole.truncated
    assert whole.text.startswith(found.text)


def test_a_content_that_is_missing_spoils_no_other_file(tmp_path: Path) -> None:
    checkout, files = new_checkout(tmp_path), tmp_path / "files"
    write(files / "a", "lost\n")
    write(files / "b", "kept\n")
    tree = checkout.snapshot()
    os.unlink(FileBlobs(tmp_path / "blobs").path(tree.files["a"]))
    text = compared(tmp_path, EMPTY, tree).text
    assert "Files /dev/null (0 bytes) and b/a (unreadable) differ; not shown: BLOB_MISSING\n" in text
    assert "+kept\n" in text


def test_renames_of_equal_files_are_told_the_same_way_every_time(tmp_path: Path) -> None:
    a, b = "a" * 64, "b" * 64
    old = Tree({"one/name": a, "two/name": a, "three/other": a, "x": b})
    new = Tree({"four/other": a, "five/name": a, "y": b}, {"y": "x"})
    for _ in range(3):
        assert compared(tmp_path, old, new).files == (
            Difference("five/name", "renamed", "one/name"),
            Difference("four/other", "renamed", "three/other"),
            Difference("two/name", "deleted"),
            Difference("x", "deleted"),
            Difference("y", "added"),
        )
        old = Tree(dict(sorted(old.files.items(), key=lambda _: random.random())), old.meta)


def test_a_comparison_stops_when_it_is_called_off(tmp_path: Path) -> None:
    checkout, files = new_checkout(tmp_path), tmp_path / "files"
    write(files / "a", "1")
    write(files / "b", "2")
    opened: list[str] = []

    def cancelled() -> None:
        if opened:
            raise InterruptedError

    def open_blob(digest: str) -> object:
        opened.append(digest)
        return FileBlobs(tmp_path / "blobs").open(digest)

    with pytest.raises(InterruptedError):
        compare(EMPTY, checkout.snapshot(), open_blob, check_cancelled=cancelled)  # type: ignore[arg-type]
    assert len(opened) == 1


@pytest.mark.parametrize(
    ("patterns", "meant"),
    [
        ([], {"a.txt", "src/a.txt", "src/b.py", "docs/"}),
        (["a.txt"], {"a.txt"}),
        (["./src/"], {"src/a.txt", "src/b.py"}),
        (["*.txt"], {"a.txt", "src/a.txt"}),
        (["src/*.py", "docs"], {"src/b.py", "docs/"}),
        (["s*"], {"src/a.txt", "src/b.py"}),
        (["."], {"a.txt", "src/a.txt", "src/b.py", "docs/"}),
        (["src/c"], set()),
    ],
)
def test_a_path_means_itself_or_all_in_it_and_a_glob_what_it_matches(patterns: list[str], meant: set[str]) -> None:
    selection = Selection(patterns)
    assert {path for path in ("a.txt", "src/a.txt", "src/b.py", "docs/") if path in selection} == meant


def test_a_path_that_leads_out_is_refused() -> None:
    with pytest.raises(GatewayError, match="INVALID_PATH"):
        Selection(["../secret"])


@pytest.mark.parametrize("seed", range(6))
def test_what_is_brought_back_of_any_two_folders_is_a_folder(tmp_path: Path, seed: int) -> None:
    checkout, files, chance = new_checkout(tmp_path), tmp_path / "files", random.Random(seed)
    trees = []
    for _ in range(12):
        for _ in range(15):
            disturb(files, chance)
        trees.append(checkout.snapshot())
    for _ in range(40):
        current, earlier = chance.sample(trees, 2)
        wanted = chance.choice(["a", "b/c", "*", "[ab]", "c/**", "d/*"])
        selection = Selection([wanted])
        if not any(path in selection for tree in (current, earlier) for path in (*tree.files, *tree.meta)):
            continue
        tree = restore_selection(current, earlier, selection)
        require_sound(tree, {*tree.files, *tree.meta})
        assert {path: sha for path, sha in tree.files.items() if path in selection} == {
            path: sha for path, sha in earlier.files.items() if path in selection
        }
        touched = changes(current, diff(current, tree))
        beside = {path for path in (*touched.added, *touched.changed) if path not in selection}
        assert not {path for path in beside if not path.endswith("/")}
    checkout.materialize(tree)
    assert set(walk(files).files) == set(tree.files)


def test_a_summary_counts_and_names_the_first() -> None:
    many = tuple(f"f{number}" for number in range(7))
    assert (
        summary(Changes(("a",), many, ("d/",)))
        == "1 added (a), 7 changed (f0, f1, f2, f3, f4 and 2 more), 1 deleted (d/)"
    )
    assert summary(Changes()) == "nothing changed"
