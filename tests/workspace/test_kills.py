"""A process killed in the middle of a snapshot or a restore loses nothing, and doing it again completes it."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from amounts import amount

from gateway.workspace.tree import EMPTY

from .folders import new_checkout, require_sound_blobs, walk, write

pytestmark = pytest.mark.promise("T2")

ROUNDS = amount(6, nightly=12)
FILES = 600

CHILD = """
import json, os, signal, sys
from pathlib import Path
from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.tree import Tree

place, action, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def die_after(system_call):
    def counted(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return system_call(*arguments, **options)
    return counted

for name in ("open", "write", "pwrite", "ftruncate", "fsync", "rename", "unlink", "mkdir", "rmdir", "symlink", "close"):
    setattr(os, name, die_after(getattr(os, name)))
checkout = Checkout(place / "files", FileBlobs(place / "blobs"), place / "index")
if action == "snapshot":
    checkout.snapshot()
    checkout.save()
else:
    checkout.materialize(Tree(*json.loads((place / "target").read_text())))
"""


def run_and_kill(place: Path, action: str, steps: int) -> bool:
    """Whether the child was killed by its own hand before it was done."""
    child = subprocess.run([sys.executable, "-c", CHILD, str(place), action, str(steps)], check=False)
    assert child.returncode in (0, -signal.SIGKILL)
    return child.returncode != 0


def fill(work: Path, chance: random.Random) -> None:
    for number in range(FILES):
        write(work / f"d{number % 30}/{number}", chance.randbytes(500), 0o755 if number % 9 == 0 else None)
    (work / "link").symlink_to("d1")
    (work / "empty").mkdir()


@pytest.mark.slow
def test_a_restore_killed_at_any_step_is_completed_by_doing_it_again(tmp_path: Path) -> None:
    checkout, work, chance = new_checkout(tmp_path), tmp_path / "files", random.Random(1)
    fill(work, chance)
    first = checkout.snapshot()
    for number in range(0, FILES, 2):
        write(work / f"d{number % 30}/{number}", b"changed")
    shutil.rmtree(work / "d3")
    write(work / "d3", b"a file now")
    second = checkout.snapshot()
    killed = 0
    for number, target in enumerate([EMPTY, first, second] * (ROUNDS // 3)):
        (tmp_path / "target").write_text(json.dumps([target.files, target.meta]))
        killed += run_and_kill(tmp_path, "materialize", chance.randint(1, 2500))
        if number % 2:
            assert new_checkout(tmp_path).snapshot() == walk(work)
        new_checkout(tmp_path).materialize(target)
        assert walk(work) == target
        assert not list(work.rglob(".toolgate-*")) or target != EMPTY
    assert killed > ROUNDS // 2
    require_sound_blobs(tmp_path / "blobs")


@pytest.mark.slow
def test_a_snapshot_killed_at_any_step_leaves_only_whole_contents(tmp_path: Path) -> None:
    work, chance = tmp_path / "files", random.Random(2)
    new_checkout(tmp_path)
    fill(work, chance)
    killed, seen = 0, set[int]()
    for number in range(ROUNDS):
        killed += run_and_kill(tmp_path, "snapshot", chance.randint(1, 800))
        seen.add(require_sound_blobs(tmp_path / "blobs"))
        if number % 3 == 2:
            shutil.rmtree(tmp_path / "blobs")
            (tmp_path / "index").unlink(missing_ok=True)
    assert killed > ROUNDS // 2
    assert len(seen) > 2
    tree = new_checkout(tmp_path).snapshot()
    assert tree == walk(work)
    assert require_sound_blobs(tmp_path / "blobs") == len(set(tree.files.values()))
