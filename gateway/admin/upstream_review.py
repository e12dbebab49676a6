"""Definitions of upstream servers that wait for a person: list them, and accept or reject exactly what was shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from gateway.admin.upstream_setup import load_setup
from gateway.db.pins import Pin, Pins, PinTexts
from gateway.errors import Conflict, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.sources.upstreams.pinning import difference
from gateway.sources.upstreams.pinning import review as find_suspicious
from gateway.sources.upstreams.poisoning import Finding
from gateway.text import visible
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway

_SHORT_DIGEST = 12
_DIGEST = re.compile(r"(?P<subject>.+)@(?P<digest>[0-9a-f]{8,64})", re.DOTALL)


class ReviewItem(Value):
    """One definition to decide on; `digest` is that of the text that is decided on."""

    texts: PinTexts
    digest: str

    @property
    def server(self) -> str:
        return self.texts.pin.server

    @property
    def subject(self) -> str:
        return f"{self.texts.pin.kind}:{self.texts.pin.name}"

    @property
    def exact_subject(self) -> str:
        """A name for exactly this definition, and no later one of its name."""
        return f"{self.subject}@{self.digest[:_SHORT_DIGEST]}"

    @property
    def is_new(self) -> bool:
        return self.texts.pin.digest is None

    @property
    def difference(self) -> str:
        """The difference to what was accepted before, as lines."""
        return difference(self.texts)

    @property
    def findings(self) -> list[Finding]:
        return find_suspicious(self.texts)

    def to_dict(self) -> dict[str, Any]:
        pin = self.texts.pin
        return {
            "server": pin.server,
            "kind": pin.kind,
            "name": pin.name,
            "state": pin.state,
            "digest": self.digest,
            "accepted_digest": pin.digest,
            "held_at": pin.held_at,
            "difference": self.difference,
            "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in self.findings],
        }


# Shows definitions to a person; raises unless they are accepted.
Confirm = Callable[[Sequence[ReviewItem]], None]


async def list_waiting(gateway: Gateway, server: str | None = None) -> list[ReviewItem]:
    """List the definitions that wait, of one server or of all."""
    if server is not None:
        (await load_setup(gateway)).get(server)
    pins = gateway.upstreams.pins
    return [await _load_item(pins, pin) for pin in await pins.list_waiting(server)]


async def accept(gateway: Gateway, server: str, subjects: Sequence[str], by: str, confirm: Confirm) -> list[ReviewItem]:
    """Offer definitions from now on: those named as `KIND:NAME[@DIGEST]`, or all that wait.

    `confirm` is asked unless every subject names the digest of what was shown before.
    """
    items = await _select(gateway, server, subjects, "accept")
    exact = bool(subjects) and all(_DIGEST.fullmatch(subject) for subject in subjects)
    if items and not exact:
        confirm(items)
    for item in items:
        await gateway.upstreams.pins.accept(server, item.texts.pin.kind, item.texts.pin.name, item.digest, by)
    return items


async def reject(gateway: Gateway, server: str, subjects: Sequence[str], by: str) -> list[ReviewItem]:
    """Withhold definitions until they are accepted, also ones that were accepted before."""
    items = await _select(gateway, server, subjects, "reject")
    for item in items:
        await gateway.upstreams.pins.reject(server, item.texts.pin.kind, item.texts.pin.name, item.digest, by)
    return items


async def _select(
    gateway: Gateway, server: str, subjects: Sequence[str], verb: Literal["accept", "reject"]
) -> list[ReviewItem]:
    (await load_setup(gateway)).get(server)
    pins = gateway.upstreams.pins
    if not subjects:
        return [await _load_item(pins, pin) for pin in await pins.list_waiting(server)]
    known = {f"{pin.kind}:{pin.name}": pin for pin in await pins.load(server)}
    return [await _find_item(pins, known, subject, verb) for subject in dict.fromkeys(subjects)]


async def _find_item(pins: Pins, known: dict[str, Pin], subject: str, verb: str) -> ReviewItem:
    exact = None if subject in known else _DIGEST.fullmatch(subject)
    name = exact["subject"] if exact else subject
    if name not in known:
        raise NotFound(
            f"the server never listed {visible(name)!r}{did_you_mean(name, known)}", code="UNKNOWN_DEFINITION"
        )
    texts = await pins.find(known[name].server, known[name].kind, known[name].name)
    pin = texts.pin
    candidates = [pin.held_digest, pin.digest if verb == "reject" else None]
    digests = [digest for digest in candidates if digest is not None]
    if exact:
        digests = [digest for digest in digests if digest.startswith(exact["digest"])]
    if exact and not digests:
        raise Conflict(
            f"{visible(name)} changed after you reviewed it; review it again with: toolgate upstream review "
            f"{pin.server}",
            code="DEFINITION_CHANGED",
        )
    if not digests:
        raise Invalid(f"{visible(name)} is already accepted; there is nothing to decide", code="NOTHING_WAITS")
    return ReviewItem(texts, digests[0])


async def _load_item(pins: Pins, pin: Pin) -> ReviewItem:
    texts = await pins.find(pin.server, pin.kind, pin.name)
    return ReviewItem(texts, texts.pin.held_digest or texts.pin.digest or "")
