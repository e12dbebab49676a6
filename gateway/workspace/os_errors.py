"""What the operating system's refusals mean to a caller: said once, naming the path and the fix."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator

from gateway.errors import Conflict, Forbidden, GatewayError, Invalid, NotFound, Unavailable
from gateway.workspace.openat import Parts

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def shown(parts: Parts) -> str:
    """A path as text that is always valid UTF-8 on one line: what is not is escaped as `\\xNN`."""
    text = os.fsencode("/".join(parts)).decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text) or "."


@contextlib.contextmanager
def refusing(parts: Parts) -> Iterator[None]:
    """An `OSError` in here leaves as the `GatewayError` it means for `parts`."""
    try:
        yield
    except OSError as error:
        raise refusal(error, parts) from error


def refusal(error: OSError, parts: Parts) -> GatewayError:
    path = repr(shown(parts))
    known = _REFUSALS.get(error.errno or 0)
    if known is not None:
        return known(path)
    return Unavailable(f"{path}: the file system answered {error.strerror!r}; try again", code="STORAGE_ERROR")


def not_a_directory(path: str) -> GatewayError:
    return Invalid(f"{path} is not a directory; name the directory it is in", code="NOT_A_DIRECTORY")


def not_a_file(path: str) -> GatewayError:
    return Invalid(f"{path} is a pipe, socket or device; only regular files are read or written", code="NOT_A_FILE")


def is_directory(path: str) -> GatewayError:
    return Invalid(f"{path} is a directory; name a file in it", code="IS_DIRECTORY")


def is_link(path: str) -> GatewayError:
    return Invalid(
        f"{path} is or passes through a symbolic link, and links are not followed; name the real file in the workspace",
        code="INVALID_PATH",
    )


def exists(path: str) -> GatewayError:
    return Conflict(
        f"{path} exists already; choose another path, or overwrite it, which a person must confirm", code="FILE_EXISTS"
    )


def _missing(path: str) -> GatewayError:
    return NotFound(
        f"{path} does not exist; paths are relative to the workspace root, and list_directory shows what is there",
        code="FILE_NOT_FOUND",
    )


def _denied(path: str) -> GatewayError:
    return Forbidden(f"{path}: the file system denies it; change its permissions or use another path")


def _leaves(path: str) -> GatewayError:
    return Invalid(f"{path} leaves the workspace: another file system is mounted there", code="INVALID_PATH")


def _not_empty(path: str) -> GatewayError:
    return Conflict(f"{path} is a directory with something in it; empty it first", code="DIRECTORY_NOT_EMPTY")


def _full(path: str) -> GatewayError:
    return Unavailable(f"{path}: no space left where the workspace is stored; free some", code="STORAGE_FULL")


def _too_long(path: str) -> GatewayError:
    return Invalid(f"{path} is longer than the file system takes; use shorter names", code="INVALID_PATH")


def _busy(path: str) -> GatewayError:
    return Conflict(f"{path} is held by another program; try again", code="FILE_BUSY")


_REFUSALS: dict[int, Callable[[str], GatewayError]] = {
    errno.ENOENT: _missing,
    errno.ENOTDIR: _missing,
    errno.EACCES: _denied,
    errno.EPERM: _denied,
    errno.EROFS: _denied,
    errno.ELOOP: is_link,
    errno.EXDEV: _leaves,
    errno.EISDIR: is_directory,
    errno.ENOTEMPTY: _not_empty,
    errno.EEXIST: exists,
    errno.ENOSPC: _full,
    errno.EDQUOT: _full,
    errno.ENAMETOOLONG: _too_long,
    errno.ENXIO: not_a_file,
    errno.EAGAIN: _busy,
    errno.EBUSY: _busy,
    errno.ETXTBSY: _busy,
}
