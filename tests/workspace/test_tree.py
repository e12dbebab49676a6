"""Trees, the patches between them, and how odd names are written in them."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Invalid
from gateway.workspace.tree import (
    EMPTY,
    Changes,
    Patch,
    Tree,
    apply,
    changes,
    decode,
    diff,
    encode,
    locate,
    require_sound,
)

pytestmark = pytest.mark.promise("T2")

paths = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
trees = st.builds(
    Tree,
    st.dictionaries(paths, st.sampled_from(["1", "2", "3"])),
    st.dictionaries(paths, st.sampled_from("xld")),
)
names = st.binary(min_size=1, max_size=12).filter(lambda name: b"\0" not in name and b"/" not in name).map(os.fsdecode)
A, B = "a" * 64, "b" * 64


@given(trees, trees)
def test_a_patch_turns_one_tree_into_the_other(old: Tree, new: Tree) -> None:
    assert apply(old, diff(old, new)) == new


@given(trees, trees, trees)
def test_two_patches_in_a_row_are_one(first: Tree, second: Tree, third: Tree) -> None:
    one, other = diff(first, second), diff(second, third)
    assert apply(first, one.then(other)) == apply(apply(first, one), other) == third


@given(trees, trees)
def test_a_patch_names_nothing_that_stays(old: Tree, new: Tree) -> None:
    patch = diff(old, new)
    assert all(old.files.get(path) != value for path, value in patch.files.items())
    assert not diff(old, old)
    assert bool(patch) == (old != new)


@given(trees)
def test_from_the_empty_tree_a_patch_is_the_tree(tree: Tree) -> None:
    assert diff(EMPTY, tree) == Patch(tree.files, tree.meta)
    assert apply(tree, diff(tree, EMPTY)) == EMPTY


@given(names)
def test_every_name_on_disk_comes_back_from_the_tree(name: str) -> None:
    written = encode(name)
    assert decode(written) == name
    assert json.loads(json.dumps(written).encode()) == written
    if name not in (".", ".."):
        assert locate(written) == (name,)


@given(names, names)
def test_two_names_on_disk_are_two_in_the_tree(one: str, other: str) -> None:
    assert (encode(one) == encode(other)) == (one == other)


def test_bytes_that_are_not_utf_8_are_written_in_the_private_use_area() -> None:
    assert encode(os.fsdecode(b"bad\xff\x80")) == "bad\uefff\uef80"
    assert encode("漢字é") == "漢字é"
    assert encode("\uef80") == "\uefee\uefbe\uef80"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../x",
        "a//b",
        "./a",
        "a/.",
        "a/",
        "x\0y",
        ".toolgate-1/x",
        "\ud800",
        "\uefc3\uefa9",
    ],
)
def test_a_path_that_leads_out_or_has_a_second_spelling_is_refused(path: str) -> None:
    with pytest.raises(Invalid) as refused:
        locate(path)
    assert refused.value.code == "INVALID_PATH"


@pytest.mark.parametrize(
    "tree",
    [
        Tree({"a": A, "a/b": A}),
        Tree({"a/b": A}, {"a": "d"}),
        Tree({"a": A}, {"a": "d"}),
        Tree({"a": A}, {"a": "?"}),
        Tree({}, {"a": "x"}),
        Tree({}, {"a": "l"}),
        Tree({"a": "../../../../etc/passwd"}),
        Tree({"a": A.upper()}),
    ],
)
def test_a_tree_that_cannot_be_a_directory_is_refused(tree: Tree) -> None:
    with pytest.raises(Invalid):
        require_sound(tree, {*tree.files, *tree.meta})


def test_a_summary_says_what_was_added_changed_and_deleted() -> None:
    old = Tree({"same": A, "edited": A, "gone": A, "run.sh": A, "last/one": A}, {"empty": "d"})
    new = Tree(
        {"same": A, "edited": B, "new/one": A, "run.sh": A, "empty/now": A}, {"run.sh": "x", "last": "d", "x": "d"}
    )
    assert changes(old, diff(old, new)) == Changes(
        added=("empty/now", "new/one", "x/"),
        changed=("edited", "run.sh"),
        deleted=("gone", "last/one"),
    )
    assert changes(new, diff(new, old)) == Changes(
        added=("gone", "last/one"),
        changed=("edited", "run.sh"),
        deleted=("empty/now", "new/one", "x/"),
    )
    assert not changes(old, Patch())
