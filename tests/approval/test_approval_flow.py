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
from eventually import TIMEOUT, async_eventually

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
class DangerousSource:
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
class Fixture:
    gateway: Gateway
    calls: ApprovalFlow
    source: DangerousSource

    async def modern(self, answers: Mapping[str, Any] | None = None, **changed: Any) -> Outcome:
        client = ClientInfo(capabilities=FORMS, modern=True, answers=answers or {})
        return await self.calls.call_tool(replace(launch(), client=client, **changed))

    async def records(self) -> list[tuple[str, str, str | None]]:
        records = await self.gateway.records.list_calls()
        return [(record.id, record.status, record.error_code) for record in reversed(records)]


def launch(**arguments: Any) -> Call:
    return Call(name="pad__launch", arguments=arguments or {"where": "moon"}, chat="c", caller=Caller(surface="mcp"))


def form(decision: str, **edits: Any) -> dict[str, Any]:
    content = {"decision": decision, **{f"argument_{key}": value for key, value in edits.items()}}
    return {"action": "accept", "content": content}


def answer(asked: Outcome, response: Any) -> dict[str, Any]:
    """Return what a client of version 2026-07-28 sends when it calls again."""
    assert asked.wire is not None
    return {"inputResponses": {"approval": response}, "requestState": asked.wire["requestState"]}


def code(outcome: Outcome) -> str:
    return "OK" if outcome.error is None else outcome.error.code


@asynccontextmanager
async def open_fixture(place: Path, source: DangerousSource | None = None, **approval: Any) -> AsyncIterator[Fixture]:
    source = source or DangerousSource()
    async with Gateway.open({"data_dir": str(place), "approval": approval}, sources=[source]) as gateway:
        yield Fixture(gateway, gateway.approval_flow, source)


