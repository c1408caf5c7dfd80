"""Which hosts and addresses pictures may be fetched from."""

from ipaddress import ip_network

import pytest

from quire.core.errors import ConfigError
from quire.llm.pictures.addresses import AllowedHosts, FetchTarget, is_public

PRIVATE = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1",
    "169.254.169.254", "224.0.0.1", "240.0.0.1", "255.255.255.255", "198.18.0.1", "192.0.2.1",
    "::", "::1", "fe80::1", "fe80::1%eth0", "fd00::1", "ff02::1", "2001:db8::1",
    # Addresses that carry one of the above.
    "::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::", "2002:a9fe:a9fe::1", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1",
    "2001:0:7f00:1::f7f7:f7f7", "2001:0:808:808::5601:5601", "2606:4700::5efe:7f00:1",
    "2606:4700::200:5efe:a9fe:a9fe", "2002:808:808::5efe:7f00:1",
    # Metadata of clouds: Oracle, Alibaba, Azure, AWS; and what one Python or another calls global.
    "192.0.0.192", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "192.0.0.8", "192.0.0.9",
    "64:ff9b:1::", "64:ff9b:1::a9fe:a9fe", "192.88.99.1", "192.31.196.1", "192.52.193.1",
    "192.175.48.1", "198.51.100.7", "203.0.113.7", "239.1.2.3", "fec0::1", "100::1", "100:0:0:1::1",
    "2001:2::1", "2001:10::1", "2001:20::1", "2001:30::1", "2001:4:112::1", "3fff::1", "5f00::1",
    "2620:4f:8000::1", "4000::1",
    "not an address", "",
]  # fmt: skip
PUBLIC = [
    "93.184.216.34", "8.8.8.8", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::808:808",
    "192.0.1.1", "192.1.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0",
    "198.17.255.255", "198.20.0.0", "223.255.255.255", "168.63.129.17", "::ffff:8.8.8.8",
    "2002:808:808::1", "2001:200::1", "2001:0:808:808::f7f7:f7f7", "3ffe::1",
]  # fmt: skip
#: The blocks of IANA's registries of special-purpose addresses, of 2026-07-18, but for those that
#: carry an IPv4 address: ::ffff:0:0/96, 64:ff9b::/96, 2001::/32 and 2002::/16.
REGISTERED = """
0.0.0.0/8 0.0.0.0/32 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
192.0.0.0/29 192.0.0.8/32 192.0.0.9/32 192.0.0.10/32 192.0.0.170/32 192.0.0.171/32 192.0.2.0/24
192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.88.99.2/32 192.168.0.0/16 192.175.48.0/24
198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 240.0.0.0/4 255.255.255.255/32
::1/128 ::/128 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001:1::1/128 2001:1::2/128 2001:1::3/128
2001:2::/48 2001:3::/32 2001:4:112::/48 2001:10::/28 2001:20::/28 2001:30::/28 2001:db8::/32
2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10
""".split()


@pytest.mark.parametrize("block", REGISTERED)
def test_no_block_of_the_registries_is_public(block):
    network = ip_network(block)
    assert not is_public(str(network[0])) and not is_public(str(network[-1]))


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_of_other_networks_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_internet_are_public(address):
    assert is_public(address)


@pytest.mark.parametrize(
    ("entries", "url", "allowed"),
    [
        (["example.com"], "https://example.com/a.png", True),
        (["example.com"], "http://EXAMPLE.com./a.png", True),
        (["Example.com"], "http://example.com/a.png", True),
        (["example.com"], "http://example.com:8080/a.png", False),
        (["example.com:8080"], "http://example.com:8080/a.png", True),
        (["example.com:8080"], "http://example.com/a.png", False),
        (["example.com"], "http://www.example.com/", False),
        (["example.com"], "http://example.com.evil.org/", False),
        (["example.com"], "http://evil.org/?example.com", False),
        (["example.com"], "http://evil.org#@example.com/", False),
        (["*"], "http://anything.org/", True),
        (["*"], "http://anything.org:22/", False),
        (["10.0.0.5:8080"], "http://10.0.0.5:8080/", True),
        (["::1"], "http://[::1]/", True),
        (["[::1]:81"], "http://[0:0:0:0:0:0:0:1]:81/", True),
        ([], "http://example.com/", False),
    ],
)
def test_a_host_is_allowed_by_its_name_and_port(entries, url, allowed):
    assert AllowedHosts(entries).allows(FetchTarget.of(url)) is allowed


@pytest.mark.parametrize(
    ("entries", "url", "address", "allowed"),
    [
        (["example.com"], "http://example.com/", "93.184.216.34", True),
        # A name that leads to a private address is refused, even if it is on the list.
        (["example.com"], "http://example.com/", "127.0.0.1", False),
        (["localhost"], "http://localhost/", "127.0.0.1", False),
        (["*"], "http://127.0.0.1/", "127.0.0.1", False),
        (["*"], "http://2130706433/", "127.0.0.1", False),
        (["127.0.0.1:81"], "http://127.0.0.1:81/", "127.0.0.1", True),
        (["127.0.0.1:81"], "http://127.0.0.1:81/", "127.0.0.2", False),
        (["127.0.0.1:81", "*"], "http://127.0.0.1/", "127.0.0.1", False),
        (["::1"], "http://[::1]/", "::1", True),
    ],
)
def test_private_addresses_are_allowed_only_as_such(entries, url, address, allowed):
    assert AllowedHosts(entries).allows_address(FetchTarget.of(url), address) is allowed


@pytest.mark.parametrize(
    "url",
    [
        "http://", "http:///a", "http://user@example.com/", "http://u:p@example.com/",
        "http://example.com:x/", "http://example.com:99999/", "http://[::1/", "ftp://example.com/",
        "http://exa mple.com/", "http://example.com/a b", "http://example.com/ä",
        "http://example.com/\x7f",
    ],
)  # fmt: skip
def test_urls_that_mean_something_else_are_refused(url):
    with pytest.raises(ValueError, match=r"^(be|have|name) "):
        FetchTarget.of(url)


@pytest.mark.parametrize(
    "entry", ["", "http://example.com", "a/b", "*.example.com", "u@a.b", "a:b"]
)
def test_entries_that_are_no_hosts_are_refused(entry):
    with pytest.raises(ConfigError, match="must be hosts"):
        AllowedHosts([entry])
