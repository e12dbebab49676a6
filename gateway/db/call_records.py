"""The record of every tool call: written once when it ends, earlier only when it takes long; and their retention."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import anyio
import orjson

from gateway.calls import PLAN_LIMIT, Call, Outcome, PlannedCall, to_json
from gateway.db import Database, Insert, Statement, bump_revision, chats, load_revision, timestamp
from gateway.db.call_log import COLUMNS, SIGN, SUPERSEDED, import_ed25519
from gateway.errors import Conflict, GatewayError, InputRequired, Invalid, NotFound, QuotaExceeded
from gateway.names import SUFFIX_LENGTH, first_id
from gateway.secrets import KNOWN, mask_in, redact
from gateway.tasks import TaskSet
from gateway.value import Value

log = logging.getLogger(__name__)

DOCUMENT_LIMIT = 64 * 1024  # bytes of arguments or result kept whole
PREVIEW_LIMIT = 4 * 1024
FOLLOWING = 32  # results that wait, whole, for their digest; of one more it is made at once
PAGE_LIMIT = 1000
# Calls of a chat that are searched for render plans: most have none, so the search needs an end.
PLANS_LOOKBACK = 1000
_NO_JSON = (GatewayError, TypeError, ValueError, RecursionError)

_COLUMNS = ", ".join(COLUMNS)
_Row = list[Any]
_INSERT_MANY = f"INSERT INTO tool_calls ({_COLUMNS}) VALUES {{rows}} "  # noqa: S608 - constants only
_INSERT = _INSERT_MANY.replace("{rows}", f"({', '.join('?' * len(COLUMNS))})")
_RUNNING = f"{_INSERT}ON CONFLICT (id) DO NOTHING"
_END = """ON CONFLICT (id) DO UPDATE SET
    args = excluded.args, status = excluded.status, error = excluded.error, error_code = excluded.error_code,
    result = excluded.result, render_plan = excluded.render_plan, finished_at = excluded.finished_at,
    duration_ms = excluded.duration_ms, process = excluded.process, attempts = excluded.attempts,
    args_bytes = excluded.args_bytes, result_bytes = excluded.result_bytes,
    pre_manifest_id = COALESCE(excluded.pre_manifest_id, tool_calls.pre_manifest_id),
    post_manifest_id = COALESCE(excluded.post_manifest_id, tool_calls.post_manifest_id)
