"""app-builder writes a web app, starts it and shows it: with the Python SDK's client, in both eras."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import pytest
from eventually import async_eventually
from runtime.sandboxes import sandbox as working_sandbox

from .clients import call, every_tool, text, value
from .processes import on_http
from .test_approval import Person, choose, settled, visiting
from .wire import HANDSHAKE, MODERN

pytestmark = [pytest.mark.anyio, pytest.mark.promise("T9")]

APP_BUILDER = Path(__file__).parents[2] / "toolsets/app-builder"
SETTINGS = {"categories": {"development": {"enabled": True}}, "toolsets": [str(APP_BUILDER)]}
APP = """
import http.server, os
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<h1>built here</h1>")
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Page).serve_forever()
"""


@pytest.mark.parametrize(
    ("transport", "era"),
    [
        ("stdio", MODERN),
        ("http", HANDSHAKE),
        pytest.param("stdio", HANDSHAKE, marks=pytest.mark.slow),
        pytest.param("http", MODERN, marks=pytest.mark.slow),
    ],
)
async def test_an_app_is_written_started_shown_and_ends_with_its_chat(tmp_path: Path, transport: str, era: str) -> None:
    await working_sandbox("bwrap")
    directory, person = settled(tmp_path, SETTINGS), Person([choose("approve once")])
    with ExitStack() as stack:
        place: Any = stack.enter_context(on_http(directory)) if transport == "http" else directory
        async with visiting(place, era, person, directory / "data") as visit:
            client = visit.client
            assert "app-builder__start_app" in {tool.name for tool in await every_tool(client)}
            await value(client, "app-builder__write_file", {"path": "app.py", "content": APP})
            result = await call(client, "app-builder__start_app", {"command": "python3 app.py", "port": 8080})
            assert not result.is_error, text(result)
            assert result.structured_content is not None
            assert "python3 app.py" in person.questions[0].message
            url = result.structured_content["url"]
            call_id = (result.meta or {})["dev.toolgate/call_id"]
            plan = json.loads((await client.read_resource(f"render://{call_id}")).contents[0].text)  # type: ignore[union-attr]
            assert (plan["renderer"], plan["config"]["url"]) == ("frame", url)
            view = (await client.read_resource(f"render://{call_id}/view")).contents[0].text  # type: ignore[union-attr]
            assert f'"url":"{url}"' in view and f"frame-src {plan['config']['origin']}" in view
            assert await get(url) == "<h1>built here</h1>"
            host, port = str(urlsplit(url).hostname), int(urlsplit(url).port or 0)
            assert host.startswith("127.")
            for address in (*_addresses(), "127.0.0.1", "::1"):
                with pytest.raises(OSError):
                    socket.create_connection((address, port), 2)
            output = await value(client, "app-builder__app_output", {"process": result.structured_content["process"]})
            assert '"GET / HTTP/1.1" 200' in output["output"]
            if (transport, era) == ("http", MODERN):  # no session says when the chat is over
                await value(client, "app-builder__stop_app", {"process": result.structured_content["process"]})
        await async_eventually(lambda: is_gone(url))


def _addresses() -> list[str]:
    """Addresses of this machine on other interfaces."""
    return subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()


async def get(url: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(url, timeout=60) as response:
            page: str = response.read().decode()
            return page

    return await anyio.to_thread.run_sync(read)


async def is_gone(url: str) -> bool:
    try:
        await get(url)
    except OSError:
        return True
    return False
