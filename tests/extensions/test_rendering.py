"""Rendering: a plan after every call of a tool that has a renderer, and no secret in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway import Gateway
from gateway.calls import PLAN_LIMIT, Call, Caller, Outcome, to_json
from gateway.errors import InputRequired, ToolFailed
from gateway.extensions import stack
from gateway.extensions.rendering import INLINE_BYTES, Directories, Rendering
from gateway.render import declare
from gateway.secrets import REDACTED
from gateway.tools import Access, Permission, Renderer, Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T5")]

Body = Callable[[Call], Awaitable[Outcome]]
HOME = Path("/home/of/the/toolset")
CODE = declare("code", {"content": "$return.text", "language": "python"})

SHOWN: dict[str, tuple[Renderer, Any, dict[str, Any]]] = {
    "code": (CODE, {"text": "x = 1"}, {"content": "x = 1", "editable": False, "language": "python"}),
    "document": (
        declare("document", {"file": "$return.path", "editable": True}),
        {"path": "/workspace/notes/a.md"},
        {"file": "notes/a.md", "uri": "workspace://c/notes/a.md", "manifest": None, "editable": True},
    ),
    "html": (
        declare("html", {"artifact": "$toolset/artifacts/a.html", "data": {"of": "$args.of", "all": "$return"}}),
        [1, 2],
        {"artifact": "artifacts/a.html", "data": {"of": "rows", "all": [1, 2]}},
    ),
    "frame": (
        declare("frame", {"port": "$return.port"}),
        {"port": 3000},
        {"port": 3000, "url": "http://localhost:3000", "origin": "http://localhost:3000"},
    ),
}


def tool(renderer: Renderer | None, **fields: Any) -> Tool:
    given = {"title": "Show It", "owner": "studio", "permission": Permission.READ_ONLY, "home": HOME}
    return Tool("studio:show", "Shows.", renderer=renderer, **{**given, **fields})


class Studio:
    """One tool that does what the test says."""

    name = "studio"

    def __init__(self, tool: Tool, body: Body) -> None:
        self._tool = tool
        self._body = body

    async def list_tools(self) -> Sequence[Tool]:
        return [self._tool]

    async def call_tool(self, call: Call) -> Outcome:
        return await self._body(call)


def giving(value: Any) -> Body:
    async def give(_: Call) -> Outcome:
        return Outcome(value)

    return give


async def failing(_: Call) -> Outcome:
    raise ToolFailed("no such row", row=7)


async def render(
    renderer: Renderer | None, body: Body, arguments: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """The plan of one call, by nothing but the extension."""
    call = Call(name="studio__show", arguments=arguments or {}, tool=tool(renderer, **fields), chat="c")
    plan = (await stack([Rendering()], body)(call)).render_plan
    assert plan is not None
    return dict(plan)


@asynccontextmanager
async def studio(place: Path, tool: Tool, body: Body, **settings: Any) -> AsyncIterator[Gateway]:
    given = {"data_dir": str(place / "data"), **settings}
    async with Gateway.open(given, sources=[Studio(tool, body)]) as gateway:
        yield gateway


@pytest.mark.parametrize("kind", SHOWN)
async def test_render_plan_of_a_success_and_of_an_error_is_recorded(kind: str, tmp_path: Path) -> None:
    renderer, value, config = SHOWN[kind]

    async def body(call: Call) -> Outcome:
        return await failing(call) if call.arguments.get("fail") else Outcome(value)

    async with studio(tmp_path, tool(renderer), body) as gateway:
        good = await gateway.call("studio__show", {"of": "rows"}, chat="c")
        bad = await gateway.call("studio__show", {"of": "rows", "fail": True}, chat="c")
        worse, well = await gateway.records.list_calls(chat="c")

    assert good.value == value
    plan = dict(good.render_plan or {})
    assert (plan["renderer"], plan["config"], plan["status"]) == (kind, config, "success")
    assert plan["tool"] == {"id": "studio:show", "name": "studio__show", "title": "Show It"}
    assert plan["call"]["id"] == well.id
    assert "error" not in plan

    assert bad.error is not None
    failure = dict(bad.render_plan or {})
    assert (failure["renderer"], failure["status"], failure["input"]) == (kind, "error", {"of": "rows", "fail": True})
    assert failure["error"] == {"code": "EXECUTION_ERROR", "message": "no such row", "details": {"row": 7}}
    assert [json.loads(record.render_plan or "") for record in (well, worse)] == [plan, failure]


async def test_render_plan_names_the_version_after_the_call(tmp_path: Path) -> None:
    data = tmp_path / "data" / "chats" / "c" / "workspace"

    async def write(call: Call) -> Outcome:
        await anyio.Path(data / "a.py").write_text("x = 1")
        return Outcome({})

    writer = tool(declare("code", {"file": "$args.path"}), access=Access.WRITE, permission=Permission.READ_WRITE)
    async with studio(tmp_path, writer, write) as gateway:
        outcome = await gateway.call("studio__show", {"path": "a.py"}, chat="c")
    assert outcome.render_plan is not None and outcome.post_manifest is not None
    assert outcome.render_plan["config"]["manifest"] == outcome.post_manifest
    assert outcome.render_plan["call"]["postManifest"] == outcome.post_manifest


async def test_render_plan_is_missing_without_a_renderer_and_while_a_person_is_asked(
    tmp_path: Path,
) -> None:
    call = Call(name="n", arguments={}, tool=tool(None))
    assert (await stack([Rendering()], giving(1))(call)).render_plan is None

    async def ask(_: Call) -> Outcome:
        raise InputRequired("which one?")

    call = Call(name="n", arguments={}, tool=tool(CODE))
    assert (await stack([Rendering()], ask)(call)).render_plan is None
    assert (await stack([Rendering()], giving(1))(Call(name="n", arguments={}))).render_plan is None


@pytest.mark.parametrize(
    ("fields", "arguments", "caller", "code"),
    [
        ({"input_schema": {"type": "object", "required": ["x"]}}, {}, Caller(), "INVALID_ARGUMENTS"),
        ({"permission": Permission.READ_WRITE}, {}, Caller(permission=Permission.READ_ONLY), "PERMISSION_DENIED"),
        ({"requires_confirmation": True}, {}, Caller(), "CONFIRMATION_REQUIRED"),
        ({}, {}, Caller(principal="mallory"), "CHAT_FORBIDDEN"),
    ],
)
async def test_render_plan_is_missing_for_a_denied_call(
    fields: dict[str, Any], arguments: dict[str, Any], caller: Caller, code: str, tmp_path: Path
) -> None:
    async with studio(tmp_path, tool(CODE, **fields), giving({"text": "x"})) as gateway:
        await gateway.call("list_directory", {"path": "."}, chat="c")
        outcome = await gateway.call("studio__show", arguments, chat="c", caller=caller)
    assert outcome.error is not None and outcome.error.code == code
    assert outcome.render_plan is None


async def test_render_plan_of_a_timeout_shows_the_error(tmp_path: Path) -> None:
    async def wait(_: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    async with studio(tmp_path, tool(CODE, timeout=0.05), wait) as gateway:
        outcome = await gateway.call("studio__show", {}, chat="c")
    assert outcome.render_plan is not None
    assert (outcome.render_plan["status"], outcome.render_plan["error"]["code"]) == ("error", "TIMEOUT")


async def test_render_plan_shows_the_public_name_of_a_tool_called_by_its_id(tmp_path: Path) -> None:
    async with studio(tmp_path, tool(CODE), giving({"text": "x"})) as gateway:
        outcome = await gateway.call("studio:show", {}, chat="c")
        [record] = await gateway.records.list_calls(chat="c")
    assert outcome.render_plan is not None
    assert outcome.render_plan["tool"]["name"] == "studio__show"
    assert record.tool_name == "studio:show"


SECRET = 'hun"ter2 ä'
ECHO = declare(
    "html",
    {
        "artifact": "a.html",
        "data": {"alone": "$args.password", "inside": "is $args.password", "all": "$args", "return": "$return"},
    },
)


@pytest.mark.parametrize("padding", [0, INLINE_BYTES], ids=["in place", "in a thread"])
async def test_render_plan_contains_no_secret_argument(padding: int) -> None:
    async def repeat(call: Call) -> Outcome:
        text = json.dumps(dict(call.arguments))
        value = {"text": f"password={SECRET}", "json": text, SECRET: [SECRET, 987654], "ok": 9}
        return Outcome({**value, "rest": "x" * padding})

    arguments = {"user": "ada", "password": SECRET, "login": {"token": 987654}}
    plan = await render(ECHO, repeat, arguments)
    assert plan["input"] == {**arguments, "password": REDACTED, "login": {"token": REDACTED}}
    assert plan["config"]["data"]["alone"] == REDACTED
    assert plan["config"]["data"]["inside"] == f"is {REDACTED}"
    returned = plan["config"]["data"]["return"]
    assert (returned["text"], returned[REDACTED]) == (f"password={REDACTED}", [REDACTED, REDACTED])
    assert returned["ok"] == 9
    assert "hun" not in to_json(plan).decode() and "987654" not in to_json(plan).decode()


async def test_render_plan_of_an_error_contains_no_secret_argument() -> None:
    async def refuse(call: Call) -> Outcome:
        raise ToolFailed(f"{SECRET} is wrong", tried=[SECRET])

    plan = await render(CODE, refuse, {"apiKey": SECRET})
    assert plan["error"] == {
        "code": "EXECUTION_ERROR",
        "message": f"{REDACTED} is wrong",
        "details": {"tried": [REDACTED]},
    }


@pytest.mark.parametrize("kind", ["code", "html"])
async def test_render_plan_above_its_limit_is_cut_and_recorded(kind: str, tmp_path: Path) -> None:
    renderer = SHOWN[kind][0]
    async with studio(tmp_path, tool(renderer), giving({"text": "ä" * PLAN_LIMIT})) as gateway:
        outcome = await gateway.call("studio__show", {"of": "y" * PLAN_LIMIT}, chat="c")
        [record] = await gateway.records.list_calls(chat="c")
    plan = dict(outcome.render_plan or {})
    assert {cut["at"] for cut in plan["truncated"]} >= {"input.of"}
    assert 64 * 1024 < len((record.render_plan or "").encode()) <= PLAN_LIMIT
    assert json.loads(record.render_plan or "") == plan
    assert outcome.value == {"text": "ä" * PLAN_LIMIT}


async def test_render_plan_says_why_data_cannot_be_shown() -> None:
    call = Call(name="n", arguments={}, tool=tool(SHOWN["frame"][0]))
    outcome = await stack([Rendering()], giving({"port": "no port"}))(call)
    assert outcome.value == {"port": "no port"}
    assert outcome.render_plan is not None
    assert (outcome.render_plan["status"], outcome.render_plan["error"]["code"]) == ("success", "INVALID_URL")


async def test_rendering_that_fails_is_logged_and_the_outcome_stays(caplog: pytest.LogCaptureFixture) -> None:
    call = Call(name="n", arguments={}, tool=tool(Renderer("code", {"content": 3, "file": None})))
    assert (await stack([Rendering()], giving(5))(call)).value == 5

    def broken(_: Call) -> Directories:
        raise ZeroDivisionError

    assert (await stack([Rendering(broken)], giving(5))(call)).value == 5
    assert "ZeroDivisionError" in caplog.text


async def test_render_plan_resolves_paths_as_the_tool_sees_them() -> None:
    renderer = declare("html", {"artifact": "a.html", "data": ["$workspace", "$toolset", "$chat_id"]})
    assert (await render(renderer, giving(1)))["config"]["data"] == ["/workspace", "/toolset", "c"]
    assert (await render(renderer, giving(1), home=None))["config"]["data"] == [None, None, "c"]

    elsewhere = Rendering(lambda call: Directories("/real/files", "/real/home"))
    call = Call(name="n", arguments={}, tool=tool(SHOWN["document"][0]), chat="c")
    outcome = await stack([elsewhere], giving({"path": "/real/files/b.md"}))(call)
    assert outcome.render_plan is not None and outcome.render_plan["config"]["file"] == "b.md"
