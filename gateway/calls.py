"""What a call is: who asks for which tool with what arguments, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeVar, dataclass_transform

import orjson

from gateway.errors import GatewayError, Invalid, NotFound
from gateway.names import CHAT_LIMIT, new_id
from gateway.tools import Permission, Tool

DEFAULT_CHAT = "default"
# The principal of whoever started this process: the only one there is without authentication.
LOCAL = "local"

# Bytes of a render plan as JSON, whatever a call brings.
PLAN_LIMIT = 256 * 1024

# Tells the caller how far a call has come: done, total, message.
Progress = Callable[[float, float | None, str | None], Awaitable[None]]

Proceed = Callable[["Call"], Awaitable["Outcome"]]

# Puts an MCP request of a server (elicitation, sampling, roots) to the caller's client, and brings its result.
Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

# Hands on a log message of a server, as MCP writes it.
Log = Callable[[Mapping[str, Any]], Awaitable[None]]


_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Value]) -> type[_Value]:
    """A dataclass that nobody changes, which whoever checks types sees to. Several are made for every call, and one
    that Python itself keeps from being changed takes three times as long to make."""
    return dataclass(cls)


class once(Generic[_Value]):  # noqa: N801 - it stands where a property does
    """A value that is worked out when it is first asked for. `functools.cached_property` does the same behind a lock,
    in Python 3.11, which costs more than what is worked out."""

    def __init__(self, work: Callable[[Any], _Value]) -> None:
        self._work = work
        self.__doc__ = work.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> _Value:
        found = owner.__dict__[self._work.__name__] = self._work(owner)
        return found


async def no_progress(done: float, total: float | None = None, message: str | None = None) -> None:
    """For callers who did not ask to be told."""


@dataclass(frozen=True)
class Caller:
    """On whose behalf a call is made, through which surface, and the most it may do."""

    principal: str = LOCAL
    surface: str = "library"
    client: str | None = None
    permission: Permission = Permission.EXECUTE


@value
class Peer:
    """The MCP client at the other end, as an upstream server may need it: what it can do, the `_meta` it sent,
    its answers to what was asked of it in an earlier round, and the way to ask it while the call runs, which
    the newest protocol does not have. `level` is the least of log messages it wants, None when it wants none.
    `reply_to` is the id of its request, where a server's own answer to that id can be passed on as it is."""

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None
    log: Log | None = None
    level: str | None = None
    modern: bool = False
    reply_to: int | str | None = None


@dataclass(frozen=True)
class Consent:
    """A person's yes, as it travels with a call. `subject` and `arguments` are digests of what it is for: tool,
    principal, chat and messages, and the arguments to run with. `question` is the digest of what was shown, `reason`
    why it was. `original` is what was asked about where the person changed it. Made by who asked, never from the
    wire."""

    approval: str
    subject: str
    arguments: str
    question: str
    reason: str
    by: str
    via: str
    original: Mapping[str, Any] | None = None


@value
class Call:
    """One request to run a tool. An extension that wants it changed passes on a copy.

    `tool` is None when the catalog has no tool of that name; `refusal` then says why. `name` is as
    the caller said it, which may be the tool's id; `public_name` is the one it is listed under.
    `confirmed` is set by the process owner, `consent` is a person's answer, `agreed` are the paths a call names that
    somebody agreed to, `approved_paths` the protected files among them; none of them comes from the wire.
    """

    _: KW_ONLY
    name: str
    arguments: Mapping[str, Any]
    tool: Tool | None = None
    public_name: str | None = None
    refusal: GatewayError | None = None
    chat: str = DEFAULT_CHAT
    message: str | None = None
    parent_message: str | None = None
    caller: Caller = field(default_factory=Caller)
    peer: Peer | None = None
    confirmed: bool = False
    consent: Consent | None = None
    agreed: frozenset[str] = frozenset()
    approved_paths: tuple[str, ...] = ()
    progress: Progress = no_progress
    id: str = field(default_factory=new_id)
    started_at: float = field(default_factory=time.time)

    @property
    def target(self) -> Tool:
        """The tool called; an unknown or disabled one is refused here, with the reason."""
        if self.tool is None:
            raise self.refusal or NotFound(f"no tool is named {self.name!r}", code="UNKNOWN_TOOL")
        return self.tool

    @once
    def arguments_json(self) -> bytes:
        """The arguments as they are measured and recorded; refused when they are no JSON."""
        return to_json(self.arguments)

    def but(self, **changes: Any) -> Call:
        """A copy with these fields changed, and what was worked out of the others kept: every call passes here, and
        `replace` would cost it more than all its checks."""
        copy = object.__new__(Call)
        copy.__dict__ = self.__dict__ | changes
        if "arguments" in changes:
            copy.__dict__.pop("arguments_json", None)
        return copy

    def with_arguments(self, arguments: Mapping[str, Any]) -> Call:
        return self.but(arguments=arguments)


class RawResult(dict[str, Any]):
    """An upstream's result, and the `message` it came in: the answer to the caller's own request, byte for byte."""

    __slots__ = ("message",)

    def __init__(self, result: Mapping[str, Any], message: bytes) -> None:
        super().__init__(result)
        self.message = message


@value
class Outcome:
    """What came of a call: a value, or an error. `content` is what the model reads, as MCP blocks;
    without it the model reads the value as JSON. The manifests are the chat's files before and
    after, where the call could change them; the render plan is how to show it, where the tool says.
    `wire` is an upstream's result as it came. `call_id` is the call it is recorded under, where that is an earlier
    one which this one went on with."""

    value: Any = None
    error: GatewayError | None = None
    content: Sequence[Mapping[str, Any]] | None = None
    pre_manifest: str | None = None
    post_manifest: str | None = None
    render_plan: Mapping[str, Any] | None = None
    wire: Mapping[str, Any] | None = None
    call_id: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @once
    def value_json(self) -> bytes:
        """The value as it is measured, recorded and read; `Invalid` when it is no JSON."""
        return to_json(self.value)

    def with_plan(self, plan: Mapping[str, Any]) -> Outcome:
        planned = object.__new__(Outcome)
        planned.__dict__ = self.__dict__ | {"render_plan": plan}  # a large value is written as JSON once
        return planned

    def to_dict(self) -> dict[str, Any]:
        if self.error is None:
            return {"ok": True, "value": self.value}
        return {"ok": False, "error": self.error.to_dict()}


@dataclass(frozen=True)
class PlannedCall:
    """A call that has a render plan, as it was recorded. `plan` is JSON text; a list leaves it out."""

    id: str
    chat: str
    tool_id: str
    name: str
    status: str
    started_at: str
    plan: str | None = None


def check_chat(chat: str) -> str:
    """`chat`, refused when it cannot name one."""
    if not 0 < len(chat) <= CHAT_LIMIT or not chat.isprintable():
        raise Invalid(f"a chat id is 1 to {CHAT_LIMIT} printable characters, not {chat[:40]!r}", code="INVALID_CHAT")
    return chat


def text_content(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def to_json(value: Any) -> bytes:
    """Compact JSON; `Invalid` for what is not JSON: lone surrogates, or nesting without end."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        reason = str(error)
    if "64-bit" in reason:  # JSON knows no such limit; orjson does
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error)
    raise Invalid(f"not JSON we can carry: {reason}", code="INVALID_JSON")
