"""The question a person is asked about one call: why, with which arguments, what will change; and the answer to it."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from gateway.calls import Call, to_json
from gateway.errors import InputRequired, Invalid
from gateway.secrets import redact
from gateway.tools import Tool
from gateway.value import Value

# Limits of a message: characters of one argument, number of arguments, characters of the changes.
ARGUMENT_CHARACTERS = 600
ARGUMENTS_SHOWN = 40
CHANGES_CHARACTERS = 4000

# Characters of all arguments, and of the changes, in the database.
STORED_CHARACTERS = 64 * 1024

# Agree to this call, to such calls in this chat, or to such calls of this very tool for good; refuse; leave it open.
Decision = Literal["once", "chat", "always", "deny", "dismiss"]

# The place to answer a question: the caller's own client, or the queue alone.
Route = Literal["ask", "queue"]


class Answer(Value):
    """A person's decision. `arguments` replace those of the call where the person edited them."""

    decision: Decision
    arguments: Mapping[str, Any] | None = None
    by: str | None = None


class Question(Value):
    """One call that needs a person's consent, as data. `grounds` names what made it ask and is the key under which an
    answer is remembered; `remember` is False if it must be asked each time; `folder` is the attached folder, if any."""

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
    folder: str | None = None

    @cached_property
    def digest(self) -> str:
        """Digest of all that a person is shown, and of whom it is about. An answer counts for nothing else."""
        return _digest(
            [self.subject, arguments_digest(self.arguments), self.reason, self.grounds, self.route, self.changes]
        )

    @cached_property
    def message(self) -> str:
        """The text a person reads. No argument can imitate a line of it or hide another argument; only values under
        the name of a secret are left out."""
        return self._format(ARGUMENTS_SHOWN, ARGUMENT_CHARACTERS, CHANGES_CHARACTERS)

    @property
    def full_message(self) -> str:
        """The message for the database, with long arguments whole."""
        characters = max(ARGUMENT_CHARACTERS, STORED_CHARACTERS // max(1, len(self.arguments)))
        return self._format(STORED_CHARACTERS // ARGUMENT_CHARACTERS, characters, STORED_CHARACTERS)

    def _format(self, count: int, characters: int, changes: int) -> str:
        arguments = redact_arguments(self.arguments)
        lines = [f"Run {escape_text(self.name)}?", "", f"Why: {escape_text(self.reason)}"]
        lines += [f"Folder: {escape_text(self.folder)}"] if self.folder else []
        lines += ["", "Arguments:"]
        lines += [
            f"  {escape_text(str(key))[:80]}: {_format_value(value, characters)}"
            for key, value in islice(arguments.items(), count)
        ]
        if len(arguments) > count:
            lines.append(f"  … and {len(arguments) - count} more")
        if not arguments:
            lines[-1] = "Arguments: none"
        if self.changes:
            lines += ["", "What will change:", *_quote_lines(self.changes, changes)]
        return "\n".join(lines)

    @property
    def choices(self) -> Sequence[Decision]:
        return ("once", "chat", "deny") if self.remember else ("once", "deny")

    def to_dict(self) -> dict[str, Any]:
        """Return the question for programs, without secrets."""
        return {
            "tool": self.tool.id,
            "arguments": redact_arguments(self.arguments),
            "chat": self.chat,
            "reason": self.reason,
            "changes": self.changes,
            "choices": list(self.choices),
        }


# Asks a person and returns the answer.
Approver = Callable[[Question], Awaitable[Answer]]


class ConsentNeeded(InputRequired):
    """A person must agree first. A surface that can ask shows `question`; any other reports this error."""

    def __init__(self, question: Question, *, by_program: bool = False) -> None:
        way = "on this connection; use a client that supports MCP elicitation"
        if by_program:
            way = "by this call of a program; pass it `approver` or `confirmed=True`"
        super().__init__(
            f"{question.reason}. This call needs a person's consent, which cannot be asked for {way}, or let such "
            "calls wait for 'toolgate approval allow' with the setting 'approval: {without_elicitation: queue}'",
            reason=question.reason,
        )
        self.question = question


def build_question(
    call: Call,
    reason: str,
    grounds: str,
    *,
    route: Route = "ask",
    changes: str | None = None,
    remember: bool = True,
    folder: Path | None = None,
) -> Question:
    return Question(
        tool=call.target,
        name=call.public_name or call.name,
        arguments=call.arguments,
        subject=subject_digest(call.target, call),
        principal=call.caller.principal,
        chat=call.chat,
        reason=reason,
        grounds=grounds,
        route=route,
        changes=changes,
        remember=remember,
        folder=None if folder is None else str(folder),
    )


def subject_digest(tool: Tool, call: Call) -> str:
    """Return the digest of what an answer is about besides the arguments: tool, principal, chat, and the messages,
    which select the version of the chat's files."""
    return _digest([tool_digest(tool), call.caller.principal, call.chat, call.message, call.parent_message])


def tool_digest(tool: Tool) -> str:
    """Return the digest of a tool's whole definition. Consent to a tool does not count once its definition changes."""
    digest = tool.__dict__.get("_approval_digest")
    if digest is None:
        asks = tool.requires_confirmation if isinstance(tool.requires_confirmation, bool) else "by its own rule"
        texts = [tool.id, tool.kind, tool.owner, tool.title, tool.description, tool.category, tool.permission.value]
        shape = [tool.input_schema, tool.output_schema, tool.wire, tool.access.value, tool.home and str(tool.home)]
        # Cached on the tool, like its compiled schemas: a tool never changes.
        digest = tool.__dict__["_approval_digest"] = _digest([texts, shape, asks])
    return str(digest)


def arguments_digest(arguments: Mapping[str, Any]) -> str:
    """Return a digest that does not depend on the order of the arguments."""
    return _digest(arguments)


def redact_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without values under the name of a secret. The same value elsewhere stays: otherwise a
    caller could hide any argument from the person by repeating it under such a name."""
    document, secrets = redact(to_json(arguments))
    redacted: dict[str, Any] = json.loads(document) if secrets else dict(arguments)
    return redacted


def escape_text(text: str) -> str:
    """Return the text as one line that cannot control a terminal: control and format characters are escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return json.dumps(character)[1:-1] if hidden else character


def _format_value(value: Any, characters: int) -> str:
    text = value if isinstance(value, str) else to_json(value).decode()
    parts = _shorten(text, characters)
    quoted = [json.dumps(part, ensure_ascii=False) if isinstance(value, str) else part for part in parts]
    return escape_text(_omission(len(text), characters).join(quoted))


def _quote_lines(text: str, characters: int) -> list[str]:
    parts = _shorten(text, characters)
    first, *last = [[f"  | {escape_text(line)}" for line in part.split("\n")] for part in parts]
    return [*first, f" {_omission(len(text), characters)}", *last[0]] if last else first


def _shorten(text: str, characters: int) -> list[str]:
    """Return the text, or its beginning and end: whoever wants something overlooked would put it at the end."""
    if len(text) <= characters:
        return [text]
    return [text[: characters * 2 // 3], text[characters * 2 // 3 - characters :]]


def _omission(length: int, characters: int) -> str:
    return f" … {length - characters} characters are left out … "


def _digest(value: Any) -> str:
    try:
        document = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers above 64 bits
        document = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(document).hexdigest()


FIELD_LIMIT = 30

# Characters of an argument that can be edited; a longer one is shown shortened and stays as it is.
FIELD_CHARACTERS = 2000

# Characters of all default values together.
FORM_CHARACTERS = 32 * 1024

DECISION = "decision"
_ARGUMENT = "argument_"
APPROVE_ONCE = "approve once"
# Labels of the form. `sources/upstreams/labels.py` refuses questions of servers that offer the same.
_CHOICES: Mapping[str, Decision] = {
    APPROVE_ONCE: "once",
    "approve for this chat": "chat",
    "deny": "deny",
}
_LABELS = {decision: label for label, decision in _CHOICES.items()}


class _Field(NamedTuple):
    """An argument in the form: its default value, as JSON text if `is_json`, and its schema in the tool."""

    default: Any
    is_json: bool
    schema: Mapping[str, Any]


def build_form(question: Question) -> dict[str, Any]:
    """Return the `requestedSchema` of an elicitation: a flat object of primitives, as MCP demands."""
    labels = [_LABELS[choice] for choice in question.choices]
    decision = {"type": "string", "title": "Decision", "enum": labels}
    fields = _editable_fields(question.tool, question.arguments)
    properties = {f"{_ARGUMENT}{name}": _field_schema(name, field) for name, field in fields.items()}
    return {"type": "object", "properties": {DECISION: decision, **properties}, "required": [DECISION]}


def parse_answer(tool: Tool, arguments: Mapping[str, Any], response: Any) -> Answer:
    """Parse the response to the form for these arguments; `Invalid` if it does not answer that form."""
    action = response.get("action") if isinstance(response, Mapping) else None
    if action == "decline":
        return Answer("deny")
    if action == "cancel":
        return Answer("dismiss")
    content = response.get("content") if isinstance(response, Mapping) else None
    if action != "accept" or not isinstance(content, Mapping):
        raise _invalid_answer("it has no 'action' of accept, decline or cancel, or accepts without content")
    choice = content.get(DECISION)
    if not isinstance(choice, str) or choice not in _CHOICES:
        raise _invalid_answer(f"{DECISION!r} must be one of: {', '.join(_CHOICES)}")
    if _CHOICES[choice] == "deny":
        return Answer("deny")
    return Answer(_CHOICES[choice], _apply_edits(tool, arguments, content))


def _apply_edits(tool: Tool, arguments: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments with the person's edits, None if there are none."""
    fields = _editable_fields(tool, arguments)
    edits: dict[str, Any] = {}
    for key, value in content.items():
        if key == DECISION:
            continue
        name = key.removeprefix(_ARGUMENT)
        if key == name or name not in fields:
            raise _invalid_answer(f"{key[:80]!r} was not asked for")
        edited = _parse_field(name, arguments[name], fields[name].is_json, value)
        if edited != arguments[name] or type(edited) is not type(arguments[name]):
            edits[name] = edited
    return {**arguments, **edits} if edits else None


def _editable_fields(tool: Tool, arguments: Mapping[str, Any]) -> dict[str, _Field]:
    properties = tool.input_schema.get("properties")
    schemas = properties if isinstance(properties, Mapping) else {}
    fields: dict[str, _Field] = {}
    remaining = FORM_CHARACTERS
    redacted = redact_arguments(arguments)
    for name, value in arguments.items():
        if len(fields) >= FIELD_LIMIT or (isinstance(value, str) and len(value) > FIELD_CHARACTERS):
            continue
        if redacted[name] != value:  # MCP: a form must not ask for secrets
            continue
        # A one-line input would lose the line breaks of a text, so such a text is edited as JSON, too.
        is_json = not isinstance(value, str | bool | int | float) or (
            isinstance(value, str) and not value.isprintable()
        )
        default = json.dumps(value, ensure_ascii=False) if is_json else value
        length = len(default) if isinstance(default, str) else 20
        if length > min(FIELD_CHARACTERS, remaining):
            continue
        remaining -= length
        schema = schemas.get(name)
        fields[name] = _Field(default, is_json, schema if isinstance(schema, Mapping) else {})
    return fields


def _field_schema(name: str, field: _Field) -> dict[str, Any]:
    title = f"{name} (JSON)" if field.is_json else name
    schema: dict[str, Any] = {"type": _json_type(field.default), "title": title, "default": field.default}
    description = field.schema.get("description")
    if isinstance(description, str):
        schema["description"] = description[:300]
    values = field.schema.get("enum")
    if schema["type"] == "string" and not field.is_json and _are_choices(values, field.default):
        schema["enum"] = values
    return schema


def _are_choices(values: Any, default: Any) -> bool:
    if not isinstance(values, list) or len(values) > 100:
        return False
    return default in values and all(isinstance(value, str) for value in values)


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string"


def _parse_field(name: str, original: Any, is_json: bool, value: Any) -> Any:
    if is_json:
        return _parse_json(name, value)
    if isinstance(original, bool) or isinstance(value, bool):
        valid = isinstance(original, bool) and isinstance(value, bool)
    elif isinstance(original, int | float):
        valid = isinstance(value, int | float)
        if isinstance(original, int) and isinstance(value, float) and value.is_integer():
            value = int(value)  # JavaScript clients have one type of number
    else:
        valid = isinstance(value, str)
    if not valid:
        raise _invalid_answer(f"{name!r} must have the type of its default value")
    return float(value) if isinstance(original, float) else value


def _parse_json(name: str, value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        raise _invalid_answer(f"{name!r} must be JSON") from None


def _invalid_answer(why: str) -> Invalid:
    return Invalid(f"the response does not answer the question: {why}; call again", code="INVALID_ANSWER")
