"""Code in colours: the same text, escaped, in the right language, within limits."""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import pytest
from amounts import amount
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.render.highlight import CODE_LIMIT, Highlighted, guess, highlight, stylesheet

from .documents import Taken

LANGUAGES = [
    "auto",
    "python",
    "javascript",
    "html",
    "json",
    "bash",
    "markdown",
    "yaml",
    "php",
    "xml",
    "text",
    "no-such",
]


@pytest.mark.parametrize(
    ("language", "filename", "code", "expected"),
    [
        ("python", "a.js", "x", "python"),
        ("shell", None, "ls", "bash"),
        ("auto", "src/a.py", "x", "python"),
        ("auto", "Dockerfile", "x", "docker"),
        ("auto", "a.tsx", "x", "tsx"),
        ("auto", "notes.txt", "import os", "text"),
        ("auto", "no.such-thing", "#!/usr/bin/env python3\nx", "python"),
        ("no-such", "a.rs", "x", "rust"),
        ("no-such", None, '{"a": 1}', "json"),
        ("auto", None, "hello", "text"),
        ("auto", "", "hello", "text"),
        ("auto", "\x00/\ud800", "hello", "text"),
        ("", None, "hello", "text"),
    ],
)
def test_language_is_the_given_one_else_of_the_file_name_else_guessed(
    language: str, filename: str | None, code: str, expected: str
) -> None:
    assert highlight(code, language, filename).language == expected


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ('{"a": [1, 2]}', "json"),
        ("[1, 2", "text"),
        ("[" + '"a", ' * 2000, "json"),
        ("[" * 3000, "json"),
        ("#!/bin/sh\nls", "bash"),
        ("#!/usr/bin/env node\nx", "javascript"),
        ("<?xml version='1.0'?><a/>", "xml"),
        ("<!DOCTYPE html><p>", "html"),
        ("<html lang=en>", "html"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@", "diff"),
        ("FROM python:3.12\nRUN ls", "docker"),
        ('package main\n\nimport "fmt"', "go"),
        ("#include <stdio.h>\nint main() {}", "c"),
        ("pub fn main() {\n}", "rust"),
        ("public class A {\n}", "java"),
        ("const a = 1;", "javascript"),
        ("export async function f() {\n}", "javascript"),
        ("import x from 'y'", "javascript"),
        ("def f(x):\n    return x", "python"),
        ("import os.path as p\n", "python"),
        ("SELECT a FROM b", "sql"),
        ("body { color: red; }", "css"),
        ("[tool.x]\na = 1", "toml"),
        ("We import goods from abroad, and select the best.", "text"),
        ("", "text"),
    ],
)
def test_language_is_guessed_from_the_text(code: str, language: str) -> None:
    assert guess(code) == language


@settings(max_examples=amount(150, 20))
@given(st.text(st.sampled_from("<>&'\"/*#`$ \r\n\t{}[]()=;ax1é\u2028\x00-!?"), max_size=80), st.sampled_from(LANGUAGES))
def test_the_text_stays_the_same_and_every_element_is_a_span_with_a_class(code: str, language: str) -> None:
    html = highlight(code, language).html
    taken = Taken(html)
    assert taken.text == code.replace("\r\n", "\n").replace("\r", "\n")
    assert set(taken.tags) <= {"span"}
    assert all(name == "class" and value.startswith("hl-") for _, name, value in taken.attributes)


def test_too_long_code_is_plain_and_escaped() -> None:
    shown = highlight("<b>\n" + "x = 1\n" * (CODE_LIMIT // 6), "python")
    assert shown.language == "text"
    assert shown.html.startswith("&lt;b&gt;\nx = 1\n")


def test_code_after_the_time_limit_is_plain() -> None:
    ticks = count()
    shown = highlight("x = 1\ny = '<'\n", "python", seconds=3, clock=lambda: next(ticks))
    assert Taken(shown.html).text == "x = 1\ny = '<'\n"
    assert shown.html.count("<span") < highlight("x = 1\ny = '<'\n", "python").html.count("<span")
    assert shown.html.endswith("y = '&lt;'\n")


def test_highlighting_uses_classes_of_the_stylesheet() -> None:
    assert highlight("if", "python") == Highlighted("python", '<span class="hl-k">if</span>')
    assert ".code .hl-k," in stylesheet(scope=".code")
    assert "var(--syn-key)" in stylesheet()


def test_guessing_loads_no_lexers_but_the_one_used() -> None:
    program = (
        "import sys; from gateway.render.highlight import highlight; highlight('def f():\\n pass'); highlight('hello');"
        "print(len([name for name in sys.modules if name.startswith('pygments.lexers.')]) < 12)"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"