"""
_FINISHED = _INSERT + _END
_JOURNALED = (
    chats.ensure_all(COLUMNS.index("chat_id"), COLUMNS.index("started_at")),
    Insert(_INSERT_MANY + _END, tuple(range(len(COLUMNS)))),
)
_RESULT = COLUMNS.index("result")
_SET_RESULT = "UPDATE tool_calls SET result = ? WHERE id = ?"
_SELECT = f"SELECT {_COLUMNS} FROM tool_calls"  # noqa: S608 - constants only
_DOCUMENTS = {"args", "result", "render_plan"}
_SELECT_FACTS = f"SELECT {', '.join('NULL' if name in _DOCUMENTS else name for name in COLUMNS)} FROM tool_calls"  # noqa: S608
_HAS_TEXT = """lower(tool_name || ' ' || tool_id || ' ' || principal || ' ' || COALESCE(client, '') || ' '
    || COALESCE(error_code, '')) LIKE ? ESCAPE '~'"""
# Methods have a slash, names of tools none.
_KINDS = {"tools": "tool_name NOT LIKE '%/%'", "requests": "tool_name LIKE '%/%'"}
_BY_PREFIX = f"{_SELECT} WHERE id >= ? AND id < ? {{own}} ORDER BY id LIMIT 2"
_PLANNED = """SELECT id, chat_id, tool_id, tool_name, status, started_at, render_plan FROM tool_calls
    WHERE id = ? AND render_plan IS NOT NULL"""
# The error code of a running call that another process wants cancelled; the end of the call overwrites it.
CANCEL_REQUESTED = "CANCEL_REQUESTED"
_REQUEST_CANCEL = "UPDATE tool_calls SET error_code = ?, error = ? WHERE id = ? AND status = 'running'"
_CANCEL_REQUESTS = "SELECT id, error FROM tool_calls WHERE status = 'running' AND process = ? AND error_code = ?"
_BUMP_CANCEL = bump_revision(CANCEL_REQUESTED)
# In two steps: large columns come before the wanted ones in a row, so only the listed rows are read that far.
_PLANS = f"""SELECT id, chat_id, tool_id, tool_name, status, started_at FROM tool_calls WHERE id IN (
        SELECT id FROM (
            SELECT id, render_plan IS NOT NULL AS planned
            FROM tool_calls WHERE chat_id = ? ORDER BY id DESC LIMIT {PLANS_LOOKBACK}
        ) AS latest WHERE planned ORDER BY id DESC LIMIT ?
    ) ORDER BY id DESC"""  # noqa: S608 - constants only


class CallRecord(Value):
    """One row of `tool_calls`, in the order it is selected; documents are JSON text.

    `status` is `running`, `pending` (a person must answer first), `success` or `error`; a
    cancelled call is an error with the code CANCELLED, one whose process died with INTERRUPTED.
    `parent_call_id` is the call whose step it is; `attempts` is how often the tool was called. The sizes are those of
    the whole documents, of which a part may be kept.
    """

    id: str
    chat_id: str
    message_id: str | None
    parent_message_id: str | None
    tool_id: str
    tool_name: str
    category: str | None
    principal: str
    surface: str
    client: str | None
    started_at: str
    process: str | None
    parent_call_id: str | None
    args: str | None
    status: str
    error: str | None
    error_code: str | None
    result: str | None
    render_plan: str | None
    finished_at: str | None
    duration_ms: float | None
    pre_manifest_id: str | None
    post_manifest_id: str | None
    attempts: int | None
    args_bytes: int | None
    result_bytes: int | None

    def to_dict(self) -> dict[str, Any]:
        """The record with its documents opened."""
        documents = {"args": self.args, "result": self.result, "render_plan": self.render_plan}
        opened = {name: text and orjson.loads(text) for name, text in documents.items()}
        return asdict(self) | opened


class CallRecords:
    """Writes and finds the calls of one database. `process` is the instance that runs the calls."""

    def __init__(self, db: Database, process: str) -> None:
        self._db = db
        self._process = process
        self._following = TaskSet()

    async def record_running(self, call: Call) -> None:
        """Write that a call has begun; does nothing when its end is already written."""
        arguments, _, _ = _arguments(call)
        row = self._make_row(call, arguments, "running")
        await self._write(call, _RUNNING, row + [None] * (len(COLUMNS) - len(row)))

    async def record_finished(self, call: Call, outcome: Outcome, *, finished_at: float | None = None) -> None:
        """Write what came of a call, whether or not its beginning was written."""
        if (written := self.finish(call, outcome, finished_at=finished_at)) is not None:
            await written

    def finish(
        self, call: Call, outcome: Outcome, alone: bool = True, finished_at: float | None = None
    ) -> Awaitable[object] | None:
        """Do the same without waiting: it is written once the returned awaitable is done, and at once if there is none.
        A caller that is cancelled while it waits does not stop it. Records of calls that are not `alone` share a write.
        The digest of a result too large to be kept follows: nobody waits for that."""
        arguments, no_json, secrets = _arguments(call)
        if isinstance(outcome.error, QuotaExceeded):  # or a client above its limits could fill the disk
            arguments = None
        asking = isinstance(outcome.error, InputRequired)
        error = outcome.error or no_json
        result = _result(outcome)
        follows = False
        if result is None:
            shown = None
        elif len(result) <= DOCUMENT_LIMIT:
            shown = KNOWN.mask_json(result.decode())
        else:
            follows = len(self._following) < FOLLOWING
            shown = _cut(result, None if follows else _digest(result))
        now = time.time() if finished_at is None else finished_at
        row = [
            *self._make_row(call, arguments, "success" if outcome.error is None else "pending" if asking else "error"),
            None if error is None else KNOWN.mask(mask_in(error.message, secrets))[:DOCUMENT_LIMIT],
            None if error is None else error.code,
            shown,
            None if outcome.render_plan is None else _plan(outcome.render_plan),
            None if asking else timestamp(now),
            None if asking else round(max(0.0, now - call.started_at) * 1000, 3),
            outcome.pre_manifest,
            outcome.post_manifest,
            outcome.attempts,
            None if no_json is not None else len(call.arguments_json),
            None if result is None else len(result),
        ]
        written: Awaitable[object] | None = None
        if not asking and not alone:
            written = self._db.append_together(_JOURNALED, row)
        if written is None and (asking or not self._db.append(_JOURNALED, row)):  # a person may answer another process
            written = self._write(call, _FINISHED, row)
        if follows and result is not None:
            return self._write_with_digest(written, row, result)
        return written

    async def _write_with_digest(self, written: Awaitable[object] | None, row: _Row, result: bytes) -> None:
        try:
            if written is not None:
                await written
        finally:  # also of a caller cancelled here, whose record is written
            self._following.start(self._add_digest(row, result))

    async def wait(self) -> None:
        """Wait until the digests of large results are written too."""
        if self._following:
            await asyncio.wait(self._following)

    async def list_calls(
        self,
        *,
        chat: str | None = None,
        tool: str | None = None,
        status: str | None = None,
        principal: str | None = None,
        parent: str | None = None,
        client: str | None = None,
        text: str | None = None,
        kind: str | None = None,
        since: float | None = None,
        until: float | None = None,
        before: str | None = None,
        limit: int = 50,
        documents: bool = True,
    ) -> list[CallRecord]:
        """Newest first. `tool` is a tool's id, `parent` the call whose steps are wanted; `text` is part of a name, of a
        principal, a client or an error code; `kind` is `tools` or `requests`; `since` and `until` are times of the
        beginning; `before` is the id of the last record already seen. Without `documents` there are no arguments,
        results and plans."""
        if not 1 <= limit <= PAGE_LIMIT:
            raise Invalid(f"limit must be between 1 and {PAGE_LIMIT}, not {limit}")
        if until is not None:  # ids sort by time
            before = min(before, first_id(until)) if before is not None else first_id(until)
        # The index by tool has the principal too. SQLite would take the one by principal, and look at each record.
        by_principal = "principal = ?" if tool is None else "+principal = ?"
        wanted = {"chat_id = ?": chat, "tool_id = ?": tool, "status = ?": status, by_principal: principal}
        wanted |= {"parent_call_id = ?": parent, "client = ?": client, _HAS_TEXT: None if text is None else _like(text)}
        wanted |= {"id >= ?": None if since is None else first_id(since), "id < ?": before}
        chosen = {clause: value for clause, value in wanted.items() if value is not None}
        clauses = [*chosen, *([_KINDS[kind]] if kind is not None else [])]
        where = ["WHERE", " AND ".join(clauses)] if clauses else []
        sql = " ".join([_SELECT if documents else _SELECT_FACTS, *where, "ORDER BY id DESC LIMIT ?"])
        await self.wait()
        return [CallRecord(*row) for row in await self._db.fetch(sql, *chosen.values(), limit)]

    async def get(self, id_or_prefix: str, principal: str | None = None) -> CallRecord:
        """The call of that id, or the only one whose id begins or ends so; among those of a principal, if named."""
        await self.wait()
        values = [id_or_prefix, id_or_prefix + "\U0010ffff", *([principal] if principal is not None else [])]
        sql = _BY_PREFIX.format(own="AND principal = ?" if principal is not None else "")
        rows = await self._db.fetch(sql, *values) if id_or_prefix else []
        if not rows and len(id_or_prefix) >= SUFFIX_LENGTH:
            sql = sql.replace("id >= ? AND id < ?", "substr(id, ?) = ?")
            rows = await self._db.fetch(sql, -len(id_or_prefix), id_or_prefix, *values[2:])
        if not rows:
            raise NotFound(f"no call has the id {id_or_prefix!r}; see: toolgate call list", code="UNKNOWN_CALL")
        if len(rows) > 1 and rows[0][0] != id_or_prefix:
            raise Invalid(
                f"several calls match {id_or_prefix!r}; give the last characters of the id", code="AMBIGUOUS_ID"
            )
        return CallRecord(*rows[0])

    async def remove_old(self, calls: int | None, since: float | None) -> int:
        """Remove the records beyond `calls` in number, which principals share, and those that began before `since`.
        Return how many were removed."""
        before = "" if since is None else timestamp(since)
        await asyncio.to_thread(import_ed25519)  # else the first step would do that, while others wait
        removed = 0
        if calls is not None and (excess := await _find_excess(self._db, before, calls)):
            removed += await _remove(self._db, excess)
        if since is not None:
            ((older,),) = await self._db.fetch(_OLDER, first_id(since))  # also those that were moved
            removed += await _remove(self._db, Removal(before, left=older, movable=MOVED_LIMIT))
        return removed

    async def request_cancel(self, call_id: str, by: str) -> None:
        """Ask the process that runs a call to cancel it."""
        await self._db.run(Statement(_REQUEST_CANCEL, (CANCEL_REQUESTED, by, call_id), 1), _BUMP_CANCEL)

    async def cancel_revision(self) -> int:
        """A number that grows with every request to cancel a call, by any process."""
        return await load_revision(self._db, CANCEL_REQUESTED)

    async def list_cancel_requests(self) -> list[tuple[str, str]]:
        """Calls that this process runs and somebody wants cancelled, with the name of who asked."""
        rows = await self._db.fetch(_CANCEL_REQUESTS, self._process, CANCEL_REQUESTED)
        return [(row[0], row[1]) for row in rows]

    async def find_plan(self, call_id: str) -> PlannedCall | None:
        """The call of exactly that id with its plan; None when there is none, or it has no plan."""
        rows = await self._db.fetch(_PLANNED, call_id)
        return PlannedCall(*rows[0]) if rows else None

    async def list_plans(self, chat: str, limit: int) -> list[PlannedCall]:
        """The latest calls of the chat that have a plan, newest first, among its last thousand."""
        return [PlannedCall(*row) for row in await self._db.fetch(_PLANS, chat, limit)]

    def _make_row(self, call: Call, arguments: str | None, status: str) -> _Row:
        tool, caller = call.tool, call.caller
        return [
            call.id,
            call.chat,
            call.message,
            call.parent_message,
            call.name if tool is None else tool.id,
            call.name,
            None if tool is None else tool.category,
            caller.principal,
            caller.surface,
            caller.client,
            timestamp(call.started_at),
            self._process,
            None if call.parent is None else call.parent.id,
            arguments,
            status,
        ]

    async def _write(self, call: Call, sql: str, row: _Row) -> None:
        """One transaction, with the chat's row before it."""
        chat = chats.ensure(call.chat, call.started_at)
        record = Statement(sql, row)
        try:
            await self._db.run(chat, record)
        except Invalid:  # a text holds what no database takes
            await self._db.run(_storable(chat), _storable(record))

    async def _add_digest(self, row: _Row, result: bytes) -> None:
        """Write the record once more, with the digest of its result."""
        cut = _cut(result, await anyio.to_thread.run_sync(_digest, result))
        call_id, *_ = row
        if self._db.append(_JOURNALED, [*row[:_RESULT], cut, *row[_RESULT + 1 :]]):
            return
        try:
            await self._db.run(Statement(_SET_RESULT, (cut, call_id)))
        except GatewayError as error:
            log.warning("call %s: its record has no digest of its result: %s", call_id, error)


