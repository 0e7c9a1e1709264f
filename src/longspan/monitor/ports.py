"""Network interfaces and RDMA ports out of sysfs. The roots are arguments, so that a recorded tree is read like a real one.

RDMA bytes pass the interface's own counters by, and Ray's node metrics leave out whatever does not begin with "e" (Ray 2.60,
reporter_agent.py): both kinds are read here, each port by itself.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from longspan.monitor.rates import per_second
from longspan.monitor.view import PortKind, PortView

# port_xmit_data and port_rcv_data count words of 4 bytes (InfiniBand specification, PortCounters).
WORD_BYTES = 4
_DROPS = ("rx_dropped", "tx_dropped", "rx_missed_errors", "rx_fifo_errors")
_ERRORS = ("rx_errors", "tx_errors")
# Names differ by driver: mlx5, bnxt_re, irdma, ionic, efa (Documentation/infiniband and the drivers' hw_stats tables).
_IB_DROPS = (
    "counters/port_xmit_discards", "hw_counters/out_of_buffer", "hw_counters/rx_drops", "hw_counters/rx_roce_discards",
    "hw_counters/tx_roce_discards", "hw_counters/rx_discards",
)  # fmt: skip
_IB_ERRORS = (
    "counters/port_rcv_errors", "counters/local_link_integrity_errors", "counters/excessive_buffer_overrun_errors",
    "hw_counters/packet_seq_err", "hw_counters/out_of_sequence", "hw_counters/local_ack_timeout_err",
    "hw_counters/rx_roce_errors", "hw_counters/rnr_nak_retry_err",
)  # fmt: skip
_IB_BYTES = (
    ("rx_bytes", "tx_bytes"), ("rx_rdma_ucast_bytes", "tx_rdma_ucast_bytes"), ("rx_roce_bytes", "tx_roce_bytes"),
    ("ip4InOctets", "ip4OutOctets"),
)  # fmt: skip
# Interfaces whose bytes are counted elsewhere too. The lone interface of a container is a veth without any of these signs.
_VIRTUAL_KINDS = ("DEVTYPE=vlan", "DEVTYPE=vxlan", "DEVTYPE=macvlan", "DEVTYPE=ipvlan")
_IN_PROC = "#net/dev#"  # marks a port that is read from /proc/net/dev, which is no file of its own
_VIRTUAL_NAMES = ("ifb", "dummy", "sit", "gre", "tunl", "ip6tnl")


@dataclass(frozen=True, slots=True)
class Port:
    """A port and the files that hold its counters; found now and then, read every second.

    Attributes:
        unit_bytes: what rx and tx count.
    """

    name: str
    kind: PortKind
    up: bool | None
    rate_bits_per_second: float | None
    rx: str
    tx: str
    unit_bytes: int = 1
    drops: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    netdev: str = ""
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class PortReading:
    """The counters of one port at one moment; None where the driver has none."""

    port: Port
    rx_bytes: int | None
    tx_bytes: int | None
    drops: int | None
    errors: int | None


def find_ports(sys_root: Path, proc: Path) -> list[Port]:
    """All interfaces with a life of their own, the loopback among them, then all RDMA ports.

    A sysfs shows the network namespace of whoever mounted it, /proc/net that of the reader: where they differ (nsenter, some
    batch systems), the interfaces are those of /proc/net, without their link's state and rate.
    """
    own, folder = _own_interfaces(proc), sys_root / "class" / "net"
    elsewhere = bool(own) and not set(own) <= {entry.name for entry in _entries(folder)}
    found = _of_proc(own, proc) if elsewhere else _interfaces(folder)
    return [*found, *_rdma(sys_root / "class" / "infiniband")]


def _own_interfaces(proc: Path) -> dict[str, list[int]]:
    """Interface -> the columns of /proc/net/dev (proc(5)): received bytes, packets, errors, drops, ...; from the ninth on sent."""
    found = {}
    for line in _text(f"{proc}/net/dev", 1 << 16).splitlines()[2:]:
        name, _, rest = line.partition(":")
        columns = rest.split()
        if len(columns) >= 16 and all(word.isdecimal() for word in columns):
            found[name.strip()] = [int(word) for word in columns]
    return found


def _of_proc(names: Iterable[str], proc: Path) -> Iterable[Port]:
    for name in names:
        if not name.startswith(_VIRTUAL_NAMES):
            yield Port(name, "netdev", None, None, f"{proc}{_IN_PROC}{name}", "", virtual=name == "lo")


def read(port: Port) -> PortReading:
    """Its counters as they are now."""
    if _IN_PROC in port.rx:
        proc, _, name = port.rx.partition(_IN_PROC)
        columns = _own_interfaces(Path(proc)).get(name)
        if columns is None:
            return PortReading(port, None, None, None, None)
        return PortReading(port, columns[0], columns[8], columns[3] + columns[11], columns[2] + columns[10])
    rx, tx = _number(port.rx), _number(port.tx)
    return PortReading(
        port,
        None if rx is None else rx * port.unit_bytes,
        None if tx is None else tx * port.unit_bytes,
        _sum(port.drops),
        _sum(port.errors),
    )


def rates(
    before: Iterable[PortReading], after: Iterable[PortReading], seconds: float
) -> tuple[PortView, ...]:
    """The ports of now with their rates since then; a port that was not there before, or was read otherwise, has none yet."""
    old = {one.port.rx: one for one in before}
    found = []
    for one in after:
        was, port = old.get(one.port.rx), one.port
        found.append(
            PortView(
                port.name, port.kind, port.up, port.rate_bits_per_second,
                rx_bytes_per_second=per_second(was.rx_bytes if was else None, one.rx_bytes, seconds),
                tx_bytes_per_second=per_second(was.tx_bytes if was else None, one.tx_bytes, seconds),
                drops_per_second=per_second(was.drops if was else None, one.drops, seconds),
                errors_per_second=per_second(was.errors if was else None, one.errors, seconds),
                drops_total=one.drops, errors_total=one.errors, netdev=port.netdev, virtual=port.virtual,
            )
        )  # fmt: skip
    return tuple(found)


def _text(path: str, most_bytes: int = 4096) -> str:
    """A file's text; empty where there is none or it may not be read (`speed` of a link that is down is an error).

    Bare system calls: this is most of what an agent does all day, and a Path with a text layer costs it five times as much.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, most_bytes).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _number(path: str) -> int | None:
    text = _text(path)
    return int(text) if text.isascii() and text.isdecimal() else None


