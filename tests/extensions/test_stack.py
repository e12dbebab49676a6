"""The call_tool through extensions: what each sees, in which order, whatever the others do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, Literal

import anyio
import pytest
from amounts import amount
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.calls import Call, Outcome, Proceed
from gateway.errors import Forbidden, GatewayError, Unavailable
from gateway.extensions import Extension, stack
from gateway.extensions.audit import Audit
from gateway.extensions.concurrency import QUEUE_FACTOR, Concurrency
from gateway.extensions.telemetry import Telemetry
from gateway.tools import Tool

pytestmark = pytest.mark.promise("X3")

ECHO = Tool("echo", "")
Act = Literal["pass", "refuse", "break"]
# Which half of which extension was called, by its place.
Events = list[tuple[str, int]]


def call(**changes: Any) -> Call:
    return Call(name="echo", arguments={}, tool=ECHO, **changes)


def code(outcome: Outcome) -> str:
    return "OK" if outcome.error is None else outcome.error.code


def act(what: Act) -> None:
    if what == "refuse":
        raise Forbidden("no")
    if what == "break":
        raise RuntimeError("a bug")


class Recording(Extension):
    """Records which half was called, and passes, refuses or fails there as configured."""

    def __init__(self, place: int, events: Events, before: Act, after: Act) -> None:
        self._place = place
        self._heard = events
        self._acts = {"before": before, "after": after}

    def note(self, half: str) -> None:
        self._heard.append((half, self._place))
        act(self._acts[half])


class Looking(Recording):
    async def before_execute(self, call: Call) -> None:
        self.note("before")

    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        self.note("after")
        return outcome


class LookingBefore(Recording):
    async def before_execute(self, call: Call) -> None:
        self.note("before")


class LookingAfter(Recording):
    async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
        self.note("after")
        return outcome


class Around(Recording):
    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        self.note("before")
        outcome = await proceed(call)
        self.note("after")
        return outcome


class Answering(Recording):
    async def call_tool(self, call: Call, proceed: Proceed) -> Outcome:
        self.note("before")
        return Outcome(value="instead")


class Watching(Around):
    mode = "observer"


class WatchingHalves(Looking):
    mode = "observer"


KINDS: list[Callable[[int, Events, Act, Act], Recording]] = [
    *(Looking, LookingBefore, LookingAfter),
    *(Around, Answering, Watching, WatchingHalves),
]
ACTS: st.SearchStrategy[Act] = st.sampled_from(["pass", "pass", "pass", "refuse", "break"])


async def call_one_by_one(extensions: list[Extension], events: Events, tool: Act) -> Outcome:
    """Return the expected outcome: each extension is called alone, with the rest behind it."""
    if not extensions:
        events.append(("tool", -1))
        return await _outcome_of("tool", tool)
    first, *others = extensions
    seen: list[Outcome] = []

    async def proceed(_: Call) -> Outcome:
        seen.append(await call_one_by_one(others, events, tool))
        return seen[0]

    try:
        return await first.call_tool(call(), proceed)
    except Exception as error:
        if first.mode == "observer":
            return seen[0] if seen else await proceed(call())
        failed = GatewayError("a bug", code="EXTENSION_FAILED")
        return Outcome(error=error if isinstance(error, GatewayError) else failed)


async def _outcome_of(value: str, what: Act) -> Outcome:
    try:
        act(what)
    except GatewayError as refusal:
        return Outcome(error=refusal)
    except RuntimeError:
        return Outcome(error=GatewayError("a bug"))
    return Outcome(value=value)


@settings(max_examples=amount(300, 80), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), ACTS, ACTS), max_size=7), ACTS)
def test_stack_calls_each_extension_in_its_turn(chosen: list[Any], tool: Act) -> None:
    async def main() -> None:
        real: Events = []
        promised: Events = []

        async def run(_: Call) -> Outcome:
            real.append(("tool", -1))
            act(tool)
            return Outcome(value="tool")

        outcome = await stack([kind(*each) for kind, each in with_places(real)], run)(call())
        expected = await call_one_by_one([kind(*each) for kind, each in with_places(promised)], promised, tool)
        assert (real, code(outcome), outcome.value) == (promised, code(expected), expected.value)

    def with_places(events: Events) -> list[tuple[Any, Any]]:
        return [(kind, (place, events, before, after)) for place, (kind, before, after) in enumerate(chosen)]

    anyio.run(main)


@pytest.mark.anyio
async def test_stack_shows_outer_extensions_a_refusal_after_the_call() -> None:
    seen: list[str] = []

    class Seeing(Extension):
        async def after_execute(self, call: Call, outcome: Outcome) -> Outcome:
            seen.append(code(outcome))
            return outcome

    call_tool = stack([Seeing(), LookingAfter(0, [], "pass", "refuse"), Seeing(), Around(0, [], "pass", "break")], ok)
    assert code(await call_tool(call())) == "PERMISSION_DENIED"
    assert seen == ["EXTENSION_FAILED", "PERMISSION_DENIED"]


async def ok(_: Call) -> Outcome:
    return Outcome(value=1)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", [Audit, Telemetry])
async def test_observer_derived_from_ours_breaks_no_call(kind: type[Extension]) -> None:
    class Own(kind):  # type: ignore[valid-type,misc]
        mode: ClassVar[Literal["gate", "observer"]] = "observer"

        async def call_tool(self, call: Call, further: Proceed) -> Outcome:
            await further(call)
            raise RuntimeError("a bug")

    observer = Own(Recorder()) if kind is Audit else Own()
    assert (await stack([observer], ok)(call())).value == 1


class Recorder:
    """Writes nothing down, or fails in its own way."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.finished: list[str] = []

    async def record_running(self, call: Call) -> None:
        raise AssertionError

    async def finish(self, call: Call, outcome: Outcome, alone: bool) -> None:
        await asyncio.sleep(0)
        self.finished.append(code(outcome))
        if self.failure is not None:
            raise self.failure


