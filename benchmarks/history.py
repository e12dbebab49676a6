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
ROUNDS = 30


def change(number: int) -> bytes:
    return f"change {number}\n".encode()


class Chat:
    """A chat with a tree of its own, and how many versions it has."""

    def __init__(self, name: str, data: Path, versions: Versions) -> None:
        self._name = name
        self._work = Workspaces(data).path(name)
        self._versions = versions
        self._paths = make_tree(self._work)
        self._number = 0

    async def save(self) -> float:
        """Save one more version; how long it took, in milliseconds."""
        if self._number:
            with (self._work / self._paths[self._number * 7919 % FILES]).open("ab") as file:
                file.write(change(self._number))
        async with self._versions.hold(self._name, "local") as held:
            started = time.perf_counter()
            await held.save("tool_run", str(self._number))
        self._number += 1
        return (time.perf_counter() - started) * 1000


async def ours(data: Path) -> tuple[float, float, int]:
    """Milliseconds of a snapshot after 10 versions and after 1,000, in turns; and what the 1,000 weigh."""
    db = await SqliteDatabase.open(data / "toolgate.db")
    versions = Versions(Manifests(db), Chats(db), Workspaces(data))
    old, young = Chat("old", data, versions), Chat("young", data, versions)
    for _ in range(VERSIONS):
        await old.save()
    [(rows,)] = await db.fetch("SELECT SUM(LENGTH(patch) + LENGTH(meta_patch) + 300) FROM manifest_rows")
    kept = weight(data / "chats/old/blobs") + int(rows)
    for _ in range(10):
        await young.save()
    pairs = [(await young.save(), await old.save()) for _ in range(ROUNDS)]
    await db.close()
    early, late = (statistics.median(column) for column in zip(*pairs, strict=True))
    return early, late, kept


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
        early, late, kept = anyio.run(ours, place / "data")
        (place / "tree").mkdir()
        paths = make_tree(place / "tree")
        theirs(place / "git", paths, {path: (place / "tree" / path).read_bytes() for path in paths})
        packed = weight(place / "git/objects")
    heavier, slower = kept / packed, late / early
    print(f"{VERSIONS} versions of {FILES} files: {kept / 1e6:.1f} MB   git, packed {packed / 1e6:.1f} MB")
    print(f"ratio of bytes     {heavier:.2f}   (limit {BYTES_LIMIT})")
    print(f"a snapshot after 10 versions {early:.1f} ms, after {VERSIONS} {late:.1f} ms")
    print(f"ratio of medians   {slower:.2f}   (limit {SLOWER_LIMIT})")
    return int(heavier > BYTES_LIMIT or slower > SLOWER_LIMIT)


if __name__ == "__main__":
    sys.exit(main())
