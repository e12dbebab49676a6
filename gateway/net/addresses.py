"""Which addresses are the public internet, and what the others are.

The tables follow IANA's registries of special-purpose addresses (IPv4 and IPv6, as of 2025). They are
written out because `ipaddress` answers differently from one Python version to the next.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

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

# The first network that holds an address says what it is.
_SPECIAL: tuple[tuple[IPv4Network | IPv6Network, str], ...] = tuple(
    (ip_network(network), kind)
    for network, kind in (
        ("169.254.169.254/32", _METADATA),  # AWS, Google, Azure, and whoever followed them
        ("169.254.170.2/32", _METADATA),  # AWS, for containers
        ("100.100.100.200/32", _METADATA),  # Alibaba
        ("168.63.129.16/32", _METADATA),  # Azure, in the midst of public addresses
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
# IPv6 forms of an IPv4 address that lead to it: mapped, and through a NAT64 gateway.
_CARRIERS = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))


def parse_address(text: str) -> Address:
    """The address a resolver answered; a zone is left out, since no zone has public addresses."""
    return ip_address(text.partition("%")[0])


def kind(address: Address) -> str | None:
    """What an address is that is not a public one; None for a public one."""
    address = _carried(address)
    for network, name in _SPECIAL:
        if address.version == network.version and address in network:
            return name
    return _RESERVED if isinstance(address, IPv6Address) and address not in _PUBLIC_V6 else None


def is_loopback(address: Address) -> bool:
    return kind(address) == _LOOPBACK


def _carried(address: Address) -> Address:
    if isinstance(address, IPv6Address) and any(address in network for network in _CARRIERS):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address
