"""What an IP address is likely to be: routable, or one that only its own machine can reach."""

import re

# 172.17.0.0/16 is Docker's default bridge, 172.18-31 its further networks, 192.168.122.0/24 libvirt's.
_KINDS = (
    (re.compile(r"^(?:127\.|::1$|localhost$|\[?::ffff:127\.)"), "loopback"),
    (re.compile(r"^(?:169\.254\.|\[?fe80:)", re.IGNORECASE), "link-local"),
    (re.compile(r"^192\.168\.122\."), "libvirt bridge"),
    (re.compile(r"^172\.17\."), "docker bridge"),
    (re.compile(r"^172\.(?:1[89]|2\d|3[01])\.0\.1$"), "docker bridge"),
    (re.compile(r"^0\.0\.0\.0"), "unspecified"),
)


def kind_of_address(address: str) -> str:
    """ "loopback", "link-local", "docker bridge", "libvirt bridge", "unspecified", or "" for one that may be routable."""
    address = address.strip("[]()'\" ")
    return next((name for pattern, name in _KINDS if pattern.match(address)), "")


def same_subnet(one: str, other: str, octets: int = 3) -> bool:
    """Whether two IPv4 addresses share their first octets (a /24 by default); False for anything else."""
    left, right = one.split("."), other.split(".")
    return len(left) == len(right) == 4 and left[:octets] == right[:octets]
