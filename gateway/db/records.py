"""The record of every tool call: written once when it ends, earlier only when it takes long."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import compress
from typing import Any

import orjson

from ..calls import PLAN_LIMIT, Call, Outcome, PlannedCall, to_json
from ..errors import Conflict, GatewayError, InputRequired, Invalid, NotFound
from . import Database, Row, Statement, chats, timestamp
from .redaction import blot, redact

DOCUMENT_LIMIT = 64 * 1024  # bytes of arguments or result kept whole
PREVIEW_LIMIT = 4 * 1024
SHORT = 16 * 1024  # characters of a record that is quickly written
PAGE_LIMIT = 1000
PLANS_LOOKBACK = 1000
"""How many calls of a chat are looked at for plans: with most calls having none, the look must end somewhere."""
_CHATS_REMEMBERED = 10_000
_NO_JSON = (GatewayError, TypeError, ValueError, RecursionError)

_NAMES = (
    *("id", "chat_id", "message_id", "parent_message_id", "tool_id", "tool_name", "category", "principal", "surface"),
    *("client", "started_at", "process", "args", "status", "error", "error_code", "result", "render_plan"),
    *("finished_at", "duration_ms", "pre_manifest_id", "post_manifest_id"),
)
_COLUMNS = ", ".join(_NAMES)
_RUNNING = "ON CONFLICT (id) DO NOTHING"
_FINISHED = """ON CONFLICT (id) DO UPDATE SET
    args = excluded.args, status = excluded.status, error = excluded.error, error_code = excluded.error_code,
    result = excluded.result, render_plan = excluded.render_plan, finished_at = excluded.finished_at,
    duration_ms = excluded.duration_ms, process = excluded.process,
    pre_manifest_id = COALESCE(excluded.pre_manifest_id, tool_calls.pre_manifest_id),
    post_manifest_id = COALESCE(excluded.post_manifest_id, tool_calls.post_manifest_id)
