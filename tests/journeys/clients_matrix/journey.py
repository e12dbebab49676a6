"""What every Python client of the matrix does with the gateway, and what it saw, as one line of JSON.

The scripts beside this one run in environments of their own, one library each. The target is {url} over HTTP, or
{command, args, env, cwd} over stdio; `path` is the file to write.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

TARGET: dict[str, Any] = json.loads(sys.argv[1])
PATH: str = TARGET.pop("path")
CONTENT = "from a client\n"


class Client(Protocol):
    """A library, reduced to what the journey needs; every text is what the library gives to a model."""

    async def list_tools(self) -> list[str]: ...

    async def call(self, name: str, arguments: dict[str, Any]) -> str: ...

    async def list_resources(self) -> list[str]: ...

    async def read_resource(self, uri: str) -> str: ...


async def travel(client: Client) -> None:
    """Connect, list, write, read as a tool and as a resource, delete, and look whether the file is gone."""
    seen: dict[str, Any] = {"tools": await client.list_tools()}
    seen["written"] = await client.call("write_file", {"path": PATH, "content": CONTENT})
    seen["read"] = await client.call("read_file", {"path": PATH})
    uris = [uri for uri in await client.list_resources() if uri.endswith(f"/{PATH}")]
    seen["resource"] = await client.read_resource(uris[0]) if uris else None
    seen["deleted"] = await client.call("delete_file", {"path": PATH})
    seen["after"] = await client.call("read_file", {"path": PATH})
    print(json.dumps(seen))


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        await main()

    asyncio.run(go())
