"""Conformance servers and the gateway as processes, and the URL each listens on."""

from __future__ import annotations

import os
import queue
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import yaml
from eventually import eventually

PATIENCE = 120.0
LISTENING = re.compile(r"http://127\.0\.0\.1:\d+/mcp")


@contextmanager
def gateway(directory: Path, upstream: Mapping[str, object]) -> Iterator[str]:
    """A gateway over HTTP in front of one upstream whose names it leaves as they are."""
    server = {**upstream, "prefix": "", "pinning": "off"}  # scenarios change what it says, and want to see it
    settings = {"mcpServers": {"conformance": server}, "approval": {"mode": "never"}}
    config = directory / "toolgate.yaml"
    config.write_text(yaml.safe_dump(settings))
    options = ["--transport", "http", "--port", "0", "--config", str(config), "--data-dir", str(directory / "data")]
    with listening([sys.executable, "-m", "gateway", "serve", *options], directory, {}) as url:
        yield url


@contextmanager
def listening(
    command: Sequence[str], directory: Path, variables: Mapping[str, str], url: str | None = None
) -> Iterator[str]:
    """A process that serves HTTP, once it listens: at `url`, else at the URL it names on stderr. One that names none is
    not ours, and is killed at the end: how it shuts down is its own affair."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=directory,
        env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(directory), **variables},
    )
    assert process.stderr is not None
    urls: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_follow, args=(process.stderr, urls))
    reader.start()
    try:
        found = urls.get(timeout=PATIENCE) if url is None else eventually(lambda: _accepting(url, process), PATIENCE)
        assert found is not None, f"{command} ended before it listened; stderr says why"
        yield found
    finally:
        process.terminate() if url is None else process.kill()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stderr.close()


def _accepting(url: str, process: subprocess.Popen[bytes]) -> str | None:
    """The URL once somebody accepts connections there; None before."""
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended before it listened; stderr says why")
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port or 80), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return None
    return url


def _follow(pipe: IO[bytes], urls: queue.Queue[str | None]) -> None:
    """Show each line with the test that fails, and read to the end so that a full pipe stops nobody."""
    for line in pipe:
        text = line.decode("utf-8", "replace")
        print(text, end="", file=sys.stderr)
        if found := LISTENING.search(text):
            urls.put(found.group())
    urls.put(None)
