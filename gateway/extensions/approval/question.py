"""What a person is asked: which call, why, and what it will change; and what may come back."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Literal

import orjson

from gateway.calls import Call, to_json
from gateway.errors import InputRequired
from gateway.secrets import redact
from gateway.tools import Tool

# Characters of one argument in a message: the beginning and the end of a longer one.
SHOWN = 600

SHOWN_ARGUMENTS = 40
CHANGES_SHOWN = 4000
# Characters of all arguments, and of the changes, in what is written down.
KEPT = 64 * 1024

# Agree to this call, to this tool in this chat, to this very tool for good; refuse; or leave it open.
Decision = Literal["once", "chat", "always", "deny", "dismiss"]

# Where a question may be answered: by the client's own person, or in the queue alone.
Route = Literal["ask", "queue"]


@dataclass(frozen=True)
class Answer:
    """What a person decided; `arguments` are what to run with where they changed them."""

    decision: Decision
    arguments: Mapping[str, Any] | None = None
    by: str | None = None


@dataclass(frozen=True)
class Question:
    """One call that needs a person's consent, as data. `grounds` is what made it ask, by which an answer is
    remembered; `remember` says whether it may be."""

    tool: Tool
    name: str
    arguments: Mapping[str, Any]
    subject: str
    principal: str
    chat: str
    reason: str
    grounds: str
    route: Route = "ask"
    changes: str | None = None
    remember: bool = True

    @cached_property
    def digest(self) -> str:
        """Of all a person is shown, and of whom it is about: an answer counts for nothing else."""
        return _digest(
            [self.subject, arguments_digest(self.arguments), self.reason, self.grounds, self.route, self.changes]
        )

    @cached_property
    def message(self) -> str:
        """What a person reads. No argument can pass for a line of it, and none hides another: only what stands under
        the name of a secret is left out."""
        return self._told(SHOWN_ARGUMENTS, SHOWN, CHANGES_SHOWN)

    @property
    def whole(self) -> str:
        """The message as it is written down, for who wants to read all of a long argument."""
        shown = max(SHOWN, KEPT // max(1, len(self.arguments)))
        return self._told(KEPT // SHOWN, shown, KEPT)

    def _told(self, number: int, shown: int, changes: int) -> str:
        told = without_secrets(self.arguments)
        lines = [f"Run {plain(self.name)}?", "", f"Why: {plain(self.reason)}", "", "Arguments:"]
        lines += [f"  {plain(str(key))[:80]}: {_value(value, shown)}" for key, value in islice(told.items(), number)]
        if len(told) > number:
            lines.append(f"  … and {len(told) - number} more")
        if not told:
            lines[-1] = "Arguments: none"
        if self.changes:
            lines += ["", "What will change:", *_quoted(self.changes, changes)]
        return "\n".join(lines)

    @property
    def choices(self) -> Sequence[Decision]:
        return ("once", "chat", "deny") if self.remember else ("once", "deny")

    def to_dict(self) -> dict[str, Any]:
        """For programs; without secrets."""
        return {
            "tool": self.tool.id,
            "arguments": without_secrets(self.arguments),
            "chat": self.chat,
            "reason": self.reason,
            "changes": self.changes,
            "choices": list(self.choices),
        }


# Puts a question to a person and brings the answer.
Approver = Callable[[Question], Awaitable[Answer]]


class ConsentNeeded(InputRequired):
    """A person must agree first. Whoever can ask puts `question`; whoever cannot passes this on."""

    def __init__(self, question: Question) -> None:
        super().__init__(
            f"{question.reason}. This call needs a person's consent, which cannot be asked for on this "
            "connection; use a client that can be asked (MCP elicitation), or the operator can have such calls wait "
            "for 'toolgate approval allow' with 'approval: {without_elicitation: queue}'",
            reason=question.reason,
        )
        self.question = question


def question_of(
    call: Call, reason: str, grounds: str, *, route: Route = "ask", changes: str | None = None, remember: bool = True
) -> Question:
    return Question(
        tool=call.target,
        name=call.public_name or call.name,
        arguments=call.arguments,
        subject=subject_of(call.target, call),
        principal=call.caller.principal,
        chat=call.chat,
        reason=reason,
        grounds=grounds,
        route=route,
        changes=changes,
        remember=remember,
    )


def subject_of(tool: Tool, call: Call) -> str:
    """A digest of what an answer is about, whatever the arguments: the messages say which version of the chat's files
    the call works on."""
    return _digest([tool_digest(tool), call.caller.principal, call.chat, call.message, call.parent_message])


def tool_digest(tool: Tool) -> str:
    """Of all a tool says of itself; another one, and what was agreed to is another tool."""
    known = tool.__dict__.get("_approval_digest")
    if known is None:
        asks = tool.requires_confirmation if isinstance(tool.requires_confirmation, bool) else "by its own rule"
        said = [tool.id, tool.kind, tool.owner, tool.title, tool.description, tool.category, tool.permission.value]
        shape = [tool.input_schema, tool.output_schema, tool.wire, tool.access.value, tool.home and str(tool.home)]
        # Kept beside the tool, as its compiled schemas are: it is the same as long as the tool is.
        known = tool.__dict__["_approval_digest"] = _digest([said, shape, asks])
    return str(known)


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """The same for the same arguments, in whatever order they came."""
    return _digest(arguments)


def without_secrets(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments without what stands under the name of a secret. Where another repeats it, it stays: a caller could
    name anything a secret, and so hide from a person what they are asked about."""
    redacted, secrets = redact(to_json(arguments))
    told: dict[str, Any] = json.loads(redacted) if secrets else dict(arguments)
    return told


def plain(text: str) -> str:
    """One line, in which nothing steers a terminal or hides: control and format characters are spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return json.dumps(character)[1:-1] if hidden else character


def _value(value: Any, shown: int) -> str:
    text = value if isinstance(value, str) else to_json(value).decode()
    parts = [text] if len(text) <= shown else _ends(text, shown)
    told = [json.dumps(part, ensure_ascii=False) if isinstance(value, str) else part for part in parts]
    return plain(_left_out(len(text), shown).join(told))


def _quoted(text: str, shown: int) -> list[str]:
    parts = [text] if len(text) <= shown else _ends(text, shown)
    first, *last = [[f"  | {plain(line)}" for line in part.split("\n")] for part in parts]
    return [*first, f" {_left_out(len(text), shown)}", *last[0]] if last else first


def _ends(text: str, shown: int) -> list[str]:
    """The beginning and the end, where what matters is put by who wants it overlooked."""
    return [text[: shown * 2 // 3], text[shown * 2 // 3 - shown :]]


def _left_out(length: int, shown: int) -> str:
    return f" … {length - shown} characters are left out … "


def _digest(value: Any) -> str:
    try:
        document = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # numbers beyond 64 bits
        document = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(document).hexdigest()
