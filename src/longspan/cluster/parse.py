"""What nvidia-smi, ip and ibstat print -> facts. Pure: text in, values out; tested on recorded output."""

import re
from dataclasses import dataclass

from longspan.errors import ProbeError
from longspan.units import MIB

# The fields asked of nvidia-smi, in this order, with `--format=csv,noheader,nounits`.
GPU_QUERY = "index,name,memory.total,uuid"
_LEVELS = ("X", "PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True)
class GpuLine:
    """One GPU as nvidia-smi lists it. `memory_bytes` is its total, a little more than CUDA's."""

    index: int
    name: str
    memory_bytes: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Topology:
    """`nvidia-smi topo -m`: the level between two devices (NV18, PIX, PXB, PHB, NODE, SYS), and what NICs are called.

    Attributes:
        levels: (row, column) -> level, for GPUs and NICs. nics: "NIC0" -> "mlx5_0".
    """

    levels: dict[tuple[str, str], str]
    nics: dict[str, str]

    @property
    def gpu_pairs(self) -> list[str]:
        """The levels between different GPUs."""
        return [
            level
            for (a, b), level in self.levels.items()
            if a.startswith("GPU") and b.startswith("GPU") and a != b
        ]

    @property
    def nvlinks(self) -> int:
        """Links between the worst-joined pair of GPUs; 0 where some pair has none."""
        counts = [int(level[2:]) if re.fullmatch(r"NV\d+", level) else 0 for level in self.gpu_pairs]
        return min(counts, default=0)

    def near_nics(self, gpu: int) -> list[str]:
        """The NICs closest to a GPU, by the devices' own names."""
        found = {
            b: level for (a, b), level in self.levels.items() if a == f"GPU{gpu}" and b.startswith("NIC")
        }
        ranked = [level for level in found.values() if level in _LEVELS]
        if not ranked:
            return []
        best = min(ranked, key=_LEVELS.index)
        return [self.nics.get(nic, nic) for nic, level in found.items() if level == best]


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface that is up and has an IPv4 address."""

    name: str
    address: str
    prefix: int


@dataclass(frozen=True, slots=True)
class Port:
    """A port of an InfiniBand or RoCE device. `rate_bits_per_second` is 0 where ibstat prints none."""

    device: str
    number: int
    is_active: bool
    rate_bits_per_second: float
    link_layer: str


def parse_gpus(text: str) -> list[GpuLine]:
    """Reads `nvidia-smi --query-gpu=index,name,memory.total,uuid --format=csv,noheader,nounits`.

    Raises:
        ProbeError: a line has not these four fields; NVIDIA's own error text is shown.
    """
    found = []
    for line in text.splitlines():
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 4 or not cells[0].isdigit() or not cells[2].isdigit():
            raise ProbeError(
                f"nvidia-smi printed {line.strip()!r}, which is no GPU.",
                "Run `nvidia-smi` there; the driver may be broken.",
            )
        found.append(GpuLine(int(cells[0]), cells[1], int(cells[2]) * MIB, cells[3]))
    return found


def parse_topology(text: str) -> Topology:
    """Reads `nvidia-smi topo -m`; what it does not know is left out, so that a new column breaks nothing."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    columns: list[str] = []
    levels: dict[tuple[str, str], str] = {}
    for line in plain.splitlines():
        cells = line.split()
        if not columns and cells and cells[0] == "GPU0":
            columns = [cell for cell in cells if re.fullmatch(r"(?:GPU|NIC)\d+", cell)]
        elif columns and cells and re.fullmatch(r"(?:GPU|NIC)\d+", cells[0]):
            for column, level in zip(columns, cells[1:], strict=False):
                if level in _LEVELS or re.fullmatch(r"NV\d+", level):
                    levels[cells[0], column] = level
    nics = dict(re.findall(r"^\s*(NIC\d+):\s*(\S+)\s*$", plain, flags=re.MULTILINE))
    return Topology(levels, nics)


def parse_interfaces(text: str) -> list[Interface]:
    """Reads `ip -o -4 addr show up`; loopback, bridges of containers and virtual pairs are left out."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\d+:\s+(\S+)\s+inet\s+(\d+(?:\.\d+){3})/(\d+)", line)
        if match and not re.match(r"lo$|docker|veth|br-|cni|flannel|cali|virbr|tun|tap", match[1]):
            found.append(Interface(match[1], match[2], int(match[3])))
    return found


def parse_speeds(text: str) -> dict[str, float]:
    """Reads lines of "interface Mbit/s" (from /sys/class/net/*/speed) into bits per second; unknown ones are left out."""
    found = {}
    for line in text.splitlines():
        cells = line.split()
        if len(cells) == 2 and cells[1].isdigit() and int(cells[1]) > 0:
            found[cells[0]] = int(cells[1]) * 1e6
    return found


def parse_ibstat(text: str) -> list[Port]:
    """Reads `ibstat`: one entry for every port of every device."""
    found: list[Port] = []
    device, number = "", 0
    fields: dict[str, str] = {}

    def close() -> None:
        if device and number:
            rate = re.match(r"\d+(?:\.\d+)?", fields.get("Rate", ""))
            found.append(
                Port(
                    device,
                    number,
                    fields.get("State") == "Active",
                    float(rate[0]) * 1e9 if rate else 0.0,
                    fields.get("Link layer", ""),
                )
            )

    for line in text.splitlines():
        if match := re.match(r"CA '(.+)'", line):
            close()
            device, number, fields = match[1], 0, {}
        elif match := re.match(r"\s+Port (\d+):", line):
            close()
            number, fields = int(match[1]), {}
        elif match := re.match(r"\s+([A-Za-z ]+): (.+)", line):
            fields[match[1].strip()] = match[2].strip()
    close()
    return found


def parse_sysfs_ports(text: str) -> list[Port]:
    """Reads lines of "device|port|state|rate|link layer" as /sys/class/infiniband words them: for hosts without `ibstat`.

    A line is "mlx5_0|1|4: ACTIVE|400 Gb/sec (4X NDR)|InfiniBand".
    """
    found = []
    for line in text.splitlines():
        match = re.match(r"([^|]+)\|(\d+)\|([^|]*)\|(\d+(?:\.\d+)?)? ?[^|]*\|(\S*)", line)
        if match:
            rate = float(match[4]) * 1e9 if match[4] else 0.0
            found.append(Port(match[1], int(match[2]), match[3].endswith("ACTIVE"), rate, match[5]))
    return found
