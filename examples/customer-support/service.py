"""A small customer support service: tenants, users, tickets, orders and refunds over HTTP, kept in SQLite.

    SUPPORT_TOKEN=secret uvicorn --factory service:app

Its OpenAPI document is openapi.yaml. `GET /tickets/{id}/summary` is not in it: it shows that hand-written tools stand
beside imported ones.
"""

from __future__ import annotations

import hmac
import os
import sqlite3
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

DOCUMENT = Path(__file__).parent / "openapi.yaml"
SCHEMA = """
CREATE TABLE tenants (id INTEGER PRIMARY KEY, name TEXT NOT NULL, plan TEXT NOT NULL);
CREATE TABLE users (
  id INTEGER PRIMARY KEY, tenant_id INTEGER NOT NULL REFERENCES tenants, name TEXT NOT NULL, email TEXT UNIQUE);
CREATE TABLE tickets (
  id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL REFERENCES users, subject TEXT NOT NULL, text TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT 'open', priority TEXT NOT NULL DEFAULT 'normal', assignee TEXT,
  created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
CREATE TABLE comments (
  id INTEGER PRIMARY KEY, ticket_id INTEGER NOT NULL REFERENCES tickets ON DELETE CASCADE, text TEXT NOT NULL,
  public INTEGER NOT NULL DEFAULT 0, created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now')));
CREATE TABLE orders (
  id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL REFERENCES users, amount REAL NOT NULL, currency TEXT NOT NULL);
CREATE TABLE refunds (
  id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL REFERENCES orders, amount REAL NOT NULL, reason TEXT NOT NULL);
INSERT INTO tenants VALUES (1, 'Northwind', 'enterprise'), (2, 'Blue Bakery', 'starter');
INSERT INTO users VALUES
  (1, 1, 'Ada Marsh', 'ada@northwind.example'), (2, 1, 'Ben Ortiz', 'ben@northwind.example'),
  (3, 2, 'Cleo Park', 'cleo@bakery.example');
INSERT INTO tickets (id, user_id, subject, text, status, priority) VALUES
  (1, 1, 'Invoice shows the wrong address', 'The invoice of May has our old address.', 'open', 'normal'),
  (2, 3, 'Charged twice', 'Order 2 appears **twice** on our card statement.', 'open', 'urgent'),
  (3, 2, 'How do I add a user?', 'I cannot find the button.', 'solved', 'low');
INSERT INTO comments (ticket_id, text, public) VALUES (2, 'The payment provider confirms two charges.', 0);
INSERT INTO orders VALUES (1, 1, 1200.0, 'EUR'), (2, 3, 49.5, 'EUR'), (3, 3, 180.0, 'EUR');
"""


def connect(path: str) -> sqlite3.Connection:
    """The database at a path, with some customers in a new one."""
    database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    database.row_factory = sqlite3.Row
    database.execute("PRAGMA foreign_keys = ON")
    if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
        database.executescript(SCHEMA)
    return database


