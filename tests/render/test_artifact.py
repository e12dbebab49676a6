"""Data in a page: where its script goes, and that nothing gets out of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Invalid
from gateway.render import inject
from gateway.render.renderers import script_literal

from .documents import JSON, Taken

SCRIPT = "<script>window.__TOOL_DATA__ = 1;</script>"
PAGES = [
    "<!doctype html><html><head><title>t</title></head><body><p>x</p></body></html>",
    "<body class='a'><p>x</p></body>",
    "<p>x</p>",
    "",
]


def data_of(html: str) -> Any:
    """What the script of a page sets, read without a browser."""
    (script,) = Taken(html).scripts
    literal = re.fullmatch(r"window\.__TOOL_DATA__ = (?:JSON\.parse\((.*)\)|(.*));", script, re.DOTALL)
    assert literal is not None
    return json.loads(literal[2]) if literal[2] is not None else json.loads(json.loads(literal[1]))


@pytest.mark.parametrize(
    ("html", "marked"),
    [
        ("<html><head><title>t</title></head><body>x</body>", "<html><head><title>t</title>|</head><body>x</body>"),
        ("<HTML><HEAD></HEAD ><BODY>", "<HTML><HEAD>|</HEAD ><BODY>"),
        ("<html><body class='a>b'>x", "<html><body class='a>b'>|x"),
        ("<BODY\nid=x>x", "<BODY\nid=x>|x"),
        ("<p>x</p>", "|<p>x</p>"),
        ("", "|"),
        ("\ufeff<!DOCTYPE html>\n<p>x</p>", "\ufeff<!DOCTYPE html>|\n<p>x</p>"),
        ("<!-- c --><!doctype html><p>x", "<!-- c --><!doctype html>|<p>x"),
        ("<!-- </head> --><head></head>", "<!-- </head> --><head>|</head>"),
        ("<!-- <body> --><p>x", "<!-- <body> -->|<p>x"),
        ("<!--></head>", "<!-->|</head>"),
        ("<!-- </head>", "|<!-- </head>"),
        ("<script>'</head>'</script></head>", "<script>'</head>'</script>|</head>"),
        ("<SCRIPT>a='<body>'</Script ><body>x", "<SCRIPT>a='<body>'</Script ><body>|x"),
        ("<style>/*</head>*/</style></head>", "<style>/*</head>*/</style>|</head>"),
        ("<title></head></title></head>", "<title></head></title>|</head>"),
        ("<textarea><body></textarea><body>", "<textarea><body></textarea><body>|"),
        ('<meta content="</head>"></head>', '<meta content="</head>">|</head>'),
        ("<link title='<body>'><body>", "<link title='<body>'><body>|"),
        ("<header>h</header></headers><bodyguard>", "|<header>h</header></headers><bodyguard>"),
        ("<body></head>", "<body>|</head>"),
        ("a < b </head>", "a < b |</head>"),
    ],
)
def test_the_script_stands_before_the_head_ends_or_where_the_body_starts(html: str, marked: str) -> None:
    assert inject(html, 1) == marked.replace("|", SCRIPT)


@given(JSON, st.sampled_from(PAGES))
def test_injected_data_is_read_unchanged_and_adds_no_element(data: Any, page: str) -> None:
    html = inject(page, data)
    taken, before = Taken(html), Taken(page)
    assert data_of(html) == data
    assert sorted(taken.tags) == sorted([*before.tags, "script"])
    assert (taken.text, taken.attributes, taken.comments) == (before.text, before.attributes, before.comments)


@given(JSON)
def test_script_literal_cannot_end_its_script_or_line(data: Any) -> None:
    assert not set(script_literal(data)) & set("<>&\u2028\u2029\n\r")


def test_key_named_proto_is_data_and_not_the_prototype() -> None:
    assert script_literal({"__proto__": {"admin": True}}).startswith("JSON.parse(")
    assert data_of(inject("", {"__proto__": {"</script>": "\u2028"}})) == {"__proto__": {"</script>": "\u2028"}}


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the script")
def test_a_script_engine_reads_the_same_data() -> None:
    data = {"__proto__": {"admin": True}, "x": "</script><!--&\u2028\u2029\\u003c'\"\x00", "y": [1.5, None, True]}
    (script,) = Taken(inject("", data)).scripts
    program = f"globalThis.window = {{}};{script}process.stdout.write(JSON.stringify(window.__TOOL_DATA__))"
    assert json.loads(subprocess.check_output(["node", "-e", program])) == data


def test_data_that_is_not_json_is_refused() -> None:
    with pytest.raises(Invalid):
        inject("<p>", {"x": "\ud800"})


@pytest.mark.parametrize(
    "piece", ["<a ", "<a '", '<a "', "<!--", "<script ", "<script>", "<body ", "</head", "< ", "<a b='c' "]
)
def test_page_of_broken_tags_is_parsed_in_linear_time(piece: str) -> None:
    started = time.process_time()
    inject(piece * 100_000, 1)
    assert time.process_time() - started < 2
