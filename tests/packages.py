"""`.mcpb` files, and a registry of servers on this machine."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TINY = Path(__file__).parent / "journeys/servers/tiny.py"
MANIFEST: dict[str, Any] = {
    "manifest_version": "0.3",
    "name": "tiny-demo",
    "display_name": "Tiny demo",
    "version": "1.2.3",
    "description": "Says which process it is.",
    "author": {"name": "Somebody"},
    "server": {
        "type": "python",
        "entry_point": "server/main.py",
        "mcp_config": {
            "command": sys.executable,
            "args": ["${__dirname}/server/main.py", "--folder", "${user_config.folders}"],
            "env": {"API_KEY": "${user_config.api_key}", "MODE": "${user_config.mode}"},
            "platform_overrides": {sys.platform: {"env": {"PLATFORM": "${HOME}"}}, "amiga": {"command": "none"}},
        },
    },
    "user_config": {
        "api_key": {"type": "string", "title": "API key", "sensitive": True, "required": True},
        "folders": {"type": "directory", "title": "Folders", "multiple": True},
        "mode": {"type": "string", "title": "Mode", "default": "plain"},
    },
}


def make_mcpb(manifest: Mapping[str, Any] = MANIFEST, files: Mapping[str, str] | None = None) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for path, text in ({"server/main.py": TINY.read_text()} if files is None else files).items():
            archive.writestr(path, text)
    return content.getvalue()


@contextmanager
def serve_registry(servers: Sequence[Mapping[str, Any]], files: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve the API of a registry, two servers a page, and files beside it; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            if url.path in (files or {}):
                self._send((files or {})[url.path])
            elif url.path == "/v0.1/servers":
                found = [server for server in servers if query.get("search", "") in server["name"]]
                start = int(query.get("cursor", 0))
                end = start + min(2, int(query["limit"]))
                metadata = {"nextCursor": str(end)} if end < len(found) else {}
                page = {"servers": [_entry(server) for server in found[start:end]], "metadata": metadata}
                self._send(json.dumps(page).encode())
            else:
                name = unquote(url.path.removeprefix("/v0.1/servers/").removesuffix("/versions/latest"))
                named = [server for server in servers if server["name"] == name]
                self._send(json.dumps(_entry(named[0])).encode() if named else b"{}", 200 if named else 404)

        def _send(self, content: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _entry(server: Mapping[str, Any]) -> dict[str, Any]:
    status = server.get("status", "active")
    return {"server": server, "_meta": {"io.modelcontextprotocol.registry/official": {"status": status}}}
