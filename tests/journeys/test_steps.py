"""One tool of steps over builtin, Python, HTTP and upstream tools, with a question to a person in the middle: in both
eras, cancelled and killed at each step that can take long."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import pytest
from amounts import NIGHTLY
from eventually import async_eventually
from mcp import Client
from mcp_types import ElicitResult
from net.sites import Site, answer, serving
from sources.toolset.writing import require_sandbox, write_toolset

from gateway import Gateway
from gateway.db.call_records import CallRecord

from .clients import call, refusal, text
from .processes import PATIENCE, Listening, on_http
from .servers import labs
from .test_approval import Person, choose, decline
from .wire import ERAS

pytestmark = [pytest.mark.anyio, pytest.mark.promise("B10")]

MANIFEST = """
id: report
name: Report
version: 1.0.0
http: {base_url: "http://127.0.0.1:PORT"}
tools:
- {id: shout, entrypoint: "tools.work:shout"}
- {id: fetch, type: http, url_template: "/${page}", retries: 0}
- id: make
  type: steps
  input_schema: {type: object, properties: {words: {type: string}, hang: {type: string}}, required: [words]}
  steps:
  - {tool: write_file, args: {path: "$args.words-log", content: "begun: $args.words"}, save_as: log}
  - {tool: shout, args: {words: $args.words, hang: $args.hang}, save_as: loud}
  - {tool: fetch, args: {page: price}, save_as: price}
  - {tool: fetch, args: {page: nap}, when: "args.hang == 'http'"}
  - {tool: write_file, args: {path: out.txt, content: "$steps.loud: $steps.price.sum"}, save_as: written}
  - {tool: run_code, args: {language: python, code: "import time; time.sleep(120)"}, when: "args.hang == 'builtin'"}
  - {tool: "lab:nap", args: {name: upstream}, when: "args.hang == 'upstream'"}
  - {tool: "lab:echo", args: {text: $steps.loud}, save_as: echoed}
  - {tool: read_file, args: {path: out.txt}, save_as: read}
  result: {loud: $steps.loud, price: $steps.price.sum, text: $steps.read.content, echoed: $steps.echoed}
