"""A script that plays a model: it completes tasks over many servers with the whole list, by searching, and by programs.

`docs/discovery.md` has the table that `TOOLGATE_NIGHTLY=1` prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from amounts import NIGHTLY, amount
from mcp import Client
from mcp_types import TextContent

from gateway import Gateway
from gateway.discovery import count_tokens
from gateway.serve.mcp.handlers import Handlers, McpServer

from .servers import records

pytestmark = [pytest.mark.anyio, pytest.mark.promise("G6"), pytest.mark.promise("H7")]

NOUNS = (
    *("invoice", "ticket", "meeting", "parcel", "contract", "customer", "photo", "recipe", "server", "deployment"),
    *("payment", "vehicle", "survey", "lesson", "patient", "room", "book", "song", "flight", "warehouse"),
)
SERVERS = amount(4, nightly=20)
TASKS = amount(6, nightly=50)
MODES = ("full", "search", "code")
ERAS = ("2026-07-28", "legacy")


@dataclass(frozen=True)
class Step:
    """A call that a task needs: what the model would search for, and the tool."""

    query: str
    tool: str
    arguments: dict[str, Any]


@dataclass
class Costs:
    """What a model sends and reads: the list once for each task, its own messages, and the answers."""

    list_tokens: int = 0
    round_trips: int = 0
    tokens: int = 0
    done: int = 0
    seen: dict[str, str] = field(default_factory=dict)


def make_task(number: int) -> tuple[list[Step], dict[str, Any]]:
    """Return the steps of a task, and the answer that completes it: look up a record, then one of another kind that it
    refers to, then do something about that."""
    noun, other = NOUNS[number % SERVERS], NOUNS[(number % SERVERS + 1 + number // SERVERS) % SERVERS]
    following = NOUNS[(NOUNS.index(noun) + 1) % SERVERS]
    name = records.NAMES[number % len(records.NAMES)]
    reference = f"{name}-{following}"
    get = Step(f"look up one {noun} by name", f"{noun}s__get_{noun}", {"name": name})
    last = [
        Step(f"create a {other}", f"{other}s__create_{other}", {"name": reference, "text": f"task {number}"}),
        Step(f"rename the {other}", f"{other}s__rename_{other}", {"name": reference, "text": f"task {number}"}),
        Step(f"archive a {other} nobody needs", f"{other}s__archive_{other}", {"name": reference}),
    ][number % 3]
    verb = last.tool.partition("__")[2].partition("_")[0]
    done = {"done": f"{verb} {other} {reference}", "text": last.arguments.get("text", "")}
    return [get, Step(f"how many {other}s are there", f"{other}s__count_{other}s", {}), last], done


class ScriptedModel:
    """Completes tasks in one mode, and counts what that costs."""

    def __init__(self, client: Client, mode: str) -> None:
        self._client, self._mode = client, mode
        self.costs = Costs()

    async def complete(self, number: int) -> None:
        steps, expected = make_task(number)
        listed = (await self._client.list_tools()).tools
        self.costs.list_tokens += count_tokens([tool.model_dump(by_alias=True, exclude_none=True) for tool in listed])
        work: Callable[[list[Step]], Awaitable[Any]] = self._call_directly
        if self._mode == "search":
            work = self._search_and_call
        elif self._mode == "code":
            work = self._search_and_run
        result = await work(steps)
        assert result == expected, (number, self._mode, result)
        self.costs.done += 1

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        result = await self._client.call_tool(name, arguments)
        block = result.content[0]
        assert isinstance(block, TextContent) and not result.is_error, block
        self.costs.round_trips += 1
        self.costs.tokens += count_tokens({"name": name, "arguments": arguments}) + count_tokens(block.text)
        return block.text

    async def _call_directly(self, steps: list[Step]) -> Any:
        return [json.loads(await self._call(step.tool, step.arguments)) for step in steps][-1]

    async def _find(self, step: Step) -> str:
        """Search for a tool; return what calls it."""
        for line in (await self._call("search_tools", {"query": step.query})).splitlines():
            if line.startswith(f"{step.tool}("):
                return line.partition("[")[2].partition("]")[0]
        raise AssertionError(f"{step.query!r} does not find {step.tool}")

    async def _search_and_call(self, steps: list[Step]) -> Any:
        values = []
        for step in steps:
            caller = await self._find(step)
            described = json.loads(await self._call("describe_tool", {"name": step.tool}))
            assert described["inputSchema"].get("required", []) == list(step.arguments)
            arguments = {"tool": step.tool, "arguments": step.arguments}
            values.append(json.loads(await self._call(caller, arguments)))
        return values[-1]

    async def _search_and_run(self, steps: list[Step]) -> Any:
        for step in steps:
            await self._find(step)
        lines = [f"await {step.tool}(**{step.arguments!r})" for step in steps]
        return json.loads(await self._call("run_tools", {"code": "\n".join(lines)}))


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    def server(number: int) -> dict[str, Any]:
        noun, following = NOUNS[number], NOUNS[(number + 1) % SERVERS]
        arguments = [records.__file__, noun, f"{noun}s", following]
        return {"command": sys.executable, "args": arguments, "trusted": True, "protocol": "handshake"}

    servers = {f"{NOUNS[number]}s": server(number) for number in range(SERVERS)}
    profiles = {mode: {"mode": mode} for mode in MODES}
    return {"data_dir": str(tmp_path), "mcpServers": servers, "profiles": profiles}


async def test_scripted_model_completes_every_task_in_every_mode_and_era(settings: dict[str, Any]) -> None:
    rows = []
    for mode in MODES:
        async with Gateway.open({**settings, "profile": mode}) as gateway:
            assert len(gateway.catalog) > 6 * SERVERS, gateway.catalog.problems
            server = McpServer(Handlers(gateway.executor, gateway.versions, "c", caller=gateway.approval_flow))
            for era in ERAS:
                async with Client(server.sdk, mode=era, cache=None) as client:
                    model = ScriptedModel(client, mode)
                    for number in range(TASKS):
                        await model.complete(number)
                rows.append((mode, era, model.costs))
    costs = {(mode, era): each for mode, era, each in rows}
    for mode, era, each in rows:
        assert each.done == TASKS
        assert each.round_trips == TASKS * {"full": 3, "search": 9, "code": 4}[mode]
        if mode != "full":
            whole = costs["full", era]
            assert each.list_tokens < whole.list_tokens / 2
            assert each.list_tokens + each.tokens < whole.list_tokens + whole.tokens
        if NIGHTLY:
            numbers = (each.round_trips / TASKS, each.list_tokens / TASKS, each.tokens / TASKS)
            print(f"| {mode} | {era} | {each.done} | " + " | ".join(f"{number:,.1f}" for number in numbers) + " |")
