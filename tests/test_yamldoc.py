"""YAML as plain data: what is read, what is refused with its line, and that what is written comes back."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.errors import Invalid
from gateway.yamldoc import read_plain, write


def value_of(text: str | bytes) -> Any:
    return read_plain(text.encode() if isinstance(text, str) else text, "x.yaml", "INVALID_TOOLSET").value


def test_words_mean_what_json_means_and_all_else_is_text() -> None:
    text = "[1, -2.5, 1e3, true, null, ~, yes, no, on, 2024-01-01, 0123, 0x1F, 1_000, 1:30, .inf, .nan, +1, 'true', '']"
    assert value_of(text) == [
        *(1, -2.5, 1000.0, True, None, None),
        *("yes", "no", "on", "2024-01-01", "0123", "0x1F", "1_000", "1:30", ".inf", ".nan", "+1", "true", ""),
    ]


def test_a_byte_order_mark_and_comments_are_passed_over() -> None:
    assert value_of("\ufeff# hello\na: 1 # one\n") == {"a": 1}
    assert value_of("") is None
    assert value_of("# nothing\n") is None


BILLION_LAUGHS = "a: &a [x]\n" + "\n".join(f"{b}: &{b} [*{a},*{a}]" for a, b in zip("abcdefg", "bcdefgh", strict=True))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (BILLION_LAUGHS, "x.yaml line 1: anchors (&) and aliases (*) are not supported"),
        ("a: 1\nb: *a", "x.yaml line 2: anchors (&) and aliases (*) are not supported"),
        ("a: !!python/object/apply:os.system [id]", "x.yaml line 1: the tag"),
        ("a: !!str 1", "x.yaml line 1: the tag"),
        ("a: !mine {}", "x.yaml line 1: the tag"),
        ("%TAG ! tag:evil,2000:\n---\na: 1", "x.yaml line 1: %TAG"),
        ("a: 1\nb: {c: 1, c: 2}", "x.yaml line 2: 'b.c' occurs twice (first in line 2)"),
        ("a: 1\n\n'a': 2", "x.yaml line 3: 'a' occurs twice (first in line 1)"),
        ("a: 1\n---\nb: 2", "x.yaml line 2: there is a second document"),
        ("a: {<<: {b: 1}}", "x.yaml line 1: merge keys"),
        ("1: a", "x.yaml line 1: a key must be text"),
        ("true: a", "x.yaml line 1: a key must be text"),
        ("? [a]\n: b", "x.yaml line 1: a key must be text"),
        (f"{'k' * 101}: 1", "x.yaml line 1: the key 'kkk"),
        ("a: " + "[" * 60 + "]" * 60, "x.yaml line 1: this is nested deeper than 48 levels"),
        ("a: " + "[" * 100_000, "x.yaml line 1: this is nested deeper than 48 levels"),
        ("\n- a" * 500_001, "more than 500000 values"),
        ("a: 1e999", "x.yaml line 1: this number is too large"),
        ("a: " + "9" * 5000, "x.yaml line 1: this number is too large"),
        ('a: "\\uD800"', "x.yaml line 1: "),
        ("a: 1\nb: [", "invalid YAML"),
        ("a: 1\n\tb: 2", "x.yaml line 2: invalid YAML"),
        ("a: '\x00'", "invalid YAML"),
        (b"a: 1\nb: \xff", "x.yaml line 2: the file is not UTF-8"),
        ("a: 1".encode("utf-16"), "x.yaml line 1: the file is not UTF-8"),
        ("#" * (8 * 1024 * 1024 + 1), "x.yaml: the file is larger than 8192 KiB"),
    ],
    ids=range(26),
)
def test_what_is_not_plain_data_is_refused_with_its_line(text: str | bytes, complaint: str) -> None:
    with pytest.raises(Invalid) as refused:
        value_of(text)
    assert complaint in refused.value.message
    assert refused.value.code == "INVALID_TOOLSET"
    assert len(refused.value.message) < 400


texts = st.text(max_size=40) | st.text("ab:#-\n \t'\"$,.|>?!&*%@`{}[]~<=yno01e+", max_size=12)
keys = st.text(max_size=20) | st.sampled_from(["<<", "=", "null", "yes", "1", "a b", "- a", "a: b", "#"])
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
@example({"a": "x\n\n  y\n", "b": ["x\ny", ["\n x", "x\n\n", " x\ny", "x \ny"]], "c": "# x\ny", "d": "...\n---\n"})
@example({"a": [[], {}, [[{"b": []}]], {"c": [1, "x\ny\n"]}]})
@example(["1e5", "0o17", "0x1", "1_0", "12:30", "2001-01-01", ".5", "NaN", "y", "Off", "a:", "a: b", "a #b", "-", "?"])
@example({"\u00ad" * 100: "\x85\u2028\ufeff\U0001f600\U000e0001"})
@example([-0.0, 1e300, 5e-324, 10**30, 1.0])
def test_what_is_written_comes_back_and_is_written_the_same_again(value: Any) -> None:
    text = write(value)
    again = value_of(text)
    assert write(again) == text
    assert repr(again) == repr(value)


@settings(deadline=None)
@given(st.dictionaries(st.text("abc-_ ", min_size=1, max_size=5), texts | st.booleans() | st.none(), max_size=4))
def test_other_readers_read_the_same(value: dict[str, Any]) -> None:
    assert yaml.safe_load(write(value)) == value
