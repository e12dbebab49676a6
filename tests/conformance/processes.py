"""The conformance server and the gateway as processes, and the URL each says it listens on."""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import yaml

TESTS = Path(__file__).parent.parent
PATIENCE = 30.0
LISTENING = re.compile(r"http://127\.0\.0\.1:\d+/mcp")


def server_command(*options: str) -> list[str]:
    return [sys.executable, "-m", "conformance.server", *options]


def server_environment() -> dict[str, str]:
    """What the server needs to find its modules, whoever starts it."""
    return {"PYTHONPATH": str(TESTS)}


@contextmanager
def conformance_server(directory: Path, era: str = "both") -> Iterator[str]:
    """The server over HTTP, on a free port."""
    command = server_command("--transport", "http", "--era", era)
    with _listening(command, directory, server_environment()) as url:
        yield url


@contextmanager
def gateway(directory: Path, upstream: Mapping[str, object]) -> Iterator[str]:
    """A gateway over HTTP in front of one upstream whose names it leaves as they are."""
    server = {**upstream, "prefix": "", "pinning": "off"}  # scenarios change what it says, and want to see it
    settings = {"mcpServers": {"conformance": server}, "approval": {"mode": "never"}}
    config = directory / "toolgate.yaml"
    config.write_text(yaml.safe_dump(settings))
    options = ["--transport", "http", "--port", "0", "--config", str(config), "--data-dir", str(directory / "data")]
    with _listening([sys.executable, "-m", "gateway", "serve", *options], directory, {}) as url:
        yield url


@contextmanager
def _listening(command: Sequence[str], directory: Path, variables: Mapping[str, str]) -> Iterator[str]:
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
        url = urls.get(timeout=PATIENCE)
        assert url is not None, f"{command} ended before it listened; stderr says why"
        yield url
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stderr.close()


def _follow(pipe: IO[bytes], urls: queue.Queue[str | None]) -> None:
    """Show each line with the test that fails, and read to the end so that a full pipe stops nobody."""
    for line in pipe:
        text = line.decode("utf-8", "replace")
        print(text, end="", file=sys.stderr)
        if found := LISTENING.search(text):
            urls.put(found.group())
    urls.put(None)
