"""Translation of operating system errors into gateway errors that name the path and the fix."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator

from gateway.errors import Conflict, Forbidden, GatewayError, Invalid, NotFound, Unavailable
from gateway.workspace.openat import Parts

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def show_path(parts: Parts) -> str:
    """Return a path as valid UTF-8 on one line; other bytes and control characters become `\\xNN`."""
    text = os.fsencode("/".join(parts)).decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text) or "."


@contextlib.contextmanager
def translate_os_errors(parts: Parts) -> Iterator[None]:
    """Raise an `OSError` of the body as the matching `GatewayError` about `parts`."""
    try:
        yield
    except OSError as error:
        raise to_gateway_error(error, parts) from error


def to_gateway_error(error: OSError, parts: Parts) -> GatewayError:
    path = repr(show_path(parts))
    to_error = _ERRORS_BY_ERRNO.get(error.errno or 0)
    if to_error is not None:
        return to_error(path)
    return Unavailable(f"{path}: the file system reported {error.strerror!r}; try again", code="STORAGE_ERROR")


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


def _missing_error(path: str) -> GatewayError:
    return NotFound(
        f"{path} does not exist; paths are relative to the workspace root, and list_directory shows what is there",
        code="FILE_NOT_FOUND",
    )


def _permission_denied(path: str) -> GatewayError:
    return Forbidden(f"{path}: permission denied; change its permissions or use another path")


def _leaves(path: str) -> GatewayError:
    return Invalid(f"{path} leaves the workspace: another file system is mounted there", code="INVALID_PATH")


def _not_empty(path: str) -> GatewayError:
    return Conflict(f"{path} is a directory with something in it; empty it first", code="DIRECTORY_NOT_EMPTY")


def _full(path: str) -> GatewayError:
    return Unavailable(f"{path}: no space left where the workspace is stored; free some", code="STORAGE_FULL")


def _too_long(path: str) -> GatewayError:
    return Invalid(f"{path} is longer than the file system allows; use shorter names", code="INVALID_PATH")


def _busy(path: str) -> GatewayError:
    return Conflict(f"{path} is held by another program; try again", code="FILE_BUSY")


_ERRORS_BY_ERRNO: dict[int, Callable[[str], GatewayError]] = {
    errno.ENOENT: _missing_error,
    errno.ENOTDIR: _missing_error,
    errno.EACCES: _permission_denied,
    errno.EPERM: _permission_denied,
    errno.EROFS: _permission_denied,
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
