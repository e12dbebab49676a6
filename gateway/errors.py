"""Every way the gateway says no.

GatewayError         a bug of ours; the caller sees INTERNAL and the call's id
├── NotFound         the caller named something that is not there
├── Invalid          the caller's input is wrong, and the caller can fix it
├── Unauthenticated  the caller did not say who they are, or nobody by that name is known
├── Forbidden        the caller may not do this
├── Conflict         someone else changed it first
├── RateLimited      the caller may, but not yet
│   └── QuotaExceeded  the caller uses all that its role allows, whatever the tool
├── InputRequired    nobody is wrong: a person must answer first
├── ToolFailed       the tool ran and refused; the model should read why
│   ├── StepWaiting    a step of it waits for a person; those before it ran
│   └── UpstreamFault  an upstream server answered with a protocol error, which its caller shall see as it is
├── Cancelled        the caller, or a stopping gateway, called it off
└── Unavailable      something we depend on did not answer
    └── Timeout      it did not answer in time
"""

from __future__ import annotations

from typing import Any, ClassVar

from gateway.secrets import KNOWN


class GatewayError(Exception):
    """A refusal with a stable code, a message that names the fix, and details for programs. Known secrets in the
    message are masked, unless the class is `verbatim`."""

    default_code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    verbatim: ClassVar[bool] = False

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        self.message = message if self.verbatim else KNOWN.mask(message)
        super().__init__(self.message)
        self.code = code or self.default_code
        self.details = details

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "details": self.details}

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class NotFound(GatewayError):
    default_code = "NOT_FOUND"
    status = 404


class Invalid(GatewayError):
    default_code = "INVALID_ARGUMENTS"
    status = 400


class Unauthenticated(GatewayError):
    default_code = "UNAUTHENTICATED"
    status = 401


class Forbidden(GatewayError):
    default_code = "PERMISSION_DENIED"
    status = 403


class Conflict(GatewayError):
    default_code = "CONFLICT"
    status = 409


class RateLimited(GatewayError):
    default_code = "RATE_LIMITED"
    status = 429


class QuotaExceeded(RateLimited):
    pass


class InputRequired(GatewayError):
    default_code = "CONFIRMATION_REQUIRED"
    status = 428
    verbatim = True  # a person must see what they are asked about


class ToolFailed(GatewayError):
    default_code = "EXECUTION_ERROR"
    status = 422


class StepWaiting(ToolFailed):
    default_code = InputRequired.default_code
    status = InputRequired.status
    verbatim = True


class UpstreamFault(ToolFailed):
    """`fault` is the number of the JSON-RPC error, `data` what came with it."""

    default_code = "UPSTREAM_ERROR"
    verbatim = True

    def __init__(self, message: str, *, fault: int, data: Any = None) -> None:
        super().__init__(message, fault=fault, data=data)
        self.fault = fault
        self.data = data


class Cancelled(GatewayError):
    default_code = "CANCELLED"
    status = 499


class Unavailable(GatewayError):
    default_code = "UNAVAILABLE"
    status = 503


class Timeout(Unavailable):
    default_code = "TIMEOUT"
    status = 504
