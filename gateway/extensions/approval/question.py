"""What a person is asked: which call, why, and what it will change; and what may come back."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import orjson

from ...calls import Call, to_json
from ...db.redaction import blot, redact
from ...errors import InputRequired
from ...tools import Tool

SHOWN = 300
"""Characters of one argument in a message."""

SHOWN_ARGUMENTS = 40
CHANGES_SHOWN = 4000

Decision = Literal["once", "chat", "always", "deny", "dismiss"]
"""Agree to this call, to this tool in this chat, to this very tool for good; refuse; or leave it open."""

Route = Literal["ask", "queue"]
"""Where a question may be answered: by the client's own person, or in the queue alone."""


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
    principal: str
    chat: str
    reason: str
    grounds: str
    route: Route = "ask"
    changes: str | None = None
    remember: bool = True

    @cached_property
    def subject(self) -> str:
        return subject_of(self.tool, self.principal, self.chat)

    @cached_property
    def digest(self) -> str:
        """Of all a person is shown, and of whom it is about: an answer counts for nothing else."""
        return _digest(
            [self.subject, arguments_digest(self.arguments), self.reason, self.grounds, self.route, self.changes]
        )

    @cached_property
    def message(self) -> str:
        """What a person reads. No argument can pass for a line of it, and none of its secrets is in it."""
        told, secrets = without_secrets(self.arguments)
        lines = [f"Run {plain(self.name)}?", "", f"Why: {plain(blot(self.reason, secrets))}", "", "Arguments:"]
        lines += [f"  {plain(str(key))[:80]}: {_value(value)}" for key, value in list(told.items())[:SHOWN_ARGUMENTS]]
        if len(told) > SHOWN_ARGUMENTS:
            lines.append(f"  … and {len(told) - SHOWN_ARGUMENTS} more")
        if not told:
            lines[-1] = "Arguments: none"
        if self.changes:
            lines += ["", "What will change:", *_quoted(blot(self.changes, secrets))]
        return "\n".join(lines)

    @property
    def choices(self) -> Sequence[Decision]:
        return ("once", "chat", "deny") if self.remember else ("once", "deny")

    def to_dict(self) -> dict[str, Any]:
        """For programs; without secrets."""
        told, secrets = without_secrets(self.arguments)
        return {
            "tool": self.tool.id,
            "arguments": told,
            "chat": self.chat,
            "reason": blot(self.reason, secrets),
            "changes": self.changes and blot(self.changes, secrets),
            "choices": list(self.choices),
        }


Approver = Callable[[Question], Awaitable[Answer]]
"""Puts a question to a person and brings the answer."""


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
        principal=call.caller.principal,
        chat=call.chat,
        reason=reason,
        grounds=grounds,
        route=route,
        changes=changes,
        remember=remember,
    )


def subject_of(tool: Tool, principal: str, chat: str) -> str:
    """A digest of what an answer is about, whatever the arguments."""
    return _digest([tool_digest(tool), principal, chat])


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


def without_secrets(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The arguments with secrets blotted out, also where another argument repeats one; and those secrets."""
    document = to_json(arguments)
    redacted, secrets = redact(document)
    if redacted == document:
        return dict(arguments), secrets
    told: dict[str, Any] = blot(json.loads(redacted), secrets)
    return told, secrets


def plain(text: str) -> str:
    """One line, in which nothing steers a terminal or hides: control and format characters are spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return json.dumps(character)[1:-1] if hidden else character


def _value(value: Any) -> str:
    if isinstance(value, str) and len(value) > SHOWN:
        return f"{plain(json.dumps(value[:SHOWN], ensure_ascii=False))}… ({len(value)} characters)"
    text = to_json(value).decode()
    return plain(text if len(text) <= SHOWN else f"{text[:SHOWN]}… ({len(text)} characters)")


def _quoted(text: str) -> list[str]:
    cut = (
        text if len(text) <= CHANGES_SHOWN else f"{text[:CHANGES_SHOWN]}\n… {len(text) - CHANGES_SHOWN} more characters"
    )
    return [f"  | {plain(line)}" for line in cut.split("\n")]


def _digest(value: Any) -> str:
    try:
        document = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # numbers beyond 64 bits
        document = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(document).hexdigest()
