"""Requests of HTTP tools: no value can change anything but the place it was meant for."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, unquote

import pytest
from amounts import NIGHTLY
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.bundles import load
from gateway.bundles.http_tool import HttpTool
from gateway.errors import Invalid
from gateway.sources.http.request import HttpRequest, RequestTemplate

pytestmark = pytest.mark.promise("B7")

HEAD = "id: demo\nname: Demo\nversion: 1.0.0\nsecrets: [HOST]\nhttp: {base_url: 'https://api.test/v1'}\ntools:\n- "


def template(tool: dict[str, Any]) -> RequestTemplate:
    toolset = load(HEAD + json.dumps({"id": "t", "type": "http", **tool}))
    (spec,) = toolset.tools
    assert isinstance(spec, HttpTool)
    return RequestTemplate(spec, toolset.http)


def build(tool: dict[str, Any], **values: Any) -> HttpRequest:
    return template(tool).build(values)


HOSTILE = [
    *(
        "..",
        ".",
        "a/../b",
        "%2e%2e%2f",
        "a/b",
        "a\\b",
        "//evil.test/",
        "@evil.test",
        "?x=1",
        "#x",
        "a;b",
        "a b",
        "",
        "%",
        "%00",
    ),
    *(
        "\r\nX-Evil: 1",
        "a\nb",
        "\0",
        "x&admin=1",
        "x=1",
        '","admin":true,"x":"',
        "</a><b>",
        "${HOST}",
        "\u2028",
        "é",
        "😀",
    ),
    *("http://evil.test/", "x" * 300, "%0d%0aX: y", "a,b", "k=v", ":443", "[::1]"),
]
texts = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
scalars = (
    texts | st.integers(-(2**70), 2**70) | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=6
)
arguments = st.fixed_dictionaries({}, optional=dict.fromkeys("abcde", values))

REQUEST = {
    "method": "POST",
    "url_template": "/users/${a}/x-${b}/items?fixed=1&c=${c}",
    "query": {"d": "${d}", "mixed": "q ${e}"},
    "headers": {"X-A": "${a}", "X-Mixed": "v ${b}"},
    "cookies": {"session": "${c}"},
    "body": {"a": "${a}", "list": ["${b}", {"deep": "is ${c}"}], "fixed": 1},
}

FORM = {"method": "POST", "url_template": "/", "form": {"a": "${a}", "b": "x ${b}"}}
PARTS = {"method": "POST", "url_template": "/", "parts": {"a": "${a}", "b": "x ${b}"}}
COMPILED, COMPILED_FORM, COMPILED_PARTS = template(REQUEST), template(FORM), template(PARTS)
EXAMPLES = 5000 if NIGHTLY else 200


def shape(value: Any, template: Any) -> Any:
    """The structure of a body, with everything that stands where the template has one reference left out."""
    if isinstance(template, str):
        return isinstance(value, str) if "${" in template and not template.startswith("${") else None
    if isinstance(template, dict):
        assert isinstance(value, dict)
        assert value.keys() <= template.keys()
        return {key: shape(item, template[key]) for key, item in value.items()}
    if isinstance(template, list):
        assert isinstance(value, list)
        assert len(value) <= len(template)
        return "list"
    assert value == template
    return None


@settings(max_examples=EXAMPLES, deadline=None)
@given(arguments)
def test_no_value_changes_host_path_shape_names_or_json_structure(given_values: dict[str, Any]) -> None:
    try:
        request = COMPILED.build(given_values)
    except Invalid as refused:
        assert "'" in refused.message
        return
    assert (request.method, request.scheme, request.authority) == ("POST", "https", "api.test")
    target = request.target
    assert target.isascii()
    assert target.isprintable()
    assert " " not in target
    assert "#" not in target
    segments = request.path.split("/")
    assert len(segments) == 6
    assert segments[:3] == ["", "v1", "users"]
    assert segments[5] == "items"
    assert not {".", "..", ""}.intersection(unquote(segment) for segment in segments[3:])
    assert "\\" not in request.path
    names = [name for name, _ in parse_qsl(request.query, keep_blank_values=True)]
    assert set(names) <= {"fixed", "c", "d", "mixed"}
    assert names.count("fixed") == 1
    assert names.count("mixed") == 1
    assert request.headers.keys() <= {"x-a", "x-mixed", "cookie", "content-type"}
    for value in request.headers.values():
        assert not any(character in value for character in "\r\n\0")
    if "cookie" in request.headers:
        assert request.headers["cookie"].startswith("session=")
        assert ";" not in request.headers["cookie"]
    body = json.loads(request.body)
    shape(body, REQUEST["body"])
    assert body["fixed"] == 1
    if "a" in given_values:
        assert body["a"] == given_values["a"]


@settings(max_examples=EXAMPLES, deadline=None)
@given(arguments)
def test_form_and_multipart_bodies_keep_their_names(given_values: dict[str, Any]) -> None:
    form = COMPILED_FORM.build(given_values)
    names = {name for name, _ in parse_qsl(form.body.decode(), keep_blank_values=True, max_num_fields=100)}
    assert names <= {"a", "b"}
    parts = COMPILED_PARTS.build(given_values)
    boundary = parts.headers["content-type"].partition("boundary=")[2].encode()
    for part in parts.body.split(b"--" + boundary)[1:-1]:
        assert part.startswith(
            (b'\r\ncontent-disposition: form-data; name="a"', b'\r\ncontent-disposition: form-data; name="b"')
        )


def test_values_are_encoded_for_their_position() -> None:
    request = build(REQUEST, a="a/b?c", b="ü", c="x&y=z", d=[1, "two"], e='"')
    assert request.url == (
        "https://api.test/v1/users/a%2Fb%3Fc/x-%C3%BC/items?fixed=1&c=x%26y%3Dz&d=1&d=two&mixed=q%20%22"
    )
    assert request.headers["cookie"] == "session=x&y=z"
    assert json.loads(request.body) == {"a": "a/b?c", "list": ["ü", {"deep": "is x&y=z"}], "fixed": 1}


def test_what_has_no_value_is_left_out_and_null_stays_in_json() -> None:
    tool = {"method": "POST", "url_template": "/x", "query": {"q": "${q}"}, "headers": {"X": "${x}"}}
    request = build({**tool, "body": {"a": "${a}", "n": "${n}", "list": ["${a}", 1]}}, n=None, q=None)
    assert (request.query, dict(request.headers)) == ("", {"content-type": "application/json"})
    assert json.loads(request.body) == {"n": None, "list": [1]}
    assert build({**tool, "body": "${whole}"}).body == b""
    assert build({**tool, "body": "${whole}"}, whole=[1]).body == b"[1]"


@pytest.mark.parametrize("value", ["", None, [], "..", ".", "a/../b", "..\\x"])
def test_path_value_that_would_change_the_path_is_refused(value: Any) -> None:
    with pytest.raises(Invalid, match="'a' is"):
        build({"url_template": "/x/${a}"}, a=value)
    with pytest.raises(Invalid, match="'a' is part"):
        build({"url_template": "/x/.${a}"}, a=".")


def test_header_value_with_a_line_break_is_refused_and_names_the_header() -> None:
    with pytest.raises(Invalid, match="'x-a' must be one line"):
        build({"url_template": "/x", "headers": {"X-A": "${a}"}}, a="1\r\nHost: evil.test")


@pytest.mark.parametrize("host", ["evil.test/", "a@evil.test", "evil.test?", "a b", "x\r\ny", "", "a:b"])
def test_secret_that_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(Invalid, match="is no host"):
        build({"url_template": "https://${HOST}/x"}, HOST=host)
    assert build({"url_template": "https://${HOST}/x"}, HOST="h.test:8443").authority == "h.test:8443"


@pytest.mark.parametrize(
    ("declared", "value", "query"),
    [
        ({"style": "form"}, [3, 4], "p=3&p=4"),
        ({"style": "form", "explode": False}, ["a,b", "c"], "p=a%2Cb,c"),
        ({"style": "spaceDelimited"}, ["a", "b c"], "p=a%20b%20c"),
        ({"style": "pipeDelimited"}, ["a", "b"], "p=a%7Cb"),
        ({"style": "form"}, {"R": 100, "G": 200}, "R=100&G=200"),
        ({"style": "form", "explode": False}, {"R": 100, "G": 200}, "p=R,100,G,200"),
        ({"style": "deepObject"}, {"R": 1, "in": {"x": "y"}}, "p%5BR%5D=1&p%5Bin%5D%5Bx%5D=y"),
        ({"style": "json"}, {"R": [1]}, "p=%7B%22R%22%3A%5B1%5D%7D"),
        ({"style": "form"}, True, "p=true"),
    ],
)
def test_query_styles_of_openapi(declared: dict[str, Any], value: Any, query: str) -> None:
    tool = {"url_template": "/x", "query": {"p": {"value": "${a}", **declared}, "other": "${b}"}}
    assert build(tool, a=value).query == query


def test_exploded_object_cannot_set_another_parameter() -> None:
    tool = {"url_template": "/x?fixed=1", "query": {"p": {"value": "${a}", "style": "form"}, "other": "${b}"}}
    cookie = {"url_template": "/x", "cookies": {"p": {"value": "${a}", "style": "form"}, "session": "s"}}
    assert build(cookie, a={"x; session": "\r\n1"}).headers["cookie"] == "x%3B%20session=%0D%0A1; session=s"
    with pytest.raises(Invalid, match="'session' is a parameter of its own"):
        build(cookie, a={"session": "other"})
    for name in ("fixed", "other", "p"):
        with pytest.raises(Invalid, match=f"'{name}' is a parameter of its own"):
            build(tool, a={name: 1})


@pytest.mark.parametrize(
    ("style", "explode", "value", "path"),
    [
        ("simple", False, [3, 4], "/x/3,4"),
        ("simple", True, {"R": 1, "G": 2}, "/x/R=1,G=2"),
        ("label", False, [3, 4], "/x/.3,4"),
        ("label", True, [3, 4], "/x/.3.4"),
        ("matrix", False, 5, "/x/;a=5"),
        ("matrix", False, [3, 4], "/x/;a=3,4"),
        ("matrix", True, [3, 4], "/x/;a=3;a=4"),
        ("matrix", True, {"R": 1, "G": "/"}, "/x/;R=1;G=%2F"),
    ],
)
def test_path_styles_of_openapi(style: str, explode: bool, value: Any, path: str) -> None:
    tool = {"url_template": "https://h.test/x/${a}", "path": {"a": {"style": style, "explode": explode}}}
    assert build(tool, a=value).path == path


def test_json_body_written_as_text_keeps_its_structure() -> None:
    tool = {"method": "POST", "url_template": "/", "body": '{"q": "say ${a}", "n": ${n}, "whole": "${a}"}'}
    request = build(tool, a='","admin":true,"x":"', n=3)
    assert json.loads(request.body) == {"q": 'say ","admin":true,"x":"', "n": 3, "whole": '","admin":true,"x":"'}


def test_text_body_escapes_values_in_xml() -> None:
    tool = {"method": "POST", "url_template": "/", "content_type": "application/xml", "body": "<q>${a}</q>"}
    request = build(tool, a="</q><evil/>&")
    assert request.body == b"<q>&lt;/q&gt;&lt;evil/&gt;&amp;</q>"
    assert request.headers["content-type"] == "application/xml"


def test_multipart_parts_are_text_json_bytes_and_files() -> None:
    tool = {
        "method": "POST",
        "url_template": "/",
        "parts": {
            "name": "${a}",
            "meta": {"value": {"k": "${b}"}},
            "raw": {"base64": "${c}", "filename": 'x"${a}.bin'},
            "doc": {"file": "${path}", "content_type": "text/plain"},
            "tags": "${d}",
            "gone": "${nothing}",
        },
    }
    request = template(tool).build(
        {"a": "ü\r\n", "b": 1, "c": "AAE=", "d": ["x", "y"], "path": "docs/a.txt"}, {"docs/a.txt": b"text"}
    )
    boundary = request.headers["content-type"].partition("boundary=")[2]
    parts = request.body.decode().split(f"--{boundary}")[1:-1]
    heads = [part.strip("\r\n").split("\r\n\r\n")[0] for part in parts]
    assert heads == [
        'content-disposition: form-data; name="name"',
        'content-disposition: form-data; name="meta"\r\ncontent-type: application/json',
        'content-disposition: form-data; name="raw"; filename="x%22ü%0D%0A.bin"\r\n'
        "content-type: application/octet-stream",
        'content-disposition: form-data; name="doc"; filename="a.txt"\r\ncontent-type: text/plain',
        'content-disposition: form-data; name="tags"',
        'content-disposition: form-data; name="tags"',
    ]
    assert parts[1].endswith('{"k":1}\r\n')
    assert parts[2].endswith("\0\x01\r\n")
