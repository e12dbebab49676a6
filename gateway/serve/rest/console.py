"""REST of the console: who is signed in, sessions, roles, profiles, clients and events."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway import __version__
from gateway.admin import approvals, calls, keys
from gateway.admin.clients import CLIENTS, make_install_link, make_snippets, serve_command
from gateway.admin.token_costs import list_costs
from gateway.calls import LOCAL, to_json
from gateway.config import ProfileSettings
from gateway.protocol import HTTP_PATH
from gateway.serve.http.authentication import Origin
from gateway.serve.mcp.event_streams import PING, PING_SECONDS, encode_event
from gateway.serve.rest.endpoint import AnswerModel, Endpoint, ListPage, PageQuery, RestRequest, StreamSlots, slice_page

_MEDIA = "text/event-stream"
_HEADERS = {"cache-control": "no-store, no-transform", "x-accel-buffering": "no"}
# How often the store is asked for changes, in seconds.
_POLL_SECONDS = 1.0
# Calls whose state is watched, and approvals that are counted.
_RECENT = 10
_COUNTED = 100


class PrincipalInfo(AnswerModel):
    """Somebody. `admin` lets them change the gateway, `permission` is the highest level of tools they may call."""

    id: str
    role: str | None
    profile: str | None
    permission: Literal["read-only", "read-write", "execute"]
    admin: bool


class MeAnswer(AnswerModel):
    """`signed_in` is true for a browser's session, which can be ended."""

    principal: PrincipalInfo
    version: str
    signed_in: bool


class SessionInfo(AnswerModel):
    """Somebody's session in a browser; `current` is the one that asks."""

    id: str
    principal: str
    role: str
    browser: str
    created_at: str
    expires_at: str
    last_used_at: str | None
    current: bool


async def get_me(request: RestRequest) -> object:
    """Get who you are"""
    signed_in = request.scope["state"].get("session") is not None
    return {"principal": request.principal, "version": __version__, "signed_in": signed_in}


async def list_sessions(request: RestRequest, query: PageQuery) -> object:
    """List sessions in browsers, the oldest first; all for administrators, your own otherwise"""
    own = None if request.principal.admin else request.principal.id
    current = request.scope["state"].get("session") or b""
    found = [
        {
            **{name: getattr(row, name) for name in SessionInfo.model_fields if name != "current"},
            "current": row.digest == current.hex(),
        }
        for row in await keys.list_sessions(request.gateway, own)
    ]
    return slice_page(found, lambda row: f"{row['created_at']} {row['id']}", query, "sessions")


async def end_session(request: RestRequest, session_id: str) -> object:
    """End a session; the next request with it is refused"""
    own = None if request.principal.admin else request.principal.id
    await keys.end_session(request.gateway, session_id, principal=own)
    return None


class RoleInfo(AnswerModel):
    """The rights of a role; null means everything. `builtin` ones exist without being set."""

    name: str
    builtin: bool
    admin: bool
    permission: Literal["read-only", "read-write", "execute"]
    categories: list[str] | None
    allow: list[str]
    deny: list[str]
    servers: list[str]


class ProfileInfo(AnswerModel):
    """A view of the catalog: how many tools it has, and about how many tokens their definitions take. `output_schemas`
    are those of them that describe results; `short_tokens` are those of the short list, if its mode has one."""

    name: str
    mode: Literal["full", "auto", "search", "code"]
    permission: Literal["read-only", "read-write", "execute"]
    allow: list[str]
    deny: list[str]
    tools: int
    tokens: int
    output_schemas: int
    short_tokens: int | None


class ClientSetup(AnswerModel):
    """The way a client is connected: the text for its `file`, and a `link` that adds it with one click."""

    client: str
    title: str
    file: str
    text: str
    note: str
    restart: str
    link: str | None


class ClientList(AnswerModel):
    """`url` is where MCP is served; with `needs_key`, each client has to send a key."""

    url: str
    needs_key: bool
    items: list[ClientSetup]


async def list_roles(request: RestRequest, query: PageQuery) -> object:
    """List roles, and what each may do"""
    found = [
        {
            "name": name,
            "builtin": name not in request.gateway.settings.roles,
            "allow": role.tools.allow,
            "deny": role.tools.deny,
            **role.model_dump(include={"admin", "permission", "categories", "servers"}),
        }
        for name, role in request.gateway.roles.roles.items()
    ]
    return slice_page(found, lambda role: str(role["name"]), query, "roles")