"""
_SELECT = f"SELECT {_COLUMNS} FROM tool_calls"  # noqa: S608 - constants only
_BY_PREFIX = f"{_SELECT} WHERE id >= ? AND id < ? ORDER BY id LIMIT 2"
_PLANNED = """SELECT id, chat_id, tool_id, tool_name, status, started_at, render_plan FROM tool_calls
    WHERE id = ? AND render_plan IS NOT NULL"""
# In two steps: what is wanted of a row stands after all it holds, and only the few that are listed are read so far.
_PLANS = f"""SELECT id, chat_id, tool_id, tool_name, status, started_at FROM tool_calls WHERE id IN (
        SELECT id FROM (
            SELECT id, render_plan IS NOT NULL AS planned
            FROM tool_calls WHERE chat_id = ? ORDER BY id DESC LIMIT {PLANS_LOOKBACK}
        ) AS latest WHERE planned ORDER BY id DESC LIMIT ?
    ) ORDER BY id DESC"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One row of `tool_calls`, in the order it is selected; documents are JSON text.

    `status` is `running`, `pending` (a person must answer first), `success` or `error`; a
    cancelled call is an error with the code CANCELLED, one whose process died with INTERRUPTED.
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
        self._known_chats: set[str] = set()

    async def record_running(self, call: Call) -> None:
        """Write that a call has begun; does nothing when its end is already written."""
        arguments, _, _ = _arguments(call)
        row = (*self._beginning(call), arguments, "running", *[None] * 8)
        await self._write(call, _RUNNING, row)

    async def record_finished(
        self,
        call: Call,
        outcome: Outcome,
        *,
        finished_at: float | None = None,
    ) -> None:
        """Write what came of a call, whether or not its beginning was written.

        Once this has been awaited to its first pause the record will be written, even if the
        caller is cancelled there.
        """
        arguments, no_json, secrets = _arguments(call)
        error = outcome.error or no_json
        row = (
            *self._beginning(call),
            arguments,
            _status(outcome),
            error and blot(error.message, secrets)[:DOCUMENT_LIMIT],
            error and error.code,
            _result(outcome),
            _plan(outcome),
            *_end(call, outcome, finished_at),
            outcome.pre_manifest,
            outcome.post_manifest,
        )
        await self._write(call, _FINISHED, row)

    async def list_calls(
        self,
        *,
        chat: str | None = None,
        tool: str | None = None,
        status: str | None = None,
        principal: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[CallRecord]:
        """Newest first. `tool` is a tool's id; `before` is the id of the last record already seen."""
        if not 1 <= limit <= PAGE_LIMIT:
            raise Invalid(f"limit must be between 1 and {PAGE_LIMIT}, not {limit}")
        wanted = {"chat_id = ?": chat, "tool_id = ?": tool, "status = ?": status, "principal = ?": principal}
        chosen = {clause: value for clause, value in (wanted | {"id < ?": before}).items() if value is not None}
        where = ["WHERE", " AND ".join(chosen)] if chosen else []
        sql = " ".join([_SELECT, *where, "ORDER BY id DESC LIMIT ?"])
        return [CallRecord(*row) for row in await self._db.fetch(sql, *chosen.values(), limit)]

    async def get(self, id_or_prefix: str) -> CallRecord:
        """The call of that id, or the only one whose id begins so."""
        rows = await self._db.fetch(_BY_PREFIX, id_or_prefix, id_or_prefix + "\U0010ffff") if id_or_prefix else []
        if not rows:
            raise NotFound(f"no call has the id {id_or_prefix!r}", code="UNKNOWN_CALL")
        if len(rows) > 1 and rows[0][0] != id_or_prefix:
            raise Invalid(f"several calls begin with {id_or_prefix!r}; give more of the id", code="AMBIGUOUS_ID")
        return CallRecord(*rows[0])

    async def find_plan(self, call_id: str) -> PlannedCall | None:
        """The call of exactly that id with its plan; None when there is none, or it has no plan."""
        rows = await self._db.fetch(_PLANNED, call_id)
        return PlannedCall(*rows[0]) if rows else None

    async def list_plans(self, chat: str, limit: int) -> list[PlannedCall]:
        """The latest calls of the chat that have a plan, newest first, among its last thousand."""
        return [PlannedCall(*row) for row in await self._db.fetch(_PLANS, chat, limit)]

    def _beginning(self, call: Call) -> Row:
        tool, caller = call.tool, call.caller
        return (
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
        )

    async def _write(self, call: Call, otherwise: str, row: Row) -> None:
        """One transaction, with the chat's row before it unless this process has seen that chat."""
        there = [value is not None for value in row]
        record = Statement(_inserting(otherwise, *there), tuple(compress(row, there)))
        texts = (call.name, call.message, call.parent_message, *row[12:18])  # as long as callers make them
        short = sum(len(text) for text in texts if text is not None) <= SHORT
        if call.chat in self._known_chats:
            statements = [record]
        else:
            statements = [chats.ensure(call.chat, call.caller.principal, call.started_at), record]
        try:
            await self._db.run(*statements, short=short)
        except (Conflict, Invalid):  # the chat was deleted meanwhile, or a text holds what no database takes
            statements = [chats.ensure(call.chat, call.caller.principal, call.started_at), record]
            await self._db.run(*map(_storable, statements))
        if len(self._known_chats) >= _CHATS_REMEMBERED:
            self._known_chats.clear()
        self._known_chats.add(call.chat)


@lru_cache(maxsize=256)
def _inserting(otherwise: str, *there: bool) -> str:
    """How to insert a row that has these of its columns: to hand over a NULL costs as much as all the rest of it."""
    names = list(compress(_NAMES, there))
    values = ", ".join("?" * len(names))
    return f"INSERT INTO tool_calls ({', '.join(names)}) VALUES ({values}) {otherwise}"  # noqa: S608 - constants only


def _status(outcome: Outcome) -> str:
    if outcome.error is None:
        return "success"
    return "pending" if isinstance(outcome.error, InputRequired) else "error"


def _end(call: Call, outcome: Outcome, finished_at: float | None) -> tuple[str | None, float | None]:
    """When it ended and how many milliseconds it took; neither while a person is being asked."""
    if isinstance(outcome.error, InputRequired):
        return None, None
    now = time.time() if finished_at is None else finished_at
    return timestamp(now), round(max(0.0, now - call.started_at) * 1000, 3)


def _arguments(call: Call) -> tuple[str | None, GatewayError | None, list[str]]:
    """The arguments to store, or why there are none; and the secrets they held."""
    try:
        document, secrets = redact(call.arguments_json)
    except _NO_JSON as error:
        refusal = error if isinstance(error, GatewayError) else Invalid(f"the arguments are no JSON: {error}")
        return None, refusal, []
    return _bounded(document), None, secrets


def _result(outcome: Outcome) -> str | None:
    """The value; what the model read where there is none."""
    if outcome.value is None:
        return _document(outcome.content)
    try:
        return _bounded(outcome.value_json)
    except _NO_JSON:
        return _document({"not_json": type(outcome.value).__name__})


def _plan(outcome: Outcome) -> str | None:
    try:
        return None if outcome.render_plan is None else _bounded(to_json(outcome.render_plan), PLAN_LIMIT)
    except _NO_JSON:  # an extension's own; ours are
        return None


def _document(value: Any) -> str | None:
    return None if value is None else _bounded(to_json(value))


def _bounded(document: bytes, limit: int = DOCUMENT_LIMIT) -> str:
    if len(document) <= limit:
        return document.decode()
    digest = hashlib.sha256(document).hexdigest()
    preview = document[:PREVIEW_LIMIT].decode(errors="ignore")
    return to_json({"truncated": True, "bytes": len(document), "sha256": digest, "preview": preview}).decode()


def _storable(statement: Statement) -> Statement:
    """The statement with lone surrogates of its texts spelled out."""
    parameters = [
        value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
        for value in statement.parameters
    ]
    return statement._replace(parameters=parameters)
