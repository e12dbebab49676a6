"""Where requests may go: which hosts by name, and whether private addresses."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

import idna

from ..errors import Forbidden, Invalid
from .addresses import Address, is_loopback, kind

HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED"
PRIVATE_ADDRESS = "PRIVATE_ADDRESS"
INSECURE_URL = "INSECURE_URL"

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NO_HOST = "{!r} is no host name: write example.org, *.example.org for every name below it, or an IP address"


@dataclass(frozen=True)
class Policy:
    """Where requests may go; unless it says otherwise, nowhere.

    `allowed_hosts` are names, addresses, and patterns like `*.example.org`, which has every name
    below `example.org` and not itself. `any_host` allows every name. Neither allows an address that
    is not public: `allow_private` does. With `https_only`, plain HTTP leads only to this machine.
    The settings are named in refusals.
    """

    allowed_hosts: tuple[str, ...] = ()
    any_host: bool = False
    allow_private: bool = False
    https_only: bool = False
    hosts_setting: str = "http.allowed_hosts"
    private_setting: str = "http.allow_private"

    def __post_init__(self) -> None:
        object.__setattr__(self, "allowed_hosts", tuple(_patterns(self.allowed_hosts, self.hosts_setting)))

    def check_host(self, scheme: str, host: str) -> None:
        """Refuse what can be refused before the name is looked up."""
        if not self.any_host and not any(_matches(pattern, host) for pattern in self.allowed_hosts):
            reason = f"{host} is not among the allowed hosts; add it to {self.hosts_setting} to allow it"
            raise Forbidden(reason, code=HOST_NOT_ALLOWED, host=host)
        if scheme == "http" and self.https_only and not self.allow_private:
            raise _insecure(host)

    def check_address(self, scheme: str, host: str, address: Address) -> None:
        """Refuse one of the addresses a name leads to."""
        found = kind(address)
        if found is not None and not self.allow_private:
            where = "that is" if host == str(address) else f"{host} leads to {address},"
            raise Forbidden(
                f"{host} is not reached: {where} {found}; set {self.private_setting} to true to allow such addresses",
                code=PRIVATE_ADDRESS,
                host=host,
                address=str(address),
            )
        if scheme == "http" and self.https_only and not is_loopback(address):
            raise _insecure(host)


def canonical_host(text: str) -> str:
    """A host name as it is compared and looked up: lower case, ASCII, without the root's dot; an IP
    address in its usual form. `ValueError` for what is neither."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ip_address(bare)
    except ValueError:
        pass
    else:
        if isinstance(address, IPv6Address) and address.scope_id is not None:
            raise ValueError("an address with a zone")
        return str(address)
    name = bare.lower().removesuffix(".")
    if not name.isascii():
        name = idna.encode(name).decode("ascii").lower()
    if not _NAME.fullmatch(name):
        raise ValueError("not a host name")
    return name


def _patterns(hosts: Iterable[str], setting: str) -> Iterable[str]:
    for host in hosts:
        start = "*." if host.startswith("*.") else ""
        try:
            yield start + canonical_host(host.removeprefix(start))
        except ValueError:
            raise Invalid(f"{setting}: {_NO_HOST.format(host[:100])}", code="INVALID_HOST") from None


def _matches(pattern: str, host: str) -> bool:
    if not pattern.startswith("*."):
        return host == pattern
    return host.endswith(pattern[1:]) and len(host) >= len(pattern) and not _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _insecure(host: str) -> Forbidden:
    reason = f"{host} is not reached over plain http, which anyone on the way can change; use https"
    return Forbidden(reason, code=INSECURE_URL, host=host)