class BearerToken:
    """Refuses requests without the token; an ASGI middleware."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in ("/openapi.yaml", "/healthz"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._expected):
                await JSONResponse({"error": "the token is missing or wrong"}, 401)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class Support:
    """The service's routes over one database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def _find(self, table: str, row_id: int) -> dict[str, Any]:
        row = self._database.execute(f"SELECT * FROM {table} WHERE id = ?", [row_id]).fetchone()
        if row is None:
            raise HTTPException(404, f"there is no {table.removesuffix('s')} {row_id}")
        return dict(row)

    def _page(self, request: Request, table: str, conditions: dict[str, Any], order: str = "id") -> JSONResponse:
        """The rows that fit the conditions; one whose value is None does not count."""
        given = {text: value for text, value in conditions.items() if value is not None}
        where = " AND ".join(given) or "1"
        values = [item for value in given.values() for item in (value if isinstance(value, list) else [value])]
        limit = min(int(request.query_params.get("limit", 20)), 100)
        offset = int(request.query_params.get("offset", 0))
        query = f"SELECT * FROM {table} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        rows = self._database.execute(query, [*values, limit, offset]).fetchall()
        total = self._database.execute(f"SELECT count(*) FROM {table} WHERE {where}", values).fetchone()[0]
        return JSONResponse({"items": [dict(row) for row in rows], "total": total})

    def _update(self, table: str, row_id: int, body: dict[str, Any], allowed: set[str]) -> dict[str, Any]:
        self._find(table, row_id)
        if unknown := body.keys() - allowed:
            raise HTTPException(400, f"{sorted(unknown)[0]!r} cannot be changed")
        for name, value in body.items():
            self._database.execute(f"UPDATE {table} SET {name} = ? WHERE id = ?", [value, row_id])
        return self._find(table, row_id)

    async def list_tenants(self, request: Request) -> Response:
        return self._page(request, "tenants", {})

    async def get_tenant(self, request: Request) -> Response:
        return JSONResponse(self._find("tenants", request.path_params["id"]))

    async def list_users(self, request: Request) -> Response:
        query = request.query_params
        return self._page(request, "users", {"tenant_id = ?": query.get("tenant_id"), "email = ?": query.get("email")})

    async def user(self, request: Request) -> Response:
        if request.method == "PATCH":
            body = await request.json()
            return JSONResponse(self._update("users", request.path_params["id"], body, {"name", "email"}))
        return JSONResponse(self._find("users", request.path_params["id"]))

    async def list_tickets(self, request: Request) -> Response:
        query = request.query_params
        statuses = query["status"].split(",") if "status" in query else None
        words = f"%{query['q']}%" if "q" in query else None
        conditions = {
            f"status IN ({', '.join('?' * len(statuses or []))})": statuses,
            "priority = ?": query.get("priority"),
            "user_id = ?": query.get("user_id"),
            "(subject LIKE ? OR text LIKE ?)": [words, words] if words else None,
        }
        return self._page(request, "tickets", conditions, "id DESC")

    async def create_ticket(self, request: Request) -> Response:
        body = await request.json()
        values = [body["user_id"], body["subject"], body["text"], body.get("priority", "normal")]
        try:
            row = self._database.execute(
                "INSERT INTO tickets (user_id, subject, text, priority) VALUES (?, ?, ?, ?)", values
            )
        except sqlite3.IntegrityError:
            raise HTTPException(400, f"there is no user {body['user_id']}") from None
        return JSONResponse(self._find("tickets", row.lastrowid or 0), 201)

    async def ticket(self, request: Request) -> Response:
        ticket_id = request.path_params["id"]
        if request.method == "PATCH":
            body = await request.json()
            return JSONResponse(self._update("tickets", ticket_id, body, {"status", "priority", "assignee"}))
        ticket = self._find("tickets", ticket_id)
        if request.method == "DELETE":
            self._database.execute("DELETE FROM tickets WHERE id = ?", [ticket_id])
            return Response(status_code=204)
        return JSONResponse({**ticket, "comments": self._comments(ticket_id)})

    def _comments(self, ticket_id: int) -> list[dict[str, Any]]:
        query = "SELECT id, text, public, created_at FROM comments WHERE ticket_id = ? ORDER BY id"
        return [{**row, "public": bool(row["public"])} for row in self._database.execute(query, [ticket_id])]

    async def add_comment(self, request: Request) -> Response:
        ticket_id, body = request.path_params["id"], await request.json()
        self._find("tickets", ticket_id)
        values = [ticket_id, body["text"], bool(body.get("public"))]
        self._database.execute("INSERT INTO comments (ticket_id, text, public) VALUES (?, ?, ?)", values)
        return JSONResponse(self._comments(ticket_id)[-1], 201)

    async def summarize_ticket(self, request: Request) -> Response:
        """A ticket as Markdown, for people."""
        ticket = self._find("tickets", request.path_params["id"])
        user = self._find("users", ticket["user_id"])
        lines = [
            f"# Ticket {ticket['id']}: {ticket['subject']}",
            f"**{user['name']}** <{user['email']}>",
            f"{ticket['status']}, {ticket['priority']}, since {ticket['created_at']}",
            ticket["text"],
            *(f"> {comment['text']}" for comment in self._comments(ticket["id"])),
        ]
        return PlainTextResponse("\n\n".join(lines), media_type="text/markdown")

    async def list_orders(self, request: Request) -> Response:
        table = "(SELECT *, (SELECT total(amount) FROM refunds WHERE order_id = orders.id) AS refunded FROM orders)"
        return self._page(request, table, {"user_id = ?": request.query_params.get("user_id")})

    async def create_refund(self, request: Request) -> Response:
        order, body = self._find("orders", request.path_params["id"]), await request.json()
        refunded = self._database.execute("SELECT total(amount) FROM refunds WHERE order_id = ?", [order["id"]])
        left = order["amount"] - refunded.fetchone()[0]
        if body["amount"] > left:
            raise HTTPException(409, f"only {left:.2f} {order['currency']} of order {order['id']} are left")
        values = [order["id"], body["amount"], body["reason"]]
        row = self._database.execute("INSERT INTO refunds (order_id, amount, reason) VALUES (?, ?, ?)", values)
        return JSONResponse({**self._find("refunds", row.lastrowid or 0), "left": left - body["amount"]}, 201)


async def _explain(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 400
    reason = error.detail if isinstance(error, HTTPException) else f"the request is not valid: {error!r}"
    return JSONResponse({"error": reason}, status)


def make_app(database: sqlite3.Connection, token: str) -> Starlette:
    support = Support(database)
    routes = [
        Route("/healthz", lambda _: PlainTextResponse("ok")),
        Route("/openapi.yaml", lambda _: FileResponse(DOCUMENT, media_type="application/yaml")),
        Route("/tenants", support.list_tenants),
        Route("/tenants/{id:int}", support.get_tenant),
        Route("/users", support.list_users),
        Route("/users/{id:int}", support.user, methods=["GET", "PATCH"]),
        Route("/tickets", support.list_tickets, methods=["GET"]),
        Route("/tickets", support.create_ticket, methods=["POST"]),
        Route("/tickets/{id:int}", support.ticket, methods=["GET", "PATCH", "DELETE"]),
        Route("/tickets/{id:int}/comments", support.add_comment, methods=["POST"]),
        Route("/tickets/{id:int}/summary", support.summarize_ticket),
        Route("/orders", support.list_orders),
        Route("/orders/{id:int}/refunds", support.create_refund, methods=["POST"]),
    ]
    handlers: Any = {HTTPException: _explain, KeyError: _explain, ValueError: _explain}
    return Starlette(routes=routes, exception_handlers=handlers, middleware=[Middleware(BearerToken, token=token)])


def app() -> Starlette:
    """The application for `uvicorn --factory service:app`."""
    return make_app(connect(os.environ.get("SUPPORT_DATABASE", "support.db")), os.environ["SUPPORT_TOKEN"])
