"""`python -m tests.sandbox.published DIRECTORY`: publishes a port of a program, and prints what is there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gateway.sandbox import Mount, Program
from gateway.sandbox.bwrap import Bubblewrap
from gateway.sandbox.loopback import Loopback, PublishedPort

SERVE = "exec python3 -m http.server --bind 127.0.0.1 8000"


async def main(folder: Path) -> None:
    folder.mkdir()
    (folder / "index.html").write_text("published")
    loopback = Loopback()
    port = PublishedPort(loopback, 8000)
    argv = ("/bin/sh", "-c", SERVE)
    mounts = (Mount(folder, "/workspace", writable=True),)
    process = await Bubblewrap().start(
        Program(argv, mounts, env={"PATH": "/usr/bin:/bin"}, cwd="/workspace", loopback=loopback)
    )
    await port.open()
    while not await port.is_listening():  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.05)
    host, number = port.url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    print((await reader.read()).rpartition(b"\r\n\r\n")[2].decode())
    writer.close()
    process.kill()
    await process.wait()
    await port.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
