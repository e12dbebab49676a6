"""Rounds: a server that asks by answering may do so, round by round, but not for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from journeys.servers import labs

from gateway import Gateway
from gateway.calls import Call, ClientInfo
from gateway.sources.upstreams.forward import ROUNDS

pytestmark = pytest.mark.anyio

ABLE: dict[str, Any] = {"elicitation": {}}


@pytest.mark.parametrize("rounds", [1, ROUNDS, ROUNDS + 1])
async def test_a_client_of_either_era_is_asked_as_often_as_a_server_may(tmp_path: Path, rounds: int) -> None:
    settings = labs.on_stdio("modern", LAB_FILE=str(tmp_path / "notes"))
    chosen = {"data_dir": str(tmp_path / "data"), "approval": {"mode": "never"}, "mcpServers": {"lab": settings}}
    arguments = {"method": "elicitation/create", "name": "who", "rounds": rounds}
    asked: list[str] = []

    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        asked.append(params["message"])
        return {"action": "accept", "content": {"answer": str(len(asked))}}

    async with Gateway.open(chosen) as gateway:
        client = ClientInfo(capabilities=ABLE, ask=ask)
        outcome = await gateway.executor.call_tool(Call(name="lab__ask", arguments=arguments, client=client))
        assert asked == [labs.question("lab", f"who {number}") for number in range(min(rounds, ROUNDS))]
        if rounds > ROUNDS:
            assert outcome.error is not None
            assert (outcome.error.code, "asked more than 16 times" in outcome.error.message) == ("UPSTREAM_ERROR", True)
        else:
            assert outcome.content, outcome.error
            said_back = [each["content"]["answer"] for each in json.loads(outcome.content[0]["text"])]
            assert said_back == [str(number) for number in range(1, rounds + 1)]

        answers: dict[str, Any] = {}
        for number in range(rounds):  # a client of the newest era answers for itself, as long as it likes
            client = ClientInfo(capabilities=ABLE, answers=answers, modern=True)
            outcome = await gateway.executor.call_tool(Call(name="lab__ask", arguments=arguments, client=client))
            assert outcome.wire is not None, outcome.error
            questions = outcome.wire["inputRequests"]
            assert [each["params"]["message"] for each in questions.values()] == [labs.question("lab", f"who {number}")]
            given = {"action": "accept", "content": {"answer": str(number)}}
            answers = {
                "requestState": outcome.wire["requestState"],
                "inputResponses": dict.fromkeys(questions, given),
            }
        client = ClientInfo(capabilities=ABLE, answers=answers, modern=True)
        outcome = await gateway.executor.call_tool(Call(name="lab__ask", arguments=arguments, client=client))
        assert outcome.content and len(json.loads(outcome.content[0]["text"])) == rounds
