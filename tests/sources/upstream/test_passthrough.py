"""Prompts and resources of upstreams: whoever wants one is asked what the server wants to know, and nobody else is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest
from eventually import TIME_LIMITS, TIMEOUT
from journeys.servers import labs

from gateway import Gateway
from gateway.calls import Caller, ClientInfo
from gateway.errors import Timeout, ToolFailed
from gateway.sources.upstreams import passthrough

from .test_source import ABLE, asked_of, gateway_to, lab, said, saying

pytestmark = pytest.mark.anyio

ASKED = {"method": "elicitation/create", "name": "who"}


def relay_of(gateway: Gateway) -> passthrough.UpstreamPassthrough:
    found = gateway.passthrough()
    assert found is not None
    return found


async def prompt(gateway: Gateway, client: ClientInfo, asked: Mapping[str, str] = ASKED, who: str = "local") -> Any:
    got = await relay_of(gateway).get_prompt("lab__ask", asked, Caller(principal=who), f"chat-{who}", client)
    return json.loads(got["messages"][0]["content"]["text"])


async def resource(gateway: Gateway, client: ClientInfo, asked: Mapping[str, str] = ASKED, who: str = "local") -> Any:
    listed = await relay_of(gateway).resources(Caller(principal=who), f"chat-{who}", client)
    [uri] = [each["uri"] for each in listed if each["name"] == "ask"]
    got = await relay_of(gateway).read(f"{uri}?{urlencode(asked)}", Caller(principal=who), f"chat-{who}", client)
    return json.loads(got["contents"][0]["text"])


KINDS = {"prompt": prompt, "resource": resource}


@pytest.mark.parametrize("era", [pytest.param("modern", marks=pytest.mark.slow), "handshake"])
@pytest.mark.parametrize("sharing", [pytest.param("principal", marks=pytest.mark.slow), "all"])
async def test_everybody_is_asked_his_own_questions_whatever_he_wants(tmp_path: Path, era: str, sharing: str) -> None:
    """Calls, prompts and resources of two principals at once, also over a pipe that does not say who is asked."""
    async with gateway_to(tmp_path, lab=lab(era, tmp_path, sharing=sharing)) as gateway:
        await asked_of(
            gateway, "lab", ClientInfo(capabilities=ABLE, ask=saying("first"))
        )  # from here on it is known to ask

        async def one(number: int) -> tuple[str, str]:
            who, name = ("ann", "bob")[number % 2], f"q{number}"
            client = ClientInfo(capabilities=ABLE, ask=saying(f"{who}{number}"))
            asked = {**ASKED, "name": name}
            match number % 3:
                case 0:
                    caller, chat = Caller(principal=who), f"chat-{who}"
                    got = said(await asked_of(gateway, "lab", client, name, caller=caller, chat=chat))
                case 1:
                    got = await prompt(gateway, client, asked, who)
                case _:
                    got = await resource(gateway, client, asked, who)
            return got[0]["content"]["answer"], f"{who}{number} to {name} 0"

        with anyio.fail_after(TIMEOUT):
            for got, wanted in await asyncio.gather(*(one(number) for number in range(12))):
                assert got == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("era", labs.LAB_ERAS)
async def test_who_cannot_be_asked_is_not(tmp_path: Path, era: str, kind: str) -> None:
    async with gateway_to(tmp_path, lab=lab(era, tmp_path)) as gateway:
        client = ClientInfo(capabilities={"sampling": {}}, ask=saying("never"))
        if era == "modern":
            with pytest.raises(ToolFailed, match="asks for elicitation/create, which this caller cannot answer"):
                await KINDS[kind](gateway, client)
        else:
            [answer] = await KINDS[kind](gateway, client)
            assert answer["error"]["code"] == -32601


@pytest.mark.parametrize("kind", ["prompt", pytest.param("resource", marks=pytest.mark.slow)])
async def test_a_person_may_take_longer_to_answer_than_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def ask(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        await anyio.sleep(passthrough.READ_SECONDS + 0.1)
        return {"action": "decline"}

    async with gateway_to(tmp_path, lab=lab("handshake", tmp_path)) as gateway:
        client = ClientInfo(capabilities=ABLE, ask=ask)
        for seconds in TIME_LIMITS:  # the server's own work may take long on a busy machine
            monkeypatch.setattr(passthrough, "READ_SECONDS", seconds)
            with suppress(Timeout):
                answer = await KINDS[kind](gateway, client)
                break
        assert answer == [{"action": "decline"}]
        with pytest.raises(Timeout, match=r"lab:.+: no answer to"):
            await KINDS[kind](gateway, client, {**ASKED, "nap": "yes"})
        await labs.noted(tmp_path / "notes", "cancelled ask who")