async def test_question_is_returned_in_the_result_and_its_answer_ends_the_same_record(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        asked = await fixture.modern()
        assert asked.wire is not None and fixture.source.runs == []
        request = asked.wire["inputRequests"]["approval"]
        assert (asked.wire["resultType"], request["method"]) == ("input_required", "elicitation/create")
        assert request["params"]["mode"] == "form"
        [(first, status, _)] = await fixture.records()
        assert status == "pending"
        done = await fixture.modern(answer(asked, form("approve once")))
        assert (done.value, done.call_id) == ({"launched": "moon"}, first)
        assert await fixture.records() == [(first, "success", None)]
        consent = fixture.source.runs[0].consent
        assert consent is not None and (consent.by, consent.via, fixture.source.runs[0].confirmed) == (
            "local",
            "elicitation",
            True,
        )


async def test_question_neither_shows_nor_stores_secrets(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        asked = await fixture.modern(arguments={"where": "moon", "token": "hunter22"})
        assert asked.wire is not None
        assert "hunter22" not in json.dumps(asked.wire)
        fields = asked.wire["inputRequests"]["approval"]["params"]["requestedSchema"]["properties"]
        assert list(fields) == ["decision", "argument_where"]
        [entry] = await fixture.gateway.approvals.records.entries(waiting=False)
        assert "hunter22" not in str(entry) and entry.args == '{"where":"moon","token":"[redacted]"}'
        done = await fixture.modern(
            answer(asked, form("approve once")), arguments={"where": "moon", "token": "hunter22"}
        )
        assert done.ok and fixture.source.runs[0].arguments["token"] == "hunter22"


async def test_question_shows_an_argument_whose_value_is_also_named_a_secret(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        asked = await fixture.modern(arguments={"where": "the dark side", "token": "the dark side"})
        assert asked.wire is not None
        params = asked.wire["inputRequests"]["approval"]["params"]
        assert '  where: "the dark side"\n  token: "[redacted]"' in params["message"]
        assert params["requestedSchema"]["properties"]["argument_where"]["default"] == "the dark side"
        [entry] = await fixture.gateway.approvals.records.entries(waiting=False)
        assert entry.message == params["message"]
        assert entry.args == '{"where":"the dark side","token":"[redacted]"}'


async def test_stored_question_has_the_whole_of_a_long_argument(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        long = "fly" + " " * 5000 + "; land"
        asked = await fixture.modern(arguments={"where": long})
        assert asked.wire is not None
        message = asked.wire["inputRequests"]["approval"]["params"]["message"]
        assert "fly" in message and "; land" in message and len(message) < 1000
        [entry] = await fixture.gateway.approvals.records.entries(waiting=False)
        assert f'  where: "{long}"' in entry.message
        endless = await fixture.modern(arguments={"where": "x" * 1_000_000})
        assert endless.wire is not None
        [entry, _] = await fixture.gateway.approvals.records.entries(waiting=False)
        assert len(entry.message) < 70_000


@pytest.mark.parametrize("other", [{"message": "m9"}, {"parent_message": "m2"}, {"message": None}], ids=str)
async def test_consent_counts_only_for_the_version_of_the_files_that_was_asked_about(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    async with open_fixture(tmp_path) as fixture:
        asked = await fixture.modern(message="m3", parent_message="m1")
        elsewhere = {"message": "m3", "parent_message": "m1"} | other
        moved = await fixture.modern(answer(asked, form("approve once")), **elsewhere)
        assert code(moved) == "INVALID_STATE" and fixture.source.runs == []
        here = await fixture.modern(answer(asked, form("approve once")), message="m3", parent_message="m1")
        assert here.ok and len(fixture.source.runs) == 1


async def test_consent_to_a_tool_ends_when_its_definition_changes(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        asked = await fixture.modern()
        kept = await fixture.modern(answer(asked, form("approve for this chat")))
        assert kept.ok and (await fixture.modern()).ok
        asked = await fixture.modern(chat="d")
        fixture.source.tool = replace(fixture.source.tool, description="Launch, and tell everybody.")
        await fixture.gateway.refresh()
        assert code(await fixture.modern(answer(asked, form("approve once")), chat="d")) == "INVALID_STATE"
        assert code(await fixture.modern()) == "CONFIRMATION_REQUIRED"  # what was remembered is void
        assert len(fixture.source.runs) == 2


async def test_upstream_question_after_consent_carries_both_request_states(tmp_path: Path) -> None:
    async with open_fixture(tmp_path, DangerousSource(asks=2)) as fixture:
        asked = await fixture.modern()
        first = await fixture.modern(answer(asked, form("approve once", where="mars")))
        assert first.wire is not None and list(first.wire["inputRequests"]) == ["own"]
        assert not first.wire["requestState"].startswith("up ")
        theirs = {"inputResponses": {"own": {"x": 1}}, "requestState": first.wire["requestState"]}
        second = await fixture.modern(theirs)
        replayed = await fixture.modern(theirs)
        assert (code(replayed), len(fixture.source.runs)) == ("INVALID_STATE", 2)
        assert second.wire is not None
        last = await fixture.modern({"inputResponses": {"own": {"x": 2}}, "requestState": second.wire["requestState"]})
        assert last.value == {"launched": "mars"}
        seen = [run.client.answers for run in fixture.source.runs if run.client is not None]
        assert seen == [
            {},
            {"inputResponses": {"own": {"x": 1}}, "requestState": "up 1"},
            {"inputResponses": {"own": {"x": 2}}, "requestState": "up 2"},
        ]
        assert len({run.id for run in fixture.source.runs}) == 1


async def test_request_state_of_an_upstream_is_kept_while_a_person_is_asked(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        theirs = {"inputResponses": {"own": 1}, "requestState": "up 7"}
        asked = await fixture.modern(theirs)
        assert asked.wire is not None and fixture.source.runs == []
        assert (await fixture.modern(answer(asked, form("approve once")))).ok
        assert fixture.source.runs[0].client is not None and fixture.source.runs[0].client.answers == theirs


@pytest.mark.parametrize(
    "response",
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
async def test_invalid_answer_is_no_consent(tmp_path: Path, response: Any) -> None:
    async with open_fixture(tmp_path) as fixture:
        asked = await fixture.modern()
        assert code(await fixture.modern(answer(asked, response))) == "INVALID_ANSWER"
        assert fixture.source.runs == []


async def test_question_is_asked_again_if_the_file_changed_meanwhile(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        write: dict[str, Any] = {"name": "write_file", "arguments": {"path": "a.txt", "content": "mine"}}
        await fixture.gateway.call("write_file", {"path": "a.txt", "content": "old"}, chat="c")
        asked = await fixture.modern(**write)
        await fixture.gateway.call("write_file", {"path": "a.txt", "content": "new"}, chat="c", confirmed=True)
        again = await fixture.modern(answer(asked, form("approve once")), **write)
        assert again.wire is not None and "-new" in again.wire["inputRequests"]["approval"]["params"]["message"]
        assert (await fixture.modern(answer(again, form("approve once")), **write)).ok


async def test_questions_about_one_call_are_limited(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        write: dict[str, Any] = {"name": "write_file", "arguments": {"path": "a.txt", "content": "mine"}}
        await fixture.gateway.call("write_file", {"path": "a.txt", "content": "0"}, chat="c")
        outcome = await fixture.modern(**write)
        for number in range(ROUNDS):
            assert outcome.wire is not None
            text = f"{number + 1}" * (number + 2)
            await fixture.gateway.call("write_file", {"path": "a.txt", "content": text}, chat="c", confirmed=True)
            outcome = await fixture.modern(answer(outcome, form("approve once")), **write)
        assert code(outcome) == "TOO_MANY_QUESTIONS"
        assert [each for each in await fixture.records() if each[1] == "pending"] == []


async def test_pending_questions_of_one_principal_are_limited(tmp_path: Path) -> None:
    async with open_fixture(tmp_path, pending=2) as fixture:
        first = await fixture.modern()
        await fixture.modern()
        assert code(await fixture.modern()) == "TOO_MANY_PENDING"
        other = await fixture.modern(caller=Caller("bob"), chat="of bob")
        assert other.wire is not None
        assert (await fixture.modern(answer(first, form("approve once")))).ok
        assert (await fixture.modern()).wire is not None  # there is room again
        assert sorted(status for _, status, _ in await fixture.records()) == [
            "error",
            "pending",
            "pending",
            "pending",
            "success",
        ]


async def test_elicitation_in_mid_call_holds_no_slot(tmp_path: Path) -> None:
    async with open_fixture(tmp_path, DangerousSource()) as fixture:
        thinking, go_on = anyio.Event(), anyio.Event()

        async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
            assert (method, "mode" in params) == ("elicitation/create", False)
            thinking.set()
            await go_on.wait()
            return form("approve once")

        client = ClientInfo(capabilities={"elicitation": {}}, ask=ask)
        outcomes: list[Outcome] = []

        async def call() -> None:
            outcomes.append(await fixture.calls.call_tool(replace(launch(), client=client)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await thinking.wait()
            await fixture.gateway.executor.idle()  # no call is under way, as far as the executor knows
            assert (await fixture.gateway.call("pad__launch", {"where": "sun"}, confirmed=True)).ok
            go_on.set()
        assert outcomes[0].value == {"launched": "moon"}


async def test_question_is_cancelled_when_its_caller_disconnects(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        thinking = anyio.Event()

        async def ask(*_: Any) -> dict[str, Any]:
            thinking.set()
            await anyio.sleep_forever()
            return {}

        async with anyio.create_task_group() as tasks:
            call = replace(launch(), client=ClientInfo(capabilities=FORMS, ask=ask))
            tasks.start_soon(fixture.calls.call_tool, call)
            await thinking.wait()
            tasks.cancel_scope.cancel()
        assert await fixture.records() == [(call.id, "error", "CANCELLED")]
        [entry] = await fixture.gateway.approvals.records.entries(waiting=False)
        assert entry.status == "cancelled" and fixture.source.runs == []


async def test_failed_elicitation_is_no_consent(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:

        async def ask(*_: Any) -> dict[str, Any]:
            raise RpcError(-32601, "no such method")

        call = replace(launch(), client=ClientInfo(capabilities=FORMS, ask=ask))
        assert code(await fixture.calls.call_tool(call)) == "CANNOT_ASK"
        assert await fixture.records() == [(call.id, "error", "CANNOT_ASK")]


async def test_edit_that_only_the_queue_may_answer_is_queued(tmp_path: Path) -> None:
    rules = [{"tool": "pad:*", "when": {"arguments": {"where": "sun"}}, "then": "queue"}]
    async with open_fixture(tmp_path, rules=rules, queue_wait=0) as fixture:
        asked = await fixture.modern()
        moved = await fixture.modern(answer(asked, form("approve once", where="sun")))
        [entry] = await fixture.gateway.approvals.records.entries()
        assert moved.error is not None and moved.error.details["approval"] == entry.id

        async def ask(*_: Any) -> dict[str, Any]:
            return form("approve once", where="sun")

        call = replace(launch(), client=ClientInfo(capabilities=FORMS, ask=ask))
        assert (await fixture.calls.call_tool(call)).error is not None
        assert fixture.source.runs == []


async def test_out_of_band_tool_is_queued_although_a_client_agreed_before(tmp_path: Path) -> None:
    async with open_fixture(tmp_path) as fixture:
        assert (await fixture.modern(answer(await fixture.modern(), form("approve for this chat")))).ok
    async with open_fixture(tmp_path, out_of_band=["pad:*"], queue_wait=0) as fixture:
        waiting = await fixture.modern()
        assert code(waiting) == "CONFIRMATION_REQUIRED" and waiting.wire is None and fixture.source.runs == []
        assert waiting.error is not None
        await fixture.gateway.approvals.allow(waiting.error.details["approval"], "ann", "always")
        assert (await fixture.modern()).ok and (await fixture.modern(chat="d")).ok


async def test_allowed_call_runs_once_and_only_for_its_caller(tmp_path: Path) -> None:
    async with open_fixture(tmp_path, without_elicitation="queue", queue_wait=0) as fixture:
        waiting = await fixture.calls.call_tool(launch())
        assert waiting.error is not None
        await fixture.gateway.approvals.allow(waiting.error.details["approval"][:-3], "ann")
        for other in (
            replace(launch(), chat="d"),
            launch(where="sun"),
            replace(launch(), caller=Caller("bob"), chat="e"),
        ):
            assert code(await fixture.calls.call_tool(other)) == "CONFIRMATION_REQUIRED"
        assert fixture.source.runs == []
        outcomes: list[str] = []

        async def go() -> None:
            outcomes.append(code(await fixture.calls.call_tool(launch())))

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(go)
        assert sorted(outcomes) == ["CONFIRMATION_REQUIRED"] * 4 + ["OK"]
        [run] = fixture.source.runs
        assert run.consent is not None and (run.consent.by, run.consent.via) == ("ann", "queue")


async def test_refusal_is_logged_with_who_declined_and_why_once_in_each_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gateway.approval.store")
    async with open_fixture(tmp_path, without_elicitation="queue", queue_wait=60) as fixture:
        approvals = fixture.gateway.approvals

        async def deny() -> None:
            [waiting] = await async_eventually(approvals.records.entries)
            async with open_fixture(tmp_path) as other:
                await other.gateway.approvals.deny(waiting.id, "ann", "no\nway")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deny)
            assert code(await fixture.calls.call_tool(launch())) == "DECLINED"
        assert code(await fixture.calls.call_tool(launch())) == "DECLINED"
    lines = [record.getMessage() for record in caplog.records if "declined" in record.getMessage()]
    assert lines == ["pad:launch was declined by ann: no way"] * 2  # where it was decided, and where its caller waits


async def test_revision_watcher_polls_once_for_all_and_not_at_all_for_nobody() -> None:
    polls, revision = 0, 1

    async def read_revision() -> int:
        nonlocal polls
        polls += 1
        return revision

    watcher, changed = RevisionWatcher(read_revision, seconds=0.05), []

    async def wait(seen: int) -> None:
        changed.append(await watcher.wait_after(seen, anyio.current_time() + TIMEOUT))

    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(wait, 1)
        await anyio.wait_all_tasks_blocked()
        revision = 2
    assert (changed, polls < 200) == ([True] * 200, True)
    assert not await watcher.wait_after(2, anyio.current_time() + 0.02)
    assert watcher._task is not None
    await watcher._task
    before = polls
    await anyio.sleep(0.2)
    assert polls == before


def test_own_key_is_generated_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    first, second = (RequestStateCodec([], tmp_path).sealer for _ in range(2))
    assert second.unseal(first.seal(b"secret")) == b"secret"
    assert (tmp_path / "approval.key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["approval.key"]
    (tmp_path / "approval.key").chmod(0o644)
    with pytest.raises(Invalid, match="can be read by others"):
        RequestStateCodec([], tmp_path).unseal(f"toolgate-approval.{first.seal(b'')}")
