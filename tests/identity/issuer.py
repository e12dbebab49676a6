"""An identity provider on loopback: discovery, a key set that can be rotated, and tokens signed with it."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import jwt
import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.serve.http.app import bind

AUDIENCE = "toolgate"


@dataclass
class Issuer:
    """`fetched` counts requests for the key set; while `down` it is not answered, and with `hold` only once that is
    set."""

    url: str
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    fetched: int = 0
    down: bool = False
    hold: anyio.Event | None = None

    @property
    def settings(self) -> dict[str, Any]:
        return {"issuer": self.url, "audience": AUDIENCE, "default_role": "user"}

    def add_key(self, key_id: str) -> None:
        self.keys[key_id] = ec.generate_private_key(ec.SECP256R1())

    def claims(self, **changes: Any) -> dict[str, Any]:
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "ann", "exp": time.time() + 600}
        return {name: value for name, value in {**usual, **changes}.items() if value is not None}

    def token(self, kid: str = "one", signed_by: str = "one", **changes: Any) -> str:
        return jwt.encode(self.claims(**changes), self.keys[signed_by], algorithm="ES256", headers={"kid": kid})

    async def metadata(self, _: Request) -> Response:
        return JSONResponse({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})

    async def jwks(self, _: Request) -> Response:
        self.fetched += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.down:
            return Response(status_code=503)
        algorithm = jwt.algorithms.ECAlgorithm(jwt.algorithms.ECAlgorithm.SHA256)
        return JSONResponse(
            {
                "keys": [
                    {**json.loads(algorithm.to_jwk(key.public_key())), "kid": key_id, "use": "sig"}
                    for key_id, key in self.keys.items()
                ]
            }
        )


@asynccontextmanager
async def serve_issuer() -> AsyncIterator[Issuer]:
    listening = bind("127.0.0.1", 0)
    issuer = Issuer(f"http://127.0.0.1:{listening.getsockname()[1]}")
    issuer.add_key("one")
    routes = [Route("/.well-known/openid-configuration", issuer.metadata), Route("/keys", issuer.jwks)]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_config=None, lifespan="off"))
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    listening.listen()
    with closing(listening):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            yield issuer
            server.should_exit = True


@contextmanager
def _no_signals() -> Iterator[None]:
    yield
