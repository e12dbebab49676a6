"""Health of a gateway, part by part. A problem is an event, logged and stored when it begins and when it ends."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from gateway.db import DATABASE_FILE, timestamp
from gateway.db.health_events import HealthEvent, HealthEvents
from gateway.db.journal import UNVERIFIED, list_unverified
from gateway.errors import GatewayError
from gateway.names import new_id
from gateway.sandbox.detect import FIXES, peek_survey, survey
from gateway.secrets import KNOWN
from gateway.text import visible
from gateway.value import Value

if TYPE_CHECKING:
    from gateway.gateway import Gateway

log = logging.getLogger(__name__)

STORE_SECONDS = 5.0
MESSAGE_LIMIT = 1000
EVENTS_SHOWN = 100


# The subject of a problem, and the name of the upstream server.
ProblemKey = tuple[str, str | None]


class HealthCheck(Value):
    """The state of one thing the gateway needs, with what to do about it unless it is `ok`. `name` is that of an
    upstream server, `since` when a problem of a running gateway began."""

    subject: str
    state: Literal["ok", "note", "fail"]
    message: str
    name: str | None = None
    since: str | None = None

    @property
    def key(self) -> ProblemKey:
        return self.subject, self.name

    @property
    def blocks(self) -> bool:
        """True if it makes the gateway unready. Without a sandbox, only toolsets and programs do not work."""
        return self.state == "fail" and self.subject != "sandbox"


class HealthMonitor:
    """Checks the parts of one gateway: store, journal, sandbox, and upstream servers that are kept connected or have
    failed. With `records`, which is for a gateway that serves, problems are logged, and stored under the instance
    `process`; what cannot be stored now is stored later."""

    def __init__(self, gateway: Gateway, events: HealthEvents, process: str, records: bool) -> None:
        self._gateway = gateway
        self._events = events
        self._process = process
        self._records = records
        self._open: dict[ProblemKey, HealthEvent] = {}
        self._unstored: dict[str, HealthEvent] = {}
        self._lock = asyncio.Lock()

    async def check(self, thorough: bool = True) -> list[HealthCheck]:
        """Return the state of each part. Slow checks run only if `thorough`; else their last result counts."""
        async with self._lock:
            checks = [part async for part in self._check_parts(thorough)]
            failing = {check.key: check for check in checks if check.state != "ok" and check.subject != "gateway"}
            if self._records:
                await self._record_changes(failing)
            began = {key: event.began_at for key, event in self._open.items()}
            return [replace(check, since=began.get(check.key)) for check in checks]

    async def close(self) -> None:
        """End all problems: nobody notices their end from now on."""
        async with self._lock:
            for key in list(self._open):
                self._end(key, timestamp(time.time()))
            await self._store()

    async def list_events(self) -> list[HealthEvent]:
        """Return the latest problems of all processes, those that last first."""
        return await self._events.list_recent(EVENTS_SHOWN)

    async def _record_changes(self, failing: Mapping[ProblemKey, HealthCheck]) -> None:
        now = timestamp(time.time())
        for key in self._open.keys() - failing.keys():
            self._end(key, now)
        for key in failing.keys() - self._open.keys():
            self._begin(failing[key], now)
        await self._store()

    def _begin(self, check: HealthCheck, now: str) -> None:
        message = KNOWN.mask(visible(check.message))[:MESSAGE_LIMIT]
        event = HealthEvent(new_id(), self._process, check.subject, check.name, message, now)
        self._open[check.key] = self._unstored[event.id] = event
        if check.subject != "upstream":  # which logs its own
            log.warning("%s: %s", check.subject, message)

    def _end(self, key: ProblemKey, now: str) -> None:
        event = replace(self._open.pop(key), ended_at=now)
        self._unstored[event.id] = event
        if event.subject != "upstream":
            log.warning("%s: works again, after a problem since %s", event.subject, event.began_at)

    async def _store(self) -> None:
        with suppress(GatewayError):  # tried again with the next check
            for event in list(self._unstored.values()):
                await self._events.write(event)
                del self._unstored[event.id]

    async def _check_parts(self, thorough: bool) -> AsyncIterator[HealthCheck]:
        gateway = self._gateway
        store = str(gateway.settings.data_dir / DATABASE_FILE)
        try:
            async with asyncio.timeout(STORE_SECONDS):
                await gateway.ready()
            yield HealthCheck("store", "ok", store)
        except TimeoutError:
            yield HealthCheck("store", "fail", f"{store} did not answer within {STORE_SECONDS:g} s; check the disk")
        except GatewayError as error:
            subject = "gateway" if error.code == "SHUTTING_DOWN" else "store"
            yield HealthCheck(subject, "fail", f"{error.message}; the database is {store}")
        failure = gateway.storage_failure
        advice = f"call records wait in {gateway.settings.data_dir}: {failure}; free some space, or repair the disk"
        unverified = [] if failure else list_unverified(gateway.settings.data_dir / DATABASE_FILE)
        if unverified:
            yield HealthCheck("journal", "note", f"{', '.join(map(str, unverified))}: {UNVERIFIED}")
        else:
            yield HealthCheck("journal", "fail" if failure else "ok", advice if failure else "call records are written")
        found = await survey() if thorough else peek_survey()
        if found is not None:
            works = found.sandbox is not None or gateway.settings.sandbox.allow_unsandboxed
            fix = f"toolsets and programs cannot run: this machine offers no sandbox; {FIXES[0]}"
            name = found.sandbox.name if found.sandbox is not None else "no sandbox, as the settings allow"
            yield HealthCheck("sandbox", "ok" if works else "fail", name if works else fix)
        for signal, reason in gateway.otlp_failures.items():
            yield HealthCheck(signal, "note", f"{reason}; check telemetry.otel and the receiver there")
        for name, upstream in gateway.upstreams.by_name.items() if gateway.passthrough() is not None else ():
            eager = not upstream.spec.settings.lazy
            advice = f"{upstream.error or 'it is not connected yet'}; see: toolgate upstream test {name}"
            if not upstream.connected and (eager or upstream.error is not None):
                yield HealthCheck("upstream", "fail" if eager else "note", advice, name)
            elif eager:
                yield HealthCheck("upstream", "ok", f"{name} is connected", name)
