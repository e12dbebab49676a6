"""The network policy and limits of requests: allowed hosts and ports, public and other addresses.

The tables of addresses follow IANA's registries of special-purpose addresses (IPv4 and IPv6, as of 2025). They are
written out because `ipaddress` answers differently from one Python version to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import idna

from gateway.errors import Forbidden, Invalid
from gateway.value import Value

Address = IPv4Address | IPv6Address

_METADATA = "a cloud metadata address"
_LOOPBACK = "a loopback address"
_PRIVATE = "an address of a private network"
_LINK_LOCAL = "a link-local address"
_MULTICAST = "a multicast address"
_RESERVED = "a reserved address"
_DOCUMENTATION = "an address for documentation"
_TUNNEL = "an address of a tunnel"
_UNSPECIFIED = "the unspecified address"

# The first network that contains an address decides.
_SPECIAL: tuple[tuple[IPv4Network | IPv6Network, str], ...] = tuple(
    (ip_network(network), address_kind)
    for network, address_kind in (
        ("169.254.169.254/32", _METADATA),  # AWS, Google, Azure, and others after them
        ("169.254.170.2/32", _METADATA),  # AWS, for containers
        ("100.100.100.200/32", _METADATA),  # Alibaba
        ("168.63.129.16/32", _METADATA),  # Azure, among public addresses
        ("192.0.0.192/32", _METADATA),  # Oracle
        ("fd00:ec2::254/128", _METADATA),  # AWS
        ("fd20:ce::254/128", _METADATA),  # Google
        ("0.0.0.0/32", _UNSPECIFIED),
        ("0.0.0.0/8", _RESERVED),
        ("10.0.0.0/8", _PRIVATE),
        ("100.64.0.0/10", "an address of a carrier's inner network"),
        ("127.0.0.0/8", _LOOPBACK),
        ("169.254.0.0/16", _LINK_LOCAL),
        ("172.16.0.0/12", _PRIVATE),
        ("192.0.0.0/24", _RESERVED),
        ("192.0.2.0/24", _DOCUMENTATION),
        ("192.88.99.0/24", _TUNNEL),
        ("192.168.0.0/16", _PRIVATE),
        ("198.18.0.0/15", "an address for measurements"),
        ("198.51.100.0/24", _DOCUMENTATION),
        ("203.0.113.0/24", _DOCUMENTATION),
        ("224.0.0.0/4", _MULTICAST),
        ("240.0.0.0/4", _RESERVED),
        ("::/128", _UNSPECIFIED),
        ("::1/128", _LOOPBACK),
        ("2001::/32", _TUNNEL),  # Teredo
        ("2001:db8::/32", _DOCUMENTATION),
        ("2001::/23", _RESERVED),
        ("2002::/16", _TUNNEL),  # 6to4
        ("3fff::/20", _DOCUMENTATION),
        ("fc00::/7", _PRIVATE),
        ("fe80::/10", _LINK_LOCAL),
        ("ff00::/8", _MULTICAST),
    )
)

_PUBLIC_V6 = IPv6Network("2000::/3")
# IPv6 networks whose addresses embed an IPv4 address: mapped, and NAT64.
_EMBEDDING_NETWORKS = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))


def parse_address(text: str) -> Address:
    """Parse an address from a resolver, without its zone: no zone has public addresses."""
    return ip_address(text.partition("%")[0])


def address_kind(address: Address) -> str | None:
    """Describe an address that is not public; None for a public one."""
    address = _unwrap_ipv4(address)
    for network, name in _SPECIAL:
        if address.version == network.version and address in network:
            return name
    return _RESERVED if isinstance(address, IPv6Address) and address not in _PUBLIC_V6 else None


def is_loopback(address: Address) -> bool:
    return address_kind(address) == _LOOPBACK


def _unwrap_ipv4(address: Address) -> Address:
    if isinstance(address, IPv6Address) and any(address in network for network in _EMBEDDING_NETWORKS):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


HOST_NOT_ALLOWED = "HOST_NOT_ALLOWED"
PRIVATE_ADDRESS = "PRIVATE_ADDRESS"
INSECURE_URL = "INSECURE_URL"
PORT_NOT_ALLOWED = "PORT_NOT_ALLOWED"
WEB_PORTS = (80, 443)

_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*")
_NO_HOST = "{!r} is not a host name; write example.org, *.example.org for every name below it, or an IP address"
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HIGHEST_PORT = 65535


class NetworkPolicy(Value):
    """The hosts, ports and addresses that requests may reach; none by default.

    `allowed_hosts` are names, addresses, and patterns like `*.example.org`, which matches every name below
    `example.org` but not itself; each may allow one port only, as in `example.org:8443`. `any_host` allows every name.
    Without a port of its own, a host allows `ports`; None allows any. Only `allow_private` allows addresses that are
    not public. With `https_only`, plain HTTP reaches only this machine. `hosts_setting` and `private_setting` are
    named in error messages.
    """

    allowed_hosts: tuple[str, ...] = ()
    any_host: bool = False
    allow_private: bool = False
    https_only: bool = False
    ports: tuple[int, ...] | None = None
    hosts_setting: str = "http.allowed_hosts"
    private_setting: str = "http.allow_private"
    _rules: tuple[_Rule, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        rules = tuple(_rules(self.allowed_hosts, self.hosts_setting))
        object.__setattr__(self, "allowed_hosts", tuple(map(str, rules)))
        object.__setattr__(self, "_rules", rules)

    def check_host(self, scheme: str, host: str, port: int | None = None) -> None:
        """Refuse a host or port that is not allowed, before the name is resolved."""
        port = port or _DEFAULT_PORTS[scheme]
        ports = [rule.port for rule in self._rules if rule.matches(host)] + ([None] if self.any_host else [])
        if not ports:
            rule = _Rule(host, None if port == _DEFAULT_PORTS[scheme] else port)
            added = "it" if rule.port is None else str(rule)
            reason = f"{host} is not among the allowed hosts; add {added} to {self.hosts_setting} to allow it"
            raise Forbidden(reason, code=HOST_NOT_ALLOWED, host=host)
        if port not in ports and (None not in ports or not self._is_default(port)):
            rule = _Rule(host, port)
            reason = f"port {port} of {host} is not allowed; add {rule} to {self.hosts_setting} to allow it"
            raise Forbidden(reason, code=PORT_NOT_ALLOWED, host=host, port=port)
        if scheme == "http" and self.https_only and not self.allow_private:
            raise _insecure(host)

    def _is_default(self, port: int) -> bool:
        return self.ports is None or port in self.ports

    def check_address(self, scheme: str, host: str, address: Address) -> None:
        """Refuse an address that a name resolves to."""
        kind = address_kind(address)
        if kind is not None and not self.allow_private:
            target = "it is" if host == str(address) else f"it resolves to {address},"
            raise Forbidden(
                f"{host} is refused: {target} {kind}; set {self.private_setting} to true to allow such addresses",
                code=PRIVATE_ADDRESS,
                host=host,
                address=str(address),
            )
        if scheme == "http" and self.https_only and not is_loopback(address):
            raise _insecure(host)


def canonical_host(text: str) -> str:
    """A host name in canonical form (lower case, ASCII, without a trailing dot), or an IP address in its usual form.
    Raises `ValueError` for anything else."""
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


class _Rule(Value):
    """One allowed host or pattern, and its port if it names one."""

    pattern: str
    port: int | None = None

    def __str__(self) -> str:
        if self.port is None:
            return self.pattern
        return f"[{self.pattern}]:{self.port}" if ":" in self.pattern else f"{self.pattern}:{self.port}"

    def matches(self, host: str) -> bool:
        if not self.pattern.startswith("*."):
            return host == self.pattern
        return host.endswith(self.pattern[1:]) and len(host) >= len(self.pattern) and not _is_address(host)


def _rules(hosts: Iterable[str], setting: str) -> Iterable[_Rule]:
    for text in hosts:
        start = "*." if text.startswith("*.") else ""
        try:
            host, port = _split(text.removeprefix(start))
            yield _Rule(start + canonical_host(host), port)
        except ValueError:
            raise Invalid(f"{setting}: {_NO_HOST.format(text[:100])}", code="INVALID_HOST") from None


def _split(text: str) -> tuple[str, int | None]:
    """Split `host:port`; the port is None if there is none. An IPv6 address with a port needs brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.endswith("]")):
        return text, None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= _HIGHEST_PORT:
        raise ValueError("not a port")
    return host, int(port)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _insecure(host: str) -> Forbidden:
    reason = f"{host} is refused over plain http, which anyone on the way can change; use https"
    return Forbidden(reason, code=INSECURE_URL, host=host)


_MEBIBYTE = 1024 * 1024


class RequestLimits(Value):
    """Limits of one request. `seconds` covers all of it: name resolution, redirects, retries and reading the body.
    `bytes` applies to the body compressed and decompressed."""

    bytes: int = 32 * _MEBIBYTE
    header_bytes: int = 64 * 1024
    seconds: float = 30.0
    connect_seconds: float = 10.0
    redirects: int = 5
