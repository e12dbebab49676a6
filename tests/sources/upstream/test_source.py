"""The source of upstreams' tools: what callers of every kind get, and what one upstream's trouble is to the others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from eventually import TIMEOUT
from journeys.servers import labs

from gateway import Gateway
from gateway.calls import Ask, Call, Caller, ClientInfo, Outcome
from gateway.errors import UpstreamFault
from gateway.protocol.jsonrpc import RpcError

pytestmark = pytest.mark.anyio

ABLE: dict[str, Any] = {"elicitation": {"form": {}}, "roots": {}}


@asynccontextmanager
async def gateway_to(directory: Path, **servers: dict[str, Any]) -> AsyncIterator[Gateway]:
    settings = {"data_dir": str(directory / "data"), "approval": {"mode": "never"}, "mcpServers": servers}
    async with Gateway.open(settings) as gateway:
        yield gateway


def lab(era: str, directory: Path, **more: Any) -> dict[str, Any]:
    return {**labs.on_stdio(era, LAB_FILE=str(directory / "notes")), **more}


def saying(answer: str) -> Ask:
    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"action": "accept", "content": {"answer": f"{answer} to {params['message'].partition('> ')[2]}"}}

    return ask


async def asked_of(gateway: Gateway, server: str, client: ClientInfo, name: str = "q", **more: Any) -> Outcome:
    arguments = {"method": "elicitation/create", "name": name}
    return await gateway.executor.call_tool(Call(name=f"{server}__ask", arguments=arguments, client=client, **more))


def said(outcome: Outcome) -> Any:
    assert outcome.content, outcome.error
    return json.loads(outcome.content[0]["text"])


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_a_caller_that_is_no_client_can_call_but_not_be_asked(tmp_path: Path, era: str) -> None:
    done: list[float] = []

    async def progress(step: float, total: float | None, message: str | None) -> None:
        done.append(step)

    async with gateway_to(tmp_path, lab=lab(era, tmp_path)) as gateway:
        counted = await gateway.call("lab__count", {}, progress=progress)
        assert counted.ok
        assert done == [1, 2, 3]
        outcome = await gateway.call("lab__ask", {"method": "elicitation/create"})
        if era == "modern":
            assert outcome.error is not None
            assert outcome.error.code == "CANNOT_ASK"
        else:
            assert said(outcome)[0]["error"]["code"] == -32601


async def test_what_a_client_could_be_asked_if_there_were_a_way_is_not_promised(tmp_path: Path) -> None:
    client = ClientInfo(capabilities={**ABLE, "experimental": {"x": {}}})
    async with gateway_to(tmp_path, lab=lab("modern", tmp_path)) as gateway:
        echoed = await gateway.executor.call_tool(Call(name="lab__echo", arguments={}, client=client))
        said = echoed.value["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
        assert said == {}
        outcome = await asked_of(gateway, "lab", client)
        assert outcome.error is not None
        assert outcome.error.code == "CANNOT_ASK"


@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_what_the_client_answers_badly_the_server_hears(tmp_path: Path, era: str) -> None:
    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        raise RpcError(-32042, "not now", {"later": True})

    async with gateway_to(tmp_path, lab=lab(era, tmp_path)) as gateway:
        outcome = await asked_of(gateway, "lab", ClientInfo(capabilities=ABLE, ask=ask))
        if era == "modern":  # it waits for no answer: the client's error is the call's
            assert isinstance(outcome.error, UpstreamFault)
            assert (outcome.error.fault, outcome.error.message) == (-32042, "not now")
        else:
            assert said(outcome)[0]["error"] == {"code": -32042, "message": "not now", "data": {"later": True}}


@pytest.mark.parametrize("era", [pytest.param("modern", marks=pytest.mark.slow), "handshake"])
@pytest.mark.parametrize("sharing", [pytest.param("principal", marks=pytest.mark.slow), "all"])
async def test_everybody_is_asked_his_own_questions(tmp_path: Path, era: str, sharing: str) -> None:
    """Ten calls of two principals at once, also over one pipe on which a question does not say whose it is."""
    async with gateway_to(tmp_path, lab=lab(era, tmp_path, sharing=sharing)) as gateway:
        await asked_of(
            gateway, "lab", ClientInfo(capabilities=ABLE, ask=saying("first"))
        )  # from here on it is known to ask

        async def one(number: int) -> tuple[Any, str]:
            who = ("ann", "bob")[number % 2]
            client = ClientInfo(capabilities=ABLE, ask=saying(f"{who}{number}"))
            caller, chat = Caller(principal=who), f"chat-{who}"
            got = said(await asked_of(gateway, "lab", client, f"q{number}", caller=caller, chat=chat))
            return got[0]["content"]["answer"], f"{who}{number} to q{number} 0"

        with anyio.fail_after(TIMEOUT):
            for got, wanted in await asyncio.gather(*(one(number) for number in range(10))):
                assert got == wanted


async def test_a_question_that_may_be_anybodys_reaches_nobody(tmp_path: Path) -> None:
    """Nobody knew yet that this server asks, and two calls run: it is refused rather than guessed."""
    received: list[str] = []

    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        received.append(params["message"])
        return {"action": "decline"}

    async with gateway_to(tmp_path, lab=lab("handshake", tmp_path)) as gateway:
        nap = asyncio.ensure_future(gateway.call("lab__nap", {"name": "x"}))
        await labs.noted(tmp_path / "notes", "nap x")
        outcome = await asked_of(gateway, "lab", ClientInfo(capabilities=ABLE, ask=ask))
        assert "several calls run" in said(outcome)[0]["error"]["message"]
        assert received == []
        nap.cancel()


async def test_a_server_that_keeps_asking_is_given_up(tmp_path: Path) -> None:
    async with gateway_to(tmp_path, lab=lab("modern", tmp_path)) as gateway:
        arguments = {"method": "elicitation/create", "name": "q", "rounds": 100}
        client = ClientInfo(capabilities=ABLE, ask=saying("yes"))
        outcome = await gateway.executor.call_tool(Call(name="lab__ask", arguments=arguments, client=client))
        assert outcome.error is not None
        assert "asked more than 16 times" in outcome.error.message


@pytest.mark.parametrize("era", ["modern", pytest.param("handshake", marks=pytest.mark.slow)])
async def test_one_that_is_killed_fails_its_calls_and_no_others(tmp_path: Path, era: str) -> None:
    async with gateway_to(tmp_path, lab=lab(era, tmp_path), other=lab(era, tmp_path)) as gateway:
        echoed = await gateway.call("lab__echo", {})
        calls = [asyncio.ensure_future(gateway.call("lab__nap", {"name": str(number)})) for number in range(3)]
        elsewhere = asyncio.ensure_future(gateway.call("other__count", {}))
        await labs.noted(tmp_path / "notes", "nap 2")
        labs.kill(echoed.value["pid"])
        for outcome in await asyncio.gather(*calls):
            assert outcome.error is not None
            assert outcome.error.code == "UPSTREAM_LOST"
            assert "the upstream server 'lab' did not answer" in outcome.error.message
            assert outcome.error.details == {"server": "lab", "exit_code": 137}
        assert (await elsewhere).ok
        again = await gateway.call("lab__echo", {})
        assert again.ok
        assert again.value["pid"] != echoed.value["pid"]


@pytest.mark.slow
async def test_one_that_hangs_or_dies_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.gateway.DISCOVERY_SECONDS", 600.0)
    for seconds in ("START_SECONDS", "LIST_SECONDS", "VERIFY_SECONDS"):
        monkeypatch.setattr(f"gateway.sources.upstreams.upstream.{seconds}", 600.0)
    silent = labs.on_stdio(LAB_HABITS="silent", LAB_FILE=str(tmp_path / "silent"))
    dying = labs.on_stdio(LAB_HABITS="dies", LAB_FILE=str(tmp_path / "dying"))
    async with gateway_to(tmp_path, lab=lab("modern", tmp_path)) as gateway:
        await gateway.call("lab__echo", {})
    for name in ("hanging", "dead"):  # both were there once
        async with gateway_to(tmp_path, **{name: lab("modern", tmp_path)}):
            pass
    with anyio.fail_after(TIMEOUT):
        async with gateway_to(tmp_path, lab=lab("modern", tmp_path), hanging=silent, dead=dying) as gateway:
            assert {"hanging__echo", "dead__echo", "lab__echo"} <= {entry.name for entry in gateway.catalog}
            waiting = asyncio.ensure_future(gateway.call("hanging__echo", {}))
            refused = await gateway.call("dead__echo", {})
            assert refused.error is not None
            assert refused.error.code == "UPSTREAM_UNAVAILABLE"
            starts = len(labs.notes(tmp_path / "dying"))
            again = await gateway.call("dead__echo", {})
            assert again.error is not None
            assert "the next attempt is in" in again.error.message
            assert len(labs.notes(tmp_path / "dying")) == starts
            assert (await gateway.call("lab__echo", {})).ok
            assert not waiting.done()
            waiting.cancel()
    assert labs.running(str(tmp_path)) == []
