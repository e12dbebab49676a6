"""A plan tells a view everything, stays small, and never fails."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from amounts import amount
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call, Outcome, to_json
from gateway.errors import GatewayError, ToolFailed
from gateway.render import PLAN_LIMIT, Renderer, declare, make_plan
from gateway.tools import Tool

from .documents import ARGUMENTS, JSON

TOOL = Tool("app-builder:write_file", "Writes.", owner="app-builder", title="Write File")
RENDERERS = [
    declare("code", {"file": "$args.path", "language": "$args.language", "editable": "$args.editable"}),
    declare("code", {"content": "$return.output"}),
    declare("document", {"file": "$return.file"}),
    declare("document", {"content": "of $chat_id: $return"}),
    declare("html", {"artifact": "artifacts/a.html", "data": {"all": "$return", "first": "$return[0]"}}),
    declare("html", {"artifact": "artifacts/a.html"}),
    declare("frame", {"url": "$return.url"}),
    declare("frame", {"url": "https://example.com/$args.path"}),
    declare("frame", {"port": "$return.port"}),
]
ONE_OF_EACH_KIND = RENDERERS[1::2]


def called(arguments: dict[str, Any], **fields: Any) -> Call:
    return Call(
        name="app-builder__write_file",
        arguments=arguments,
        tool=TOOL,
        chat="c 1",
        id="call-1",
        started_at=1.5,
        **fields,
    )


def plan(renderer: Renderer, arguments: dict[str, Any], outcome: Outcome, **directories: str) -> dict[str, Any]:
    return make_plan(renderer, called(arguments), outcome, **directories).to_dict()


def test_a_view_needs_nothing_but_the_plan() -> None:
    renderer = declare("code", {"file": "$args.path", "language": "auto", "editable": True})
    outcome = Outcome({"written": "src/ä.py"}, pre_manifest="m1", post_manifest="m2")
    assert plan(renderer, {"path": "src/ä.py", "content": "x"}, outcome) == {
        "version": 1,
        "renderer": "code",
        "config": {
            "file": "src/ä.py",
            "uri": "workspace://c%201/src/%C3%A4.py",
            "manifest": "m2",
            "editable": True,
            "language": "auto",
        },
        "tool": {"id": "app-builder:write_file", "name": "app-builder__write_file", "title": "Write File"},
        "call": {
            "id": "call-1",
            "chat": "c 1",
            "message": None,
            "startedAt": "1970-01-01T00:00:01.500+00:00",
            "preManifest": "m1",
            "postManifest": "m2",
        },
        "input": {"path": "src/ä.py", "content": "x"},
        "status": "success",
    }


@pytest.mark.parametrize(
    ("kind", "config", "value", "expected"),
    [
        ("code", {"content": "$return.output", "language": "shell"}, {"output": "ok\n"}, ("ok\n", "shell")),
        ("code", {"content": "$return.output"}, {}, (None, "auto")),
        ("code", {"content": "$return"}, {"a": [1]}, ('{\n  "a": [\n    1\n  ]\n}', "json")),
        ("code", {"content": "n=$return.n"}, {"n": 3}, ("n=3", "auto")),
        ("code", {"content": "$return", "language": "$return.none"}, 2**70, (str(2**70), "json")),
    ],
)
def test_code_is_shown_from_its_content(
    kind: str, config: dict[str, Any], value: Any, expected: tuple[Any, ...]
) -> None:
    shown = plan(declare(kind, config), {}, Outcome(value))["config"]
    assert shown == {"content": expected[0], "language": expected[1], "editable": False}


def test_a_document_is_shown_from_its_file_at_the_version_it_was_made() -> None:
    outcome = Outcome({"file": "/data/ws/notes/today.md"}, pre_manifest="m1")
    assert plan(declare("document", {"file": "$return.file"}), {}, outcome, workspace="/data/ws")["config"] == {
        "file": "notes/today.md",
        "uri": "workspace://c%201/notes/today.md",
        "manifest": "m1",
        "editable": False,
    }


def test_html_is_shown_from_its_artifact_with_data_of_any_shape() -> None:
    renderer = declare("html", {"artifact": "./artifacts/viz.html", "data": {"rows": "$return.rows", "of": "$args.x"}})
    assert plan(renderer, {"x": 1}, Outcome({"rows": [1, None]}))["config"] == {
        "artifact": "artifacts/viz.html",
        "data": {"rows": [1, None], "of": 1},
    }


def test_html_without_data_gets_what_the_tool_returned() -> None:
    assert plan(declare("html", {"artifact": "a.html"}), {}, Outcome([1]))["config"]["data"] == [1]
    assert plan(declare("html", {"artifact": "a.html", "data": None}), {}, Outcome([1]))["config"]["data"] is None


@pytest.mark.parametrize(
    ("config", "value", "url", "origin"),
    [
        ({"port": "$return.port"}, {"port": 3000}, "http://localhost:3000", "http://localhost:3000"),
        ({"url": "http://localhost:$return.port/x"}, {"port": "81"}, "http://localhost:81/x", "http://localhost:81"),
        ({"url": "https://example.com/$return.id"}, {"id": 7}, "https://example.com/7", "https://example.com"),
    ],
)
def test_a_frame_is_shown_from_its_url_or_port(config: dict[str, Any], value: Any, url: str, origin: str) -> None:
    shown = plan(declare("frame", config), {}, Outcome(value))["config"]
    assert (shown["url"], shown["origin"]) == (url, origin)


def test_a_failed_call_keeps_its_renderer_and_says_its_error() -> None:
    renderer = declare("code", {"file": "$args.path"})
    failed = plan(renderer, {"path": "a.py"}, Outcome(error=ToolFailed("no disk", exit_code=3), post_manifest="m2"))
    assert (failed["renderer"], failed["status"]) == ("code", "error")
    assert failed["error"] == {"code": "EXECUTION_ERROR", "message": "no disk", "details": {"exit_code": 3}}
    assert failed["config"]["file"] == "a.py"


def test_a_failed_call_whose_config_needs_the_result_says_its_own_error() -> None:
    failed = plan(declare("frame", {"port": "$return.port"}), {}, Outcome(error=ToolFailed("no disk")))
    assert (failed["status"], failed["config"], failed["error"]["message"]) == ("error", {}, "no disk")


@pytest.mark.parametrize(
    ("renderer", "value", "code", "message"),
    [
        (
            declare("code", {"file": "$return.f"}),
            {"f": "../x"},
            "INVALID_PATH",
            "'../x' is not a path inside the workspace",
        ),
        (declare("code", {"file": "$return.f"}), {}, "INVALID_PATH", "null is not a path"),
        (
            declare("frame", {"url": "$return.u"}),
            {"u": "javascript:alert(1)"},
            "INVALID_URL",
            "is not an http or https URL",
        ),
        (declare("frame", {"url": "$return.u"}), {"u": "http://evil.com"}, "INVALID_URL", "is on another machine"),
        (declare("frame", {"port": "$return.p"}), {"p": 99999}, "INVALID_URL", "is not a port"),
        (declare("html", {"artifact": "a.html"}), {"x": "\ud800"}, "INVALID_JSON", "not JSON"),
    ],
)
def test_data_that_cannot_be_shown_makes_a_plan_that_says_why(
    renderer: Renderer, value: Any, code: str, message: str
) -> None:
    refused = plan(renderer, {"x": 1}, Outcome(value))
    assert (refused["status"], refused["config"], refused["input"]) == ("success", {}, {"x": 1})
    assert refused["error"]["code"] == code
    assert f"renderer {renderer.kind!r} cannot show this outcome: " in refused["error"]["message"]
    assert message in refused["error"]["message"]


def test_long_content_is_truncated_and_reported_in_the_plan() -> None:
    shown = plan(declare("code", {"content": "$return"}), {}, Outcome("é" * 300_000))
    assert shown["truncated"] == [{"at": "config.content", "bytes": 600_014}]
    assert 50_000 < len(shown["config"]["content"]) < 300_000
    assert shown["config"]["editable"] is False


def test_large_data_becomes_null_and_is_reported_in_the_plan() -> None:
    shown = plan(declare("html", {"artifact": "a.html"}), {}, Outcome(list(range(100_000))))
    assert shown["config"] == {"artifact": "a.html", "data": None}
    assert [cut["at"] for cut in shown["truncated"]] == ["config.data"]


def test_long_argument_does_not_truncate_the_config() -> None:
    shown = plan(declare("code", {"content": "$return"}), {"content": "x" * 10**6, "path": "a"}, Outcome("y" * 100_000))
    assert shown["config"]["content"] == "y" * 100_000
    assert shown["input"]["path"] == "a"
    assert [cut["at"] for cut in shown["truncated"]] == ["input.content"]


@pytest.mark.parametrize(
    "renderer",
    [pytest.param(each, marks=[pytest.mark.slow] * (each not in ONE_OF_EACH_KIND)) for each in RENDERERS],
    ids=lambda renderer: renderer.kind,
)
def test_plan_of_many_values_is_bounded(renderer: Renderer) -> None:
    huge = "\x01" * amount(200_000, 40_000)
    arguments = {"path": huge, "language": huge, **{f"{'ä' * 5000}{number}": huge for number in range(30)}}
    error = ToolFailed(huge, **{f"{huge[:5000]}{number}": huge for number in range(30)})
    tool = dataclasses.replace(TOOL, id="ü" * 9000, title="\x01" * 9000)
    call = dataclasses.replace(called(arguments, message="\x01" * 9000), tool=tool, name="\x01" * 9000, chat="ü" * 200)
    for outcome in (Outcome({"output": huge, "url": huge, "rows": [huge]}), Outcome(error=error), Outcome([huge] * 9)):
        assert len(to_json(make_plan(renderer, call, outcome).to_dict())) <= PLAN_LIMIT


@pytest.mark.parametrize("character", ["x", "ü", "\x01", "😀"])
def test_a_plan_that_is_full_in_every_section_is_bounded_and_uses_its_room(character: str) -> None:
    huge = character * 300_000
    outcome = Outcome(error=ToolFailed(huge, trace=huge))
    full = to_json(plan(declare("document", {"content": "$args.text"}), {"text": huge, "more": huge}, outcome))
    assert 0.9 * PLAN_LIMIT < len(full) <= PLAN_LIMIT


@given(st.sampled_from(RENDERERS), ARGUMENTS, JSON, st.booleans())
def test_any_call_has_a_plan_and_it_is_json(
    renderer: Renderer, arguments: dict[str, Any], value: Any, failed: bool
) -> None:
    outcome = Outcome(error=GatewayError("x", value=value)) if failed else Outcome(value)
    made = plan(renderer, arguments, outcome)
    assert json.loads(json.dumps(made)) == made
    assert made["input"] == arguments
    assert made["status"] == ("error" if failed else "success")
    assert made["error"] if failed else made["config"] or made["error"]


@pytest.mark.parametrize("strange", ["\ud800", {1, 2}, {3: 4}, object(), lambda: None])
def test_values_that_are_not_json_are_left_out_of_the_plan(strange: Any) -> None:
    made = plan(
        declare("code", {"content": "x"}), {"a": strange, "b": 1}, Outcome(error=ToolFailed("\ud800", a=strange))
    )
    assert json.loads(to_json(made)) == made
    assert made["input"] == {"b": 1}
    assert made["error"]["message"] == "?"
    assert [cut["at"] for cut in made["truncated"]] == ["input", "error"]


def test_a_plan_does_not_change_with_the_value_it_was_made_of() -> None:
    value = {"rows": [1]}
    made = make_plan(declare("html", {"artifact": "a.html"}), called({}), Outcome(value))
    value["rows"].append(2)
    assert made.config["data"] == {"rows": [1]}


def test_making_plans_loads_neither_pygments_nor_markdown() -> None:
    program = "import sys, gateway.render; print({'pygments', 'markdown_it', 'nh3'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
