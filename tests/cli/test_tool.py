"""`toolgate tool`: the catalog on a terminal, and calls from there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gateway.cli import toolgate
from gateway.cli.tool import argument_rows
from gateway.errors import GatewayError, Invalid
from gateway.tools import Tool


def run(data: Path, *arguments: str) -> str:
    ran = CliRunner().invoke(toolgate, ["tool", *arguments, "--data-dir", str(data)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.stdout


def test_what_an_argument_takes_is_shown_also_where_it_may_be_left_out(tmp_path: Path) -> None:
    rows = run(tmp_path, "show", "workspace_history").partition("DESCRIPTION\n")[2].splitlines()
    assert rows == [
        "  limit?   integer           Maximum number of versions",
        "  before?  string, optional  Only versions before this one",
    ]


def test_pipeline_of_a_tool_is_shown_in_its_order(tmp_path: Path) -> None:
    rows = [line.split(maxsplit=2) for line in run(tmp_path, "show", "write_file", "--pipeline").splitlines()]
    assert rows == [
        ["NAME", "KIND", "PART"],
        ["Telemetry", "observer", "before, after"],
        ["Audit", "observer", "before, after"],
        ["Validation", "gate", "before, after"],
        ["Permissions", "gate", "before"],
        ["Ownership", "gate", "before"],
        ["Approval", "gate", "before"],
        ["ChatClaim", "gate", "before"],
        ["Concurrency", "gate", "around (async)"],
        ["Versioning", "gate", "around (async)"],
        ["builtin", "source", "call_tool"],
    ]
    names = [step["name"] for step in json.loads(run(tmp_path, "show", "list_directory", "--pipeline", "--json"))]
    assert names == [
        "Telemetry",
        "Audit",
        "Validation",
        "Permissions",
        "Ownership",
        "ChatClaim",
        "Concurrency",
        "Versioning",
        "builtin",
    ]


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string, optional"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string, optional"),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "integer|string"),
        ({"oneOf": [{"enum": ["a", "b"]}, {"enum": [None]}]}, "a|b, optional"),
        ({"const": 3}, "3"),
        ({"$ref": "#/$defs/Author"}, "object"),
        ({"anyOf": [{"$ref": "#/$defs/Author"}, {"type": "null"}]}, "object, optional"),
        ({"$ref": "#/$defs/Loop"}, "any"),
        ({"$ref": "https://example.org/schema"}, "any"),
        ({"$ref": 7}, "any"),
        ({"type": "null"}, "null"),
        ({"type": "array"}, "array"),
        ({"type": "array", "items": {"type": "string"}}, "array of string"),
        ({"type": "array", "items": {"$ref": "#/$defs/Edit"}}, "array of {old, new?}"),
        ({"type": "array", "items": {"$ref": "#/$defs/Loop"}}, "array of any"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_every_schema_has_a_short_name(schema: Any, shown: str) -> None:
    edit = {"type": "object", "properties": {"old": {"type": "string"}, "new": True}, "required": ["old"]}
    definitions = {"Author": {"type": "object"}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}, "Edit": edit}
    tool = Tool("x", "", input_schema={"type": "object", "properties": {"a": schema}, "$defs": definitions})
    assert argument_rows(tool)[0][1] == shown


def test_digits_are_text_where_a_tool_takes_text_or_nothing(tmp_path: Path) -> None:
    run(tmp_path, "call", "write_file", "path=a", "content=x")
    with pytest.raises(GatewayError) as refused:
        run(tmp_path, "call", "workspace_history", "before=12345678")
    assert refused.value.code == "MANIFEST_NOT_FOUND"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("dev", "; did you mean 'development'?"),
        ("develpment", "; did you mean 'development'?"),
        (
            "nonsense",
            "; there are filesystem, editing, web, development, customer_support, toolsets, upstream, administration",
        ),
    ],
)
def test_a_category_nobody_knows_is_refused_with_those_there_are(tmp_path: Path, given: str, hint: str) -> None:
    with pytest.raises(Invalid) as refused:
        run(tmp_path, "list", "--enable-tool-categories", given)
    assert refused.value.message == f"there is no category {given!r}{hint}"


@pytest.mark.promise("H8")
def test_tokens_of_each_tool_and_of_the_list_of_each_profile_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "toolgate.yaml"
    file.write_text("profiles: {small: {mode: search}, plain: {output_schemas: false, description_limit: 60}}")
    costs = json.loads(run(tmp_path, "list", "--tokens", "--json", "--config", str(file)))
    default, small, plain = costs["lists"]
    assert (small["name"], small["mode"], plain["mode"]) == ("small", "search", "full")
    assert small["short_tokens"] < 1000 < plain["tokens"] < default["tokens"] == small["tokens"]
    assert abs(sum(costs["tools"].values()) - default["tokens"]) < len(costs["tools"])
    assert default["output_schemas"] > 0 == plain["output_schemas"] and default["short_tokens"] is None
    lines = run(tmp_path, "list", "--tokens", "--config", str(file)).splitlines()
    assert lines[0].split() == ["NAME", "TOKENS"] and lines[-2].split()[:2] == ["small", "search"]


def test_tools_that_are_off_are_listed_with_what_they_are_and_why(tmp_path: Path) -> None:
    rows = {line.split()[0]: " ".join(line.split()) for line in run(tmp_path, "list", "--all").splitlines()}
    commit, fetch = rows["git_commit"], rows["web_fetch"]
    assert commit.startswith("git_commit development read-write off: git_commit is in category 'development', which is")
    assert fetch.startswith("web_fetch web read-only off: no host of the web can be reached until web.allowed_hosts")
    assert "git_commit" not in run(tmp_path, "list")
    assert {"git_commit", "write_file"} <= {
        tool["name"] for tool in json.loads(run(tmp_path, "list", "--all", "--json"))
    }
    assert "write_file" not in run(tmp_path, "list", "--all", "--category", "development")


def test_a_search_names_the_tools_that_fit_better_and_are_off(tmp_path: Path) -> None:
    result = CliRunner().invoke(toolgate, ["tool", "search", "git", "stash", "--data-dir", str(tmp_path)])
    assert re.match("These fit best, and are off: git_stash[a-z_, ]*; --all shows what they do.", result.stderr)
    assert (
        "fit best" not in CliRunner().invoke(toolgate, ["tool", "search", "write", "--data-dir", str(tmp_path)]).stderr
    )
    found = run(tmp_path, "search", "git", "stash", "--all").splitlines()[1]
    assert found.split(maxsplit=4)[:4] == ["git_stash", "(off)", "development", "read-write"]
    assert "stash" in found.split(maxsplit=4)[4].lower()  # its description, though its module was not imported
    listed = len(run(tmp_path, "list").splitlines()) - 1
    nothing = run(tmp_path, "search", "qqqqzzzz", "xxyyxx")
    assert nothing.startswith(f"No tool fits; 'toolgate tool list' lists all {listed}.")


def test_categories_are_listed_with_the_tools_that_turning_them_on_would_offer(tmp_path: Path) -> None:
    result = CliRunner().invoke(toolgate, ["category", "list", "--data-dir", str(tmp_path)]).stdout
    rows = {line.split()[0]: line for line in result.splitlines()}
    assert re.search(r" off +execute +- +0 of \d\d ", rows["development"])
    assert " 0 of 2 " in rows["web"]
    assert " of " not in rows["filesystem"]
