"""Every address that is not the public internet is known for what it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.net.policy import address_kind, is_loopback, parse_address

NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.254", "100.100.100.200",
    "127.0.0.1", "127.8.8.8", "168.63.129.16", "169.254.0.1", "169.254.169.254", "169.254.170.2", "172.16.0.1",
    "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1",
    "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "::",
    "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0.0.0.0", "::127.0.0.1",
    "::10.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b::10.0.0.1",
    "64:ff9b:1::10.0.0.1", "100::1", "2001::1", "2001:0:53aa:64c:0:0:80ff:fffe", "2001:2::1", "2001:10::1",
    "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:a00:1::", "2002:a9fe:a9fe::", "3fff::1", "4000::1",
    "5f00::1", "fc00::1", "fd00:ec2::254", "fd20:ce::254", "fe80::1", "fe80::1%eth0", "febf::1", "fec0::1",
    "ff02::1", "ff0e::1",
]  # fmt: skip

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.215.14", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
    "126.255.255.255", "128.0.0.1", "168.63.129.15", "169.253.255.255", "169.255.0.0", "172.15.255.255",
    "172.32.0.0", "192.0.1.1", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0", "223.255.255.255",
    "2606:4700:4700::1111", "2001:4860:4860::8888", "2a00:1450::1", "2400::1", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8",
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_an_address_that_is_not_public_has_a_kind(text: str) -> None:
    assert address_kind(parse_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_has_no_kind(text: str) -> None:
    assert address_kind(parse_address(text)) is None


@given(st.ip_addresses())
def test_nothing_is_public_that_python_knows_to_be_private(address: object) -> None:
    found = parse_address(str(address))
    if found.is_private or found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified:
        assert address_kind(found)


@given(st.ip_addresses(v=4))
def test_a_mapped_address_has_the_kind_of_its_ipv4_address(address: object) -> None:
    assert address_kind(parse_address(f"::ffff:{address}")) == address_kind(parse_address(str(address)))
    assert address_kind(parse_address(f"64:ff9b::{address}")) == address_kind(parse_address(str(address)))


def test_loopback_is_recognised_in_each_form() -> None:
    for text in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert is_loopback(parse_address(text))
    for text in ("0.0.0.0", "10.0.0.1", "8.8.8.8", "::"):
        assert not is_loopback(parse_address(text))
