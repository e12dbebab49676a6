"""One request that may ask the client, written once for both eras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

LEVELS: list[types.LoggingLevel] = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

# The capability a client must have declared before it is asked with this method.
NEEDS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}

ANSWERS: dict[str, type[types.Result]] = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}

Context = ServerRequestContext[Any, Any]
Answers = dict[str, dict[str, Any]]


class ToolFailed(Exception):
    """The tool's own refusal, which the model reads."""


class InputNeeded(Exception):
    """The call cannot go on before the client has answered; it will call again."""

    def __init__(self, result: types.InputRequiredResult) -> None:
        super().__init__("input required")
        self.result = result


class Call:
    """In the handshake era the client is asked mid-call; in the 2026-07-28 era the call ends with
    its questions, and is made again with the answers."""

    def __init__(self, ctx: Context, params: types.InputResponseRequestParams, arguments: Mapping[str, Any]) -> None:
        self.ctx = ctx
        self.arguments = arguments
        self._state = params.request_state  # as it was sealed: the boundary has opened and checked it
        given = {name: _plain(answer) for name, answer in (params.input_responses or {}).items()}
        self._answers: Answers = {**json.loads(params.request_state or "{}"), **given}

    def offers(self, capability: str) -> bool:
        return getattr(self.ctx.session.client_capabilities, capability, None) is not None

    def require(self, *capabilities: str) -> None:
        missing = [capability for capability in capabilities if not self.offers(capability)]
        if not missing:
            return
        refusal = f"the client did not declare: {', '.join(missing)}"
        if not is_modern(self.ctx):
            raise ToolFailed(refusal)
        needed: dict[str, Any] = {"requiredCapabilities": {capability: {} for capability in missing}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, refusal, needed)

    async def ask(self, questions: Mapping[str, types.InputRequest], *, remember: bool = False) -> Answers:
        """The client's answers, by question. With `remember`, what was answered so far travels in the
        request state, and an answer counts only together with it."""
        self.require(*(NEEDS[question.method] for question in questions.values()))
        if not is_modern(self.ctx):
            return {name: await self._send(question) for name, question in questions.items()}
        if questions.keys() <= self._answers.keys() and not (remember and self._state is None):
            return {name: self._answers[name] for name in questions}
        state = json.dumps(self._answers) if remember else None
        raise InputNeeded(types.InputRequiredResult(input_requests=dict(questions), request_state=state))

    async def _send(self, question: types.InputRequest) -> dict[str, Any]:
        # Without the related id the question goes to a stream the client may not have open.
        related = ServerMessageMetadata(related_request_id=self.ctx.request_id)
        return _plain(await self.ctx.session.send_request(question, ANSWERS[question.method], metadata=related))

    async def log(self, text: str) -> None:
        """Say it to the client, if its level lets it through; in the 2026-07-28 era the SDK sees to that."""
        if LEVELS.index("info") >= LEVELS.index(connection(self.ctx).state.get("level", "debug")):
            await self.ctx.session.send_log_message("info", text, related_request_id=self.ctx.request_id)


def form(message: str, fields: dict[str, Any], required: list[str] | None = None) -> types.ElicitRequest:
    schema = {"type": "object", "properties": fields, "required": list(fields) if required is None else required}
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def sample(prompt: str, max_tokens: int = 100) -> types.CreateMessageRequest:
    messages = [types.SamplingMessage(role="user", content=types.TextContent(text=prompt))]
    params = types.CreateMessageRequestParams(messages=messages, max_tokens=max_tokens)
    return types.CreateMessageRequest(params=params)


def is_modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def connection(ctx: Context) -> Any:
    return ctx.session._connection  # the SDK has no public way to what lives as long as a connection


def _plain(value: types.Result) -> dict[str, Any]:
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)
