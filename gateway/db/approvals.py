"""Questions put to people and what came of them, and the answers that count for longer than one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

import orjson

from gateway.db import Database, Statement, bump_revision, chats, load_revision, timestamp
from gateway.errors import Conflict, Invalid, NotFound, Unavailable
from gateway.names import SUFFIX_LENGTH, new_id
from gateway.value import Value

SUBJECT = "approvals"
# Questions that may be open in all, whoever asked them.
OPEN_LIMIT = 10_000

PAGE_LIMIT = 1000

Status = Literal["waiting", "allowed", "used", "denied", "dismissed", "cancelled", "expired"]
Scope = Literal["once", "chat", "always"]


class ApprovalRecord(Value):
    """One question. It is `allowed` once somebody agreed in the queue, and `used` once the call went on with that. It
    is `expired` if nobody answered in time, or the call did not go on in time."""

    id: str
    call_id: str
    chat_id: str
    principal: str
    tool_id: str
    via: str
    question: str
    grounds: str
    tool_digest: str
    remember: bool
    reason: str
    message: str
    args: str | None
    created_at: str
    expires_at: str
    nonce: str
    status: Status = "waiting"
    edited_args: str | None = None
    scope: Scope | None = None
    decided_by: str | None = None
    decided_at: str | None = None
    changes: str | None = None
    note: str | None = None

    @property
    def unused(self) -> bool:
        """True if somebody agreed and the call was not made again in time."""
        return self.status == "expired" and self.scope is not None

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON for programs, without the nonce that an answer needs."""
        documents = {"args": self.args, "edited_args": self.edited_args}
        decoded = {name: text and orjson.loads(text) for name, text in documents.items()}
        result = asdict(self) | decoded | {"remember": bool(self.remember)}
        del result["nonce"]
        return result


class RememberedApproval(Value):
    """An answer that still counts: for one chat, or for all where `chat_id` is None."""

    id: str
    principal: str
    chat_id: str | None
    tool_id: str
    tool_digest: str
    grounds: str
    approval_id: str
    created_by: str
    created_at: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Ending(Value):
    """The end of the record of a call that does not run: its code and message, None to keep the one there is."""

    code: str
    message: str | None = None


EXPIRED = Ending("APPROVAL_EXPIRED", "nobody answered in time whether this call may run")
_UNUSED = "a person allowed this call, but it was not made again in time"

_OVERDUE = "SELECT 1 FROM approvals WHERE status IN ('waiting', 'allowed') AND expires_at <= ? LIMIT 1"
_COLUMNS = [*ApprovalRecord.__annotations__]
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM approvals"  # noqa: S608 - own names
# One statement, so that of many that ask at once none passes the limits.
_ASK = f"""INSERT INTO approvals ({", ".join(_COLUMNS)}) SELECT {", ".join("?" * len(_COLUMNS))}
    WHERE (SELECT count(*) FROM approvals WHERE status = 'waiting' AND principal = ?) < ?
    AND (SELECT count(*) FROM approvals WHERE status = 'waiting') < ?
    AND EXISTS (SELECT 1 FROM chats WHERE id = ? AND principal = ?)"""  # noqa: S608 - own names
_DECIDE = """UPDATE approvals SET status = ?, scope = ?, edited_args = ?, decided_by = ?, decided_at = ?,
    expires_at = ?, note = ?, nonce = '' WHERE id = ? AND nonce = ? AND status = 'waiting' AND expires_at > ?"""
_CONSUME = "UPDATE approvals SET status = 'used' WHERE id = ? AND status = 'allowed' AND expires_at > ?"
_ARM = "UPDATE approvals SET nonce = ? WHERE id = ? AND status = 'used' AND nonce = ''"
_BURN = "UPDATE approvals SET nonce = '' WHERE id = ? AND status = 'used' AND nonce = ? AND nonce <> ''"
_END_CALL = """UPDATE tool_calls SET status = 'error', error = COALESCE(?, error), error_code = ?, finished_at = ?
    WHERE id = ? AND status = 'pending'"""
_END_EXPIRED = """UPDATE tool_calls SET status = 'error', error = CASE WHEN EXISTS (
        SELECT 1 FROM approvals WHERE call_id = tool_calls.id AND status = 'allowed'
    ) THEN ? ELSE ? END, error_code = ?, finished_at = ?
    WHERE status = 'pending' AND id IN (
        SELECT call_id FROM approvals WHERE status IN ('waiting', 'allowed') AND expires_at <= ?
    )"""
