"""Where a plan may point, whatever a call's data says."""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Invalid
from gateway.render.interpolate import (
    artifact_path,
    find_host,
    frame_url,
    origin,
    port_number,
    workspace_path,
    workspace_uri,
)
from gateway.serve.mcp.uris import FileAddress, file_uri, parse
from gateway.workspace import parse as workspace_parts
from gateway.workspace.tree import encode

PATHS = st.text(st.sampled_from("a./\\~ %é#?$\x00\n\ud800\uef80"), max_size=12) | st.text(max_size=20)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("a.txt", "a.txt"),
        ("./a//b/./c.py", "a/b/c.py"),
        ("...", "..."),
        ("a..b/..c", "a..b/..c"),
        ("/data/ws/out/x.png", "out/x.png"),
        ("C:\\x", "C:\\x"),
    ],
)
def test_a_path_is_made_relative_to_the_workspace(path: str, inside: str) -> None:
    assert workspace_path(path, "/data/ws") == inside


@pytest.mark.parametrize(
    "path",
    [
        *(
            "",
            ".",
            "/",
            "..",
            "a/../../b",
            "/etc/passwd",
            "/data/ws",
            "/data/ws-evil/x",
            "/data/ws/../x",
            "a\0b",
            "a\nb",
        ),
        *("\ud800", "x" * 5000, None, 3, ["a"], {"a": 1}),
    ],
)
def test_path_outside_the_workspace_or_empty_is_refused(path: Any) -> None:
    with pytest.raises(Invalid) as refused:
        workspace_path(path, "/data/ws")
    assert refused.value.code == "INVALID_PATH"
    assert len(refused.value.message) < 400


@given(PATHS)
def test_accepted_path_is_inside_and_equal_to_the_workspaces_reading(path: str) -> None:
    try:
        inside = workspace_path(path)
    except Invalid:
        return
    assert posixpath.normpath(posixpath.join("/ws", inside)).startswith("/ws/")
    try:
        assert "/".join(workspace_parts(path)) == inside
    except Invalid:
        return  # the workspace refuses a few names more, of its own


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20), PATHS)
def test_a_uri_is_the_one_at_which_the_file_is_a_resource(chat: str, path: str) -> None:
    try:
        inside = "/".join(workspace_parts(workspace_path(path)))
    except Invalid:
        return
    assert workspace_uri(chat, inside) == file_uri(chat, encode(inside))
    if chat.isprintable():
        assert parse(workspace_uri(chat, inside)) == FileAddress(chat, encode(inside))


@pytest.mark.parametrize("path", ["artifacts/a.html", "./artifacts/a.html", "$toolset/artifacts/a.html"])
def test_an_artifact_is_named_in_its_toolset(path: str) -> None:
    assert artifact_path(path) == "artifacts/a.html"


@pytest.mark.parametrize(
    "path", ["../a.html", "/a.html", "$toolset", "$toolset/../a.html", "$workspace/a.html", "", None]
)
def test_an_artifact_elsewhere_is_refused(path: Any) -> None:
    with pytest.raises(Invalid):
        artifact_path(path)


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost",
        "http://localhost:3000/a?b#c",
        "HTTPS://LocalHost:8443/",
        "http://127.0.0.1:5173/",
        "http://127.1.2.3/",
        "http://[::1]:8080/x",
        "http://localhost/grüße?q=%20&x='y'",
    ],
)
def test_url_on_this_machine_may_be_framed(url: str) -> None:
    assert frame_url(url, "$return.url") == url


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "https://169.254.169.254/latest/",
        "http://0.0.0.0:3000",
        "http://localhost.evil.com",
        "http://localhost@evil.com",
        "http://localhost:80@evil.com",
        "http://evil.com#@localhost",
        "http://evil.com\\@localhost",
        "http://localhost\\.evil.com",
        "http://2130706433",
        "http://0x7f.1",
        "http://127.0.0.1.nip.io",
        "http://[::ffff:8.8.8.8]",
        "http://locaⅼhost",
        "http://localhost%2eevil.com",
        "http://local\thost",
        "http://localhost\n.evil.com",
        " http://localhost",
        "http://localhost ",
        "http://localhost:0",
        "http://localhost:65536",
        "http://localhost:99999999",
        "http://localhost:x",
        "http://localhost:",
        "http:localhost",
        "http:///localhost",
        "//localhost",
        "/localhost",
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "java\nscript:alert(1)",
        "javascript://localhost/%0aalert(1)",
        "data:text/html,<script>alert(1)</script>",
        "blob:http://localhost/x",
        "file:///etc/passwd",
        "vbscript:x",
        "about:blank",
        "ftp://localhost/",
        "http://localhost/" + "a" * 9000,
        "http://localhost/\x00",
        "http://localhost/\ud800",
        "",
        None,
        7,
        {"url": "http://localhost"},
    ],
)
def test_data_cannot_choose_another_host_or_scheme_of_a_frame(url: Any) -> None:
    for declared in (
        "$return.url",
        "http://$return.host/",
        "https://example.org$return.rest",
        "https://good.org/$args.x",
    ):
        with pytest.raises(Invalid) as refused:
            frame_url(url, declared)
        assert refused.value.code == "INVALID_URL"


@pytest.mark.parametrize(
    ("template", "host"),
    [
        ("https://example.com", "example.com"),
        ("https://Example.com/x/$args.id", "example.com"),
        ("https://example.com:$args.port/", "example.com"),
        ("https://example.com?q=$args.q", "example.com"),
        ("http://[2001:db8::1]/$args.x", "[2001:db8::1]"),
        ("https://example.com$args.rest", None),
        ("https://$args.host/", None),
        ("https://user@example.com/$args.x", None),
        ("$return.url", None),
        ("https://$$x.example.com/", None),
    ],
)
def test_a_host_is_declared_only_when_no_call_can_change_it(template: str, host: str | None) -> None:
    assert find_host(template) == host


def test_a_declared_host_may_be_framed_and_only_that_one() -> None:
    declared = "https://example.com:$args.port/board"
    assert frame_url("https://example.com:8443/board", declared) == "https://example.com:8443/board"
    for port in ("80@evil.com", "80.evil.com", "@evil.com", "\\evil.com", ""):
        with pytest.raises(Invalid):
            frame_url(f"https://example.com:{port}/board", declared)


@given(st.text(max_size=30))
def test_text_after_a_declared_host_cannot_change_it(rest: str) -> None:
    try:
        url = frame_url(f"https://example.com/{rest}", "https://example.com/$args.rest")
    except Invalid:
        return
    assert urlsplit(url).hostname == "example.com"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:3000/a?b", "http://localhost:3000"),
        ("http://[::1]:80#x", "http://[::1]:80"),
        ("https://a.example", "https://a.example"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, expected: str) -> None:
    assert origin(url) == expected


@pytest.mark.parametrize("port", [1, 80, 65535, "3000"])
def test_a_port_is_a_number_or_its_digits(port: Any) -> None:
    assert port_number(port) == int(port)


@pytest.mark.parametrize("port", [0, -1, 65536, 3000.0, "", "0", "٣", "3000 ", "1e3", True, None, [], 2**80])
def test_invalid_port_is_refused(port: Any) -> None:
    with pytest.raises(Invalid):
        port_number(port)


def test_error_message_is_short_for_any_value() -> None:
    for value in (10**5000, ["x"] * 10**6, {"x": "y" * 10**6}, "z" * 10**6):
        with pytest.raises(Invalid) as refused:
            workspace_path(value)
        assert len(refused.value.message) < 300
