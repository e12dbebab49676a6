"""`/metrics`: what the gateway has counted, for Prometheus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import Forbidden
from gateway.identity import Principal
from gateway.identity.roles import Roles
from gateway.serve.http.authentication import error_response

# Returns the metrics and their content type, given the `Accept` header.
Write = Callable[[str], Awaitable[tuple[bytes, str]]]


def metrics_route(write: Write, roles: Roles) -> Route:
    """Return the route. It answers administrators, and principals of a role with `metrics`."""

    async def metrics(request: Request) -> Response:
        principal: Principal = request.state.principal
        if not principal.admin and not (principal.role is not None and roles.roles[principal.role].metrics):
            refusal = "/metrics is for administrators and for keys of a role with 'metrics: true'"
            return error_response(Forbidden(refusal, code="ADMIN_REQUIRED"))
        body, content_type = await write(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return Route("/metrics", metrics)
