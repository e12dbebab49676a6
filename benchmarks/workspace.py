"""Workspace versions against git: the same tree of 10,000 files, in interleaved rounds of one run.

Ours is durable when it returns; git runs with its defaults, which are not. Prints medians and their
ratios, and what half a gigabyte adds to memory; exits 1 above a limit.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.tree import Tree

FILES, DIRECTORIES = 10_000, 479
CHANGED = 12
ROUNDS, IMPORTS = 15, 5
LIMITS = {"snapshot after 1 change": 0.6, f"restore of {CHANGED} files": 1.0, "cold import": 0.6}
MEMORY_LIMIT_MB = 20

LARGE_FILE = """
import re, resource, sys
from pathlib import Path
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.tree import EMPTY

def peak():  # what getrusage says includes the process that started this one
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

place = Path(sys.argv[1])
checkout = Checkout(place / "files", FileBlobs(place / "blobs"))
checkout.snapshot()
before = peak()
with (place / "files/large").open("wb") as file:
    for number in range(500):
        file.write(number.to_bytes(2, "big") * (512 * 1024))
tree = checkout.snapshot()
checkout.materialize(EMPTY)
checkout.materialize(tree)
print(peak() - before)
"""

Pairs = dict[str, list[tuple[float, float]]]


class Git:
    """The same folder under git."""

    def __init__(self, work: Path, repository: Path) -> None:
        self._environment = {
            **os.environ,
            "GIT_DIR": str(repository),
            "GIT_WORK_TREE": str(work),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        self._work = work
        self.run("init", "-q", "-b", "main")
        for name, value in {"user.name": "a", "user.email": "a@example.org", "gc.auto": "0"}.items():
            self.run("config", name, value)  # no collection in the background of the next round

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self._work, env=self._environment, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self) -> None:
        self.run("add", "-A")
        self.run("commit", "-q", "-m", "change")


def make_tree(work: Path) -> list[str]:
    chance = random.Random(7)
    paths = []
    for number in range(FILES):
        directory = number % DIRECTORIES
        path = f"{directory % 20}/{directory}/{number}.txt" if directory % 3 else f"{directory % 20}/{number}.txt"
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        (work / path).write_bytes(chance.randbytes(chance.randint(100, 2000)).hex().encode())
        paths.append(path)
    return paths


def timed(work: Callable[[], object]) -> float:
    os.sync()  # what the other side left unwritten is not this side's to write
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000


def alternately(number: int, ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    if number % 2:
        second = timed(theirs)
        return timed(ours), second
    return timed(ours), timed(theirs)


def compare_imports(place: Path, pairs: Pairs) -> None:
    for number in range(IMPORTS):
        git = Git(place / "theirs", place / f"import{number}.git")
        checkout = Checkout(place / "ours", FileBlobs(place / f"import{number}.blobs"))
        pairs["cold import"].append(alternately(number, checkout.snapshot, git.commit))


def compare_rounds(place: Path, paths: list[str], pairs: Pairs) -> None:
    checkout, git = Checkout(place / "ours", FileBlobs(place / "blobs")), Git(place / "theirs", place / "git")
    trees: list[Tree] = [checkout.snapshot()]
    git.commit()
    for number in range(ROUNDS):
        for side in ("ours", "theirs"):
            with (place / side / paths[number * 7919 % FILES]).open("a") as file:
                file.write(f"change {number}\n")
        pairs["snapshot after 1 change"].append(
            alternately(number, lambda: trees.append(checkout.snapshot()), git.commit)
        )
    versions = git.run("rev-list", "--reverse", "main").split()
    for number in range(ROUNDS):
        old, new = (0, CHANGED) if number % 2 == 0 else (CHANGED, 0)
        checkout.materialize(trees[old])
        git.run("checkout", "-q", versions[old])
        pairs[f"restore of {CHANGED} files"].append(
            alternately(
                number,
                # All of it, as a person who undoes has it: what is on disk is saved first.
                lambda new=new: checkout.materialize(trees[new], checkout.snapshot()),  # type: ignore[misc]
                lambda new=new: git.run("checkout", "-q", versions[new]),  # type: ignore[misc]
            )
        )


def memory_of_a_large_file(place: Path) -> float:
    (place / "files").mkdir()
    child = [sys.executable, "-c", LARGE_FILE, str(place)]
    return int(subprocess.run(child, check=True, capture_output=True, text=True).stdout) / 1e6


def main() -> int:
    pairs: Pairs = {name: [] for name in LIMITS}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        paths = make_tree(place / "ours")
        shutil.copytree(place / "ours", place / "theirs")
        compare_imports(place, pairs)
        compare_rounds(place, paths, pairs)
    with tempfile.TemporaryDirectory() as name:
        grown = memory_of_a_large_file(Path(name))
    over = grown > MEMORY_LIMIT_MB
    print(f"{'median ms, ' + str(FILES) + ' files':28}{'ours':>10}{'git':>10}{'ratio':>8}{'limit':>8}")
    for what, limit in LIMITS.items():
        ours, theirs = (statistics.median(column) for column in zip(*pairs[what], strict=True))
        over = over or ours / theirs > limit
        print(f"{what:28}{ours:10.1f}{theirs:10.1f}{ours / theirs:8.2f}{limit:8.1f}")
    print(f"a 500 MB file in and out adds {grown:.1f} MB of memory; limit {MEMORY_LIMIT_MB} MB")
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
