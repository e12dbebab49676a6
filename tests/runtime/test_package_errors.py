"""What installers of packages say, in words that name the cause and the fix."""

from __future__ import annotations

import pytest

from gateway.runtime.package_errors import find_package_error, quote_cause

NPM = """npm warn Unknown user config "nodedir".
npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/no-such-server
npm error 404
npm error 404  The requested resource 'no-such-server@*' could not be found or you do not have permission to access it.
npm error 404
npm error 404 Note that you can also install from a
npm error 404 tarball, folder, http url, or git url.
npm error A complete log of this run can be found in: ~/.npm/_logs/2026-11-18-debug-0.log
"""
SCOPED = "npm ERR! 404  '@scope/no-such@latest' is not in this registry."
UV = "  × No solution found:\n  ╰─▶ Because no-such was not found in the package registry and you require no-such"
CERTIFICATE = """error: Failed to fetch: `https://pypi.org/simple/idna/`
  Caused by: Request failed after 3 retries
  Caused by: error sending request for url (https://pypi.org/simple/idna/)
  Caused by: client error (Connect)
  Caused by: invalid peer certificate: UnknownIssuer
"""
OFFLINE = """error: Failed to fetch: `https://user:secret@index.example/simple/idna/`
  Caused by: error sending request
  Caused by: dns error: failed to lookup address information
"""
NPM_CERTIFICATE = "npm error request to https://registry.npmjs.org/x failed, reason: self-signed certificate"


@pytest.mark.parametrize(
    ("stderr", "text"),
    [
        (NPM, "there is no package 'no-such-server' in the package index; check its name"),
        (SCOPED, "there is no package '@scope/no-such' in the package index; check its name"),
        (UV, "there is no package 'no-such' in the package index; check its name"),
        (
            CERTIFICATE,
            "the certificate of pypi.org is not trusted, as behind a company's proxy; set UV_SYSTEM_CERTS=1 or "
            "SSL_CERT_FILE=FILE in the environment",
        ),
        (
            NPM_CERTIFICATE,
            "the certificate of registry.npmjs.org is not trusted, as behind a company's proxy; set "
            "NODE_EXTRA_CA_CERTS=FILE in the environment",
        ),
        (
            OFFLINE,
            "index.example cannot be reached; check the network; set HTTPS_PROXY=URL, behind a proxy, in the "
            "environment",
        ),
    ],
)
def test_an_error_of_an_installer_names_cause_and_fix(stderr: str, text: str) -> None:
    found = find_package_error(stderr)
    assert found is not None
    assert found.text == text


@pytest.mark.parametrize("stderr", ["", "boom", "Traceback (most recent call last):\nValueError: x"])
def test_other_output_is_no_error_of_an_installer(stderr: str) -> None:
    assert find_package_error(stderr) is None


def test_the_cause_in_stderr_is_quoted_whole() -> None:
    traceback = "Traceback (most recent call last):\n  raise ValueError(error)\nValueError: the port is taken"
    assert quote_cause(f"starting\n{traceback}\n") == "ValueError: the port is taken"
    assert quote_cause("one\ntwo\nthree\nfour\n") == "two / three / four"
    long = f"error: {'a' * 2000} is the cause"
    assert quote_cause(long).startswith("error: aaa")
    assert quote_cause(long).endswith("aaa is the cause")
