"""The render plan: everything a view needs to show a call's outcome, as JSON."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.calls import Call, Outcome, to_json
from gateway.errors import GatewayError, Invalid
from gateway.render.interpolate import (
    Scope,
    artifact_path,
    frame_url,
    interpolate,
    origin,
    port_number,
    workspace_path,
    workspace_uri,
)
from gateway.render.renderers import LANGUAGE_LIMIT
from gateway.tools import Renderer, Tool
from gateway.value import Value

_CUTS_LIMIT = 8  # a section with more is left empty: the list of cuts would itself be long
_KEY_LIMIT = 60


class Cut(Value):
    """A value that was too large: its place in the plan, and its size with its key in bytes of JSON."""

    at: str
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {"at": self.at, "bytes": self.bytes}


def fit(section: Mapping[str, Any], limit: int, at: str) -> tuple[dict[str, Any], tuple[Cut, ...]]:
    """Return a copy of `section` of at most `limit` bytes of JSON, and the cuts that were made.

    The largest values are cut first: a string keeps its beginning, any other value becomes null. A section with too
    many large values is left empty. Raises `Invalid` for a value that is not JSON.
    """
    sizes = {key: len(to_json({key: value})) for key, value in section.items()}
    excess = sum(sizes.values()) - limit
    kept, cuts = dict(section), list[Cut]()
    for key in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if excess <= 0:
            break
        kept[key] = _shorten(section[key], sizes[key] - excess - len(to_json({key: None})))
        cuts.append(Cut(f"{at}.{key[:_KEY_LIMIT]}", sizes[key]))
        excess -= sizes[key] - len(to_json({key: kept[key]}))
        if len(cuts) > _CUTS_LIMIT:
            break
    if excess > 0:
        return {}, (Cut(at, len(to_json(section))),)
    # A copy through JSON does not change with the original. `json`, because orjson turns integers beyond 64 bits into
    # floats.
    return json.loads(to_json(kept)), tuple(cuts)


def _shorten(value: Any, room: int) -> str | None:
    """Return the longest beginning of a string whose JSON takes `room` bytes; None for any other value."""
    if not isinstance(value, str):
        return None
    beginning = value[: max(room, 0)]
    return beginning[: bisect_right(range(1, len(beginning) + 1), room, key=lambda end: len(to_json(beginning[:end])))]


VERSION = 1
# Together these leave 16 KiB of `calls.PLAN_LIMIT` for names and punctuation.
_CONFIG_LIMIT = 160 * 1024
_INPUT_LIMIT = 64 * 1024
_ERROR_LIMIT = 16 * 1024
_LABEL_LIMIT = 200


class RenderPlan(Value):
    """Everything that a view needs to show one call. A view shows the `error` if there is one: the tool's, or the
    reason why the tool's result cannot be shown."""

    renderer: str
    config: Mapping[str, Any]
    tool: Mapping[str, Any]
    call: Mapping[str, Any]
    input: Mapping[str, Any]
    status: str
    error: Mapping[str, Any] | None = None
    truncated: tuple[Cut, ...] = ()
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        plan: dict[str, Any] = {
            "version": self.version,
            "renderer": self.renderer,
            "config": self.config,
            "tool": self.tool,
            "call": self.call,
            "input": self.input,
            "status": self.status,
        }
        if self.error is not None:
            plan["error"] = self.error
        if self.truncated:
            plan["truncated"] = [cut.to_dict() for cut in self.truncated]
        return plan


def make_plan(
    renderer: Renderer, call: Call, outcome: Outcome, *, workspace: str | None = None, toolset: str | None = None
) -> RenderPlan:
    """Return the plan of a call that has ended; `workspace` and `toolset` are the directories as the tool saw them.
    Data that cannot be shown leads to a plan with an error, never to an exception."""
    scope = Scope(call.arguments, outcome.value if outcome.ok else None, call.chat, workspace, toolset)
    config, config_cuts, problem = _fit_config(renderer, scope, outcome)
    arguments, input_cuts = _fit_json(call.arguments, _INPUT_LIMIT, "input")
    error, error_cuts = _fit_json(_error(problem), _ERROR_LIMIT, "error") if problem else (None, ())
    return RenderPlan(
        renderer=renderer.kind,
        config=config,
        tool=_tool(call.target, call.public_name or call.name),
        call=_call(call, outcome),
        input=arguments,
        status="success" if outcome.ok else "error",
        error=error,
        truncated=(*config_cuts, *input_cuts, *error_cuts),
    )


