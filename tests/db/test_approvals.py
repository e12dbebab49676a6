"""Questions and their answers in the database: each answered once, whoever is first, and bounded in number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.calls import Call, Outcome
from gateway.db import timestamp
from gateway.db.approvals import ApprovalRecord, Approvals, Ending
from gateway.db.call_records import CallRecords
from gateway.db.sqlite import SqliteDatabase
from gateway.errors import Forbidden, InputRequired, Invalid, NotFound, Unavailable
from gateway.names import new_id

pytestmark = [pytest.mark.anyio, pytest.mark.promise("C5")]


class Store:
    """Approvals and the record of calls, at a time one can set."""

    def __init__(self, db: SqliteDatabase) -> None:
        self.now = 1_000_000.0
        self.approvals = Approvals(db, lambda: self.now)
        self.records = CallRecords(db, "p")

    def question(self, **changed: Any) -> ApprovalRecord:
        values: dict[str, Any] = {
            "id": new_id(),
            "call_id": new_id(),
            "chat_id": "c",
            "principal": "ann",
            "tool_id": "t",
            "via": "queue",
            "question": "q",
            "grounds": "tool",
            "tool_digest": "d",
            "remember": True,
            "reason": "why",
            "message": "Run t?",
            "args": "{}",
            "created_at": timestamp(self.now),
            "expires_at": timestamp(self.now + 60),
            "nonce": "n",
        }
        return ApprovalRecord(**(values | changed))

    async def ask(self, **changed: Any) -> ApprovalRecord:
        asked = self.question(**changed)
        call = Call(name="t", arguments={}, chat="c", id=asked.call_id)
        await self.records.record_finished(call, Outcome(error=InputRequired("may it?")))
        await self.approvals.ask(asked, 100)
        return asked

    async def ending(self, asked: ApprovalRecord) -> tuple[str, str | None]:
        record = await self.records.get(asked.call_id)
        return record.status, record.error_code


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[Store]:
    db = await SqliteDatabase.open(place / "toolgate.db")
    try:
        yield Store(db)
    finally:
        await db.close()


@pytest.mark.parametrize("nonce", ["n", ""])
async def test_a_question_is_answered_once_though_many_answer_at_one_instant(tmp_path: Path, nonce: str) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        asked = await one.ask(nonce=nonce)
        answers = [store.approvals.decide(asked, "used", str(n)) for n in range(10) for store in (one, other)]
        assert sorted(await asyncio.gather(*answers)) == [False] * 19 + [True]
        assert (await one.approvals.get(asked.id)).status == "used"


async def test_an_answer_needs_the_nonce_and_comes_in_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        asked = await store.ask()
        forged = store.question(id=asked.id, nonce="m")
        assert not await store.approvals.decide(forged, "used", "x")
        store.now += 60
        assert not await store.approvals.decide(asked, "used", "x")
        assert not await store.approvals.decide(store.question(), "used", "x")  # never asked


async def test_a_refusal_ends_the_record_of_its_call_and_leaves_one_that_has_ended(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        asked = await store.ask()
        assert await store.ending(asked) == ("pending", "CONFIRMATION_REQUIRED")
        await store.approvals.decide(asked, "denied", "bob", ending=Ending("DECLINED", "no"))
        assert await store.ending(asked) == ("error", "DECLINED")
        await store.approvals.end_call(asked.call_id, Ending("OTHER", "late"))
        assert await store.ending(asked) == ("error", "DECLINED")
        kept = await store.approvals.get(asked.id)
        assert (kept.status, kept.decided_by, kept.decided_at) == ("denied", "bob", timestamp(store.now))


async def test_what_nobody_answered_is_closed_with_its_call(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        late, early = await store.ask(), await store.ask(expires_at=timestamp(store.now + 600))
        allowed = await store.ask()
        await store.approvals.decide(allowed, "allowed", "bob", lasting=30)
        store.now += 61
        await store.approvals.sweep()
        assert [(await store.approvals.get(each.id)).status for each in (late, early, allowed)] == [
            "expired",
            "waiting",
            "expired",
        ]
        assert await store.ending(late) == await store.ending(allowed) == ("error", "APPROVAL_EXPIRED")
        assert await store.ending(early) == ("pending", "CONFIRMATION_REQUIRED")


async def test_an_allowance_is_used_once_and_goes_on_only_for_who_has_its_nonce(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        asked = await store.ask()
        assert not await store.approvals.consume(asked.id)
        await store.approvals.decide(asked, "allowed", "bob", lasting=30)
        assert not await store.approvals.arm(asked.id, "m")  # it has not been used
        used = await asyncio.gather(*(store.approvals.consume(asked.id) for _ in range(5)))
        assert sorted(used) == [False] * 4 + [True]
        assert not await store.approvals.burn(asked.id, "")
        assert await store.approvals.arm(asked.id, "m")
        assert not await store.approvals.arm(asked.id, "o")
        assert not await store.approvals.burn(asked.id, "o")
        burnt = await asyncio.gather(*(store.approvals.burn(asked.id, "m") for _ in range(5)))
        assert sorted(burnt) == [False] * 4 + [True]


async def test_open_questions_are_bounded_though_they_are_asked_at_one_instant(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        many = [store.approvals.ask(store.question(), 3) for _ in range(10)]
        results = await asyncio.gather(*many, return_exceptions=True)
        assert sum(result is None for result in results) == 3
        assert {type(result) for result in results} == {type(None), Unavailable}
        await store.approvals.ask(store.question(principal="bob", chat_id="d"), 3)
        with pytest.raises(Forbidden):
            await store.approvals.ask(store.question(principal="bob"), 3)
        store.now += 61
        await store.approvals.ask(store.question(), 3)  # the old ones have expired


async def test_an_answer_is_remembered_for_its_principal_chat_tool_and_grounds_until_revoked(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, opened(tmp_path) as elsewhere:
        here = ("ann", "c", "t", "d", "tool")
        others = [("bob", *here[1:]), ("ann", "e", *here[2:]), ("ann", "c", "u", "d", "tool")]
        others += [("ann", "c", "t", "changed", "tool"), ("ann", "c", "t", "d", "rule 1")]
        await store.approvals.decide(await store.ask(), "used", "ann", scope="chat")
        await store.approvals.decide(await store.ask(), "used", "ann", scope="chat")  # said twice is said once
        assert await elsewhere.approvals.is_remembered(*here)
        assert [await store.approvals.is_remembered(*other) for other in others] == [False] * 5
        [kept] = await store.approvals.list_remembered()
        before = await store.approvals.revision()
        await elsewhere.approvals.revoke(kept.id, "bob")
        assert not await store.approvals.is_remembered(*here)
        assert await store.approvals.revision() > before
        with pytest.raises(NotFound):
            await store.approvals.revoke(kept.id, "bob")
        await store.approvals.decide(await store.ask(), "used", "ann", scope="always")
        assert [await store.approvals.is_remembered(*other) for other in others] == [False, True, False, False, False]


async def test_a_question_is_found_by_the_beginning_of_its_id_and_by_what_it_asks(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        asked = await store.ask()
        assert await store.approvals.get(asked.id[:-2]) == asked
        assert await store.approvals.find("q", "queue") == asked
        assert await store.approvals.find("q", "elicitation") is None
        await store.ask()
        with pytest.raises(Invalid, match="several"):
            await store.approvals.get(asked.id[:6])
        with pytest.raises(NotFound):
            await store.approvals.get("")
        assert "nonce" not in asked.to_dict()
