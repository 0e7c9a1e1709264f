"""Judging IP addresses: which only their own machine can reach. Pure."""

import ipaddress

# Networks that software makes on a machine for itself. Docker's default bridge; libvirt's.
_PRIVATE_BRIDGES = {"172.17.0.0/16": "Docker's bridge", "192.168.122.0/24": "libvirt's bridge"}


def why_unreachable(address: str) -> str:
    """What kind of address this is that other hosts cannot reach it by; empty for one that may be routable."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "not an IP address"
    if found.is_loopback:
        return "a loopback address"
    if found.is_link_local:
        return "a link-local address"
    if found.is_unspecified:
        return "the address of no host"
    return next(
        (
            name
            for net, name in _PRIVATE_BRIDGES.items()
            if found.version == 4 and found in ipaddress.ip_network(net)
        ),
        "",
    )


def is_same_address(one: str, other: str) -> bool:
    """Whether two texts are the same address (`::1` and `0:0:0:0:0:0:0:1` are)."""
    if one == other:
        return True
    try:
        return ipaddress.ip_address(one) == ipaddress.ip_address(other)
    except ValueError:
        return False
