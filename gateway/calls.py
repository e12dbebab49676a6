"""A call: the caller, the tool, its arguments and the outcome."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Generic, Self, TypeVar, dataclass_transform

import orjson

from gateway.access import AccessPolicy
from gateway.errors import GatewayError, Invalid, NotFound
from gateway.names import CHAT_LIMIT, new_id
from gateway.tools import Permission, Tool
from gateway.value import Value

DEFAULT_CHAT = "default"
# The principal of the person who started this process: the only one without authentication.
LOCAL = "local"

# Bytes of a render plan as JSON.
PLAN_LIMIT = 256 * 1024

_MEASURED_SEPARATELY = frozenset({"content", "structuredContent"})

# Reports progress to the caller: done, total, message.
Progress = Callable[[float, float | None, str | None], Awaitable[None]]

Proceed = Callable[["Call"], Awaitable["Outcome"]]

# Sends an MCP request of a server (elicitation, sampling, roots) to the caller's client; returns its result.
Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

# Seconds that a client and its person may take for one answer, which no deadline of the call counts.
ANSWER_SECONDS = 600.0

# Forwards a log message of a server, in its MCP form.
Log = Callable[[Mapping[str, Any]], Awaitable[None]]


_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[_Value]) -> type[_Value]:
    """A dataclass that is frozen for type checkers only. Several are made per call, and an instance of a class that
    Python itself freezes takes three times as long to make."""
    return dataclass(cls)


class Replaceable:
    """A value that is copied with changes, none of which its lazy properties depend on. Every call passes here, and
    `dataclasses.replace` would cost more than all its checks."""

    def replace(self, **changes: Any) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__ = self.__dict__ | changes
        return copy


class lazy(Generic[_Value]):  # noqa: N801 - used like a property
    """A property computed on first access. In Python 3.11 `functools.cached_property` takes a lock, which costs more
    than the values computed here."""

    def __init__(self, compute: Callable[[Any], _Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, kind: type | None = None) -> _Value:
        result = owner.__dict__[self._name] = self._compute(owner)
        return result


async def no_progress(done: float, total: float | None = None, message: str | None = None) -> None:
    """Ignore progress, for callers that did not ask for it."""


class Caller(Value):
    """The principal of a call, the surface and the name of the client it came through, and the most it may do.
    `access` is what it may see and call; None for everything."""

    principal: str = LOCAL
    surface: str = "library"
    client: str | None = None
    permission: Permission = Permission.EXECUTE
    access: AccessPolicy | None = None


@frozen
class ClientInfo(Replaceable):
    """The MCP client that sent a request, as an upstream server may need it: its capabilities, the `_meta` it sent,
    its answers to questions of an earlier round, and a function that asks it while the call runs (None in the modern
    protocol). `level` is the lowest level of log messages it wants, None when it wants none."""

    capabilities: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    answers: Mapping[str, Any] = field(default_factory=dict)
    ask: Ask | None = None
    log: Log | None = None
    level: str | None = None
    modern: bool = False


class Consent(Value):
    """A person's approval, as it travels with a call. `subject` and `arguments` are digests of what was approved: tool,
    principal, chat and messages, and the arguments to run with. `question` is the digest of what was shown, `reason`
    why it was asked. `original` holds the arguments asked about where the person changed them. Made by the approval
    flow, never from the wire."""

    approval: str
    subject: str
    arguments: str
    question: str
    reason: str
    by: str
    via: str
    original: Mapping[str, Any] | None = None


@frozen
class Call:
    """One request to run a tool. An extension that wants it changed passes on a copy.

    `tool` is None when the catalog has no tool of that name; `refusal` is then the error. `name` is as the caller wrote
    it, which may be the tool's id; `public_name` is the one it is listed under. `confirmed` is set by the owner of the
    process, `consent` is a person's answer, `agreed` are the paths among the arguments that somebody agreed to,
    `approved_paths` the protected files among them; none of them comes from the wire. `parent` is the call whose step
    this is; `call_step` sends the calls that this one makes where nobody is asked as an MCP client is. `reply_to` is
    the id of its request, where a server's own response to that id can be passed on as it is. `began` is when the
    executor got it, by the monotonic clock. `trace` is the W3C trace context for the upstream server, set only in
    the copy of a traced call.
    """

    trace: ClassVar[str | None] = None

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
    client: ClientInfo | None = None
    confirmed: bool = False
    consent: Consent | None = None
    agreed: frozenset[str] = frozenset()
    approved_paths: tuple[str, ...] = ()
    parent: Call | None = None
    call_step: Callable[[Call], Awaitable[Outcome]] | None = None
    reply_to: int | str | None = None
    progress: Progress = no_progress
    id: str = field(default_factory=new_id)
    started_at: float = field(default_factory=time.time)
    began: float = field(default_factory=time.perf_counter)

    @lazy
    def target(self) -> Tool:
        """The tool called; raises the refusal of an unknown or disabled one."""
        if self.tool is None:
            raise self.refusal or NotFound(f"no tool is named {self.name!r}", code="UNKNOWN_TOOL")
        return self.tool

    @property
    def wants_progress(self) -> bool:
        """True if the caller asked for progress reports; an MCP client does so by a token."""
        if self.progress is no_progress:
            return False
        return self.client is None or self.client.meta.get("progressToken") is not None

    @lazy
    def arguments_json(self) -> bytes:
        """The arguments as measured and recorded; `Invalid` when they are not JSON."""
        return to_json(self.arguments)

    def replace(self, **changes: Any) -> Call:
        """A copy with these fields changed, and the lazy properties kept that do not depend on them."""
        copy = object.__new__(Call)
        copy.__dict__ = self.__dict__ | changes
        if "arguments" in changes:
            copy.__dict__.pop("arguments_json", None)
        if "tool" in changes:
            copy.__dict__.pop("target", None)
        return copy


class RawResult(dict[str, Any]):
    """An upstream's result with the `message` it came in: the response to the caller's own request, byte for byte."""

    __slots__ = ("message",)

    def __init__(self, result: Mapping[str, Any], message: bytes) -> None:
        super().__init__(result)
        self.message = message


@frozen
class Outcome(Replaceable):
    """The value of a call, or its error. `content` is what the model reads, as MCP blocks; without it the model reads
    the value as JSON. The manifests are the chat's files before and after, where the call could use them. `wire` is
    an upstream's result as it came. `call_id` is the call it is recorded under, where this one continues an earlier
    one; `attempts` is how often the tool was called."""

    value: Any = None
    error: GatewayError | None = None
    content: Sequence[Mapping[str, Any]] | None = None
    pre_manifest: str | None = None
    post_manifest: str | None = None
    render_plan: Mapping[str, Any] | None = None
    wire: Mapping[str, Any] | None = None
    call_id: str | None = None
    attempts: int = 1

    @property
    def ok(self) -> bool:
        return self.error is None

    @lazy
    def value_json(self) -> bytes:
        """The value as measured, recorded and read; `Invalid` when it is not JSON."""
        return to_json(self.value)

    @lazy
    def size(self) -> int:
        """The bytes of the result, without encoding it once more than needed. Texts that are measured and not encoded
        count as UTF-8, without JSON escapes."""
        wire = self.wire
        if wire is None:
            return len(self.value_json)
        if isinstance(wire, RawResult):
            return len(wire.message)
        size = len(to_json({key: value for key, value in wire.items() if key not in _MEASURED_SEPARATELY}))
        if self.error is None:
            size += len(self.value_json)  # encoded in any case, for the call record
            return size + content_size(self.content or ()) if "structuredContent" in wire else size
        return size + content_size(self.content or ()) + value_size(wire.get("structuredContent"))

    def to_dict(self) -> dict[str, Any]:
        if self.error is None:
            return {"ok": True, "value": self.value}
        return {"ok": False, "error": self.error.to_dict()}


class PlannedCall(Value):
    """A recorded call with a render plan. `plan` is JSON text; None in a list."""

    id: str
    chat: str
    tool_id: str
    name: str
    status: str
    started_at: str
    plan: str | None = None


@lru_cache(maxsize=1024)  # every call passes here, and most are of a few chats
def check_chat(chat: str) -> str:
    """Return `chat`; `Invalid` when it is no chat id. No URL could name `.` and `..`: clients take them for folders."""
    if not 0 < len(chat) <= CHAT_LIMIT or not chat.isprintable() or chat in (".", ".."):
        raise Invalid(
            f"a chat id is 1 to {CHAT_LIMIT} printable characters and not a dot or two, not {chat[:40]!r}",
            code="INVALID_CHAT",
        )
    return chat


def text_content(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}]


def content_size(blocks: Iterable[Any]) -> int:
    return sum(map(value_size, blocks))


def value_size(value: Any) -> int:
    """Return the bytes of a value; fast if most of it is a few long texts, as in MCP content."""
    if isinstance(value, str):
        return 2 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, Mapping):
        return max(2, 1 + sum(len(key) + 4 + value_size(item) for key, item in value.items()))
    return len(to_json(value))


def to_json(value: Any) -> bytes:
    """Compact JSON; `Invalid` for what JSON cannot hold: lone surrogates, or endless nesting."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        reason = str(error)
    if "64-bit" in reason:  # a limit of orjson, not of JSON
        try:
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error)
    raise Invalid(f"not JSON: {reason}", code="INVALID_JSON")
