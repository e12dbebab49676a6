"""Which paths a glob means."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Invalid
from gateway.workspace.globs import Glob


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/deep/a.py", True),
        ("*.py", "a.pyc", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[ab].txt", "b.txt", True),
        ("[!ab].txt", "b.txt", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/x/a.py", False),
        ("src/*.py", "lib/src/a.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/x/y/a.py", True),
        ("src/**", "src/x/y", True),
        ("src/**", "src", False),
        ("**/a/**", "x/a/y", True),
        ("**", "x/y", True),
        ("*.{js,ts}", "x/a.ts", True),
        ("{a,b}/{c,d{e,f}}", "b/df", True),
        ("{a,b}/{c,d{e,f}}", "b/d", False),
        ("/a", "a", True),
        ("/a", "b/a", False),
        ("node_modules/", "x/node_modules", True),
        ("[", "[", True),
        ("a{b", "a{b", True),
        ("*", "A.txt", True),
        ("a.TXT", "a.txt", False),
    ],
)
def test_a_glob_means_what_one_expects(pattern: str, path: str, expected: bool) -> None:
    assert Glob(pattern).matches(tuple(path.split("/"))) is expected


@pytest.mark.parametrize("pattern", ["", "/", "x" * 1001, "{a,b}" * 7])
def test_a_glob_of_nothing_or_of_too_much_is_refused(pattern: str) -> None:
    with pytest.raises(Invalid) as refused:
        Glob(pattern)
    assert refused.value.code == "INVALID_PATTERN"


@settings(deadline=None)
@given(
    st.text(alphabet="ab*?[]!{},/.-\\", max_size=40),
    st.lists(st.text(alphabet="ab.-", min_size=1, max_size=20), max_size=6),
)
def test_no_pattern_is_a_surprise(pattern: str, path: list[str]) -> None:
    try:
        Glob(pattern).matches(tuple(path))
    except Invalid as refused:
        assert refused.code == "INVALID_PATTERN"


@pytest.mark.parametrize(
    "pattern", ["*a" * 250 + "b", "**/" * 300 + "b", "*?" * 250 + "b", "[a]*" * 200 + "b", "{a,a}" * 6 + "*a*a*a*a*b"]
)
def test_no_pattern_takes_long(pattern: str) -> None:
    started = time.process_time()
    assert not Glob(pattern).matches(("a" * 250,) * 64)
    assert time.process_time() - started < 2
