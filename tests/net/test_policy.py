"""Hosts by name: exact, below a name, and nothing besides."""

from __future__ import annotations

import pytest

from gateway.errors import Forbidden, Invalid
from gateway.net.policy import NetworkPolicy, canonical_host, parse_address


def allows(policy: NetworkPolicy, host: str, scheme: str = "https") -> bool:
    try:
        policy.check_host(scheme, canonical_host(host))
    except Forbidden as error:
        assert error.code == "HOST_NOT_ALLOWED"
        return False
    return True


def test_policy_allows_nothing_by_default() -> None:
    assert not allows(NetworkPolicy(), "example.org")
    assert not allows(NetworkPolicy(allow_private=True), "localhost")


def test_policy_allows_any_host_only_when_told() -> None:
    assert allows(NetworkPolicy(any_host=True), "example.org")


@pytest.mark.parametrize("host", ["example.org", "EXAMPLE.org", "example.org."])
def test_allowed_host_matches_any_spelling(host: str) -> None:
    assert allows(NetworkPolicy(allowed_hosts=("Example.ORG",)), host)


@pytest.mark.parametrize(
    "host", ["sub.example.org", "evilexample.org", "example.org.evil.net", "example.com", "xample.org", "org"]
)
def test_allowed_host_matches_no_other_name(host: str) -> None:
    assert not allows(NetworkPolicy(allowed_hosts=("example.org",)), host)


@pytest.mark.parametrize("host", ["a.example.org", "a.b.example.org", "A.Example.Org."])
def test_a_pattern_allows_every_name_below(host: str) -> None:
    assert allows(NetworkPolicy(allowed_hosts=("*.example.org",)), host)


@pytest.mark.parametrize("host", ["example.org", "evilexample.org", "a.example.org.evil.net", "aexample.org"])
def test_a_pattern_allows_neither_itself_nor_what_looks_like_it(host: str) -> None:
    assert not allows(NetworkPolicy(allowed_hosts=("*.example.org",)), host)


def test_names_of_other_alphabets_are_compared_in_ascii() -> None:
    assert allows(NetworkPolicy(allowed_hosts=("bücher.example",)), "xn--bcher-kva.example")
    assert allows(NetworkPolicy(allowed_hosts=("*.xn--bcher-kva.example",)), "www.BÜCHER.example")


def test_addresses_are_compared_as_addresses_and_by_no_pattern() -> None:
    assert allows(NetworkPolicy(allowed_hosts=("[0:0::1]",)), "::1")
    assert not allows(NetworkPolicy(allowed_hosts=("*.0.0.1",)), "127.0.0.1")


@pytest.mark.parametrize(
    "pattern",
    ["", "*", "*.", "*.*.org", "a*.org", "https://example.org", "example.org/x", "a b", "::1%eth0", "a..b", "x" * 300,
     "user@example.org", "example.org\n", "example.org:", "example.org:0", "example.org:65536", "example.org:+80",
     "example.org:８０", "example.org:80:80", "[::1]:x"],
)  # fmt: skip
def test_invalid_host_pattern_is_refused_with_the_name_of_the_setting(pattern: str) -> None:
    with pytest.raises(Invalid, match=r"web\.allowed_hosts: .* is not a host name"):
        NetworkPolicy(allowed_hosts=(pattern,), hosts_setting="web.allowed_hosts")


def test_refusals_name_the_host_the_address_and_the_setting() -> None:
    policy = NetworkPolicy(allowed_hosts=("a.test",), hosts_setting="web.allowed_hosts")
    with pytest.raises(Forbidden) as refused:
        policy.check_host("https", "b.test")
    assert refused.value.message == "b.test is not among the allowed hosts; add it to web.allowed_hosts to allow it"
    with pytest.raises(Forbidden) as refused:
        policy.check_host("http", "b.test", 8080)
    assert "; add b.test:8080 to web.allowed_hosts to allow it" in refused.value.message
    NetworkPolicy(allowed_hosts=("b.test:8080",)).check_host("http", "b.test", 8080)
    with pytest.raises(Forbidden) as refused:
        policy.check_address("https", "a.test", parse_address("10.0.0.7"))
    assert refused.value.code == "PRIVATE_ADDRESS"
    assert refused.value.details == {"host": "a.test", "address": "10.0.0.7"}
    assert refused.value.message == (
        "a.test is refused: it resolves to 10.0.0.7, an address of a private network; "
        "set http.allow_private to true to allow such addresses"
    )


def test_https_only_allows_plain_http_to_this_machine() -> None:
    with pytest.raises(Forbidden, match="use https"):
        NetworkPolicy(any_host=True, https_only=True).check_host("http", "a.test")
    policy = NetworkPolicy(any_host=True, https_only=True, allow_private=True)
    policy.check_host("http", "a.test")
    policy.check_address("http", "a.test", parse_address("127.0.0.1"))
    policy.check_address("https", "a.test", parse_address("10.0.0.7"))
    for address in ("10.0.0.7", "8.8.8.8"):
        with pytest.raises(Forbidden, match="use https"):
            policy.check_address("http", "a.test", parse_address(address))


def port_allowed(policy: NetworkPolicy, host: str, port: int | None, scheme: str = "https") -> bool:
    try:
        policy.check_host(scheme, host, port)
    except Forbidden as error:
        assert error.code == "PORT_NOT_ALLOWED"
        return False
    return True


def test_a_host_may_name_its_port_and_then_allows_no_other() -> None:
    policy = NetworkPolicy(allowed_hosts=("a.test:8443", "*.b.test:81", "[::1]:9000", "c.test"))
    assert policy.allowed_hosts == ("a.test:8443", "*.b.test:81", "[::1]:9000", "c.test")
    for host, port in (("a.test", 8443), ("x.b.test", 81), ("::1", 9000), ("c.test", None), ("c.test", 22)):
        assert port_allowed(policy, host, port)
    for host, port in (("a.test", None), ("a.test", 443), ("x.b.test", 80), ("::1", 9001)):
        assert not port_allowed(policy, host, port)


def test_host_without_a_port_allows_the_ports_of_the_policy() -> None:
    policy = NetworkPolicy(allowed_hosts=("a.test", "a.test:8443"), ports=(80, 443), hosts_setting="web.allowed_hosts")
    assert all(port_allowed(policy, "a.test", port) for port in (None, 80, 443, 8443))
    assert port_allowed(policy, "a.test", None, "http")
    assert not any(port_allowed(policy, "a.test", port) for port in (22, 25, 6379, 8444))
    assert not port_allowed(NetworkPolicy(any_host=True, ports=(80, 443)), "a.test", 22)
    with pytest.raises(Forbidden) as refused:
        policy.check_host("http", "a.test", 6379)
    assert refused.value.message == (
        "port 6379 of a.test is not allowed; add a.test:6379 to web.allowed_hosts to allow it"
    )