def _fit_config(
    renderer: Renderer, scope: Scope, outcome: Outcome
) -> tuple[dict[str, Any], tuple[Cut, ...], GatewayError | None]:
    """Return the config, its cuts, and the error that a view shows in its place. The call's own error comes first, with
    as much of the config as the arguments alone could fill."""
    try:
        config, cuts = fit(_config(renderer, scope, outcome), _CONFIG_LIMIT, "config")
    except GatewayError as error:
        message = f"renderer {renderer.kind!r} cannot show this outcome: {error.message}"
        return {}, (), outcome.error or Invalid(message, code=error.code, renderer=renderer.kind)
    return config, cuts, outcome.error


def _config(renderer: Renderer, scope: Scope, outcome: Outcome) -> dict[str, Any]:
    """Return the config for a view; raise `Invalid` if the call's data cannot be shown."""
    if renderer.kind == "html":
        return _html(renderer, scope)
    values = interpolate(renderer.config, scope)
    if renderer.kind == "frame":
        return _frame(renderer, values)
    config: dict[str, Any]
    if "file" in values:
        config = _file(values["file"], scope, outcome.post_manifest or outcome.pre_manifest)
    else:
        config = {"content": _text(values["content"])}
    config["editable"] = values.get("editable") is True
    if renderer.kind == "code":
        config["language"] = _language(values)
    return config


def _file(value: Any, scope: Scope, manifest: str | None) -> dict[str, Any]:
    path = workspace_path(value, scope.workspace)
    return {"file": path, "uri": workspace_uri(scope.chat, path), "manifest": manifest}


def _text(value: Any) -> str | None:
    """Return a string unchanged, null as null, and any other value as indented JSON."""
    if value is None or isinstance(value, str):
        return value
    document = to_json(value)
    if len(document) > _CONFIG_LIMIT:  # it is cut anyway, so it is not indented
        return document.decode()
    return json.dumps(json.loads(document), indent=2, ensure_ascii=False)


def _language(values: Mapping[str, Any]) -> str:
    declared = values.get("language", "auto")
    if isinstance(declared, str) and 0 < len(declared) <= LANGUAGE_LIMIT and declared != "auto":
        return declared
    return "auto" if isinstance(values.get("content", ""), str | None) else "json"


def _html(renderer: Renderer, scope: Scope) -> dict[str, Any]:
    return {
        "artifact": artifact_path(renderer.config["artifact"]),
        "data": interpolate(renderer.config.get("data", "$return"), scope),
    }


def _frame(renderer: Renderer, values: Mapping[str, Any]) -> dict[str, Any]:
    if "port" in values:
        port = port_number(values["port"])
        return {"port": port, "url": f"http://localhost:{port}", "origin": f"http://localhost:{port}"}
    url = frame_url(values["url"], renderer.config["url"])
    return {"url": url, "origin": origin(url)}


def _fit_json(section: Mapping[str, Any], limit: int, at: str) -> tuple[dict[str, Any], tuple[Cut, ...]]:
    """Call `fit` without values that are not JSON, so that a plan still shows the rest."""
    kept = {key: value for key, value in section.items() if _is_json({key: value})}
    fitted, cuts = fit(kept, limit, at)
    return fitted, cuts if len(kept) == len(section) else (*cuts, Cut(at, 0))


def _is_json(value: Any) -> bool:
    try:
        to_json(value)
    except Invalid:
        return False
    return True


def _error(problem: GatewayError) -> dict[str, Any]:
    return problem.to_dict() | {"message": _clean(problem.message)}


def _tool(tool: Tool, name: str) -> dict[str, Any]:
    return {"id": _label(tool.id), "name": _label(name), "title": _label(tool.title or tool.id)}


def _call(call: Call, outcome: Outcome) -> dict[str, Any]:
    return {
        "id": call.id,
        "chat": _label(call.chat),
        "message": call.message and _label(call.message),
        "startedAt": datetime.fromtimestamp(call.started_at, UTC).isoformat(timespec="milliseconds"),
        "preManifest": outcome.pre_manifest,
        "postManifest": outcome.post_manifest,
    }


def _label(text: str) -> str:
    return _clean(text if len(text) <= _LABEL_LIMIT else f"{text[: _LABEL_LIMIT - 1]}…")


def _clean(text: str) -> str:
    """Return `text` without lone surrogates, which JSON cannot represent."""
    return text.encode("utf-8", "replace").decode()