_EXPIRE = (
    "UPDATE approvals SET status = 'expired', nonce = '' WHERE status IN ('waiting', 'allowed') AND expires_at <= ?"
)
_REMEMBER = """INSERT INTO remembered_approvals
    (id, principal, chat_id, tool_id, tool_digest, grounds, approval_id, created_by, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_FORGET_SAME = """UPDATE remembered_approvals SET revoked_at = ?, revoked_by = ?
    WHERE revoked_at IS NULL AND principal = ? AND COALESCE(chat_id, '') = ? AND tool_id = ? AND grounds = ?"""
_REVOKE = "UPDATE remembered_approvals SET revoked_at = ?, revoked_by = ? WHERE id = ? AND revoked_at IS NULL"
_REMEMBERED = """SELECT id, principal, chat_id, tool_id, tool_digest, grounds, approval_id, created_by, created_at
    FROM remembered_approvals WHERE revoked_at IS NULL"""
_IS_REMEMBERED = """SELECT 1 FROM remembered_approvals WHERE revoked_at IS NULL AND tool_id = ? AND principal = ?
    AND tool_digest = ? AND grounds = ? AND (chat_id IS NULL OR chat_id = ?) LIMIT 1"""
_BUMP = bump_revision(SUBJECT)


class Approvals:
    """The questions of one database. Each can be answered once, by whoever is first, from any process."""

    def __init__(self, db: Database, clock: Callable[[], float] = time.time) -> None:
        self._db = db
        self._clock = clock

    async def revision(self) -> int:
        """A number that grows with every decision, by any process."""
        return await load_revision(self._db, SUBJECT)

    async def ask(self, question: ApprovalRecord, each: int) -> None:
        """Write a question down; its principal then owns the chat. Refused while the principal has `each` of them open
        or all have too many, and if somebody else has the chat meanwhile: the question may show a file of theirs."""
        row = [getattr(question, column) for column in _COLUMNS]
        chat, principal = question.chat_id, question.principal
        ensure = chats.claim(chat, principal, self._clock())
        try:
            await self._db.run(
                *self._expire(), ensure, Statement(_ASK, (*row, principal, each, OPEN_LIMIT, chat, principal), 1)
            )
        except Conflict:
            if await chats.Chats(self._db).owner(chat) not in (None, principal):
                raise chats.foreign_chat_error(chat) from None
            raise Unavailable(
                f"too many calls wait for a person already (approval.pending: {each}); answer those first",
                code="TOO_MANY_PENDING",
            ) from None

    async def decide(
        self,
        asked: ApprovalRecord,
        status: Status,
        by: str,
        *,
        scope: Scope | None = None,
        edited: str | None = None,
        ending: Ending | None = None,
        lasting: float = 0.0,
        note: str | None = None,
    ) -> bool:
        """Answer a question that waits under its own nonce; False when it does not, and then nothing is changed.

        In the same step the answer is remembered where its scope says so, and the record of the call ends with
        `ending`. An allowance may be used for `lasting` seconds.
        """
        now = self._clock()
        until = timestamp(now + lasting) if lasting else asked.expires_at
        decided = (status, scope, edited, by, timestamp(now), until, note, asked.id, asked.nonce, timestamp(now))
        statements = [Statement(_DECIDE, decided, 1)]
        if scope in ("chat", "always"):
            statements += self._remember(asked, asked.chat_id if scope == "chat" else None, by)
        if ending is not None:
            statements.append(self._end(asked.call_id, ending))
        return await self._try(*statements, _BUMP)

    async def consume(self, approval_id: str) -> bool:
        """Use an allowance up; False when there is none, or no longer."""
        return await self._try(Statement(_CONSUME, (approval_id, timestamp(self._clock())), 1))

    async def arm(self, approval_id: str, nonce: str) -> bool:
        """Let the call of a used allowance go on once more, for whoever brings the nonce."""
        return await self._try(Statement(_ARM, (nonce, approval_id), 1))

    async def burn(self, approval_id: str, nonce: str) -> bool:
        """Use that up; False when the nonce is another, or was used before."""
        return await self._try(Statement(_BURN, (approval_id, nonce), 1))

    async def end_call(self, call_id: str, ending: Ending) -> None:
        """End the record of a call that waits; one that has ended stays as it is."""
        await self._db.run(self._end(call_id, ending))

    async def sweep(self) -> None:
        """Close what nobody answered in time."""
        now = timestamp(self._clock())
        if await self._db.fetch(_OVERDUE, now):
            await self._db.run(*self._expire())

    async def find(self, question: str, via: str) -> ApprovalRecord | None:
        """The latest entry for that very question that is open, allowed or denied, and has not expired."""
        sql = (
            f"{_SELECT} WHERE question = ? AND via = ? AND status IN ('waiting', 'allowed', 'denied') "
            "AND expires_at > ? ORDER BY id DESC LIMIT 1"
        )
        rows = await self._db.fetch(sql, question, via, timestamp(self._clock()))
        return ApprovalRecord(*rows[0]) if rows else None

    async def get(self, id_or_prefix: str, principal: str | None = None) -> ApprovalRecord:
        """The question of that id, or the only one whose id begins or ends so; among those to a principal, if named."""
        values = [id_or_prefix, id_or_prefix + "\U0010ffff", *([principal] if principal is not None else [])]
        own = "AND principal = ?" if principal is not None else ""
        sql = f"{_SELECT} WHERE id >= ? AND id < ? {own} ORDER BY id LIMIT 2"
        rows = await self._db.fetch(sql, *values) if id_or_prefix else []
        if not rows and len(id_or_prefix) >= SUFFIX_LENGTH:
            sql = f"{_SELECT} WHERE substr(id, ?) = ? {own} ORDER BY id LIMIT 2"
            rows = await self._db.fetch(sql, -len(id_or_prefix), id_or_prefix, *values[2:])
        if not rows:
            message = f"no approval has the id {id_or_prefix[:80]!r}; see: toolgate approval list"
            raise NotFound(message, code="UNKNOWN_APPROVAL")
        if len(rows) > 1 and rows[0][0] != id_or_prefix:
            raise Invalid(
                f"several approvals have the id {id_or_prefix!r}; give its last characters", code="AMBIGUOUS_ID"
            )
        return ApprovalRecord(*rows[0])

    async def entries(
        self,
        *,
        waiting: bool = True,
        principal: str | None = None,
        before: str | None = None,
        limit: int = 100,
        call: str | None = None,
    ) -> list[ApprovalRecord]:
        """Newest first: what waits in the queue, or with all of them everything that was ever asked, of one principal
        or of all, about one call or about all. `before` is the id of the last one already seen."""
        if not 1 <= limit <= PAGE_LIMIT:
            raise Invalid(f"limit must be between 1 and {PAGE_LIMIT}, not {limit}")
        where = "WHERE status = 'waiting' AND via = 'queue' AND expires_at > ?" if waiting else "WHERE ? <> ''"
        values = [timestamp(self._clock())]
        for clause, value in (
            (" AND principal = ?", principal),
            (" AND id < ?", before),
            (" AND call_id = ?", call),
        ):
            if value is not None:
                where, values = where + clause, [*values, value]
        sql = f"{_SELECT} {where} ORDER BY id DESC LIMIT ?"
        return [ApprovalRecord(*row) for row in await self._db.fetch(sql, *values, limit)]

    async def find_waiting(self, call_id: str) -> ApprovalRecord | None:
        """The question that a call waits for, wherever it was asked."""
        sql = f"{_SELECT} WHERE call_id = ? AND status = 'waiting' ORDER BY id DESC LIMIT 1"
        rows = await self._db.fetch(sql, call_id)
        return ApprovalRecord(*rows[0]) if rows else None

    async def is_remembered(self, principal: str, chat: str, tool_id: str, tool_digest: str, grounds: str) -> bool:
        """Return whether this principal agreed to such calls of this very tool, in this chat or in all."""
        return bool(await self._db.fetch(_IS_REMEMBERED, tool_id, principal, tool_digest, grounds, chat))

    async def list_remembered(self, limit: int = PAGE_LIMIT) -> list[RememberedApproval]:
        """The answers that still count, newest first."""
        rows = await self._db.fetch(f"{_REMEMBERED} ORDER BY id DESC LIMIT ?", limit)
        return [RememberedApproval(*row) for row in rows]

    async def revoke(self, id_or_prefix: str, by: str) -> RememberedApproval:
        """Revoke an answer, for all processes, from the next call on."""
        kept = await self.list_remembered() if id_or_prefix else []
        matches = [row for row in kept if row.id.startswith(id_or_prefix) or row.id.endswith(id_or_prefix)]
        if not matches:
            message = f"nothing is remembered under {id_or_prefix[:80]!r}; see: toolgate approval remembered"
            raise NotFound(message, code="UNKNOWN_APPROVAL")
        if len(matches) > 1:
            raise Invalid(f"several begin with {id_or_prefix!r}; give more of the id", code="AMBIGUOUS_ID")
        await self._db.run(Statement(_REVOKE, (timestamp(self._clock()), by, matches[0].id)), _BUMP)
        return matches[0]

    def _remember(self, asked: ApprovalRecord, chat: str | None, by: str) -> list[Statement]:
        at = timestamp(self._clock())
        same = (at, by, asked.principal, chat or "", asked.tool_id, asked.grounds)
        row = (new_id(), asked.principal, chat, asked.tool_id, asked.tool_digest, asked.grounds, asked.id, by, at)
        return [Statement(_FORGET_SAME, same), Statement(_REMEMBER, row)]

    def _end(self, call_id: str, ending: Ending) -> Statement:
        return Statement(_END_CALL, (ending.message, ending.code, timestamp(self._clock()), call_id))

    def _expire(self) -> tuple[Statement, Statement]:
        now = timestamp(self._clock())
        return Statement(_END_EXPIRED, (_UNUSED, EXPIRED.message, EXPIRED.code, now, now)), Statement(_EXPIRE, (now,))

    async def _try(self, *statements: Statement) -> bool:
        try:
            await self._db.run(*statements)
        except Conflict:
            return False
        return True
