"""Which of an upstream's definitions are offered: those that are as they were accepted, and no others."""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.db.pins import Pin, Pins, PinTexts, Sighting
from gateway.errors import Conflict
from gateway.sources.upstreams.definitions import COUNT_LIMIT, Definition, Key, Kind
from gateway.sources.upstreams.poisoning import Finding, Severity, find_suspicions, worst
from gateway.text import visible
from gateway.workspace.diff import hunks

PINS_LIMIT = 2 * COUNT_LIMIT
# What the pins of one server may weigh: one that keeps inventing definitions ends here.
BYTES_LIMIT = 16 * 1024 * 1024
_ATTEMPTS = 10  # each lost one means another process or a person decided at the same moment


@dataclass(frozen=True)
class PinPolicy:
    """What becomes of a definition nobody has seen. `trust_first` accepts it, unless it is as suspicious as
    `hold_at`; None holds nothing for that. A definition that changed is held in any case."""

    trust_first: bool = True
    hold_at: Severity | None = Severity.HIGH


class PinStatus(str, enum.Enum):
    OFFERED = "offered"
    NEW = "new"
    CHANGED = "changed"
    REJECTED = "rejected"
    REFUSED = "refused"


@dataclass(frozen=True)
class Decision:
    """Whether a definition is offered; `reason` says why it is not, and what to do about it.

    A changed one is withheld, not offered in its old words: those no longer tell what a call would do, and the
    arguments the old schema asks for may not be what the server takes now.
    """

    definition: Definition
    status: PinStatus
    reason: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def offered(self) -> bool:
        return self.status is PinStatus.OFFERED


@dataclass(frozen=True)
class Verdict:
    """A decision for each definition a server lists, and those it once listed and no longer does: they stay
    pinned, and come back as they were."""

    decisions: Mapping[Key, Decision] = field(default_factory=dict)
    gone: frozenset[Key] = frozenset()

    def is_offered(self, kind: Kind, name: str) -> bool:
        decision = self.decisions.get(Key(kind, name))
        return decision is not None and decision.offered

    def withheld(self, kind: Kind) -> dict[str, str]:
        """Why each definition of a kind is not offered, those that are gone among them: `{name: reason}`."""
        reasons = {key.name: "the server no longer lists it; it comes back when it does" for key in self._gone(kind)}
        for key, decision in self.decisions.items():
            if key.kind is kind and decision.reason is not None:
                reasons[key.name] = decision.reason
        return reasons

    def _gone(self, kind: Kind) -> Iterable[Key]:
        return (key for key in self.gone if key.kind is kind)


async def apply_pins(
    pins: Pins, server: str, listed: Mapping[Key, Definition], policy: PinPolicy, others: Collection[str] = ()
) -> Verdict:
    """Decide on all that a server lists now, and note it. `others` are the names of other servers' tools.

    Any number of processes may do this at once, while people accept and reject: each decision is made on
    what is stored at that moment, or made again.
    """
    suspicions: dict[Key, tuple[Finding, ...]] = {}
    for _ in range(_ATTEMPTS):
        known = {Key(Kind(pin.kind), pin.name): pin for pin in await pins.load(server)}
        fresh = [listed[key] for key in listed if key not in known and key not in suspicions]
        if fresh:
            suspicions |= await asyncio.to_thread(_suspicions, fresh, listed, others)
        verdict, sightings = decide(server, known, listed, policy, suspicions)
        try:
            await pins.record(sightings)
        except Conflict:
            continue
        return verdict
    raise Conflict(f"the definitions of {server!r} could not be settled; others kept deciding on them")


