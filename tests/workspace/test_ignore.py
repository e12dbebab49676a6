"""A person's own folder: what its ignore files hide is invisible and safe."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.errors import Conflict
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.ignore import GitIgnore
from gateway.workspace.tree import EMPTY, Tree

from .folders import let_it_age, sha, walk, write

pytestmark = pytest.mark.promise("T2")


def attached(place: Path) -> Checkout:
    (place / "mine").mkdir(exist_ok=True)
    return Checkout(place / "mine", FileBlobs(place / "blobs"), place / "index", GitIgnore())


def paths(checkout: Checkout) -> set[str]:
    tree = checkout.snapshot()
    return {*tree.files, *tree.meta} - {".gitignore"}


def test_ignored_files_and_directories_are_invisible(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / ".gitignore", "*.log\nbuild/\n/top\n!keep.log\n# a comment\n")
    for path in ("a.log", "keep.log", "src/a.log", "build/x", "src/build/y", "top", "src/top", "src/build.py"):
        write(mine / path)
    assert paths(checkout) == {"keep.log", "src/top", "src/build.py"}


def test_a_nested_ignore_file_holds_below_it_and_wins(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / ".gitignore", "*.log\n")
    write(mine / "src/.gitignore", "!*.log\n/local\n")
    for path in ("a.log", "local", "src/a.log", "src/deep/b.log", "src/local", "src/deep/local"):
        write(mine / path)
    assert paths(checkout) - {"src/.gitignore"} == {"local", "src/a.log", "src/deep/b.log", "src/deep/local"}


def test_our_own_ignore_file_adds_to_gits(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / ".gitignore", "*.log\n")
    write(mine / ".toolgateignore", "data/\n!kept.log\n")
    for path in ("a.log", "kept.log", "data/huge.bin"):
        write(mine / path)
    assert paths(checkout) == {".toolgateignore", "kept.log"}


def test_the_repository_itself_is_never_in_a_tree(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / ".gitignore", "!.git\n")
    write(mine / ".git/config")
    write(mine / "vendored/.git", "gitdir: ../elsewhere")
    write(mine / "vendored/file")
    assert paths(checkout) == {"vendored/file"}
    checkout.materialize(EMPTY)
    assert (mine / ".git/config").exists()
    assert (mine / "vendored/.git").exists()


def test_a_change_of_the_rules_is_seen_at_once(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    for path in ("a.log", "src/deep/b.log", "src/c.py"):
        write(mine / path)
    let_it_age(mine)
    assert paths(checkout) == {"a.log", "src/deep/b.log", "src/c.py"}
    write(mine / ".gitignore", "*.log\n")
    let_it_age(mine)
    assert paths(checkout) == {"src/c.py"}
    write(mine / ".gitignore", "*.py\n")
    checkout.save()
    assert paths(attached(tmp_path)) == paths(checkout) == {"a.log", "src/deep/b.log"}
    (mine / ".gitignore").unlink()
    assert paths(checkout) == {"a.log", "src/deep/b.log", "src/c.py"}


def test_unchanged_directories_keep_their_rules(tmp_path: Path) -> None:
    """A directory whose names are unchanged is not searched for ignore files again."""
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    for path in (".git/hooks/pre-commit", "src/a.py", "src/deep/b.log", "logs/c.log"):
        write(mine / path)
    write(mine / "logs/.gitignore", "*.log\n")
    let_it_age(mine)
    expected = {"src/a.py", "src/deep/b.log", "logs/.gitignore"}
    assert [paths(checkout) for _ in range(3)] == [expected] * 3
    write(mine / "src/.gitignore", "*.log\n")
    assert paths(checkout) == {"src/a.py", "src/.gitignore", "logs/.gitignore"}
    let_it_age(mine)
    (mine / "logs/.gitignore").write_text("")
    assert paths(checkout) == paths(checkout) == {"src/a.py", "src/.gitignore", "logs/.gitignore", "logs/c.log"}


def test_an_ignore_file_that_is_a_link_or_unreadable_as_text_says_nothing(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(tmp_path / "outside", "*\n")
    (mine / ".gitignore").symlink_to(tmp_path / "outside")
    write(mine / "d/.gitignore", b"\xff\xfe\0\n*.log\r\n!\n///\n[\n")
    write(mine / "e/.gitignore/file")
    for path in ("a", "d/a.log", "d/b"):
        write(mine / path)
    assert paths(checkout) == {"a", "d/.gitignore", "d/b", "e/.gitignore/file"}


def test_ignored_files_survive_every_restore(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / ".gitignore", "secret\nnode_modules/\n")
    write(mine / "src/a.py", b"1")
    tree = checkout.snapshot()
    write(mine / "src/secret", b"mine")
    write(mine / "src/node_modules/x", b"mine too")
    checkout.materialize(Tree({".gitignore": tree.files[".gitignore"]}))
    assert (mine / "src/secret").read_bytes() == b"mine"
    assert (mine / "src/node_modules/x").read_bytes() == b"mine too"
    assert not (mine / "src/a.py").exists()
    assert checkout.snapshot() == Tree({".gitignore": tree.files[".gitignore"]})
    checkout.materialize(tree)
    assert checkout.snapshot() == tree


@pytest.mark.parametrize(
    ("versioned", "ignored"),
    [("a", "a"), ("a/b", "a"), ("a/b", "a/x"), ("a", "a/x"), ("a", "a/b/c/x"), ("a/b/c", "a/b/x")],
)
def test_an_ignored_file_in_the_way_is_a_conflict_and_nothing_is_touched(
    tmp_path: Path, versioned: str, ignored: str
) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / versioned, b"1")
    tree = checkout.snapshot()
    checkout.materialize(EMPTY)
    write(mine / ".gitignore", f"/{ignored}\n")
    write(mine / ignored, b"mine")
    write(mine / "other", b"2")
    before, now = walk(mine), checkout.snapshot()
    occupied = f"{versioned}/".startswith(f"{ignored}/") or f"{ignored}/".startswith(f"{versioned}/")
    if occupied:
        with pytest.raises(Conflict) as refused:
            checkout.materialize(tree)
        assert refused.value.code == "UNVERSIONED_FILE"
        assert walk(mine) == before
        assert checkout.snapshot() == now
    else:
        checkout.materialize(tree)
        assert (mine / versioned).read_bytes() == b"1"
    assert (mine / ignored).read_bytes() == b"mine"


def test_what_a_version_held_before_it_was_ignored_can_be_restored(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / "a.log", b"1")
    tree = checkout.snapshot()
    (mine / "a.log").unlink()
    write(mine / ".gitignore", "*.log\n")
    checkout.materialize(tree)
    assert walk(mine) == tree == checkout.snapshot()


def test_a_file_that_is_no_longer_ignored_is_not_taken_for_a_leftover(tmp_path: Path) -> None:
    checkout, mine = attached(tmp_path), tmp_path / "mine"
    write(mine / "src.py")
    tree = checkout.snapshot()
    write(mine / ".gitignore", "*.log\n")
    write(mine / "a.log", b"mine")
    checkout.materialize(tree)
    assert (mine / "a.log").read_bytes() == b"mine"
    assert checkout.snapshot() == Tree({"src.py": sha(b"x"), "a.log": sha(b"mine")})


WORDS = ["a", "b", "c.log", "d.py"]
PATTERNS = [
    "a", "a/", "/a", "*.log", "!*.log", "b/*", "!b/a", "**/a", "a/**", "a/b", "!a", "/b/", "!b/", "?", "[ab]", "[!a]",
    "*", "!*/", "a/*/b", "\\!a", "# no", "", "c.*", "b/**/a", "!d.py", "/*", "!/a", "**", "**/b/*.py", "a ", "b\\ ",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_git_agrees_on_what_is_ignored(tmp_path: Path, seed: int) -> None:
    checkout, mine, chance = attached(tmp_path), tmp_path / "mine", random.Random(seed)
    for _ in range(25):
        path = mine.joinpath(*(chance.choice(WORDS) for _ in range(chance.randint(1, 4))))
        if not any(above.is_file() for above in path.parents) and not path.exists():
            write(path)
    for directory in [mine, *(path for path in mine.rglob("*") if path.is_dir() and chance.random() < 0.3)]:
        write(directory / ".gitignore", "\n".join(chance.choices(PATTERNS, k=chance.randint(1, 5))))
    subprocess.run(["git", "init", "-q", mine], check=True)
    listed = ["git", "-C", str(mine), "-c", "core.excludesFile=", "ls-files", "-z", "--others", "--exclude-standard"]
    seen = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    assert set(checkout.snapshot().files) == set(filter(None, seen))


def test_a_workspace_without_ignore_does_not_pay_for_patterns() -> None:
    code = "import sys, gateway.workspace.checkout; sys.exit('pathspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