def _arguments(call: Call) -> tuple[str | None, GatewayError | None, list[str]]:
    """The arguments to store, or why there are none; and the secrets they held."""
    try:
        document, secrets = redact(call.arguments_json)
    except _NO_JSON as error:
        refusal = error if isinstance(error, GatewayError) else Invalid(f"the arguments are no JSON: {error}")
        return None, refusal, []
    return _limit(document), None, secrets


def _result(outcome: Outcome) -> bytes | None:
    """The value; what the model read where there is none."""
    if outcome.value is None:
        return None if outcome.content is None else to_json(outcome.content)
    try:
        return outcome.value_json
    except _NO_JSON:
        return to_json({"not_json": type(outcome.value).__name__})


def _plan(plan: Mapping[str, Any]) -> str | None:
    try:
        return _limit(to_json(plan), PLAN_LIMIT)
    except _NO_JSON:  # an extension's own; ours are
        return None


def _limit(document: bytes, limit: int = DOCUMENT_LIMIT) -> str:
    return KNOWN.mask_json(document.decode()) if len(document) <= limit else _cut(document, _digest(document))


def _cut(document: bytes, digest: str | None = None) -> str:
    """The part of a document that is stored when it is too large."""
    whole: dict[str, Any] = {"truncated": True, "bytes": len(document)}
    if digest is not None:
        whole["sha256"] = digest
    preview = document[:PREVIEW_LIMIT].decode(errors="ignore")
    window = document[: PREVIEW_LIMIT + KNOWN.margin].decode(errors="ignore")
    if (masked := KNOWN.mask(window)) != window:
        preview = masked[: -KNOWN.margin]  # a secret may be cut in two within the margin
    return to_json({**whole, "preview": preview}).decode()


