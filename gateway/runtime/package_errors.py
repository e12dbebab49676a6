"""Causes of failure in the stderr of programs: errors of uv and npm in plain words, else the lines that name one."""

from __future__ import annotations

import re
from typing import NamedTuple

_MISSING = (
    re.compile(r"npm (?:error|ERR!) 404\s+(?:The requested resource )?'([^']+?)(?:@[^'@]*)?' (?:could not|is not)"),
    re.compile(r"[Bb]ecause (\S+) was not found in the package registry"),
)
_CERTIFICATE = re.compile(
    r"invalid peer certificate|UnknownIssuer|certificate verify failed|unable to get (?:local )?issuer|"
    r"self.signed certificate|UNABLE_TO_VERIFY_LEAF",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"dns error|failed to lookup|EAI_AGAIN|ENOTFOUND|ECONNREFUSED|[Cc]onnection refused|ETIMEDOUT|timed out"
)
_HOST = re.compile(r"https?://(?:[^/@\s]+@)?([^/\s`'\"]+)")
_CAUSE = re.compile(
    r"\b\w*(?:error|exception)\b|\b(?:fatal|panic|cannot|could not|failed|denied|refused|not found)\b", re.IGNORECASE
)
_NOISE = re.compile(
    r"npm (?:warn|notice)|npm (?:error|ERR!) (?:code|A complete log|404$)|Traceback \(most recent", re.IGNORECASE
)

# The end of a program's stderr that is quoted.
_LINES = 3
_CHARACTERS = 1200


class PackageError(NamedTuple):
    """The reason why a package could not be installed, and the environment variable that helps, if one does."""

    cause: str
    variable: str | None = None

    @property
    def text(self) -> str:
        return self.cause + (f"; set {self.variable} in the environment" if self.variable else "")


def find_package_error(stderr: str) -> PackageError | None:
    """Return the reason why uv or npm failed, None if it is none that is known."""
    for pattern in _MISSING:
        if missing := pattern.search(stderr):
            return PackageError(f"there is no package {missing[1]!r} in the package index; check its name")
    is_npm = re.search(r"^npm ", stderr, re.MULTILINE) is not None
    if not is_npm and not re.search(r"[Ff]ailed to fetch|Caused by:|error sending request|Request failed", stderr):
        return None
    host = (_HOST.search(stderr) or [None, "the package index"])[1]
    if _CERTIFICATE.search(stderr):
        variable = "NODE_EXTRA_CA_CERTS=FILE" if is_npm else "UV_SYSTEM_CERTS=1 or SSL_CERT_FILE=FILE"
        return PackageError(f"the certificate of {host} is not trusted, as behind a company's proxy", variable)
    if _UNREACHABLE.search(stderr):
        return PackageError(f"{host} cannot be reached; check the network", "HTTPS_PROXY=URL, behind a proxy,")
    return None


def quote_cause(stderr: str) -> str:
    """Return the lines at the end of stderr that name a cause, or the last ones; a long line loses its middle."""
    is_traceback = "Traceback (most recent call last)" in stderr  # whose indented lines are code
    kept = [line for line in stderr.splitlines() if not (is_traceback and line[:1].isspace())]
    lines = [line.strip() for line in kept if line.strip() and not _NOISE.match(line.strip())]
    causes = list(dict.fromkeys(line for line in lines if _CAUSE.search(line)))
    return " / ".join(_shorten(line) for line in (causes or lines)[-_LINES:])


def _shorten(line: str) -> str:
    half = _CHARACTERS // _LINES // 2
    return line if len(line) <= 2 * half else f"{line[:half]} … {line[-half:]}"