@pytest.mark.anyio
@pytest.mark.parametrize("failure", [Unavailable("the disk is full"), RuntimeError("a bug"), OSError(28, "full")])
async def test_audit_that_fails_changes_neither_an_outcome_nor_a_cancellation(failure: Exception) -> None:
    recorder = Recorder(failure)
    call_tool = stack([Telemetry(), Audit(recorder), Around(0, [], "pass", "pass")], ok)
    assert (await call_tool(call())).value == 1

    async def forever(_: Call) -> Outcome:
        never: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        return await never

    task = asyncio.ensure_future(stack([Telemetry(), Audit(recorder)], forever)(call()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.finished == ["OK", "CANCELLED"]


@pytest.mark.anyio
@pytest.mark.parametrize("failure", [KeyboardInterrupt(), asyncio.CancelledError()])
async def test_audit_does_not_catch_what_ends_a_process_or_a_task(failure: BaseException) -> None:
    with pytest.raises(type(failure)):
        await stack([Telemetry(), Audit(Recorder(failure))], ok)(call())


SLOTS = 2
MOST = SLOTS + SLOTS * QUEUE_FACTOR
MOVES = st.one_of(
    st.sampled_from(["come", "come", "end", "turn"]).map(lambda move: (move, 0)),
    st.tuples(st.sampled_from(["cancel", "cancel at its turn", "drop"]), st.integers(0, 40)),
    st.just(("crowd", 0)),
)


@settings(max_examples=amount(150, 40), deadline=None)
@given(st.lists(MOVES, max_size=30))
@example([("come", 0), ("come", 0), ("come", 0), ("turn", 0), ("drop", 0)])  # one waits before the one that is dropped
def test_slots_are_never_exceeded_and_none_is_lost_by_cancellation(moves: list[tuple[str, int]]) -> None:
    """Calls come, end, and are called off while they wait, while they run, and at the moment they are let in; some are
    dropped where they stand. Those let in come in the order in which they asked."""

    async def main() -> None:
        crowd = _Crowd()
        for move, which in [*moves, ("turn", 0)]:
            await crowd.move(move, which)
        await crowd.leave()
        assert crowd.entered == sorted(crowd.entered)
        ended = [task.result() for task in crowd.tasks.values() if not task.cancelled()]
        assert {code(each) for each in ended if each.error} <= {"OVERLOADED"}
        slots = crowd.gate._slots.get(ECHO.owner) or crowd.gate._make_slots(ECHO.owner)
        assert (slots.free, len(slots._waiting)) == (SLOTS, 0)

    anyio.run(main)


class _Crowd:
    """Calls before, in and behind a gate; `ends` lets those go that are in."""

    def __init__(self) -> None:
        self.gate = Concurrency(SLOTS, 60)
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.entered: list[int] = []
        self.tasks: dict[int, asyncio.Task[Outcome]] = {}
        self._call_tool = stack([self.gate], self._run)
        self._loop = asyncio.get_running_loop()

    async def move(self, move: str, which: int) -> None:
        live = [task for task in self.tasks.values() if not task.done()]
        if move == "come":
            self._come()
        elif move == "crowd":
            for _ in range(MOST):
                self._come()
        elif move == "turn":
            await _turns()
            assert len(self.ends) == min(SLOTS, len(self.ends) + len(self._waiting()))
        elif move == "end" and self.ends:
            _let_go(next(iter(self.ends.values())))
        elif move == "cancel" and live:
            live[which % len(live)].cancel()
        elif move == "cancel at its turn" and self.ends and self._waiting():
            for end in self.ends.values():
                _let_go(end)
            await asyncio.sleep(0)
            for task in self._waiting()[:1]:
                task.cancel()
        elif move == "drop" and len(live) < MOST:
            await _turns()
            if len(self.ends) == SLOTS:
                left = self._call(-1)
                left.send(None)
                left.close()

    async def leave(self) -> None:
        for task in self.tasks.values():
            task.cancel()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)

    def _come(self) -> None:
        place = len(self.tasks)
        self.tasks[place] = self._loop.create_task(self._call(place))

    def _call(self, place: int) -> Coroutine[Any, Any, Outcome]:
        return _start(self._call_tool(call().replace(arguments={"place": place})))

    def _waiting(self) -> list[asyncio.Task[Outcome]]:
        return [task for place, task in self.tasks.items() if not task.done() and place not in self.entered]

    async def _run(self, asked: Call) -> Outcome:
        place = int(asked.arguments["place"])
        self.entered.append(place)
        end = self.ends[place] = self._loop.create_future()
        assert len(self.ends) <= SLOTS
        try:
            await end
        finally:
            del self.ends[place]
        return Outcome(value=place)


def _start(call: Awaitable[Outcome]) -> Coroutine[Any, Any, Outcome]:
    """A call_tool's call as what it is."""
    assert isinstance(call, Coroutine)
    return call


def _let_go(end: asyncio.Future[None]) -> None:
    if not end.done():
        end.set_result(None)


async def _turns() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


@pytest.mark.anyio
async def test_slots_refuse_one_call_more_than_may_wait() -> None:
    go = asyncio.Event()

    async def wait(_: Call) -> Outcome:
        await go.wait()
        return Outcome(value=1)

    call_tool = stack([Concurrency(SLOTS, 60)], wait)
    tasks = [asyncio.ensure_future(call_tool(call())) for _ in range(MOST)]
    await _turns()
    assert code(await call_tool(call())) == "OVERLOADED"
    tasks[-1].cancel()
    await _turns()
    tasks.append(asyncio.ensure_future(call_tool(call())))
    await _turns()
    assert code(await call_tool(call())) == "OVERLOADED"
    go.set()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [each for each in outcomes if isinstance(each, BaseException) or each.value != 1] == [outcomes[MOST - 1]]
