"""A question as an MCP form: flat, of primitives only, its arguments prefilled; and the answer read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.errors import Invalid
from gateway.extensions.approval.question import Answer, Decision, Question, without_secrets
from gateway.tools import Tool

FIELDS = 30
# Characters of an argument that may be edited in a form; a longer one is shown cut, and stays as it is.
TEXT = 2000

# Characters of all prefilled values together.
FORM = 32 * 1024

DECISION = "decision"
_ARGUMENT = "argument_"
_CHOICES: Mapping[str, Decision] = {
    "approve once": "once",
    "approve for this chat": "chat",
    "deny": "deny",
}
_LABELS = {decision: label for label, decision in _CHOICES.items()}


def form_of(question: Question) -> dict[str, Any]:
    """The `requestedSchema` of an elicitation: only keywords every client must know."""
    labels = [_LABELS[choice] for choice in question.choices]
    decision = {"type": "string", "title": "Decision", "enum": labels}
    fields = {f"{_ARGUMENT}{name}": _field(*each) for name, each in _editable(question.tool, question.arguments)}
    return {"type": "object", "properties": {DECISION: decision, **fields}, "required": [DECISION]}


def read_answer(tool: Tool, arguments: Mapping[str, Any], said: Any) -> Answer:
    """The answer to the form of that tool and arguments; `Invalid` for what is none."""
    action = said.get("action") if isinstance(said, Mapping) else None
    if action == "decline":
        return Answer("deny")
    if action == "cancel":
        return Answer("dismiss")
    content = said.get("content") if isinstance(said, Mapping) else None
    if action != "accept" or not isinstance(content, Mapping):
        raise _no_answer("it has no 'action' of accept, decline or cancel, or accepts without content")
    chosen = content.get(DECISION)
    if not isinstance(chosen, str) or chosen not in _CHOICES:
        raise _no_answer(f"{DECISION!r} must be one of: {', '.join(_CHOICES)}")
    if _CHOICES[chosen] == "deny":
        return Answer("deny")
    return Answer(_CHOICES[chosen], _edited(tool, arguments, content))


def _edited(tool: Tool, arguments: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments as changed, None when they were not."""
    offered = dict(_editable(tool, arguments))
    changed: dict[str, Any] = {}
    for key, value in content.items():
        if key == DECISION:
            continue
        name = key.removeprefix(_ARGUMENT)
        if key == name or name not in offered:
            raise _no_answer(f"{key[:80]!r} was not asked for")
        given = _read(name, arguments[name], offered[name][2], value)
        if given != arguments[name] or type(given) is not type(arguments[name]):
            changed[name] = given
    return {**arguments, **changed} if changed else None


def _editable(tool: Tool, arguments: Mapping[str, Any]) -> list[tuple[str, tuple[str, Any, bool, Mapping[str, Any]]]]:
    """The arguments a form offers: name, and its title, prefilled value, whether that is JSON text, and schema."""
    properties = tool.input_schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    found: list[tuple[str, tuple[str, Any, bool, Mapping[str, Any]]]] = []
    room = FORM
    told = without_secrets(arguments)
    for name, value in arguments.items():
        if len(found) >= FIELDS or (isinstance(value, str) and len(value) > TEXT):
            continue
        if told[name] != value:  # a form must not ask for secrets
            continue
        # A field of one line would lose the others of a text: such a text is offered as JSON, too.
        as_json = not isinstance(value, str | bool | int | float) or (
            isinstance(value, str) and not value.isprintable()
        )
        shown = json.dumps(value, ensure_ascii=False) if as_json else value
        weight = len(shown) if isinstance(shown, str) else 20
        if weight > min(TEXT, room):
            continue
        room -= weight
        schema = known.get(name)
        found.append((name, (name, shown, as_json, schema if isinstance(schema, Mapping) else {})))
    return found


def _field(name: str, shown: Any, as_json: bool, schema: Mapping[str, Any]) -> dict[str, Any]:
    field: dict[str, Any] = {"type": _type(shown), "title": f"{name} (JSON)" if as_json else name, "default": shown}
    description = schema.get("description")
    if isinstance(description, str):
        field["description"] = description[:300]
    values = schema.get("enum")
    if field["type"] == "string" and not as_json and isinstance(values, list) and _are_choices(values, shown):
        field["enum"] = values
    return field


def _are_choices(values: list[Any], shown: Any) -> bool:
    return len(values) <= 100 and all(isinstance(value, str) for value in values) and shown in values


def _type(shown: Any) -> str:
    if isinstance(shown, bool):
        return "boolean"
    if isinstance(shown, int):
        return "integer"
    return "number" if isinstance(shown, float) else "string"


def _read(name: str, original: Any, as_json: bool, value: Any) -> Any:
    if as_json:
        return _parsed(name, value)
    if isinstance(original, bool) or isinstance(value, bool):
        fits = isinstance(original, bool) and isinstance(value, bool)
    elif isinstance(original, int | float):
        fits = isinstance(value, int | float)
        if isinstance(original, int) and isinstance(value, float) and value.is_integer():
            value = int(value)  # some clients know one kind of number only
    else:
        fits = isinstance(value, str)
    if not fits:
        raise _no_answer(f"{name!r} must be of the type it was offered with")
    return float(value) if isinstance(original, float) else value


def _parsed(name: str, value: Any) -> Any:
    try:
        return json.loads(value)
    except (TypeError, ValueError, RecursionError):
        raise _no_answer(f"{name!r} must be JSON") from None


def _no_answer(why: str) -> Invalid:
    return Invalid(f"this is no answer to the question that was asked: {why}; call again", code="INVALID_ANSWER")
