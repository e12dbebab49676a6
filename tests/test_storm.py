"""kill -9 at any moment: whole gateways on one data directory, and nothing that was answered is lost."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from amounts import amount

from gateway import Gateway

ROUNDS = amount(6, nightly=20)
PROCESSES = 4
HELLO: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "s", "version": "1"}},
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


def line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Victim:
    """One gateway process and the client that keeps eight calls under way until it dies."""

    def __init__(self, data: Path, number: int) -> None:
        self.acknowledged: list[str] = []
        self.errors = ""
        self.answering = asyncio.Event()
        self._data = data
        self._number = number

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *[
                sys.executable,
                "-m",
                "gateway",
                "serve",
                "--data-dir",
                str(self._data),
                "--chat",
                f"c{self._number % 2}",
            ],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self._life = asyncio.create_task(self._drive())

    async def kill(self) -> None:
        self.process.kill()
        await self._life
        assert self.process.stderr is not None
        self.errors = (await self.process.stderr.read()).decode()

    async def _drive(self) -> None:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        for message in HELLO:
            stdin.write(line(message))
        for request in range(1, 9):
            stdin.write(line(self._call(request)))
        while answer := await stdout.readline():
            if not answer.endswith(b"\n"):
                break
            result = json.loads(answer)
            if result["id"] == 0:
                continue
            assert result["result"]["isError"] is False, result
            self.acknowledged.append(result["result"]["_meta"]["dev.toolgate/call_id"])
            self.answering.set()
            if not stdin.is_closing():
                stdin.write(line(self._call(len(self.acknowledged) + 8)))
        await self.process.wait()

    def _call(self, request: int) -> dict[str, Any]:
        arguments = {"path": f"p{self._number}-{random.randrange(10**9)}.txt", "content": "x" * 200}
        return {
            "jsonrpc": "2.0",
            "id": request,
            "method": "tools/call",
            "params": {"name": "write_file", "arguments": arguments},
        }


async def storm(data: Path) -> list[Victim]:
    victims: list[Victim] = []

    async def new() -> Victim:
        victim = Victim(data, len(victims))
        victims.append(victim)
        await victim.start()
        return victim

    alive = [await new() for _ in range(PROCESSES)]
    for _ in range(ROUNDS):
        chosen = random.choice(alive)
        await asyncio.wait_for(chosen.answering.wait(), 60)
        await chosen.kill()
        alive[alive.index(chosen)] = await new()
    for victim in alive:
        await asyncio.wait_for(victim.answering.wait(), 60)
        await victim.kill()
    return victims


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("X3", "P3")
def test_no_answered_call_is_lost_when_gateways_on_one_directory_are_killed(tmp_path: Path) -> None:
    victims = asyncio.run(storm(tmp_path))
    acknowledged = [call for victim in victims for call in victim.acknowledged]
    assert len(victims) == ROUNDS + PROCESSES
    assert len(acknowledged) > 2 * len(victims)
    assert [victim.errors for victim in victims if victim.errors] == []

    async def reopen() -> None:
        async with Gateway.open({"data_dir": tmp_path}) as gateway:
            assert await gateway.records.list_calls(status="running") == []

    asyncio.run(reopen())
    with sqlite3.connect(tmp_path / "toolgate.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        recorded = dict(db.execute("SELECT id, status FROM tool_calls"))
    db.close()
    assert {recorded.get(call) for call in acknowledged} == {"success"}
