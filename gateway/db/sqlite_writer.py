"""Writes to SQLite: everything queued goes into one transaction, on a thread of its own; what is short is written
at once where nobody is in the way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import GatewayError
from . import Row, Statement
from .gate import Gate, create_private, require_local
from .sqlite_connection import BUSY_TIMEOUT, connect, execute, refusal, storage_failed, transaction

log = logging.getLogger(__name__)

Rows = list[list[Row]]
Job = tuple["asyncio.Future[Rows]", Sequence[Statement]]

BATCH_LIMIT = 256
CHECKPOINT_AFTER = 2000  # transactions; up to 50 MB of log
IDLE_AFTER = 1.0  # seconds without work until the log is brought home
LOG_LIMIT = 64 * 1024 * 1024
FEW = 16
"""Jobs that are written at once; more keep the loop longer than handing them over does."""
ALONE = 0.001  # seconds since the last commit after which nobody waits for company
SLOW = 0.05  # seconds that a write at once may take; a disk that needs longer is left to the thread
SLOW_FOR = 1.0


class Writer:
    """The writing connection and the thread that waits for it.

    Nothing is acknowledged before its COMMIT. A killed process loses nothing it acknowledged; a
    power failure at most what was committed since the log was last brought home, never the file.
    `opened` and `ended` are futures of the event loop that made the writer.

    A commit only writes to the page cache, in less time than it takes to wake the thread. So short jobs are committed
    on the loop (all of one turn together, where they come thick and fast) as long as that needs no waiting: whenever
    another process, a checkpoint or the disk is in the way, or something is wrong, they go to the thread as all others
    do; so does the first after the log was brought home, with which SQLite begins the log anew and waits until the disk
    has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._short: list[Job] = []
        self._hand = threading.Lock()  # who holds it may use the connection
        self._in_log = 0
        self._committed_at = 0.0
        self._slow_until = 0.0
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._live, name="sqlite-writer", daemon=True).start()

    async def submit(self, statements: Sequence[Statement], *, short: bool = False) -> Rows:
        """The rows of a transaction, once it is committed. A short one touches a row or two."""
        if short and not self._short and time.monotonic() - self._committed_at > ALONE:
            results = self._at_once([statements])
            if results is not None:
                return results[0]
        future: asyncio.Future[Rows] = self._loop.create_future()
        job = future, statements
        if not short:
            self._jobs.put(job)
        else:
            if not self._short:
                self._loop.call_soon(self._write_short)
            self._short.append(job)
        return await future

    def stop(self) -> None:
        """Let the thread end once everything queued before is written; nothing may follow."""
        self._hand_over()
        self._jobs.put(None)

    def _write_short(self) -> None:
        jobs, results = self._short, None
        try:
            if 0 < len(jobs) <= FEW:
                results = self._at_once([statements for _, statements in jobs])
        finally:
            if results is None:
                self._hand_over()  # interrupted too, so that no later turn waits behind this one
        if results is not None:
            self._short = []
            _settle_all(jobs, results)

    def _hand_over(self) -> None:
        jobs, self._short = self._short, []
        for job in jobs:
            self._jobs.put(job)

    def _at_once(self, jobs: Sequence[Sequence[Statement]]) -> list[Rows] | None:
        """What came of the jobs, unless the thread had better see to them."""
        began = time.monotonic()
        if began < self._slow_until or not self._jobs.empty() or not self._hand.acquire(blocking=False):
            return None
        try:
            if not 0 < self._in_log < CHECKPOINT_AFTER:  # the thread begins a log, and brings it home
                return None
            with self._gate.at_once():
                results = self._together(jobs)
            self._in_log += len(jobs)
            return results
        except Exception:  # whatever it is, the thread meets it too and finds the words
            return None
        finally:
            self._hand.release()
            self._committed_at = time.monotonic()
            if self._committed_at - began > SLOW:
                self._slow_until = self._committed_at + SLOW_FOR

    def _live(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._tell(_settle, self.opened, refusal(error, f"be opened at {self._path}"))
        else:
            self._tell(_settle, self.opened, None)
            self._work()
            self._close()
        self._tell(_settle, self.ended, None)

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_local(self._path.parent)
        self._gate = Gate(self._path.with_name(f"{self._path.name}.gate"))
        try:
            with self._gate:
                create_private(self._path)
                self._connection = connect(self._path)
                self._wait_at_most(0)
        except BaseException:
            self._gate.close()
            raise

    def _close(self) -> None:
        with self._hand, self._gate, contextlib.suppress(sqlite3.Error):
            self._connection.close()  # the last connection of all processes brings the log home
        self._gate.close()

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_AFTER if self._in_log else None)
            except queue.Empty:
                if time.monotonic() - self._committed_at >= IDLE_AFTER:
                    with self._hand, self._gate:
                        self._checkpoint()
                continue
            if job is None:
                return
            self._commit(self._with_waiting(job))

    def _with_waiting(self, job: Job) -> list[Job]:
        jobs = [job]
        while len(jobs) < BATCH_LIMIT and not self._jobs.empty():
            waiting = self._jobs.get()
            if waiting is None:
                self._jobs.put(None)  # said again, for whoever takes from the queue next
                break
            jobs.append(waiting)
        return jobs

    def _commit(self, jobs: list[Job]) -> None:
        with self._hand, self._gate, self._waiting():
            self._tell(_settle_all, jobs, self._results(jobs))
            self._in_log += len(jobs)
            self._committed_at = time.monotonic()
            if self._in_log >= CHECKPOINT_AFTER:
                self._checkpoint()

    def _results(self, jobs: list[Job]) -> Sequence[Rows | GatewayError]:
        """All jobs in one transaction; if one fails, each in its own, so that none suffers for it.

        A full or broken disk is nobody's own failure: then all are refused.
        """
        try:
            return self._together([statements for _, statements in jobs])
        except Exception as error:
            if len(jobs) == 1 or storage_failed(error):
                return [refusal(error, "be written") for _ in jobs]
            return [self._results([job])[0] for job in jobs]

    def _together(self, jobs: Sequence[Sequence[Statement]]) -> list[Rows]:
        connection = self._connection
        if len(jobs) == 1 and len(jobs[0]) == 1 and jobs[0][0].expect is None:
            return [[execute(connection, jobs[0][0])]]  # which is a transaction by itself
        with transaction(connection):
            return [[execute(connection, statement) for statement in statements] for statements in jobs]

    def _checkpoint(self) -> None:
        """Bring the log home, inside the gate; one grown too long is cut when no reader needs it."""
        self._in_log = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if self._path.with_name(f"{self._path.name}-wal").stat().st_size > LOG_LIMIT:
                self._wait_at_most(0)  # whoever waits for the gate does not wait for a reader
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (sqlite3.Error, OSError) as error:
            log.warning("the log of %s was not brought home, it will be tried again: %s", self._path, error)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        """Inside, a foreign program that has the file locked is waited for."""
        self._wait_at_most(BUSY_TIMEOUT)
        try:
            yield
        finally:
            self._wait_at_most(0)

    def _wait_at_most(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it whoever waited
            self._loop.call_soon_threadsafe(callback, *arguments)


def _settle_all(jobs: Sequence[Job], results: Sequence[Rows | GatewayError]) -> None:
    for (future, _), result in zip(jobs, results, strict=True):
        _settle(future, result)


def _settle(future: asyncio.Future[Any], result: object) -> None:
    if future.done():  # its waiter was cancelled; the transaction stands
        return
    if isinstance(result, GatewayError):
        future.set_exception(result)
    else:
        future.set_result(result)