def _sum(paths: Iterable[str]) -> int | None:
    found = [value for path in paths if (value := _number(path)) is not None]
    return sum(found) if found else None


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _there(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(str(folder / name) for name in names if (folder / name).is_file())


def _interfaces(folder: Path) -> Iterable[Port]:
    for entry in _entries(folder):
        counters = entry / "statistics"
        loopback = entry.name == "lo"
        if not counters.is_dir() or (_is_virtual(entry) and not loopback):
            continue
        mbit = _number(f"{entry}/speed")
        yield Port(
            entry.name, "netdev",
            {"up": True, "down": False, "lowerlayerdown": False}.get(_text(f"{entry}/operstate")),
            mbit * 1e6 if mbit else None, str(counters / "rx_bytes"), str(counters / "tx_bytes"),
            drops=_there(counters, _DROPS), errors=_there(counters, _ERRORS), virtual=loopback,
        )  # fmt: skip


def _is_virtual(entry: Path) -> bool:
    """Bridges and their members without hardware, bonds, VLANs and tunnels."""
    if any((entry / sign).exists() for sign in ("bridge", "bonding", "tun_flags")):
        return True
    if (entry / "device").exists():
        return False
    uevent = _text(f"{entry}/uevent")
    return (
        (entry / "brport").exists()
        or any(kind in uevent for kind in _VIRTUAL_KINDS)
        or entry.name.startswith(_VIRTUAL_NAMES)
    )


def _rdma(folder: Path) -> Iterable[Port]:
    for device in _entries(folder):
        for port in _entries(device / "ports"):
            rx, tx, unit_bytes = _rdma_bytes(port)
            rate = re.match(r"([\d.]+) Gb/sec", _text(f"{port}/rate"))
            state = _text(f"{port}/state")
            yield Port(
                f"{device.name}/{port.name}", "rdma", state.endswith("ACTIVE") if state else None,
                float(rate[1]) * 1e9 if rate else None, rx, tx, unit_bytes,
                _there(port, _IB_DROPS), _there(port, _IB_ERRORS), _netdev(device, port),
            )  # fmt: skip


def _rdma_bytes(port: Path) -> tuple[str, str, int]:
    """The files of what was received and sent, and their unit. Some RoCE drivers leave the standard counters out, or at 0,
    and fill only their own (ROCm/omnistat#307)."""
    rx, tx = f"{port}/counters/port_rcv_data", f"{port}/counters/port_xmit_data"
    if not _number(rx) and not _number(tx):
        for received, sent in _IB_BYTES:
            own_rx, own_tx = f"{port}/hw_counters/{received}", f"{port}/hw_counters/{sent}"
            if _number(own_rx) or _number(own_tx):
                return own_rx, own_tx, 1
    return rx, tx, WORD_BYTES


def _netdev(device: Path, port: Path) -> str:
    """The interface of an RDMA port, as its first GID has it or its PCI device."""
    named = _text(f"{port}/gid_attrs/ndevs/0")
    if named:
        return named
    found = _entries(device / "device" / "net")
    return found[0].name if len(found) == 1 else ""
