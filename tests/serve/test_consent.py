"""Consent between a surface and the executor: asked in the way a client allows, and answered once."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT

from gateway import Gateway
from gateway.approval.flow import ApprovalFlow, RevisionWatcher
from gateway.approval.request_state import RequestStateCodec
from gateway.approval.store import ROUNDS
from gateway.calls import Call, Caller, ClientInfo, Outcome
from gateway.errors import Invalid
from gateway.protocol.jsonrpc import RpcError
from gateway.tools import Permission, Tool

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]

FORMS: dict[str, Any] = {"elicitation": {"form": {}}}
SCHEMA = {
    "type": "object",
    "properties": {"where": {"type": "string"}, "token": {"type": "string"}},
    "additionalProperties": False,
}


@dataclass
class Pad:
    """A source with one dangerous tool; it keeps what it was called with. With `asks` it has questions of its own."""

    asks: int = 0
    runs: list[Call] = field(default_factory=list)
    tool: Tool = field(
        default_factory=lambda: Tool(
            "pad:launch",
            "Launch.",
            SCHEMA,
            kind="mcp",
            owner="pad",
            permission=Permission.READ_WRITE,
            requires_confirmation=True,
        )
    )
    name: str = "pad"

    async def list_tools(self) -> Sequence[Tool]:
        return [self.tool]

    async def call_tool(self, call: Call) -> Outcome:
        self.runs.append(call)
        if len(self.runs) <= self.asks:
            asked = {
                "resultType": "input_required",
                "inputRequests": {"own": {}},
                "requestState": f"up {len(self.runs)}",
            }
            return Outcome(error=Invalid("it asks"), wire=asked)
        return Outcome(value={"launched": call.arguments.get("where")})


@dataclass
class Stand:
    gateway: Gateway
    calls: ApprovalFlow
    pad: Pad

    async def modern(self, answers: Mapping[str, Any] | None = None, **changed: Any) -> Outcome:
        client = ClientInfo(capabilities=FORMS, modern=True, answers=answers or {})
        return await self.calls.call_tool(replace(launch(), client=client, **changed))

    async def records(self) -> list[tuple[str, str, str | None]]:
        found = await self.gateway.records.list_calls()
        return [(record.id, record.status, record.error_code) for record in reversed(found)]


def launch(**arguments: Any) -> Call:
    return Call(name="pad__launch", arguments=arguments or {"where": "moon"}, chat="c", caller=Caller(surface="mcp"))


def form(decision: str, **edits: Any) -> dict[str, Any]:
    content = {"decision": decision, **{f"argument_{key}": value for key, value in edits.items()}}
    return {"action": "accept", "content": content}


def answer(asked: Outcome, said: Any) -> dict[str, Any]:
    """What a client of the newest era brings when it calls again."""
    assert asked.wire is not None
    return {"inputResponses": {"approval": said}, "requestState": asked.wire["requestState"]}


def code(outcome: Outcome) -> str:
    return "OK" if outcome.error is None else outcome.error.code


@asynccontextmanager
async def standing(place: Path, pad: Pad | None = None, **approval: Any) -> AsyncIterator[Stand]:
    pad = pad or Pad()
    async with Gateway.open({"data_dir": str(place), "approval": approval}, sources=[pad]) as gateway:
        yield Stand(gateway, gateway.approval_flow, pad)


async def test_the_question_leaves_as_the_answer_and_its_answer_ends_the_same_record(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        asked = await stand.modern()
        assert asked.wire is not None and stand.pad.runs == []
        request = asked.wire["inputRequests"]["approval"]
        assert (asked.wire["resultType"], request["method"]) == ("input_required", "elicitation/create")
        assert request["params"]["mode"] == "form"
        [(first, status, _)] = await stand.records()
        assert status == "pending"
        done = await stand.modern(answer(asked, form("approve once")))
        assert (done.value, done.call_id) == ({"launched": "moon"}, first)
        assert await stand.records() == [(first, "success", None)]
        consent = stand.pad.runs[0].consent
        assert consent is not None and (consent.by, consent.via, stand.pad.runs[0].confirmed) == (
            "local",
            "elicitation",
            True,
        )


async def test_secrets_are_neither_shown_nor_offered_nor_kept(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        asked = await stand.modern(arguments={"where": "moon", "token": "hunter22"})
        assert asked.wire is not None
        assert "hunter22" not in json.dumps(asked.wire)
        fields = asked.wire["inputRequests"]["approval"]["params"]["requestedSchema"]["properties"]
        assert list(fields) == ["decision", "argument_where"]
        [entry] = await stand.gateway.approvals.records.entries(waiting=False)
        assert "hunter22" not in str(entry) and entry.args == '{"where":"moon","token":"[redacted]"}'
        done = await stand.modern(answer(asked, form("approve once")), arguments={"where": "moon", "token": "hunter22"})
        assert done.ok and stand.pad.runs[0].arguments["token"] == "hunter22"


async def test_a_caller_cannot_hide_where_it_goes_by_calling_that_a_secret(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        asked = await stand.modern(arguments={"where": "the dark side", "token": "the dark side"})
        assert asked.wire is not None
        params = asked.wire["inputRequests"]["approval"]["params"]
        assert '  where: "the dark side"\n  token: "[redacted]"' in params["message"]
        assert params["requestedSchema"]["properties"]["argument_where"]["default"] == "the dark side"
        [entry] = await stand.gateway.approvals.records.entries(waiting=False)
        assert entry.message == params["message"]
        assert entry.args == '{"where":"the dark side","token":"[redacted]"}'


async def test_all_of_a_long_argument_is_written_down_for_who_asks_to_see_it(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        long = "fly" + " " * 5000 + "; land"
        asked = await stand.modern(arguments={"where": long})
        assert asked.wire is not None
        message = asked.wire["inputRequests"]["approval"]["params"]["message"]
        assert "fly" in message and "; land" in message and len(message) < 1000
        [entry] = await stand.gateway.approvals.records.entries(waiting=False)
        assert f'  where: "{long}"' in entry.message
        endless = await stand.modern(arguments={"where": "x" * 1_000_000})
        assert endless.wire is not None
        [entry, _] = await stand.gateway.approvals.records.entries(waiting=False)
        assert len(entry.message) < 70_000


@pytest.mark.parametrize("other", [{"message": "m9"}, {"parent_message": "m2"}, {"message": None}], ids=str)
async def test_a_yes_counts_for_the_version_of_the_files_it_was_given_for(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    async with standing(tmp_path) as stand:
        asked = await stand.modern(message="m3", parent_message="m1")
        elsewhere = {"message": "m3", "parent_message": "m1"} | other
        moved = await stand.modern(answer(asked, form("approve once")), **elsewhere)
        assert code(moved) == "INVALID_STATE" and stand.pad.runs == []
        here = await stand.modern(answer(asked, form("approve once")), message="m3", parent_message="m1")
        assert here.ok and len(stand.pad.runs) == 1


async def test_a_changed_tool_is_another_tool(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        asked = await stand.modern()
        kept = await stand.modern(answer(asked, form("approve for this chat")))
        assert kept.ok and (await stand.modern()).ok
        asked = await stand.modern(chat="d")
        stand.pad.tool = replace(stand.pad.tool, description="Launch, and tell everybody.")
        await stand.gateway.refresh()
        assert code(await stand.modern(answer(asked, form("approve once")), chat="d")) == "INVALID_STATE"
        assert code(await stand.modern()) == "CONFIRMATION_REQUIRED"  # what was remembered is void
        assert len(stand.pad.runs) == 2


async def test_the_upstream_asks_after_the_person_and_each_state_arrives_as_it_was(tmp_path: Path) -> None:
    async with standing(tmp_path, Pad(asks=2)) as stand:
        asked = await stand.modern()
        first = await stand.modern(answer(asked, form("approve once", where="mars")))
        assert first.wire is not None and list(first.wire["inputRequests"]) == ["own"]
        assert not first.wire["requestState"].startswith("up ")
        theirs = {"inputResponses": {"own": {"x": 1}}, "requestState": first.wire["requestState"]}
        second = await stand.modern(theirs)
        replayed = await stand.modern(theirs)
        assert (code(replayed), len(stand.pad.runs)) == ("INVALID_STATE", 2)
        assert second.wire is not None
        last = await stand.modern({"inputResponses": {"own": {"x": 2}}, "requestState": second.wire["requestState"]})
        assert last.value == {"launched": "mars"}
        seen = [run.client.answers for run in stand.pad.runs if run.client is not None]
        assert seen == [
            {},
            {"inputResponses": {"own": {"x": 1}}, "requestState": "up 1"},
            {"inputResponses": {"own": {"x": 2}}, "requestState": "up 2"},
        ]
        assert len({run.id for run in stand.pad.runs}) == 1


async def test_a_state_of_an_upstream_is_kept_while_a_person_is_asked(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        theirs = {"inputResponses": {"own": 1}, "requestState": "up 7"}
        asked = await stand.modern(theirs)
        assert asked.wire is not None and stand.pad.runs == []
        assert (await stand.modern(answer(asked, form("approve once")))).ok
        assert stand.pad.runs[0].client is not None and stand.pad.runs[0].client.answers == theirs


@pytest.mark.parametrize(
    "said",
    [
        None,
        {},
        {"action": "accept"},
        {"action": "accept", "content": {}},
        {"action": "approve", "content": {"decision": "approve once"}},
        form("approve always"),
        form("approve once", token="x"),
        form("approve once", where=3),
        {"action": "accept", "content": {"decision": "approve once", "where": "x"}},
    ],
    ids=json.dumps,
)
async def test_what_is_no_answer_agrees_to_nothing(tmp_path: Path, said: Any) -> None:
    async with standing(tmp_path) as stand:
        asked = await stand.modern()
        assert code(await stand.modern(answer(asked, said))) == "INVALID_ANSWER"
        assert stand.pad.runs == []


async def test_a_file_that_changed_under_the_question_is_asked_about_again(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        write: dict[str, Any] = {"name": "write_file", "arguments": {"path": "a.txt", "content": "mine"}}
        await stand.gateway.call("write_file", {"path": "a.txt", "content": "old"}, chat="c")
        asked = await stand.modern(**write)
        await stand.gateway.call("write_file", {"path": "a.txt", "content": "new"}, chat="c", confirmed=True)
        again = await stand.modern(answer(asked, form("approve once")), **write)
        assert again.wire is not None and "-new" in again.wire["inputRequests"]["approval"]["params"]["message"]
        assert (await stand.modern(answer(again, form("approve once")), **write)).ok


async def test_questions_about_one_call_are_bounded(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        write: dict[str, Any] = {"name": "write_file", "arguments": {"path": "a.txt", "content": "mine"}}
        await stand.gateway.call("write_file", {"path": "a.txt", "content": "0"}, chat="c")
        outcome = await stand.modern(**write)
        for number in range(ROUNDS):
            assert outcome.wire is not None
            text = f"{number + 1}" * (number + 2)
            await stand.gateway.call("write_file", {"path": "a.txt", "content": text}, chat="c", confirmed=True)
            outcome = await stand.modern(answer(outcome, form("approve once")), **write)
        assert code(outcome) == "TOO_MANY_QUESTIONS"
        assert [each for each in await stand.records() if each[1] == "pending"] == []


async def test_one_principal_may_have_so_many_questions_open_and_no_more(tmp_path: Path) -> None:
    async with standing(tmp_path, pending=2) as stand:
        first = await stand.modern()
        await stand.modern()
        assert code(await stand.modern()) == "TOO_MANY_PENDING"
        other = await stand.modern(caller=Caller("bob"), chat="of bob")
        assert other.wire is not None
        assert (await stand.modern(answer(first, form("approve once")))).ok
        assert (await stand.modern()).wire is not None  # there is room again
        assert sorted(status for _, status, _ in await stand.records()) == [
            "error",
            "pending",
            "pending",
            "pending",
            "success",
        ]


async def test_a_client_of_the_handshake_era_is_asked_while_nothing_is_held(tmp_path: Path) -> None:
    async with standing(tmp_path, Pad()) as stand:
        thinking, go_on = anyio.Event(), anyio.Event()

        async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            assert (method, "mode" in params) == ("elicitation/create", False)
            thinking.set()
            await go_on.wait()
            return form("approve once")

        client = ClientInfo(capabilities={"elicitation": {}}, ask=ask)
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await stand.calls.call_tool(replace(launch(), client=client)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await thinking.wait()
            await stand.gateway.executor.idle()  # no call is under way, as far as the executor knows
            assert (await stand.gateway.call("pad__launch", {"where": "sun"}, confirmed=True)).ok
            go_on.set()
        assert outcomes[0].value == {"launched": "moon"}


async def test_a_caller_that_goes_away_while_a_person_thinks_leaves_nothing_open(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        thinking = anyio.Event()

        async def ask(*_: Any) -> dict[str, Any]:
            thinking.set()
            await anyio.sleep_forever()
            return {}

        async with anyio.create_task_group() as tasks:
            call = replace(launch(), client=ClientInfo(capabilities=FORMS, ask=ask))
            tasks.start_soon(stand.calls.call_tool, call)
            await thinking.wait()
            tasks.cancel_scope.cancel()
        assert await stand.records() == [(call.id, "error", "CANCELLED")]
        [entry] = await stand.gateway.approvals.records.entries(waiting=False)
        assert entry.status == "cancelled" and stand.pad.runs == []


async def test_a_client_that_fails_when_it_is_asked_agreed_to_nothing(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:

        async def ask(*_: Any) -> dict[str, Any]:
            raise RpcError(-32601, "no such method")

        call = replace(launch(), client=ClientInfo(capabilities=FORMS, ask=ask))
        assert code(await stand.calls.call_tool(call)) == "CANNOT_ASK"
        assert await stand.records() == [(call.id, "error", "CANNOT_ASK")]


async def test_an_edit_that_only_the_queue_may_answer_goes_there(tmp_path: Path) -> None:
    rules = [{"tool": "pad:*", "when": {"arguments": {"where": "sun"}}, "then": "queue"}]
    async with standing(tmp_path, rules=rules, queue_wait=0) as stand:
        asked = await stand.modern()
        moved = await stand.modern(answer(asked, form("approve once", where="sun")))
        [entry] = await stand.gateway.approvals.records.entries()
        assert moved.error is not None and moved.error.details["approval"] == entry.id

        async def ask(*_: Any) -> dict[str, Any]:
            return form("approve once", where="sun")

        call = replace(launch(), client=ClientInfo(capabilities=FORMS, ask=ask))
        assert (await stand.calls.call_tool(call)).error is not None
        assert stand.pad.runs == []


async def test_tools_out_of_band_are_asked_for_in_the_queue_though_a_client_agreed_before(tmp_path: Path) -> None:
    async with standing(tmp_path) as stand:
        assert (await stand.modern(answer(await stand.modern(), form("approve for this chat")))).ok
    async with standing(tmp_path, out_of_band=["pad:*"], queue_wait=0) as stand:
        waiting = await stand.modern()
        assert code(waiting) == "CONFIRMATION_REQUIRED" and waiting.wire is None and stand.pad.runs == []
        assert waiting.error is not None
        await stand.gateway.approvals.allow(waiting.error.details["approval"], "ann", "always")
        assert (await stand.modern()).ok and (await stand.modern(chat="d")).ok


async def test_an_allowance_is_used_once_by_whom_it_is_for(tmp_path: Path) -> None:
    async with standing(tmp_path, without_elicitation="queue", queue_wait=0) as stand:
        waiting = await stand.calls.call_tool(launch())
        assert waiting.error is not None
        await stand.gateway.approvals.allow(waiting.error.details["approval"][:-3], "ann")
        for other in (
            replace(launch(), chat="d"),
            launch(where="sun"),
            replace(launch(), caller=Caller("bob"), chat="e"),
        ):
            assert code(await stand.calls.call_tool(other)) == "CONFIRMATION_REQUIRED"
        assert stand.pad.runs == []
        outcomes: list[str] = []

        async def go() -> None:
            outcomes.append(code(await stand.calls.call_tool(launch())))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(go)
        assert sorted(outcomes) == ["CONFIRMATION_REQUIRED"] * 4 + ["OK"]
        [run] = stand.pad.runs
        assert run.consent is not None and (run.consent.by, run.consent.via) == ("ann", "queue")


async def test_one_look_serves_all_who_wait_and_none_is_made_for_nobody() -> None:
    looks, revision = 0, 1

    async def look() -> int:
        nonlocal looks
        looks += 1
        return revision

    news, told = RevisionWatcher(look, seconds=0.05), []

    async def wait(seen: int) -> None:
        told.append(await news.wait_after(seen, anyio.current_time() + TIMEOUT))

    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(wait, 1)
        await anyio.wait_all_tasks_blocked()
        revision = 2
    assert (told, looks < 200) == ([True] * 200, True)
    assert not await news.wait_after(2, anyio.current_time() + 0.02)
    assert news._task is not None
    await news._task
    before = looks
    await anyio.sleep(0.2)
    assert looks == before


def test_a_key_of_ones_own_is_made_once_and_shown_to_nobody(tmp_path: Path) -> None:
    codecs = [RequestStateCodec([], tmp_path) for _ in range(2)]
    assert {id(codec._codec) for codec in codecs} and (tmp_path / "approval.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["approval.key"]
    (tmp_path / "approval.key").chmod(0o644)
    with pytest.raises(Invalid, match="can be read by others"):
        RequestStateCodec([], tmp_path).unseal("toolgate-approval.v1.AAAA")
