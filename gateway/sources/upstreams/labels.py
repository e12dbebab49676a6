"""The name of the server on each of its questions and log messages, in places that the server cannot write."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from gateway.errors import ToolFailed, UpstreamFault
from gateway.protocol.jsonrpc import RpcError
from gateway.secrets import is_secret
from gateway.sources.upstreams.poisoning.characters import skeleton, spell_out
from gateway.sources.upstreams.poisoning.finding import excerpt
from gateway.value import Value

SERVER_META = "dev.toolgate/server"
STATE_PREFIX = "toolgate-"  # every `requestState` of the gateway itself begins so
# Stands before the `requestState` of a trusted server, which may be another Toolgate.
RELAYED = "relayed-"

SECRET_FLAG = "Toolgate: this looks like a secret. MCP servers must not ask for secrets in a form."  # noqa: S105
URL_ELICITATION_REQUIRED = -32042  # 2025-11-25: an error whose data holds elicitations

# The gateway's name, also with its letters spaced out or written as digits.
_TOOLGATE = r"[\W_]*".join({"o": "[o0]", "l": "[li1|]"}.get(letter, letter) for letter in "toolgate")
_OUR_BEGINNING = re.compile(rf"[\W_]*(?:{_TOOLGATE}(?![a-z0-9])|run \S+\?[\W_]*(?:why|arguments)\b)")
_OUR_HEADING = re.compile(
    rf"[\W_]*(?:{_TOOLGATE}[\W_]*(?:asks\b|[:|>\u2013\u2014]|$)|the mcp server \W.{{1,100}}?\W asks\b)"
)
_ELICITATION = "elicitation/create"
_SHOWN = ("title", "description", "enumNames")
# As in `approval/question.py`.
_OUR_CHOICES = ("approve once", "approve for this chat")

# The only spelling of a host on which all URL parsers agree: no user name, no backslash, no Unicode.
_URL = re.compile(r"https?://((?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?)(?:[/?#][^\x00-\x20\x7f]*)?", re.I | re.A)

_IDENTIFIER_BREAK = re.compile(r"(?<=[a-z])(?=[A-Z0-9])|[_.-]+")
_SECRET = re.compile(
    r"\b(?:pass ?(?:word|phrase|code)s?|passwd|pwd|passwort|kennwort|contrasena|mot de passe|senha|pin|t?otp"
    r"|one time (?:code|pass\w*)|(?:2fa|mfa|verification|security|authenticat(?:or|ion)|recovery|backup) codes?"
    r"|secret|credentials?|(?:api|access|private|secret|signing|encryption|ssh) ?keys?|token|bearer|jwt"
    r"|(?:auth|access|api|refresh|session) ?tokens|cvv|cvc|card ?(?:number|no)|(?:credit|debit) ?card"
    r"|ssn|social security|seed ?phrase|recovery phrase|mnemonic)\b"
)

log = logging.getLogger(__name__)


def label_question(server: str, method: str, params: Mapping[str, Any], trusted: bool = False) -> dict[str, Any]:
    """The params of a server's question as its client gets them. Raise `ToolFailed` for an elicitation whose URL names
    no certain host, or that looks like one of the gateway's own, unless the server is `trusted` to be another
    Toolgate."""
    meta = params.get("_meta")
    others = {key: meta[key] for key in meta if not key.startswith("dev.toolgate/")} if isinstance(meta, dict) else {}
    labelled = {**params, "_meta": {**others, SERVER_META: server}}
    if method != _ELICITATION:
        return labelled
    try:
        return {**labelled, **_label_elicitation(_Asker(server, trusted), params)}
    except RecursionError:
        raise refuse_question(server, "its schema is nested too deeply") from None


def label_fault(server: str, fault: RpcError, trusted: bool = False) -> UpstreamFault:
    """A server's error as its client gets it, elicitations in it labelled."""
    data = fault.data
    if fault.code == URL_ELICITATION_REQUIRED and isinstance(data, dict) and isinstance(data.get("elicitations"), list):
        questions = [{"mode": "url", **each} for each in data["elicitations"] if isinstance(each, dict)]
        data = {**data, "elicitations": [label_question(server, _ELICITATION, each, trusted) for each in questions]}
    return UpstreamFault(fault.message, fault=fault.code, data=data)


def wrap_state(result: Mapping[str, Any], trusted: bool) -> dict[str, Any]:
    """The result with a state that nobody takes for one of this gateway's."""
    state = result.get("requestState")
    return {**result, "requestState": f"{RELAYED}{state}"} if trusted and isinstance(state, str) else dict(result)


def unwrap_state(answers: Mapping[str, Any], trusted: bool) -> Mapping[str, Any]:
    """The client's answers with the state as the server wrote it."""
    state = answers.get("requestState")
    return {**answers, "requestState": str(state).removeprefix(RELAYED)} if trusted and state else answers