def decide(
    server: str,
    known: Mapping[Key, Pin],
    listed: Mapping[Key, Definition],
    policy: PinPolicy,
    suspicions: Mapping[Key, tuple[Finding, ...]] | None = None,
) -> tuple[Verdict, list[Sighting]]:
    """The decision for each definition, and what is to be noted for it. Pure: nothing is read or written."""
    decisions: dict[Key, Decision] = {}
    sightings: list[Sighting] = []
    room = BYTES_LIMIT - sum(pin.bytes for pin in known.values())
    for key, definition in listed.items():
        pin, findings = known.get(key), (suspicions or {}).get(key, ())
        decision = _decision(server, pin, definition, policy, findings)
        seen = Sighting(server, key.kind.value, key.name, definition.digest, definition.text, pin, decision.offered)
        if _teaches(seen):
            room -= len(definition.text) if definition.digest != (pin and pin.digest) else 0
            if room < 0 or (pin is None and len(known) + len(sightings) >= PINS_LIMIT):
                decisions[key] = Decision(definition, PinStatus.REFUSED, _full(server))
                continue
            sightings.append(seen)
        decisions[key] = decision
    return Verdict(decisions, frozenset(key for key in known if key not in listed)), sightings


def difference(texts: PinTexts) -> str:
    """What the held definition would change, as a unified diff a person can read; all of it when none was accepted."""
    changed = hunks(readable(texts.definition), readable(texts.held_definition))
    return f"--- accepted\n+++ {texts.pin.state}\n{changed}" if changed else ""


def readable(text: str | None) -> str:
    """A definition's JSON in lines: the description first, as prose, then each key in order; nothing in it
    is invisible."""
    if text is None:
        return ""
    said: dict[str, Any] = json.loads(text)
    prose = [key for key in ("description", "instructions") if isinstance(said.get(key), str)]
    lines = [line for key in prose for line in (f"{key}:", *(f"  {part}" for part in said[key].split("\n")))]
    for key in sorted(said.keys() - set(prose)):
        lines += f"{key}: {json.dumps(said[key], indent=2, sort_keys=True, ensure_ascii=False)}".split("\n")
    return "".join(f"{visible(line)}\n" for line in lines)


def review(texts: PinTexts) -> list[Finding]:
    """What is suspicious about the definition that waits, or else about the accepted one."""
    text = texts.held_definition or texts.definition
    return find_suspicions(json.loads(text)) if text else []


def _suspicions(
    fresh: Iterable[Definition], listed: Iterable[Key], others: Collection[str]
) -> dict[Key, tuple[Finding, ...]]:
    own = {key.name for key in listed}
    return {each.key: tuple(find_suspicions(each.value, own=own, others=others)) for each in fresh}


def _decision(
    server: str, pin: Pin | None, definition: Definition, policy: PinPolicy, findings: tuple[Finding, ...]
) -> Decision:
    review = f"look at it with: toolgate upstream review {server}"
    if pin is None:
        grave = worst(findings)
        if policy.hold_at is not None and grave is not None and grave.at_least(policy.hold_at):
            reason = f"its definition is suspicious ({findings[0].what}); {review}"
            return Decision(definition, PinStatus.NEW, reason, findings)
        if not policy.trust_first:
            return Decision(definition, PinStatus.NEW, f"it is new, and nobody has accepted it yet; {review}", findings)
        return Decision(definition, PinStatus.OFFERED, None, findings)
    if definition.digest == pin.digest:
        return Decision(definition, PinStatus.OFFERED)
    if definition.digest == pin.held_digest and pin.state == "rejected":
        return Decision(definition, PinStatus.REJECTED, f"its definition was rejected by {pin.decided_by}; {review}")
    if pin.digest is None:
        return Decision(definition, PinStatus.NEW, f"its definition waits to be accepted; {review}")
    reason = f"its definition is no longer the one that was accepted; {review}"
    return Decision(definition, PinStatus.CHANGED, reason)


def _teaches(seen: Sighting) -> bool:
    """Whether there is anything to note: something new, something changed, or something back as it was."""
    pin = seen.pin
    if pin is None:
        return True
    if seen.digest == pin.digest:
        return pin.state == "held"
    return seen.digest != pin.held_digest


def _full(server: str) -> str:
    kept = f"{PINS_LIMIT} or {BYTES_LIMIT // 1024**2} MiB"
    return f"{server!r} has listed more definitions than are kept ({kept}); forget them by removing and adding it"
