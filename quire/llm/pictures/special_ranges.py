"""Addresses that are not of the internet at large, whatever the running Python says of them.

All of IANA's registries of special-purpose addresses as they were on 2026-07-18 (newest entries: of
2017-02 for IPv4, of 2025-04 for IPv6), also what is reachable from everywhere: an anycast address
of a protocol has no pictures. What carries an IPv4 address is as special as that one is.

Source: https://www.iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

_SPECIAL_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # shared by a provider's customers; Alibaba's metadata
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # in no registry: Azure's metadata and DNS
            "169.254.0.0/16",  # link-local; most clouds' metadata
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments; Oracle's metadata is 192.0.0.192
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
#: All that is given out to networks: loopback, link-local, site-local, unique local and multicast
#: addresses are outside, and what IANA keeps.
_UNICAST_6 = IPv6Network("2000::/3")
_SPECIAL_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments; benchmarking, AMT, AS112, ORCHID, drones
            "2001:db8::/32",  # documentation
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)
_MAPPED = IPv6Network("::ffff:0:0/96")
#: Translated to IPv4 for networks without it (RFC 6052).
_TRANSLATED = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
#: The middle of an address of ISATAP (RFC 5214), but for the bits that may be set in it.
_ISATAP, _ISATAP_MASK = 0x00005EFE, 0xFCFFFFFF


def is_special(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address, or an IPv4 address that it carries, is of a special range."""
    if isinstance(address, IPv4Address):
        return any(address in network for network in _SPECIAL_4)
    number = int(address)
    last = IPv4Address(number & 0xFFFFFFFF)
    if address in _MAPPED or address in _TRANSLATED:
        return is_special(last)
    if address in _TEREDO:
        server, client = number >> 64 & 0xFFFFFFFF, ~number & 0xFFFFFFFF
        return is_special(IPv4Address(server)) or is_special(IPv4Address(client))
    if number >> 32 & _ISATAP_MASK == _ISATAP and is_special(last):
        return True
    if address in _SIX_TO_FOUR:
        return is_special(IPv4Address(number >> 80 & 0xFFFFFFFF))
    return address not in _UNICAST_6 or any(address in network for network in _SPECIAL_6)
