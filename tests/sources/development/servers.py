"""Servers on this machine's loopback: an index of packages, and a host of git repositories."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


class _Index(_Quiet):
    expected: str | None = None

    def do_GET(self) -> None:
        if self.expected is not None and self.headers.get("Authorization") != self.expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            return
        super().do_GET()


class _Repositories(_Quiet):
    """git's own program for servers, called as a web server would."""

    def __init__(self, *given: object, directory: str) -> None:
        self._root = directory
        super().__init__(*given, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": self._root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "REMOTE_USER": "someone",
            "REMOTE_ADDR": "127.0.0.1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        answer = subprocess.run(["git", "http-backend"], input=self.rfile.read(length), env=env, capture_output=True)
        head, _, body = answer.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - as the library names them


@contextlib.contextmanager
def _serving(handler: type[_Quiet], folder: Path) -> Iterator[int]:
    made = partial(handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def packages(folder: Path, login: str = "") -> Iterator[int]:
    """An index that has one package, `tiny`, and wants `user:password` if that is given."""
    place = folder / "simple" / "tiny"
    place.mkdir(parents=True)
    name = "tiny-1.2-py3-none-any.whl"
    with zipfile.ZipFile(place / name, "w") as wheel:
        about = "tiny-1.2.dist-info"
        wheel.writestr("tiny.py", "ANSWER = 42\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", f"tiny.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    (place / "index.html").write_text(f'<a href="{name}">{name}</a>')
    expected = f"Basic {base64.b64encode(login.encode()).decode()}" if login else None
    with _serving(type("Index", (_Index,), {"expected": expected}), folder) as port:
        yield port


@contextlib.contextmanager
def repositories(folder: Path) -> Iterator[int]:
    """A host that has one empty repository, `x.git`."""
    folder.mkdir()
    subprocess.run(["git", "init", "--quiet", "--bare", "-b", "main", folder / "x.git"], check=True)
    with _serving(_Repositories, folder) as port:
        yield port
