"""A question as a form of MCP elicitation, with the arguments to edit, and the parser of its response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.approval.question import Answer, Decision, Question, redact_arguments
from gateway.errors import Invalid
from gateway.tools import Tool

FIELD_LIMIT = 30

# Characters of an argument that can be edited; a longer one is shown shortened and stays as it is.
FIELD_CHARACTERS = 2000

# Characters of all default values together.
FORM_CHARACTERS = 32 * 1024

DECISION = "decision"
_ARGUMENT = "argument_"
_CHOICES: Mapping[str, Decision] = {
    "approve once": "once",
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