def label_logger(server: str, logger: Any) -> str:
    """The name of a server's logger, which begins with the name of the server."""
    own = " ".join(spell_out(logger).split()) if isinstance(logger, str) else ""
    return own if own.partition("/")[0] == server else f"{server}/{own}" if own else server


def refuse_question(server: str, reason: str, text: str = "") -> ToolFailed:
    """The error for a question that nobody is asked; the operator finds it in the log."""
    log.warning("upstream %s: a question was refused: %s: %s", server, reason, excerpt(text, 0, 200))
    return ToolFailed(f"a question of the MCP server {server!r} was refused: {reason}", code="QUESTION_REFUSED")


class _Asker(Value):
    """A server that asks, and whether it may ask as a Toolgate does."""

    name: str
    trusted: bool

    def check(self, imitates: bool, what: str, text: str = "") -> None:
        """Refuse a question that passes for one of this gateway's."""
        if imitates and not self.trusted:
            raise refuse_question(self.name, f"{what} looks like one of Toolgate's own", text)


def _label_elicitation(asker: _Asker, params: Mapping[str, Any]) -> dict[str, Any]:
    message, asks = params.get("message"), "asks"
    text = message if isinstance(message, str) else ""
    asker.check(_OUR_BEGINNING.match(skeleton(text)) is not None, "it", text)
    form, secrets = _label_form(asker, params.get("requestedSchema"))
    if secrets or (_names_secret(text) and any(map(_takes_text, form.get("properties", {}).values()))):
        asks = "asks for what looks like a secret"
    if params.get("mode") == "url":
        url = str(params.get("url"))
        if (address := _URL.fullmatch(url)) is None:
            raise refuse_question(asker.name, "its URL names no certain http or https host", url)
        asks = f"asks you to open a page at {address[1].lower()}"
    # Each line of the server is quoted: none passes for the gateway's, wherever a client cuts or scrolls.
    quoted = [f"> {line}" for line in _check_text(asker, text).split("\n")]
    shown = {"message": "\n".join([f"The MCP server {asker.name!r} {asks}:", "", *quoted])}
    return {**shown, "requestedSchema": form} if "requestedSchema" in params else shown


def _label_form(asker: _Asker, schema: Any) -> tuple[dict[str, Any], bool]:
    """The schema with a flag on each field that asks for a secret, and whether there is one."""
    form = _check_schema(asker, schema if isinstance(schema, dict) else {})
    fields = form.get("properties", {})
    if not isinstance(fields, dict):
        raise refuse_question(asker.name, "its form has no fields")
    asker.check(_is_approval(fields), "its form")
    if _check_text(asker, names := "\n".join(fields)) != names:
        raise refuse_question(asker.name, "a name in its form has hidden characters", names)
    # Secrets are looked for in the words as they came: a character that is spelled out would part them.
    secrets = [name for name in fields if _is_secret_field(name, schema["properties"][name])]
    words = {name: f"{SECRET_FLAG} {fields[name].get('description', '')}".rstrip() for name in secrets}
    flagged = {name: {**fields[name], "description": words[name]} for name in secrets}
    return {**form, "properties": {**fields, **flagged}} if flagged else form, bool(flagged)


def _check_text(asker: _Asker, text: str) -> str:
    """The text with nothing hidden in it; refused when a line of it looks like a heading of the gateway."""
    asker.check(any(_OUR_HEADING.match(skeleton(line)) for line in text.splitlines()), "it", text)
    return spell_out(text.replace("\r\n", "\n").replace("\r", "\n"))


def _check_schema(asker: _Asker, schema: Any, shown: bool = False) -> Any:
    """The schema with nothing hidden in what is shown of it. Names and values stay: answers repeat them."""
    if isinstance(schema, dict):
        return {key: _check_schema(asker, each, key in _SHOWN) for key, each in schema.items()}
    if isinstance(schema, list):
        return [_check_schema(asker, each, shown) for each in schema]
    return _check_text(asker, schema) if shown and isinstance(schema, str) else schema


def _is_approval(fields: Mapping[str, Any]) -> bool:
    """Return whether a form has the fields of the gateway's own."""
    decision = skeleton(str(fields.get("decision", "")))
    choices = any(choice in decision for choice in _OUR_CHOICES)
    return choices or ("decision" in fields and any(name.startswith("argument_") for name in fields))


def _is_secret_field(name: str, field: Any) -> bool:
    if not _takes_text(field):
        return False
    shown = [name, *(str(field.get(key, "")) for key in ("title", "description", "format"))]
    return field.get("writeOnly") is True or is_secret(name) or any(map(_names_secret, shown))


def _takes_text(field: Any) -> bool:
    """Return whether a person types into the field, instead of choosing."""
    if not isinstance(field, dict) or field.get("type") in ("boolean", "array"):
        return False
    return not any(isinstance(field.get(key), list) for key in ("enum", "oneOf", "anyOf"))


def _names_secret(text: str) -> bool:
    return _SECRET.search(skeleton(_IDENTIFIER_BREAK.sub(" ", text))) is not None
