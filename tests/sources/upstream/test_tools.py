"""An upstream's tools under our terms: what it says is kept word for word, what it may do is ours to say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.bundles import ToolOverride
from gateway.catalog import CatalogPolicy, Draft, mcp_tool
from gateway.errors import Invalid
from gateway.sources.builtin.source import BuiltinSource, FileTools
from gateway.sources.upstreams import pinning
from gateway.sources.upstreams.definitions import define_all
from gateway.sources.upstreams.pinning import Verdict, decide
from gateway.sources.upstreams.tools import Listing, Override, Terms, is_allowed, list_tools, wire_of
from gateway.tools import DEFAULT_CATEGORIES, Permission, Tool
from gateway.workspace import Workspaces

TERMS = Terms("srv")
RAW: dict[str, Any] = {
    "name": "add",
    "title": "Add",
    "description": "Adds two numbers.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}}, "x-order": ["a"]},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "title": "Sum", "vendor": 3},
    "icons": [{"src": "https://host/icon.png", "sizes": ["48x48"]}],
    "execution": {"taskSupport": "optional"},
    "_meta": {"ui": {"resourceUri": "ui://a"}, "vendor/x": {"deep": [1]}},
    "vendor": {"anything": None},
}
# What clients get: how to run it as a task is left out, as tasks are not relayed.
LISTED = {key: RAW[key] for key in RAW if key != "execution"}

pytestmark = pytest.mark.promise("P2")


def trusting(raw: Any) -> Verdict:
    return decide("srv", {}, define_all(raw).found, pinning.PinPolicy(hold_at=None))[0]


def listing(*raw: Any, terms: Terms = TERMS, verdict: Verdict | None = None) -> Listing:
    return list_tools(terms, raw, verdict or trusting(raw))


def only(*raw: Any, terms: Terms = TERMS) -> Tool:
    [tool] = listing(*raw, terms=terms).tools
    return tool


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def test_a_definition_is_kept_word_for_word_but_for_its_name_and_how_to_run_it_as_a_task() -> None:
    listed = listing(RAW)
    assert listed.problems == ()
    [found] = listed.tools
    assert mcp_tool("srv__add", found) == {**LISTED, "name": "srv__add"}
    assert (found.id, found.owner, found.kind, found.prefix) == ("srv:add", "srv", "mcp", None)
    assert (found.title, found.description, found.category) == ("Add", "Adds two numbers.", "upstream")
    assert (found.input_schema, found.output_schema, found.meta) == (
        RAW["inputSchema"],
        RAW["outputSchema"],
        RAW["_meta"],
    )
    assert found.withheld is None


def test_what_would_make_clients_refuse_the_whole_list_is_mended_or_withheld() -> None:
    wire = wire_of({"name": "a", "title": None, "inputSchema": {}, "annotations": {"readOnlyHint": None}})
    assert wire == {"inputSchema": {"type": "object"}, "annotations": {}}
    broken: list[dict[str, Any]] = [
        {"inputSchema": None},
        {"inputSchema": []},
        {"inputSchema": {"type": "string"}},
        {"inputSchema": {"type": ["object"]}},
        {"description": 3},
        {"title": ["x"]},
        {"annotations": {"readOnlyHint": "yes"}},
        {"annotations": []},
        {"icons": {}},
        {"_meta": "x"},
        {"outputSchema": True},
    ]
    for change in broken:
        listed = listing({**tool("bad"), **change}, RAW)
        assert [(each.id, each.withheld is None) for each in listed.tools] == [("srv:bad", False), ("srv:add", True)]
        assert len(listed.problems) == 1, change
        assert listed.tools[0].wire is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "two words"}}}, "RFC 9110"),
        ({"type": "object", "x-mcp-header": "A"}, "not reachable"),
    ],
)
def test_a_schema_that_cannot_be_used_withholds_its_tool_alone(schema: dict[str, Any], words: str) -> None:
    listed = listing(tool("bad") | {"inputSchema": schema}, RAW)
    assert [each.id for each in listed.tools if each.withheld is None] == ["srv:add"]
    assert words in (listed.tools[0].withheld or "")
    assert [problem.code for problem in listed.problems] == ["INVALID_SCHEMA"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "object", "properties": {"a": {"type": "nothing"}}}, "no JSON Schema"),
        ({"type": "object", "$ref": "https://attacker.net/schema"}, "outside the schema"),
    ],
)
def test_schema_that_does_not_compile_is_offered_unchecked_and_reported(schema: dict[str, Any], words: str) -> None:
    listed = listing(tool("odd") | {"inputSchema": schema}, RAW)
    assert [each.id for each in listed.tools if each.withheld is None] == ["srv:odd", "srv:add"]
    assert listed.tools[0].input_schema == schema
    assert not listed.tools[0].accepts({"a": 1})
    [problem] = listed.problems
    assert problem.code == "UNCHECKED_SCHEMA" and words in problem.message


def test_output_schema_that_does_not_compile_is_not_listed() -> None:
    listed = listing(tool("a", outputSchema={"type": "nothing"}))
    assert {tool.id: tool.wire for tool in listed.tools} == {"srv:a": {"inputSchema": {"type": "object"}}}
    assert [problem.code for problem in listed.problems] == ["UNCHECKED_SCHEMA"]


@pytest.mark.parametrize(
    ("hints", "trusted", "level"),
    [
        ({"readOnlyHint": True}, False, Permission.EXECUTE),
        ({"readOnlyHint": True}, True, Permission.READ_ONLY),
        ({"readOnlyHint": True, "destructiveHint": True}, True, Permission.READ_ONLY),
        ({"readOnlyHint": False, "destructiveHint": False}, True, Permission.READ_WRITE),
        ({"destructiveHint": False}, True, Permission.READ_WRITE),
        ({"readOnlyHint": False, "destructiveHint": True}, True, Permission.EXECUTE),
        ({"readOnlyHint": False}, True, Permission.EXECUTE),
        ({}, True, Permission.EXECUTE),
        (None, True, Permission.EXECUTE),
    ],
)
def test_annotations_count_only_when_the_server_is_trusted(hints: Any, trusted: bool, level: Permission) -> None:
    assert only(tool("a", annotations=hints), terms=replace(TERMS, trusted=trusted)).permission is level


def test_the_operators_level_stands_above_annotations() -> None:
    terms = replace(TERMS, permission=Permission.READ_WRITE)
    assert only(RAW, terms=terms).permission is Permission.READ_WRITE


def test_hints_are_kept_as_hints_and_what_is_not_said_is_what_mcp_says() -> None:
    silent, reader = only(tool("a")), only(RAW)
    assert (silent.destructive, silent.idempotent, silent.open_world) == (True, False, True)
    assert (reader.destructive, reader.idempotent, reader.open_world) == (
        False,
        True,
        True,
    )  # what only reads may be called again
    hints = {"destructiveHint": False, "idempotentHint": True, "openWorldHint": False}
    listed = only(tool("a", annotations=hints))
    assert (listed.destructive, listed.idempotent, listed.open_world) == (False, True, False)


def test_overrides_and_terms_have_their_say() -> None:
    override = Override.of(
        ToolOverride(
            tool_id="srv:add",
            name_override="Sum up",
            description_override="Sums.",
            requires_confirmation=False,
            renderer="code",
            renderer_config={"content": "$return"},
        )
    )
    terms = Terms(
        "srv",
        prefix="",
        category="web",
        requires_confirmation=True,
        timeout=3,
        overrides={"add": replace(override, category="development")},
        home=Path("/toolset"),
    )
    listed = listing(RAW, tool("sub"), terms=terms)
    add, sub = listed.tools
    assert (add.title, add.description, add.category, add.requires_confirmation) == (
        "Sum up",
        "Sums.",
        "development",
        False,
    )
    assert add.renderer is not None and add.renderer.kind == "code"
    assert (sub.category, sub.requires_confirmation, sub.renderer) == ("web", True, None)
    assert {(each.prefix, each.timeout, each.home) for each in listed.tools} == {("", 3, Path("/toolset"))}
    assert add.wire is not None and {**add.wire, "name": "add"} == {**LISTED, "title": "Sum up", "description": "Sums."}


def test_a_tool_turned_off_or_filtered_out_says_so() -> None:
    terms = replace(TERMS, overrides={"a": Override(enabled=False)}, allow=("a", "b*"), deny=("*x",))
    listed = listing(tool("a"), tool("b1"), tool("bx"), tool("c"), terms=terms)
    withheld = {each.id: each.withheld for each in listed.tools}
    filtered = "the filter of 'srv' excludes it (its tools.allow and tools.deny)"
    assert withheld == {
        "srv:a": "it is turned off by an override",
        "srv:b1": None,
        "srv:bx": filtered,
        "srv:c": filtered,
    }


def test_a_filter_that_fits_nothing_and_a_renderer_that_is_none_are_reported() -> None:
    terms = replace(TERMS, deny=("reed_file",), overrides={"read_file": Override(renderer="nothing")})
    listed = listing(tool("read_file"), terms=terms)
    assert [problem.code for problem in listed.problems] == ["NO_SUCH_TOOL", "INVALID_RENDERER"]
    assert "did you mean 'read_file'?" in listed.problems[0].message
    assert listed.tools[0].withheld is None


def test_only_what_was_accepted_word_for_word_is_offered() -> None:
    held = decide("srv", {}, define_all([RAW]).found, pinning.PinPolicy(trust_first=False))[0]
    assert "nobody has accepted it" in (listing(RAW, verdict=held).tools[0].withheld or "")
    assert "was not checked" in (listing(RAW, verdict=Verdict()).tools[0].withheld or "")
    other = listing({**RAW, "description": "Obey."}, verdict=trusting([RAW]))
    assert "was not checked" in (other.tools[0].withheld or "")


def test_a_definition_too_large_to_pin_does_not_pass_under_the_name_of_another() -> None:
    raw = [tool("a", description="x" * 300_000), tool("a", description="Adds.")]
    listed = listing(*raw)
    assert [(each.id, each.withheld) for each in listed.tools] == [("srv:a", "the tool 'a' is larger than 256 KiB")]
    assert [problem.code for problem in listed.problems] == ["DEFINITION_TOO_LARGE", "DUPLICATE_TOOL"]


def test_a_tool_that_is_gone_is_known_and_says_so() -> None:
    [gone] = listing(verdict=Verdict(gone=frozenset(define_all([RAW]).found))).tools
    assert (gone.id, gone.withheld) == (
        "srv:add",
        "the server no longer lists it; it is offered again once it is listed",
    )


def test_what_has_no_name_is_left_out_and_reported() -> None:
    listed = listing({"description": "x"}, "tool", None, tool("x" * 2049), RAW)
    assert [each.id for each in listed.tools] == ["srv:add"]
    assert [problem.code for problem in listed.problems] == ["INVALID_DEFINITION"] * 3 + ["NAME_TOO_LONG"]


def test_the_catalog_takes_what_is_listed_and_tells_why_the_rest_is_not_there(tmp_path: Path) -> None:
    source = BuiltinSource([FileTools(Workspaces(tmp_path))])
    draft = Draft(CatalogPolicy(DEFAULT_CATEGORIES))
    listed = listing(RAW, tool("files/read"), tool("off"), terms=replace(TERMS, prefix="p", deny=("off",)))
    for each in listed.tools:
        draft.consider(source, each)
    catalog = draft.finish(draft.wishes, {})
    assert catalog.find("p__add").tool is listed.tools[0]
    assert re.fullmatch(r"p__files_read_[0-9a-f]{8}", catalog.find("srv:files/read").name)
    assert "excludes it" in catalog.refusal("p__off").message


patterns = st.text("ab*", max_size=8)


@given(st.text("ab", max_size=10), patterns)
def test_a_pattern_is_what_its_star_says(name: str, pattern: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert is_allowed(name, [pattern], []) == expected
    assert is_allowed(name, [], [pattern]) != expected


def test_a_wire_shape_that_is_none_is_refused() -> None:
    with pytest.raises(Invalid):
        wire_of({"name": "a", "inputSchema": "x"})
