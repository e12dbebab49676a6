"""What a caller may write as a path."""

import os
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Invalid
from gateway.workspace import parse
from gateway.workspace.walk import DEPTH_LIMIT


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("", ()),
        (".", ()),
        ("./", ()),
        ("a", ("a",)),
        ("a/b.txt", ("a", "b.txt")),
        ("./a//b/./c/", ("a", "b", "c")),
        ("...", ("...",)),
        ("..a/b..", ("..a", "b..")),
        (" a ", (" a ",)),
        ("größe/日本", ("größe", "日本")),
        ("a\\b", ("a\\b",)),
    ],
)
def test_a_path_becomes_its_components(path: str, parts: tuple[str, ...]) -> None:
    assert parse(path) == parts


@pytest.mark.promise("C6")
@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "//a",
        "..",
        "../ws-evil/x",
        "a/../../b",
        "a/..",
        "a\0b",
        "a\nb",
        "a\x1b[31m",
        "a\x7f",
        "a\x85b",
        "\udcff",
        "\ud800",
        "x" * 256,
        "ü" * 128,
        "/".join(["d"] * (DEPTH_LIMIT + 1)),
        "/".join(["x" * 200] * 30),
        ".toolgate-1",
        "a/.toolgate-x/b",
    ],
)
def test_a_path_that_leaves_or_confuses_is_refused_by_name_and_with_the_fix(path: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(path)
    assert refused.value.code == "INVALID_PATH"
    assert repr(path)[:20] in refused.value.message
    assert "paths are relative to the workspace root" in refused.value.message
    refused.value.message.encode()


@settings(deadline=None)
@given(st.text(alphabet=st.characters(), max_size=60) | st.text(alphabet="./a\0\n", max_size=30))
def test_whatever_is_accepted_stays_inside(path: str) -> None:
    try:
        parts = parse(path)
    except Invalid as refused:
        refused.message.encode()
        return
    assert not os.path.isabs("/".join(parts))
    assert all(part not in ("", ".", "..") and "/" not in part for part in parts)
    assert os.path.normpath(os.path.join("/ws", *parts)).split("/")[1] == "ws"
    assert len(parts) <= DEPTH_LIMIT
    assert parse("/".join(parts)) == parts


@settings(deadline=None)
@given(st.lists(st.text(alphabet=string.ascii_letters + "-_ .", min_size=1, max_size=8), max_size=10))
def test_ordinary_names_are_accepted_as_they_are(names: list[str]) -> None:
    plain = [name for name in names if name not in (".", "..")]
    assert parse("/".join(plain)) == tuple(plain)
