"""One approval on a page of its own: the target of a link, also on a phone. It needs no scripts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any

from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.admin import approvals
from gateway.approval.question import escape_text
from gateway.errors import Forbidden, GatewayError, Invalid
from gateway.identity import Principal
from gateway.serve.http.authentication import Origin
from gateway.serve.http.pages import Choice, choices, facts, page, paragraph, protect

if TYPE_CHECKING:
    from gateway.db.approvals import Scope
    from gateway.gateway import Gateway

APPROVE_PATH = "/approve/{approval_id}"
_ENDINGS = {
    "allowed": "Approved. You can close this page.",
    "used": "Approved. You can close this page.",
    "denied": "Denied. You can close this page.",
    "dismissed": "The question was closed without an answer.",
    "cancelled": "The call was cancelled before anybody answered.",
    "expired": "Nobody answered in time. The call did not run.",
}
_SCOPES = [
    Choice("once", "Once", "This call alone."),
    Choice("chat", "This chat", "Such calls of this tool in this chat, too."),
    Choice("always", "Always, this definition", "Such calls until the tool's definition changes."),
]
# A click that was meant for what was here before must not decide: the buttons take none in the first half second.
_STYLE = """
main{padding-bottom:150px}
pre{margin:0 0 12px;padding:10px 12px;background:var(--sunken);border:1px solid var(--line);border-radius:6px;
overflow-x:auto;font:12px/20px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;
white-space:pre-wrap}
pre .add{display:block;background:#e6f6ec}pre .del{display:block;background:#fdecea}
@media(prefers-color-scheme:dark){pre .add{background:#0f2a1d}pre .del{background:#331816}}
h2{font-size:14px;margin:16px 0 6px}
summary{min-height:44px;display:flex;align-items:center;justify-content:center;cursor:pointer;font-weight:500;
border:1px solid var(--line-strong);border-radius:6px}
details[open]>summary{margin-bottom:8px}
textarea{width:100%;min-height:160px;padding:8px;font:16px/21px ui-monospace,Menlo,Consolas,monospace;color:var(--ink);
background:var(--surface);border:1px solid var(--control);border-radius:6px}
.decide{position:fixed;left:0;right:0;bottom:0;max-height:70vh;overflow-y:auto;background:var(--surface);
border-top:1px solid var(--line-strong)}
.decide>form{max-width:440px;margin:0 auto;padding:12px 24px 16px;display:grid;grid-template-columns:1fr 1fr;gap:10px}
.decide .primary,.decide details[open]{grid-column:1/-1}
.decide form>button{margin:0}
.deny{color:var(--bad)}
.decide button{animation:arm .5s step-end}
@keyframes arm{from{pointer-events:none}to{pointer-events:auto}}
"""


class ApproveRoutes:
    """The page of an approval and its form. Everybody sees their own; administrators see all, and decide."""

    def __init__(self, gateway: Gateway, origin: Origin) -> None:
        self._gateway = gateway
        self._origin = origin
        self.routes = [
            Route(APPROVE_PATH, self._show, methods=["GET"]),
            Route(APPROVE_PATH, self._decide, methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        try:
            return await self._make_page(request)
        except GatewayError as refusal:
            return page("This approval cannot be shown", [paragraph(refusal.message, "problem")], refusal.status)

    async def _decide(self, request: Request) -> Response:
        approval_id = request.path_params["approval_id"]
        try:
            if request.headers.get("origin", "").lower() != self._origin.of(request):
                raise Forbidden("this form was not sent by a page of this gateway", code="FORM_FORGED")
            if not request.state.principal.admin:
                raise Forbidden("deciding is for administrators; use a key of a role with 'admin: true'")
            fields = await request.form(max_files=0, max_fields=10)
            await self._apply(approval_id, fields, request.state.principal)
        except GatewayError as refusal:
            try:
                return await self._make_page(request, refusal)
            except GatewayError:
                return page("This did not work", [paragraph(refusal.message, "problem")], refusal.status)
        response = RedirectResponse(request.url.path, 303)
        protect(response)
        return response

    async def _apply(self, approval_id: str, fields: FormData, principal: Principal) -> None:
        gateway = self._gateway
        if fields.get("action") == "deny":
            await approvals.deny(
                gateway, approval_id, principal.id, str(fields.get("reason", ""))[:1000].strip() or None
            )
            return
        record = (await approvals.show_approval(gateway, approval_id)).to_dict()
        changes = _find_changes(record["args"] or {}, str(fields.get("arguments", "")))
        scope: Scope = "once"
        if fields.get("action") == "more":
            scope = {"chat": "chat", "always": "always"}.get(str(fields.get("scope")), "once")  # type: ignore[assignment]
        await approvals.allow(gateway, approval_id, principal.id, scope, changes or None)

    async def _make_page(self, request: Request, refusal: GatewayError | None = None) -> Response:
        principal = request.state.principal
        own = None if principal.admin else principal.id
        found = await approvals.show_approval(self._gateway, request.path_params["approval_id"], own)
        record = approvals.describe_approval(self._gateway, found)
        place = f"the folder {escape_text(record['folder'])}" if record["folder"] else f"chat {record['chat_id']}"
        waits = record["status"] == "waiting"
        details = facts(
            [("Bound to", f"these arguments, sha256 {record['question'][:12]}"), ("Approval", record["id"])]
        )
        parts = [
            paragraph(refusal.message, "problem") if refusal is not None else "",
            paragraph(_describe_state(record)),
            paragraph(f"{record['tool_id']} was called by {_name_caller(record)} in {place}."),
            paragraph(f"Asks because: {escape_text(record['reason'])}", "note"),
            f"<h2>What would change</h2>{_show_changes(record['changes'])}" if record["changes"] else "",
            f"<h2>Exact arguments</h2><pre>{escape(_show_json(record['args']))}</pre>",
            f"<details><summary>Details</summary>{details}</details>",
            _decision_form(request.url.path, record) if waits and principal.admin and record["via"] == "queue" else "",
            _explain(record, principal) if waits else "",
        ]
        status = 200 if refusal is None else refusal.status
        return page(f"Run {record['tool_id']}?" if waits else record["tool_id"], parts, status, extra_style=_STYLE)


def _name_caller(record: Mapping[str, Any]) -> str:
    """Return the principal; `local` is whoever reaches a gateway without keys."""
    return "a person on this computer" if record["principal"] == "local" else str(record["principal"])


def _describe_state(record: Mapping[str, Any]) -> str:
    if record["status"] == "expired" and record["scope"] is not None:
        return "Approved, but the call was not made again in time. It did not run."
    if record["status"] != "waiting":
        return _ENDINGS[record["status"]]
    seconds = max(0, round(datetime.fromisoformat(record["expires_at"]).timestamp() - time.time()))
    left = f"{seconds // 60} min" if seconds >= 60 else f"{seconds} s"
    return f"Waiting for you. Expires in {left}."


def _explain(record: Mapping[str, Any], principal: Principal) -> str:
    if record["via"] != "queue":
        return paragraph("It was asked in the client that made the call, and can only be answered there.")
    return "" if principal.admin else paragraph("You may look at it; an administrator decides.")


def _show_changes(changes: str) -> str:
    lines = map(_show_line, changes.removesuffix("\n").split("\n"))
    return f"<pre>{''.join(_mark_lines(lines))}</pre>"


def _show_line(line: str) -> str:
    """Return a line with its hidden characters written out: they could make it look like another, or like several."""
    return "\t".join(map(escape_text, line.split("\t")))


def _mark_lines(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        kind = None if line.startswith(("+++ ", "--- ")) else {"+": "add", "-": "del"}.get(line[:1])
        yield f'<span class="{kind}">{escape(line)}</span>' if kind else f"{escape(line)}\n"


def _show_json(value: object) -> str:
    return "\n".join(map(escape_text, json.dumps(value, indent=2, ensure_ascii=False).split("\n")))


def _find_changes(args: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return the arguments that the person edited; refused if the text is no object, or lacks one."""
    if not text.strip():
        return {}
    try:
        edited = json.loads(text)
    except ValueError as error:
        raise Invalid(f"the edited arguments are not JSON: {error}", code="INVALID_JSON") from None
    if not isinstance(edited, dict) or args.keys() - edited.keys():
        raise Invalid("an argument cannot be left out; change its value instead", code="INVALID_JSON")
    return {name: value for name, value in edited.items() if name not in args or args[name] != value}


def _decision_form(path: str, record: Mapping[str, Any]) -> str:
    scopes = _SCOPES if record["remember"] else _SCOPES[:1]
    text = json.dumps(record["args"], indent=2, ensure_ascii=False)
    return (
        f'<div class="decide"><form method="post" action="{escape(path)}">'
        '<button name="action" value="approve" class="primary" data-testid="approve.once">Approve once</button>'
        '<details><summary class="deny" data-testid="approve.deny">Deny…</summary>'
        '<label for="reason">Reason, for the model</label>'
        '<textarea id="reason" name="reason" maxlength="1000" data-testid="approve.reason"></textarea>'
        '<button name="action" value="deny" class="deny" data-testid="approve.deny-now">Deny</button></details>'
        '<details><summary data-testid="approve.more">More choices</summary>'
        f"{choices('scope', 'Approve for', scopes, 'once')}"
        '<label for="arguments">Edited arguments, once only (JSON)</label>'
        f'<textarea id="arguments" name="arguments" spellcheck="false" data-testid="approve.arguments">{escape(text)}'
        '</textarea><button name="action" value="more" data-testid="approve.with">Approve with these choices</button>'
        "</details></form></div>"
    )
