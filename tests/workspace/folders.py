"""A second opinion on what is in a folder, and folders to have one about."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from pathlib import Path

from gateway.workspace.blobs import FileBlobs
from gateway.workspace.checkout import Checkout
from gateway.workspace.index import RACY_NANOSECONDS
from gateway.workspace.packs import read_index
from gateway.workspace.snapshot import file_clock
from gateway.workspace.tree import Tree, encode


def walk(folder: Path) -> Tree:
    """The tree of a folder, by `os.walk` and nothing of the code under test but how names are written.

    What a killed writer left under a temporary name is in no tree."""
    files, meta = {}, {}
    for above, directories, names in os.walk(folder):
        links = [name for name in directories if os.path.islink(os.path.join(above, name))]
        relative = os.path.relpath(above, folder)
        if relative != "." and not directories and not names:
            meta[encode(relative)] = "d"
        for name in names + links:
            if name.startswith(".toolgate-"):
                continue
            place = os.path.join(above, name)
            path = encode(os.path.normpath(os.path.join(relative, name)))
            if os.path.islink(place):
                files[path], meta[path] = sha(os.fsencode(os.readlink(place))), "l"
            elif os.path.isfile(place):
                files[path] = sha(Path(place).read_bytes())
                if os.stat(place).st_mode & stat.S_IXUSR:
                    meta[path] = "x"
    return Tree(files, meta)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def new_checkout(place: Path) -> Checkout:
    """A checkout of `place / "files"`, its blobs and index beside it."""
    (place / "files").mkdir(parents=True, exist_ok=True)
    return Checkout(place / "files", FileBlobs(place / "blobs"), place / "index")


def write(path: Path, content: bytes | str = b"x", mode: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    if mode is not None:
        path.chmod(mode)
    return path


def let_it_age(folder: Path) -> None:
    """Return when the times of everything written so far can be trusted."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        written = file_clock(fd)
        while file_clock(fd) - RACY_NANOSECONDS <= written:
            pass
    finally:
        os.close(fd)


def disturb(folder: Path, chance: random.Random) -> None:
    """One of the things tools and people do to a folder; or nothing, when it cannot be done here."""
    path = folder.joinpath(*(chance.choice("abcd") for _ in range(chance.randint(1, 4))))
    action = chance.random()
    try:
        if action < 0.5:
            write(path, chance.randbytes(chance.choice([1, 1, 5])))
        elif action < 0.6:
            path.mkdir(parents=True, exist_ok=True)
        elif action < 0.7:
            path.symlink_to(chance.choice(["a", "nowhere/x", ".."]))
        elif action < 0.8:
            if not path.is_symlink() and path.is_file():
                path.chmod(chance.choice([0o644, 0o755]))
        elif action < 0.9:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        else:
            path.rename(folder / chance.choice("abcd"))
    except OSError:
        pass


def require_sound_blobs(directory: Path) -> int:
    """How many blobs there are; each has the name of its content."""
    found = [path for path in directory.glob("??/*") if path.is_file()]
    assert [path.name for path in found] == [sha(path.read_bytes()) for path in found]
    packed = [place for pack in directory.glob("packs/*") for place in read_index(str(pack)).items()]
    for digest, place in packed:
        assert sha(Path(place.pack).read_bytes()[place.offset : place.offset + place.size]) == digest
    return len({path.name for path in found} | {digest for digest, _ in packed})
