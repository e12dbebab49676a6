"""One gateway-like process of the kill storm: records calls for ever and tells each id once its record is safe."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import anyio

from gateway.calls import Call, Caller, Outcome
from gateway.db.call_records import CallRecords
from gateway.db.chats import Instance, settle_interrupted
from gateway.db.sqlite import SqliteDatabase

CALLERS = 4


async def main(data: Path) -> None:
    db = await SqliteDatabase.open(data / "toolgate.db")
    instance = Instance(data / "run")
    await settle_interrupted(db, data / "run")
    records = CallRecords(db, instance.id)
    endless = Call(name="endless", arguments={}, caller=Caller(surface="mcp"))
    await records.record_running(endless)
    tell(endless)
    await asyncio.gather(*[record_for_ever(records, endless) for _ in range(CALLERS)])


async def record_for_ever(records: CallRecords, endless: Call) -> None:
    number = 0
    while True:
        number += 1
        call = Call(name="note", arguments={"number": number, "text": "x" * 200}, chat=f"chat-{number % 8}")
        if number % 5 == 0:
            await records.record_running(call)
        await records.record_finished(call, Outcome(value=number))
        tell(call)
        if number % 50 == 0 and (await records.get(endless.id)).status != "running":
            raise SystemExit(f"{endless.id} was settled although its process is alive")


def tell(call: Call) -> None:
    os.write(1, f"{call.id}\n".encode())


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
