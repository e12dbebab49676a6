"""Definitions that wait for a person: shown, and accepted or rejected exactly as they were shown."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from gateway.cli.options import as_json, print_json, run, settings_options
from gateway.cli.upstream.desk import desk
from gateway.config import Settings
from gateway.db.pins import Pin, Pins, PinTexts
from gateway.errors import Conflict, InputRequired, Invalid, NotFound
from gateway.names import did_you_mean
from gateway.sources.upstreams.pinning import difference
from gateway.sources.upstreams.pinning import review as findings_of
from gateway.text import visible

BY = "cli"
_SHORT = 12
_DIGEST = re.compile(r"(?P<subject>.+)@(?P<digest>[0-9a-f]{8,64})", re.DOTALL)


@dataclass(frozen=True)
class Item:
    """One definition to decide on. `digest` is that of what is decided."""

    texts: PinTexts
    digest: str

    @property
    def subject(self) -> str:
        return f"{self.texts.pin.kind}:{self.texts.pin.name}"

    @property
    def precise(self) -> str:
        """How to name exactly this definition, and no later one of its name."""
        return f"{self.subject}@{self.digest[:_SHORT]}"


@click.command()
@click.argument("name", required=False)
@as_json
@settings_options
def review(settings: Settings, name: str | None, as_json: bool) -> None:
    """What waits for you, of one server or of all: what changed, and what is suspicious about it."""

    async def task() -> list[Item]:
        async with desk(settings) as at:
            if name is not None:
                at.spec(name)
            return [await _item(at.board.pins, pin) for pin in await at.board.pins.waiting(name)]

    items = run(task)
    if as_json:
        print_json([_shape(item) for item in items])
        return
    for item in items:
        _print(item)
    if not items:
        click.echo("nothing waits")
    for server in dict.fromkeys(item.texts.pin.server for item in items):
        subjects = [shlex.quote(visible(item.precise)) for item in items if item.texts.pin.server == server]
        click.echo(f"toolgate upstream accept {server} {' '.join(subjects)}")


def _decides(command: Callable[..., None]) -> Callable[..., None]:
    """The arguments of the two commands that decide."""
    for option in (
        settings_options,
        as_json,
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All that waits of this server."),
        click.argument("subjects", nargs=-1, metavar="[KIND:NAME[@DIGEST]]..."),
        click.argument("server"),
    ):
        command = option(command)
    return command


@click.command()
@_decides
def accept(settings: Settings, **said: Any) -> None:
    """Offer definitions as they are now. With the @DIGEST that `review` prints, exactly what was shown there;
    without, what is shown here, once you agree."""
    _decide(settings, "accept", **said)


@click.command()
@_decides
def reject(settings: Settings, **said: Any) -> None:
    """Refuse definitions until someone accepts them; also one that was accepted before."""
    _decide(settings, "reject", **said)


def _decide(
    settings: Settings,
    verb: str,
    server: str,
    subjects: tuple[str, ...],
    everything: bool,
    yes: bool,
    as_json: bool,
) -> None:
    if everything == bool(subjects):
        raise click.UsageError("name what to decide on as KIND:NAME, or say --all")

    async def task() -> list[Item]:
        async with desk(settings) as at:
            at.spec(server)
            pins = at.board.pins
            chosen = await _chosen(pins, server, subjects, verb)
            shown = bool(subjects) and all(_DIGEST.fullmatch(subject) for subject in subjects)
            if verb == "accept" and chosen and not shown:
                _agree(chosen, yes)
            decide = pins.accept if verb == "accept" else pins.reject
            for item in chosen:
                await decide(server, item.texts.pin.kind, item.texts.pin.name, item.digest, BY)
            return chosen

    items = run(task)
    if as_json:
        print_json(
            [{"kind": item.texts.pin.kind, "name": item.texts.pin.name, "digest": item.digest} for item in items]
        )
        return
    for item in items:
        click.echo(f"{server}: {visible(item.subject)} is {verb}ed")
    if not items:
        click.echo("nothing waits")


async def _chosen(pins: Pins, server: str, subjects: Sequence[str], verb: str) -> list[Item]:
    if not subjects:
        return [await _item(pins, pin) for pin in await pins.waiting(server)]
    known = {f"{pin.kind}:{pin.name}": pin for pin in await pins.load(server)}
    return [await _named(pins, known, subject, verb) for subject in dict.fromkeys(subjects)]


async def _named(pins: Pins, known: dict[str, Pin], subject: str, verb: str) -> Item:
    precise = None if subject in known else _DIGEST.fullmatch(subject)
    name = precise["subject"] if precise else subject
    if name not in known:
        raise NotFound(f"it never listed {visible(name)!r}{did_you_mean(name, known)}", code="UNKNOWN_DEFINITION")
    texts = await pins.find(known[name].server, known[name].kind, known[name].name)
    pin = texts.pin
    digests = [each for each in (pin.held_digest, pin.digest if verb == "reject" else None) if each is not None]
    if precise:
        digests = [each for each in digests if each.startswith(precise["digest"])]
    if precise and not digests:
        raise Conflict(
            f"{visible(name)} is no longer what you looked at; look again with: toolgate upstream review {pin.server}",
            code="DEFINITION_CHANGED",
        )
    if not digests:
        raise Invalid(f"{visible(name)} is accepted already; nothing of it waits", code="NOTHING_WAITS")
    return Item(texts, digests[0])


def _agree(items: Sequence[Item], yes: bool) -> None:
    """Have a person see what is about to be accepted, and say so."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputRequired(
            "nobody has looked at it: name it with the @DIGEST that `toolgate upstream review` prints, or say --yes"
        )
    for item in items:
        _print(item)
    click.confirm(f"Accept {'this' if len(items) == 1 else f'these {len(items)}'}?", abort=True, err=True)


async def _item(pins: Pins, pin: Pin) -> Item:
    texts = await pins.find(pin.server, pin.kind, pin.name)
    return Item(texts, texts.pin.held_digest or texts.pin.digest or "")


def _print(item: Item) -> None:
    pin = item.texts.pin
    what = "is new" if pin.digest is None else "is no longer what was accepted"
    click.echo(f"{pin.server}: {visible(item.precise)} {what}")
    for finding in findings_of(item.texts):
        where = finding.where or "/"
        click.echo(f"  suspicious ({finding.severity.value}) at {where}: {finding.what}: {finding.excerpt}")
    click.echo(difference(item.texts))


def _shape(item: Item) -> dict[str, Any]:
    pin = item.texts.pin
    return {
        "server": pin.server,
        "kind": pin.kind,
        "name": pin.name,
        "state": pin.state,
        "digest": item.digest,
        "accepted_digest": pin.digest,
        "held_at": pin.held_at,
        "difference": difference(item.texts),
        "findings": [{**asdict(each), "severity": each.severity.value} for each in findings_of(item.texts)],
    }
