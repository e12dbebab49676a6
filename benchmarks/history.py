"""A long history against git: 1,000 versions of a tree of 10,000 files, one change each.

Prints what the versions weigh beside git's packed equivalent, and whether the last snapshot takes
longer than the first ones; exits 1 above a limit.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from benchmarks.workspace import FILES, make_tree
from gateway.db.chats import Chats
from gateway.db.manifests import Manifests
from gateway.db.sqlite import SqliteDatabase
from gateway.workspace import Workspaces
from gateway.workspace.versions import Versions

VERSIONS = 1000
BYTES_LIMIT = 3.0
SLOWER_LIMIT = 1.25
WINDOW = 40


def change(number: int) -> bytes:
    return f"change {number}\n".encode()


async def ours(data: Path, paths: list[str]) -> list[float]:
    """Save every version; the CPU each took, in milliseconds: the wall clock of a shared machine tells less."""
    db = await SqliteDatabase.open(data / "toolgate.db")
    versions = Versions(Manifests(db), Chats(db), Workspaces(data))
    work = Workspaces(data).path("c")
    times = []
    for number in range(VERSIONS):
        if number:
            with (work / paths[number * 7919 % FILES]).open("ab") as file:
                file.write(change(number))
        async with versions.hold("c", "local") as held:
            started = time.process_time()
            await held.save("tool_run", str(number))
            times.append((time.process_time() - started) * 1000)
    await db.close()
    return times


def theirs(repository: Path, paths: list[str], original: dict[str, bytes]) -> None:
    """The same history in git, packed as `git gc` packs it."""
    environment = {**os.environ, "GIT_DIR": str(repository), "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "init", "-q", "--bare", str(repository)], check=True)
    with subprocess.Popen(["git", "fast-import", "--quiet"], stdin=subprocess.PIPE, env=environment) as importing:
        assert importing.stdin is not None
        contents = dict(original)
        for number in range(VERSIONS):
            changed = paths if number == 0 else [paths[number * 7919 % FILES]]
            importing.stdin.write(b"commit refs/heads/main\ncommitter a <a@example.org> %d +0000\n" % (10**9 + number))
            importing.stdin.write(b"data 6\nchange\n")
            for path in changed:
                contents[path] += change(number) if number else b""
                importing.stdin.write(
                    b"M 644 inline %s\ndata %d\n%s\n" % (path.encode(), len(contents[path]), contents[path])
                )
        importing.stdin.close()
    subprocess.run(["git", "gc", "-q"], env=environment, check=True)


def weight(*folders: Path) -> int:
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        work = place / "data/chats/c/workspace"
        work.mkdir(parents=True)
        paths = make_tree(work)
        original = {path: (work / path).read_bytes() for path in paths}
        times = anyio.run(ours, place / "data", paths)
        theirs(place / "git", paths, original)
        database = (place / "data/toolgate.db").stat().st_size
        kept = weight(place / "data/chats/c/blobs") + database
        packed = weight(place / "git/objects")
    early, late = statistics.median(times[10 : 10 + WINDOW]), statistics.median(times[-WINDOW:])
    heavier, slower = kept / packed, late / early
    print(f"{VERSIONS} versions of {FILES} files: {kept / 1e6:.1f} MB, {database / 1e6:.1f} of it the database")
    print(f"git, packed           {packed / 1e6:.1f} MB")
    print(f"ratio of bytes        {heavier:.2f}   (limit {BYTES_LIMIT})")
    print(
        f"CPU of a snapshot     early {early:.1f} ms   late {late:.1f} ms   ratio {slower:.2f}   (limit {SLOWER_LIMIT})"
    )
    return int(heavier > BYTES_LIMIT or slower > SLOWER_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
