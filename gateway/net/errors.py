"""What a failure of the network is called, in words for the person who reads it."""

from __future__ import annotations

import ssl

import httpx2

from gateway.errors import GatewayError, Invalid, Timeout, Unavailable

CONNECT_FAILED = "CONNECT_FAILED"
CONNECTION_LOST = "CONNECTION_LOST"
TLS_FAILED = "TLS_FAILED"
BAD_ANSWER = "BAD_ANSWER"


def before_answer(error: httpx2.TransportError, origin: str, connect_seconds: float) -> GatewayError:
    """For a request that got no answer."""
    root = _root(error)
    if isinstance(error, httpx2.ConnectTimeout):
        return Timeout(f"{origin} could not be reached within {connect_seconds:g} s")
    if isinstance(root, ssl.SSLCertVerificationError):
        return Unavailable(f"the certificate of {origin} is not accepted: {root.verify_message}", code=TLS_FAILED)
    if isinstance(root, ssl.SSLError):
        reason = (root.reason or "not TLS").replace("_", " ").lower()
        return Unavailable(f"no TLS connection with {origin}: {reason}", code=TLS_FAILED)
    if isinstance(error, httpx2.ConnectError):
        reason = root.strerror if isinstance(root, OSError) and root.strerror else "no connection"
        return Unavailable(f"{origin} could not be reached: {reason}", code=CONNECT_FAILED)
    if isinstance(error, httpx2.LocalProtocolError):
        return Invalid("this request cannot be sent as HTTP", code="INVALID_REQUEST")
    if isinstance(error, httpx2.NetworkError) or "disconnected" in str(error):
        return Unavailable(f"{origin} closed the connection without an answer", code=CONNECTION_LOST)
    return bad_answer(origin, "it is not HTTP that can be read, or its headers are too large")


def within_answer(origin: str) -> Unavailable:
    """For an answer that began and did not come to its end."""
    return Unavailable(f"the answer of {origin} broke off before its end", code=CONNECTION_LOST)


def bad_answer(origin: str, reason: str) -> Unavailable:
    return Unavailable(f"the answer of {origin} is of no use: {reason}", code=BAD_ANSWER)


def _root(error: BaseException) -> BaseException:
    """The first failure in a row of them; `httpcore2` hands the one before on as an argument."""
    before = error.__cause__ or next((part for part in error.args if isinstance(part, BaseException)), None)
    return error if before is None else _root(before)
