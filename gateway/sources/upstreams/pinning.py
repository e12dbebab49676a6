"""Pinning: only definitions of an upstream that match an accepted one are offered."""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Any

from gateway.db.pins import Pin, Pins, PinTexts, Sighting
from gateway.errors import Conflict
from gateway.sources.upstreams.definitions import COUNT_LIMIT, Definition, Key, Kind
from gateway.sources.upstreams.poisoning import Finding, Severity, find_suspicions, worst
from gateway.text import visible
from gateway.value import Value
from gateway.workspace.diff import hunks

PINS_LIMIT = 2 * COUNT_LIMIT
# Total size of one server's pins, against a server that keeps inventing definitions.
BYTES_LIMIT = 16 * 1024 * 1024
_ATTEMPTS = 10  # each retry means that another process or a person decided at the same moment


class PinPolicy(Value):
    """The decision on definitions that are new. `trust_first` accepts them, unless a finding is at least as severe as
    `hold_at`; None holds none. A changed definition is always held."""

    trust_first: bool = True
    hold_at: Severity | None = Severity.HIGH


class PinStatus(str, enum.Enum):
    OFFERED = "offered"
    NEW = "new"
    CHANGED = "changed"
    REJECTED = "rejected"
    REFUSED = "refused"


class Decision(Value):
    """The status of one definition; `reason` says why it is not offered, and what to do.

    A changed definition is withheld, not offered in its accepted form: the accepted description may no longer be true,
    and the server may no longer take arguments of the accepted schema.
    """

    definition: Definition
    status: PinStatus
    reason: str | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def offered(self) -> bool:
        return self.status is PinStatus.OFFERED


class Verdict(Value):
    """The decisions on all definitions a server lists. `gone` are pinned definitions that it no longer lists; they
    stay pinned."""

    decisions: Mapping[Key, Decision] = field(default_factory=dict)
    gone: frozenset[Key] = frozenset()

    def is_offered(self, kind: Kind, name: str) -> bool:
        decision = self.decisions.get(Key(kind, name))
        return decision is not None and decision.offered

    def reasons_withheld(self, kind: Kind) -> dict[str, str]:
        """`{name: reason}` of the definitions of a kind that are not offered, including those that are gone."""
        reasons = {
            key.name: "the server no longer lists it; it is offered again once it is listed"
            for key in self.gone
            if key.kind is kind
        }
        for key, decision in self.decisions.items():
            if key.kind is kind and decision.reason is not None:
                reasons[key.name] = decision.reason
        return reasons


async def apply_pins(
    pins: Pins, server: str, listed: Mapping[Key, Definition], policy: PinPolicy, others: Collection[str] = ()
) -> Verdict:
    """Decide on all definitions that a server lists now, and store what is new. `others` are the names of other
    servers' tools.

    Several processes may do this at once, while people accept and reject: a decision is retried when the stored pins
    changed meanwhile.
    """
    suspicions: dict[Key, tuple[Finding, ...]] = {}
    for _ in range(_ATTEMPTS):
        known = {Key(Kind(pin.kind), pin.name): pin for pin in await pins.load(server)}
        fresh = [listed[key] for key in listed if key not in known and key not in suspicions]
        if fresh:
            suspicions |= await asyncio.to_thread(_find_all, fresh, listed, others)
        verdict, sightings = decide(server, known, listed, policy, suspicions)
        try:
            await pins.record(sightings)
        except Conflict:
            continue
        return verdict
    raise Conflict(f"the definitions of {server!r} kept changing while they were checked; try again")


def decide(
    server: str,
    known: Mapping[Key, Pin],
    listed: Mapping[Key, Definition],
    policy: PinPolicy,
    suspicions: Mapping[Key, tuple[Finding, ...]] | None = None,
) -> tuple[Verdict, list[Sighting]]:
    """The decision on each definition, and the sightings to store. A pure function."""
    decisions: dict[Key, Decision] = {}
    sightings: list[Sighting] = []
    room = BYTES_LIMIT - sum(pin.bytes for pin in known.values())
    for key, definition in listed.items():
        pin, findings = known.get(key), (suspicions or {}).get(key, ())
        decision = _decision(server, pin, definition, policy, findings)
        seen = Sighting(server, key.kind.value, key.name, definition.digest, definition.text, pin, decision.offered)
        if _is_news(seen):
            room -= len(definition.text) if definition.digest != (pin and pin.digest) else 0
            if room < 0 or (pin is None and len(known) + len(sightings) >= PINS_LIMIT):
                decisions[key] = Decision(definition, PinStatus.REFUSED, _full_reason(server))
                continue
            sightings.append(seen)
        decisions[key] = decision
    return Verdict(decisions, frozenset(key for key in known if key not in listed)), sightings


def difference(texts: PinTexts) -> str:
    """A unified diff from the accepted definition to the held one; all of it if none was accepted."""
    changed = hunks(readable(texts.definition), readable(texts.held_definition))
    return f"--- accepted\n+++ {texts.pin.state}\n{changed}" if changed else ""


def readable(text: str | None) -> str:
    """A definition's JSON as lines: the description first, as prose, then each key in order, with invisible characters
    spelled out."""
    if text is None:
        return ""
    definition: dict[str, Any] = json.loads(text)
    prose = [key for key in ("description", "instructions") if isinstance(definition.get(key), str)]
    lines = [line for key in prose for line in (f"{key}:", *(f"  {part}" for part in definition[key].split("\n")))]
    for key in sorted(definition.keys() - set(prose)):
        lines += f"{key}: {json.dumps(definition[key], indent=2, sort_keys=True, ensure_ascii=False)}".split("\n")
    return "".join(f"{visible(line)}\n" for line in lines)


def review(texts: PinTexts) -> list[Finding]:
    """Findings in the held definition, or else in the accepted one."""
    text = texts.held_definition or texts.definition
    return find_suspicions(json.loads(text)) if text else []


def _find_all(
    fresh: Iterable[Definition], listed: Iterable[Key], others: Collection[str]
) -> dict[Key, tuple[Finding, ...]]:
    own = {key.name for key in listed}
    return {definition.key: tuple(find_suspicions(definition.value, own=own, others=others)) for definition in fresh}


def _decision(
    server: str, pin: Pin | None, definition: Definition, policy: PinPolicy, findings: tuple[Finding, ...]
) -> Decision:
    review = f"look at it with: toolgate upstream review {server}"
    if pin is None:
        severity = worst(findings)
        if policy.hold_at is not None and severity is not None and severity.at_least(policy.hold_at):
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


def _is_news(seen: Sighting) -> bool:
    """True if the sighting must be stored: it is new, changed, or back as it was accepted."""
    pin = seen.pin
    if pin is None:
        return True
    if seen.digest == pin.digest:
        return pin.state == "held"
    return seen.digest != pin.held_digest


def _full_reason(server: str) -> str:
    limit = f"{PINS_LIMIT} definitions or {BYTES_LIMIT // 1024**2} MiB"
    return f"{server!r} has listed more than {limit}; remove it and add it again to forget them"