"""
CODE = '''
import time

from covalt_toolset import tool


@tool
def shout(words: str, hang: str | None = None) -> str:
    """Return the words in capitals."""
    if hang == "python":
        time.sleep(120)
    return words.upper()
'''
# The step at which each takes long, and the number of steps that have ended by then.
HANGS = {
    "python": "report:shout",
    "http": "report:fetch",
    "person": "write_file",
    "upstream": "lab:nap",
    "builtin": "run_code",  # tried at night
}
DONE = {"python": 1, "http": 3, "person": 3, "upstream": 4, "builtin": 4}
CHAT = "steps"


class Holding(Person):
    """A person who never answers while `hold` is set."""

    hold = False

    async def asked(self, context: Any, params: Any) -> ElicitResult:
        if self.hold:
            self.questions.append(params)
            await anyio.sleep_forever()
        return await super().asked(context, params)


async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


@asynccontextmanager
async def started(tmp_path: Path) -> AsyncIterator[tuple[Listening, Site]]:
    """A gateway with the toolset and the upstream server, and the site that the HTTP tool asks."""
    await require_sandbox()
    price = answer(200, b'{"sum": 42}', "Content-Type: application/json", close=False)
    async with serving({"/price": price, "/nap": hang}) as site:
        write_toolset(tmp_path / "report", MANIFEST.replace("PORT", str(site.port)), work=CODE)
        settings = {
            "toolsets": [str(tmp_path / "report")],
            "categories": {"development": {"enabled": True, "permission": "execute"}},
            "mcpServers": {"lab": labs.on_stdio("modern", LAB_FILE=str(tmp_path / "lab.txt"))},
            "http": {"allowed_hosts": [f"127.0.0.1:{site.port}"], "allow_private": True},
        }
        (tmp_path / "toolgate.yaml").write_text(json.dumps(settings))
        with on_http(tmp_path) as gateway:
            yield gateway, site


@asynccontextmanager
async def connected(gateway: Listening, era: str, person: Person) -> AsyncIterator[Client]:
    mode = "auto" if era == ERAS[0] else "legacy"
    options: dict[str, Any] = {"read_timeout_seconds": PATIENCE, "cache": None, "elicitation_callback": person.asked}
    async with Client(gateway.url, mode=mode, **options) as client:
        # A file to overwrite: that is what the person is asked about.
        await call(client, "write_file", {"path": "out.txt", "content": "old"}, CHAT)
        yield client


async def records(data: Path, **wanted: Any) -> list[CallRecord]:
    """The records as another process reads them, oldest first."""
    async with Gateway.open({"data_dir": str(data)}, connect="none") as beside:
        return list(reversed(await beside.records.list_calls(**wanted)))


async def steps_of_last_call(data: Path) -> tuple[list[CallRecord], list[CallRecord]]:
    """The records of the last tool of steps, and those of its steps."""
    found = await records(data)
    calls = [record for record in found if record.tool_id == "report:make"]
    return calls, [record for record in found if record.parent_call_id in {whole.id for whole in calls}]


@pytest.mark.parametrize("era", ERAS)
async def test_steps_of_every_kind_run_with_a_question_in_the_middle(era: str, tmp_path: Path) -> None:
    person = Person()
    async with started(tmp_path) as (gateway, site), connected(gateway, era, person) as client:
        person.replies[:] = [choose("approve once")]
        result = await call(client, "report__make", {"words": "hello"}, CHAT)
        assert not result.is_error, text(result)
        value = json.loads(text(result))
        assert (value["loud"], value["price"], value["text"]) == ("HELLO", 42, "HELLO: 42")
        assert "HELLO" in json.dumps(value["echoed"])
        (question,) = person.questions
        assert question.message.startswith("Run write_file?\n\nWhy: write_file overwrites 'out.txt' (3 bytes)\n")
        calls, steps = await steps_of_last_call(tmp_path / "data")
        tools = ["write_file", "report:shout", "report:fetch", "write_file", "lab:echo", "read_file"]
        assert [(step.tool_id, step.status) for step in steps] == [(tool, "success") for tool in tools]
        assert (calls[-1].status, len(site.asked)) == ("success", 1)

        person.replies[:] = [decline]
        error = await refusal(client, "report__make", {"words": "again"}, CHAT)
        assert (error["code"], error["details"]["step"]) == ("DECLINED", "5 (written)")
        assert error["message"].startswith("step 5 (written): ")
        read = await call(client, "read_file", {"path": "out.txt"}, CHAT)
        assert "HELLO: 42" in text(read)
        assert len(site.asked) == 2  # no step ran twice


async def is_held(data: Path, person: Person, kind: str) -> bool:
    """True once the call is at the step that takes long: recorded as running, or asked about."""
    if kind == "person":
        wholes, _ = await steps_of_last_call(data)
        return bool(person.questions) and [whole.status for whole in wholes][-1:] in (["running"], ["pending"])
    if kind == "upstream" and "nap upstream" not in (data.parent / "lab.txt").read_text():
        return False  # it may still be starting
    found = [record.status for record in await records(data) if record.tool_id == HANGS[kind]]
    # The same tool may have ended before, as a step that does not take long.
    return found[-1:] == ["running"] and (kind != "http" or found[-2:-1] == ["success"])


async def ended(data: Path) -> list[tuple[str, str, str | None]]:
    """How the last call and its steps have ended, once none of them is running."""
    calls, steps = await steps_of_last_call(data)
    assert calls
    assert "running" not in [record.status for record in (calls[-1], *steps)]
    # A modern client calls again with its answer; the steps belong to the call that asked.
    wholes = {calls[-1].id, *(whole.id for whole in calls[-2:-1] if whole.status == "pending")}
    own = [calls[-1], *(step for step in steps if step.parent_call_id in wholes)]
    return [(record.tool_id, record.status, record.error_code) for record in own]


def expected(kind: str, code: str) -> list[tuple[str, str, str | None]]:
    done = ["write_file", "report:shout", "report:fetch", "write_file"][: DONE[kind]]
    steps = [(tool, "success", None) for tool in done]
    return [("report:make", "error", code), *steps, (HANGS[kind], "error", code)]


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_cancelled_call_stops_the_step_that_runs(era: str, tmp_path: Path) -> None:
    person, data = Holding(), tmp_path / "data"
    async with started(tmp_path) as (gateway, _), connected(gateway, era, person) as client:
        # A modern client is asked between two calls: there is none to cancel while the person thinks.
        kinds = ["python", "http", "upstream", *(["builtin"] if NIGHTLY else [])]
        for kind in (*kinds, *(["person"] if era != ERAS[0] else [])):
            person.hold, person.questions[:] = kind == "person", []
            person.replies[:] = [choose("approve once")]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, client, "report__make", {"words": kind, "hang": kind}, CHAT)
                await async_eventually(partial(is_held, data, person, kind), PATIENCE)
                tasks.cancel_scope.cancel()
            found = await async_eventually(lambda: ended(data))
            assert found == expected(kind, "CANCELLED"), kind
        await async_eventually(lambda: "cancelled upstream" in (tmp_path / "lab.txt").read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "era"), [*product(HANGS, ERAS)] if NIGHTLY else [*zip(HANGS, [*ERAS, *ERAS], strict=False)]
)
async def test_killed_gateway_leaves_the_steps_that_ended_and_no_others(era: str, kind: str, tmp_path: Path) -> None:
    person, data = Holding(), tmp_path / "data"
    async with started(tmp_path) as (gateway, _):
        person.hold = kind == "person"
        with anyio.CancelScope() as scope:
            try:
                async with connected(gateway, era, person) as client, anyio.create_task_group() as tasks:
                    person.replies[:] = [choose("approve once")]
                    tasks.start_soon(call, client, "report__make", {"words": kind, "hang": kind}, CHAT)
                    await async_eventually(lambda: is_held(data, person, kind), PATIENCE)
                    gateway.signal(signal.SIGKILL)
                    gateway.wait()
                    scope.cancel()
            except BaseException:  # the connection has broken, in whatever way the client says so
                if not scope.cancel_called:
                    raise
        found = await ended(data)
        if kind == "person":  # nobody agreed: the question may still be open, and nothing was written
            assert [status for _, status, _ in found[1:4]] == ["success"] * 3
            assert "success" not in (found[0][1], found[-1][1])
            async with Gateway.open({"data_dir": str(data)}, connect="none") as again:
                assert (await again.call("read_file", {"path": "out.txt"}, chat=CHAT)).value["content"] == "old"
        else:
            assert found == expected(kind, "INTERRUPTED")
