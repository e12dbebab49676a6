"""Upstreams' URIs: told apart, and found again, whatever they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sources.upstreams.uris import public_blocks, public_meta, public_uri, split_uri

PREFIXES = st.text("abcXYZ019_-", min_size=1, max_size=32)
URIS = st.sampled_from(["file:///a b.txt", "ui://app/page.html", "memo://insights", "x", "mcp+a:b:c", "file:///{path}"])


@given(PREFIXES, URIS)
def test_what_is_made_outer_is_found_again(prefix: str, uri: str) -> None:
    assert split_uri(public_uri(prefix, uri)) == (prefix, uri)


@given(PREFIXES, PREFIXES, URIS, URIS)
def test_two_servers_never_meet(one: str, other: str, uri: str, another: str) -> None:
    if (one, uri) != (other, another):
        assert public_uri(one, uri).lower() != public_uri(other, another).lower() or uri.lower() == another.lower()


def test_pages_stay_pages_and_the_empty_prefix_changes_nothing() -> None:
    assert public_uri("docs", "ui://app/a.html") == "ui://docs/app/a.html"
    assert public_uri("docs", "file:///a") == "mcp+docs:file:///a"
    assert public_uri("", "file:///a") == "file:///a"


@pytest.mark.parametrize("uri", ["workspace://c/a", "render://x", "mcp+docs", "ui://alone", ""])
def test_what_names_no_upstream(uri: str) -> None:
    assert split_uri(uri) is None


def test_links_and_held_resources_in_content_are_changed_and_nothing_else() -> None:
    blocks = [
        {"type": "text", "text": "file:///a", "uri": "file:///a"},
        {"type": "resource_link", "uri": "file:///a", "name": "a", "new": 1},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
        "odd",
    ]
    changed = public_blocks("docs", blocks)
    assert changed[0] is blocks[0]
    assert changed[1] == {"type": "resource_link", "uri": "mcp+docs:file:///a", "name": "a", "new": 1}
    assert changed[2]["resource"]["uri"] == "mcp+docs:file:///b"
    assert changed[3] == "odd"
    assert public_blocks("", blocks) == blocks


def test_a_tools_page_is_found_under_its_outer_address() -> None:
    wire = {
        "description": "d",
        "_meta": {"ui": {"resourceUri": "ui://a/b", "x": 1}, "ui/resourceUri": "ui://a/b", "k": 2},
    }
    page = "ui://docs/a/b"
    assert public_meta("docs", wire) == {
        "description": "d",
        "_meta": {"ui": {"resourceUri": page, "x": 1}, "ui/resourceUri": page, "k": 2},
    }
    assert public_meta("", wire) is wire
    assert public_meta("docs", {"description": "d"}) == {"description": "d"}