def _like(text: str) -> str:
    """The pattern of texts that contain this one."""
    return f"%{text.lower().translate({ord(sign): f'~{sign}' for sign in '~%_'})}%"


def _digest(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()


def _storable(statement: Statement) -> Statement:
    """The statement with lone surrogates of its texts spelled out."""
    parameters = [
        value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for value in statement.parameters
    ]
    return statement._replace(parameters=parameters)


# Retention: the beginning of the call log is cut off and signed for. Principals share the number of records; a record
# that stays and is in that part gets a new entry at the end of the log first.

# Records that are removed in one transaction, while others wait: as many as take so long on this machine; and the
# seconds until the next transaction.
FEWEST_REMOVED, MOST_REMOVED, REMOVAL_SECONDS = 50, 400, 0.01
REMOVAL_PAUSE = 0.02
# Records that may get a new entry in one run to reach older ones behind them.
MOVED_LIMIT = 20_000

_COUNTS = "SELECT principal, count(*) FROM tool_calls GROUP BY principal"
_BEYOND = "SELECT id FROM tool_calls WHERE principal = ? ORDER BY id DESC LIMIT 1 OFFSET ?"
_OLDER = "SELECT count(*) FROM tool_calls WHERE id < ?"
_OLDEST = f"""SELECT l.position, l.call_id, c.status, c.started_at, c.principal,
    {SUPERSEDED.format(position="l.position")} FROM call_log AS l LEFT JOIN tool_calls AS c ON c.id = l.call_id
    WHERE l.call_id IS NOT NULL ORDER BY l.position LIMIT ?"""  # noqa: S608 - constants
# With the digest of the log, not one of the record as it is now: an edit is still found.
_MOVE = f"""INSERT INTO temp.written_calls (id, before) SELECT call_id, digest FROM call_log AS l
    WHERE position IN (SELECT value FROM json_each(?)) AND NOT {SUPERSEDED.format(position="l.position")}"""  # noqa: S608
_REMOVE_RECORDS = f"""DELETE FROM tool_calls WHERE id IN (
    SELECT call_id FROM call_log AS l WHERE position <= ? AND NOT {SUPERSEDED.format(position="?")}
    ) RETURNING id"""  # noqa: S608 - constants
_REMOVE_ENTRIES = "DELETE FROM call_log WHERE position <= ?"


@dataclass
class Removal:
    """The records to remove: those that began `before` a time, and of each principal in `beyond` those up to an id. Of
    others before them in the log, `movable` may be moved to its end while there are any `left`."""

    before: str
    beyond: Mapping[str, str] = field(default_factory=dict)
    left: int = 0
    movable: int = 0


class RemovedCalls(NamedTuple):
    """The records that one step of retention removed, the position up to which, and whether there may be more."""

    records: int
    position: int | None
    more: bool


async def remove_calls(db: Database, removal: Removal, limit: int) -> RemovedCalls:
    """Remove the oldest of these records that have ended, a bounded number in one transaction. A signed entry says up
    to which position. Removes nothing behind a call that still runs or waits."""
    position, count, removed = None, 0, 0
    moved: list[int] = []
    for row in await db.fetch(_OLDEST, limit):
        place, call_id, status, started_at, principal, superseded = row
        goes = started_at is None or started_at < removal.before or call_id <= removal.beyond.get(principal, "")
        stays = not goes and (removal.left <= removed or removal.movable <= len(moved))
        if status in ("running", "pending") or stays:
            break
        if not superseded:
            removed += goes
            moved += [] if goes else [place]
        position, count = place, count + 1
    if position is None:
        return RemovedCalls(0, None, False)
    if moved:
        await db.run(Statement(_MOVE, (orjson.dumps(moved).decode(),)))
    try:
        _, gone, _ = await db.run(
            Statement(SIGN, (position, position, timestamp(time.time())), 1),
            Statement(_REMOVE_RECORDS, (position, position)),
            Statement(_REMOVE_ENTRIES, (position,)),
        )
    except Conflict:  # another process has removed it
        return RemovedCalls(0, None, False)
    removal.left -= len(gone)
    removal.movable -= len(moved)
    return RemovedCalls(len(gone), position, count == limit)


async def _find_excess(db: Database, before: str, calls: int) -> Removal | None:
    counts: dict[str, int] = dict(await db.fetch(_COUNTS))
    total = sum(counts.values())
    if total <= calls:
        return None
    kept = share_out(calls, counts)
    beyond = {}
    for principal in (each for each in counts if kept[each] < counts[each]):
        ((beyond[principal],),) = await db.fetch(_BEYOND, principal, kept[principal]) or (("",),)
    return Removal(before, beyond, left=total - calls, movable=total)


def share_out(amount: int, counts: Mapping[str, int]) -> dict[str, int]:
    """Share out an amount so that nobody gets more than their count, and somebody gets less only where nobody gets
    noticeably more."""
    shares = {}
    for position, (name, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        shares[name] = min(count, amount // (len(counts) - position))
        amount -= shares[name]
    return shares


async def _remove(db: Database, removal: Removal) -> int:
    removed, more, limit = 0, True, FEWEST_REMOVED
    while more:
        began = time.perf_counter()
        step = await remove_calls(db, removal, limit)
        took = time.perf_counter() - began
        removed, more = removed + step.records, step.more
        limit = max(FEWEST_REMOVED, min(MOST_REMOVED, int(limit * REMOVAL_SECONDS / took)))
        await asyncio.sleep(REMOVAL_PAUSE)
    return removed
