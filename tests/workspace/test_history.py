"""Long histories of changes, restores and crashes, against an independent look at the folder."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from amounts import amount
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.workspace.tree import EMPTY, Tree, apply, diff

from .folders import disturb, new_checkout, require_sound_blobs, walk

pytestmark = pytest.mark.promise("T2")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
def test_a_long_history_is_seen_and_restored_exactly(tmp_path: Path, seed: int) -> None:
    checkout, work, chance = new_checkout(tmp_path), tmp_path / "files", random.Random(seed)
    history, state = [EMPTY], EMPTY
    for _ in range(amount(400, 120)):
        for _ in range(chance.randint(0, 4)):
            disturb(work, chance)
        tree = checkout.snapshot()
        state = apply(state, diff(state, tree))
        assert tree == state == walk(work)
        history.append(tree)
        if chance.random() < 0.25:
            state = chance.choice(history)
            checkout.materialize(state)
            assert walk(work) == state
    require_sound_blobs(tmp_path / "blobs")


class Workspace(RuleBasedStateMachine):
    """A folder, its versions, and everything that may befall them in any order."""

    @initialize()
    def begin(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.work = self.place / "files"
        self.checkout = new_checkout(self.place)
        self.versions: list[Tree] = [EMPTY]

    @rule(seed=st.integers(0, 2**32), count=st.integers(1, 6))
    def disturb(self, seed: int, count: int) -> None:
        chance = random.Random(seed)
        for _ in range(count):
            disturb(self.work, chance)

    @rule()
    def snapshot(self) -> None:
        tree = self.checkout.snapshot()
        assert tree == walk(self.work)
        self.versions.append(tree)

    @rule(choice=st.integers(0, 2**16))
    def materialize(self, choice: int) -> None:
        tree = self.versions[choice % len(self.versions)]
        self.checkout.materialize(tree)
        assert walk(self.work) == tree

    @rule()
    def save(self) -> None:
        self.checkout.save()

    @rule()
    def crash(self) -> None:
        """What was in memory is gone; the index is whatever was saved last."""
        self.checkout = new_checkout(self.place)

    @rule(keep=st.floats(0, 1))
    def damage_the_index(self, keep: float) -> None:
        index = self.place / "index"
        if index.exists():
            content = index.read_bytes()
            index.write_bytes(content[: int(len(content) * keep)])
        self.checkout = new_checkout(self.place)

    @rule()
    def lose_the_index(self) -> None:
        (self.place / "index").unlink(missing_ok=True)
        self.checkout = new_checkout(self.place)

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if hasattr(self, "place"):
            assert not list(self.work.rglob(".toolgate-*"))

    def teardown(self) -> None:
        if hasattr(self, "place"):
            require_sound_blobs(self.place / "blobs")
            shutil.rmtree(self.place)


Workspace.TestCase.settings = settings(
    max_examples=amount(20, 6), stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestWorkspace = pytest.mark.promise("T2")(Workspace.TestCase)
