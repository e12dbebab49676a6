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


class Pads:
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
class Range:
    """A gateway in a thread of its own, so that many examples share it."""

    portal: BlockingPortal
    gateway: Gateway
    pads: Pads
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
def range_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    place, pads = tmp_path_factory.mktemp("forgery"), Pads()
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        opened = Gateway.open({"data_dir": str(place), "approval": {"pending": 10_000}}, sources=[pads])
        gateway = stack.enter_context(portal.wrap_async_context_manager(opened))
        yield Range(portal, gateway, pads, gateway.approval_flow, gateway.approval_flow.states)


def given_back(state: Any, said: Any = YES, key: str = "approval") -> dict[str, Any]:
    return {"inputResponses": {key: said}, "requestState": state}


ALTERATIONS = ["swap", "cut", "drop", "insert", "double", "tail", "case"]


def altered(state: str, kind: str, place: int, character: str) -> str:
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
def test_an_altered_state_is_refused_and_the_true_one_still_counts_once(
    range_: Range, kind: str, place: int, character: str
) -> None:
    state, before = range_.ask(), range_.pads.runs
    forged = altered(state, kind, place, character)
    if forged != state:
        outcome = range_.call(given_back(forged))
        assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
        assert range_.pads.runs == before
    assert range_.call(given_back(state)).value == 1
    replayed = range_.call(given_back(state))
    assert replayed.error is not None and replayed.error.code == "INVALID_STATE"
    assert range_.pads.runs == before + 1


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
def test_even_with_the_key_a_state_counts_only_for_what_was_asked_here(range_: Range, claim: str, value: Any) -> None:
    state, before = range_.ask(), range_.pads.runs
    forged = range_.states.seal(replace(range_.claims(state), **{claim: value}))
    outcome = range_.call(given_back(forged))
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    assert range_.pads.runs == before
    assert range_.call(given_back(state)).ok


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
def test_a_state_counts_for_no_other_call(range_: Range, changed: dict[str, Any]) -> None:
    state, before = range_.ask(), range_.pads.runs
    outcome = range_.call(given_back(state), **changed)
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    recorded = range_.portal.call(range_.gateway.records.list_calls)
    assert recorded[0].error_code == "INVALID_STATE"
    assert range_.pads.runs == before
    assert range_.call(given_back(state)).ok  # whoever tried has used nothing up


@settings(deadline=None, max_examples=amount(60, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    state=st.none() | st.text(max_size=40) | st.integers() | st.just(PREFIX) | st.text(max_size=40).map(PREFIX.__add__),
    said=st.just(YES)
    | st.recursive(
        st.none() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["action", "content", "decision", "accept"]), inner)
        ),
    ),
    key=st.sampled_from(["approval", "own", ""]),
)
def test_an_answer_to_what_was_never_asked_runs_nothing(range_: Range, state: Any, said: Any, key: str) -> None:
    before = range_.pads.runs
    answers = {"inputResponses": {key: said}} if state is None else given_back(state, said, key)
    outcome = range_.call(answers)
    assert outcome.error is not None and outcome.error.code in ("INVALID_STATE", "CONFIRMATION_REQUIRED")
    assert range_.pads.runs == before


def test_another_key_is_another_gateway_and_an_old_key_still_opens(range_: Range, tmp_path: Path) -> None:
    claims = range_.claims(range_.ask())
    old, new = secrets.token_hex(32), secrets.token_hex(32)
    foreign = RequestStateCodec([new], tmp_path).seal(claims)
    outcome = range_.call(given_back(foreign))
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    assert RequestStateCodec([new, old], tmp_path).unseal(RequestStateCodec([old], tmp_path).seal(claims)) == claims
    assert RequestStateCodec([new], tmp_path).unseal(RequestStateCodec([old], tmp_path).seal(claims)) is None


def test_a_state_shows_nothing_and_grows_with_nothing_that_was_sent(range_: Range) -> None:
    state = range_.ask()
    assert not any(word in state for word in ("ann", "pads", "launch"))
    big = range_.call(arguments={"n": 1, "text": "x" * 1_000_000})
    assert big.wire is not None
    assert len(json.dumps(big.wire)) < 20_000


def test_a_call_expires_with_its_question(range_: Range) -> None:
    state, before = range_.ask(), range_.pads.runs
    later = ApprovalFlow(
        range_.gateway.executor.call_tool,
        range_.gateway.find_tool,
        range_.gateway.approvals,
        range_.gateway.records.record_finished,
        range_.states,
        clock=lambda: time.time() + range_.gateway.settings.approval.timeout + 1,
    )
    outcome = replace(range_, calls=later).call(given_back(state))
    assert outcome.error is not None and outcome.error.code == "INVALID_STATE"
    assert range_.pads.runs == before
