"""Pins: each decision names what it decides on, and of two at once one is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.db.pins import FIRST_SIGHT, Pins, Sighting
from gateway.db.sqlite import SqliteDatabase
from gateway.errors import Conflict, NotFound

pytestmark = [pytest.mark.anyio]

KEY = ("srv", "tool", "add")


@asynccontextmanager
async def opened(place: Path) -> AsyncIterator[Pins]:
    db = await SqliteDatabase.open(place / "toolgate.db")
    try:
        yield Pins(db)
    finally:
        await db.close()


async def see(pins: Pins, digest: str, trusted: bool = False, key: tuple[str, str, str] = KEY) -> None:
    """As a listing would: on what is known now."""
    known = {(pin.server, pin.kind, pin.name): pin for pin in await pins.load(key[0])}
    await pins.record([Sighting(*key, digest, f'"{digest}"', known.get(key), trusted)])


async def states(pins: Pins) -> tuple[str, str | None, str | None]:
    pin = (await pins.find(*KEY)).pin
    return pin.state, pin.digest, pin.held_digest


async def test_what_is_trusted_is_accepted_at_first_sight_and_the_rest_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins:
        await see(pins, "a", trusted=True)
        await see(pins, "b", key=("srv", "prompt", "add"))
        trusted, waiting = await pins.find(*KEY), await pins.find("srv", "prompt", "add")
        assert (trusted.definition, trusted.held_definition, trusted.pin.decided_by) == ('"a"', None, FIRST_SIGHT)
        assert (waiting.definition, waiting.held_definition, waiting.pin.decided_by) == (None, '"b"', None)
        assert [pin.kind for pin in await pins.list_waiting()] == ["prompt"]
        assert await pins.list_waiting("another") == []
        assert sorted(pin.bytes for pin in await pins.load("srv")) == [3, 3]


async def test_a_change_waits_beside_what_was_accepted_until_it_is_accepted(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins:
        await see(pins, "a", trusted=True)
        await see(pins, "b")
        assert await states(pins) == ("held", "a", "b")
        await see(pins, "c")
        assert await states(pins) == ("held", "a", "c")
        await pins.accept(*KEY, "c", "ada")
        assert await states(pins) == ("accepted", "c", None)
        texts = await pins.find(*KEY)
        assert (texts.definition, texts.held_definition, texts.pin.decided_by) == ('"c"', None, "ada")


async def test_what_is_back_as_it_was_waits_no_longer(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins:
        await see(pins, "a", trusted=True)
        await see(pins, "b")
        await see(pins, "a")
        assert await states(pins) == ("accepted", "a", None)
        assert await pins.list_waiting() == []


async def test_a_rejection_is_remembered_and_can_be_taken_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins:
        await see(pins, "a", trusted=True)
        await see(pins, "b")
        await pins.reject(*KEY, "b", "ada")
        assert await states(pins) == ("rejected", "a", "b")
        assert await pins.list_waiting() == []
        await pins.accept(*KEY, "b", "bob")
        assert await states(pins) == ("accepted", "b", None)


async def test_what_was_accepted_can_be_rejected(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins:
        await see(pins, "a", trusted=True)
        await pins.reject(*KEY, "a", "ada")
        assert await states(pins) == ("rejected", None, "a")
        await pins.accept(*KEY, "a", "ada")
        assert await states(pins) == ("accepted", "a", None)


async def test_a_decision_on_what_is_no_longer_there_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins:
        await see(pins, "a", trusted=True)
        await see(pins, "b")
        for decide in (pins.accept, pins.reject):
            with pytest.raises(Conflict) as refused:
                await decide(*KEY, "old", "ada")
            assert (refused.value.code, await states(pins)) == ("DEFINITION_CHANGED", ("held", "a", "b"))
            with pytest.raises(NotFound):
                await decide("srv", "tool", "nothing", "b", "ada")


async def test_a_sighting_of_what_changed_meanwhile_leaves_no_trace(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins:
        await see(pins, "a", trusted=True)
        [known] = await pins.load("srv")
        await see(pins, "b")
        await pins.accept(*KEY, "b", "ada")
        other = Sighting("srv", "tool", "other", "x", "x", None, True)
        with pytest.raises(Conflict):
            await pins.record([other, Sighting(*KEY, "c", "c", known)])
        with pytest.raises(Conflict):
            await pins.record([Sighting(*KEY, "d", "d", None, True)])
        assert await states(pins) == ("accepted", "b", None)
        assert len(await pins.load("srv")) == 1


async def test_of_two_people_who_decide_at_once_in_two_processes_one_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        await see(one, "a", trusted=True)
        await see(one, "b")
        answers = await asyncio.gather(
            one.accept(*KEY, "b", "ada"), other.accept(*KEY, "b", "bob"), return_exceptions=True
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict", "NoneType"]


async def test_every_change_raises_the_revision_and_forgetting_leaves_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as pins, opened(tmp_path) as other:
        seen = [await other.revision()]
        await see(pins, "a", trusted=True)
        seen.append(await other.revision())
        await see(pins, "b")
        seen.append(await other.revision())
        await pins.accept(*KEY, "b", "ada")
        seen.append(await other.revision())
        await see(pins, "x", trusted=True, key=("another", "tool", "add"))
        await pins.forget("srv")
        seen.append(await other.revision())
        assert seen == [0, 1, 2, 3, 5]
        assert await pins.load("srv") == []
        assert len(await pins.load("another")) == 1
        await pins.record([])
        assert await other.revision() == 5