async def list_profiles(request: RestRequest, query: PageQuery) -> object:
    """List profiles with the cost of their tools; `default` is what a client without one gets"""
    gateway = request.gateway
    found = []
    for cost in list_costs(gateway):
        profile = gateway.roles.profiles.get(cost.name, ProfileSettings())
        tools = {"allow": profile.tools.allow, "deny": profile.tools.deny}
        found.append({**asdict(cost), **tools, "permission": profile.permission})
    return slice_page(found, lambda each: str(each["name"]), query, "profiles")


async def list_clients(request: RestRequest) -> object:
    """List the lines by which each client is connected to this gateway"""
    origin = Origin(request.gateway.settings.server.public_url).of(Request(request.scope))
    url = f"{origin}{HTTP_PATH}"
    snippets = make_snippets(serve_command(sys.executable), url)
    items = [
        {
            "client": each.client,
            "title": CLIENTS[each.client].title,
            "file": each.file.name if request.principal.id != LOCAL else str(each.file),
            "text": each.text,
            "note": each.note,
            "restart": CLIENTS[each.client].restart,
            "link": make_install_link(each),
        }
        for each in snippets
    ]
    return {"url": url, "needs_key": request.principal.id != LOCAL, "items": items}


class EventStreams:
    """The streams of events of one gateway, bounded in number."""

    def __init__(self) -> None:
        self._slots = StreamSlots()
        self.endpoint = Endpoint("GET", "/api/events", self.follow_events, media=_MEDIA, errors=(503,))

    async def follow_events(self, request: RestRequest) -> object:
        """Follow what happens

        The events are `approvals`, with the number of those that wait for a person, `calls`, when a call began or
        ended, and `tools`, when the tools changed. Each comes once at the beginning; get /api/approvals, /api/calls or
        /api/tools for what it is about.
        """
        if request.scope["method"] == "HEAD":
            return Response(media_type=_MEDIA, headers=_HEADERS)
        self._slots.require(request.principal)
        events = self._slots.hold(request.principal, self._follow(request))
        return StreamingResponse(events, media_type=_MEDIA, headers=_HEADERS)

    async def _follow(self, request: RestRequest) -> AsyncIterator[bytes]:
        seen: dict[str, Any] = {}
        silence = 0.0
        while True:
            state = await _read_state(request)
            changed = [name for name, (key, _) in state.items() if seen.get(name) != key]
            for name in changed:
                seen[name] = state[name][0]
                yield encode_event(to_json(state[name][1]), kind=name.encode())
            silence = 0.0 if changed else silence + _POLL_SECONDS
            if silence >= PING_SECONDS:
                silence = 0.0
                yield PING
            await asyncio.sleep(_POLL_SECONDS)


async def _read_state(request: RestRequest) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return each event's key, which differs when something changed, and its data."""
    own = None if request.principal.admin else request.principal.id
    waiting = await approvals.list_approvals(request.gateway, waiting=True, limit=_COUNTED, principal=own)
    recent = await calls.list_calls(request.gateway, principal=own, limit=_RECENT, documents=False)
    catalog = request.gateway.catalog
    return {
        "approvals": ([record.id for record in waiting], {"waiting": len(waiting)}),
        "calls": ([(call["id"], call["status"]) for call in recent], {"newest": recent[0]["id"] if recent else None}),
        "tools": (id(catalog), {"tools": len(catalog.for_principal(request.principal.access))}),
    }


CONSOLE_ENDPOINTS = [
    Endpoint("GET", "/api/me", get_me, MeAnswer),
    Endpoint("GET", "/api/sessions", list_sessions, ListPage[SessionInfo]),
    Endpoint("DELETE", "/api/sessions/{session_id}", end_session),
    Endpoint("GET", "/api/roles", list_roles, ListPage[RoleInfo], admin=True),
    Endpoint("GET", "/api/profiles", list_profiles, ListPage[ProfileInfo], admin=True),
    Endpoint("GET", "/api/clients", list_clients, ClientList),
]
