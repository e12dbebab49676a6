"""Consent cannot be forged: whatever a client makes of a state or an answer, the tool runs for the true one alone."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from amounts import amount
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import Gateway
from gateway.approval.flow import ApprovalFlow
from gateway.approval.request_state import PREFIX, Claims, RequestStateCodec
from gateway.calls import Call, Caller, ClientInfo, Outcome
from gateway.tools import Permission, Tool

pytestmark = pytest.mark.promise("C5")

YES = {"action": "accept", "content": {"decision": "approve once"}}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


class DangerousSource:
    """Two dangerous tools that are alike but for their names."""

    name = "pads"

    def __init__(self) -> None:
        self.runs = 0

    async def list_tools(self) -> list[Tool]:
        terms: dict[str, Any] = {"owner": "pads", "permission": Permission.READ_WRITE, "requires_confirmation": True}
        return [Tool(f"pads:{name}", "Launch.", SCHEMA, **terms) for name in ("one", "two")]

    async def call_tool(self, call: Call) -> Outcome:
        self.runs += 1
        return Outcome(value=call.arguments["n"])


@dataclass
class Fixture:
    """A gateway in a thread of its own, so that many examples share it."""

    portal: BlockingPortal
    gateway: Gateway
    pads: DangerousSource
    calls: ApprovalFlow
    states: RequestStateCodec

    def call(self, answers: dict[str, Any] | None = None, **changed: Any) -> Outcome:
        client = ClientInfo(capabilities={"elicitation": {}}, modern=True, answers=answers or {})
        call = Call(name="pads__one", arguments={"n": 1}, chat="c", caller=Caller("ann"), client=client)
        return self.portal.call(self.calls.call_tool, replace(call, **changed))

    def ask(self) -> str:
        asked = self.call()
        assert asked.wire is not None
        return str(asked.wire["requestState"])

    def claims(self, state: str) -> Claims:
        claims = self.states.unseal(state)
        assert claims is not None
        return claims


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixture]:
    place, pads = tmp_path_factory.mktemp("forgery"), DangerousSource()
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        opened = Gateway.open({"data_dir": str(place), "approval": {"pending": 10_000}}, sources=[pads])
        gateway = stack.enter_context(portal.wrap_async_context_manager(opened))
        yield Fixture(portal, gateway, pads, gateway.approval_flow, gateway.approval_flow.states)


def answer(state: Any, response: Any = YES, key: str = "approval") -> dict[str, Any]:
    return {"inputResponses": {key: response}, "requestState": state}


ALTERATIONS = ["swap", "cut", "drop", "insert", "double", "tail", "case"]


def alter(state: str, kind: str, place: int, character: str) -> str:
    """The state with something done to what is sealed."""
    body = state.removeprefix(PREFIX)
    at = place % len(body)
    return (
        PREFIX
        + {
            "swap": body[:at] + character + body[at + 1 :],
            "cut": body[:at],
            "drop": body[:at] + body[at + 1 :],
            "insert": body[:at] + character + body[at:],
            "double": body + body,
            "tail": body + character,
            "case": body[:at] + body[at:].swapcase(),
        }[kind]
    )


@settings(deadline=None, max_examples=amount(200, 25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(ALTERATIONS), st.integers(0, 10_000), st.sampled_from("ABCxyz019-_.=\x00é"))
def test_altered_request_state_is_refused_and_the_original_still_counts_once(
    fixture: Fixture, kind: str, place: int, character: str
) -> None:
    state, before = fixture.ask(), fixture.pads.runs
    forged = alter(state, kind, place, character)
    if forged != state:
        outcome = fixture.call(answer(forged))
        assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
        assert fixture.pads.runs == before
    assert fixture.call(answer(state)).value == 1
    replayed = fixture.call(answer(state))
    assert replayed.error is not None and replayed.error.code == "INVALID_STATE"
    assert fixture.pads.runs == before + 1


_CLAIMED = [
    ("approval", "another"),
    ("nonce", "another"),
    ("nonce", ""),
    ("subject", "0" * 64),
    ("arguments", "0" * 64),
    ("kind", "continued"),
    ("expires", 0.0),
    ("expires", float("nan")),
    ("issued", 4e9),
]


@pytest.mark.parametrize(("claim", "value"), _CLAIMED, ids=lambda each: str(each)[:12])
def test_request_state_forged_with_the_key_counts_only_for_a_question_asked_here(
    fixture: Fixture, claim: str, value: Any
) -> None:
    state, before = fixture.ask(), fixture.pads.runs
    forged = fixture.states.seal(replace(fixture.claims(state), **{claim: value}))
    outcome = fixture.call(answer(forged))
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    assert fixture.pads.runs == before
    assert fixture.call(answer(state)).ok


@pytest.mark.parametrize(
    "changed",
    [
        {"arguments": {"n": 2}},
        {"arguments": {"n": 1, "m": 1}},
        {"name": "pads__two"},
        {"name": "pads__three"},
        {"chat": "d"},
        {"caller": Caller("bob"), "chat": "of bob"},
    ],
    ids=str,
)
def test_request_state_counts_for_no_other_call(fixture: Fixture, changed: dict[str, Any]) -> None:
    state, before = fixture.ask(), fixture.pads.runs
    outcome = fixture.call(answer(state), **changed)
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    recorded = fixture.portal.call(fixture.gateway.records.list_calls)
    assert recorded[0].error_code == "INVALID_STATE"
    assert fixture.pads.runs == before
    assert fixture.call(answer(state)).ok  # whoever tried has used nothing up


@settings(deadline=None, max_examples=amount(60, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    state=st.none() | st.text(max_size=40) | st.integers() | st.just(PREFIX) | st.text(max_size=40).map(PREFIX.__add__),
    response=st.just(YES)
    | st.recursive(
        st.none() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["action", "content", "decision", "accept"]), inner)
        ),
    ),
    key=st.sampled_from(["approval", "own", ""]),
)
def test_answer_to_no_question_runs_nothing(fixture: Fixture, state: Any, response: Any, key: str) -> None:
    before = fixture.pads.runs
    answers = {"inputResponses": {key: response}} if state is None else answer(state, response, key)
    outcome = fixture.call(answers)
    assert outcome.error is not None and outcome.error.code in ("INVALID_STATE", "CONFIRMATION_REQUIRED")
    assert fixture.pads.runs == before


def test_request_state_of_another_key_is_refused_and_of_an_old_key_accepted(fixture: Fixture, tmp_path: Path) -> None:
    claims = fixture.claims(fixture.ask())
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    foreign = RequestStateCodec([new], tmp_path).seal(claims)
    outcome = fixture.call(answer(foreign))
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    assert RequestStateCodec([new, old], tmp_path).unseal(RequestStateCodec([old], tmp_path).seal(claims)) == claims
    assert RequestStateCodec([new], tmp_path).unseal(RequestStateCodec([old], tmp_path).seal(claims)) is None


def test_request_state_reveals_nothing_and_does_not_grow_with_the_arguments(fixture: Fixture) -> None:
    state = fixture.ask()
    assert not any(word in state for word in ("ann", "pads", "launch"))
    big = fixture.call(arguments={"n": 1, "text": "x" * 1_000_000})
    assert big.wire is not None
    assert len(json.dumps(big.wire)) < 20_000


def test_request_state_expires_with_its_question(fixture: Fixture) -> None:
    state, before = fixture.ask(), fixture.pads.runs
    later = ApprovalFlow(
        fixture.gateway.executor.call_tool,
        lambda call: fixture.gateway.find_tool(call.name),
        fixture.gateway.approvals,
        fixture.gateway.records.record_finished,
        fixture.states,
        clock=lambda: time.time() + fixture.gateway.settings.approval.timeout + 1,
    )
    outcome = replace(fixture, calls=later).call(answer(state))
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    assert fixture.pads.runs == before
