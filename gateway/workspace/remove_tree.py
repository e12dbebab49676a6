"""Removing a tree of any depth through descriptors, without following links."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Generator
from contextlib import suppress

from gateway.workspace.openat import LISTING, Parts, PathOpener
from gateway.workspace.walk import DEPTH_LIMIT, TEMPORARY

_NOT_A_DIRECTORY = {errno.ENOTDIR, errno.ELOOP, errno.ENOENT}

Removed = Generator[Parts, None, None]


def remove_tree(opener: PathOpener, parent: int, parts: Parts) -> Removed:
    """Remove the directory `parts`, whose parent is open, yielding each removed path."""
    top = opener.open(parent, parts[-1:], LISTING)
    try:
        while names := _names(top):  # repeated, because directories that were too deep are moved up here
            yield from _remove(opener, top, names, parts, top)
    finally:
        os.close(top)
    os.rmdir(parts[-1], dir_fd=parent)
    yield parts


def temporary_name() -> str:
    return f"{TEMPORARY}{secrets.token_hex(8)}"


def _remove(opener: PathOpener, directory: int, names: list[str], base: Parts, top: int, depth: int = 1) -> Removed:
    for name in names:
        inner = _enter(opener, directory, name)
        if inner is None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
        elif depth < DEPTH_LIMIT:
            yield from _remove_inner(opener, directory, inner, (*base, name), top, depth)
        else:  # bounds our stack and descriptors, however deep the tree is
            os.close(inner)
            os.rename(name, temporary_name(), src_dir_fd=directory, dst_dir_fd=top)
            continue
        yield (*base, name)


def _remove_inner(opener: PathOpener, directory: int, inner: int, parts: Parts, top: int, depth: int) -> Removed:
    try:
        yield from _remove(opener, inner, _names(inner), parts, top, depth + 1)
    finally:
        os.close(inner)
    os.rmdir(parts[-1], dir_fd=directory)


def _enter(opener: PathOpener, directory: int, name: str) -> int | None:
    try:
        return opener.open(directory, (name,), LISTING)
    except OSError as error:
        if error.errno in _NOT_A_DIRECTORY:
            return None
        raise


def _names(directory: int) -> list[str]:
    with os.scandir(directory) as found:
        return sorted(entry.name for entry in found)
