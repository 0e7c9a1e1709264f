"""Calibration: the spread of the fitted constants, and corrections that users measured on their own version and GPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from longspan.planner.versions import Version

Interval = tuple[float, float]


@dataclass(frozen=True)
class Spread:
    """Relative distance of the 10th and 90th percentile from the estimate, per component."""

    weights: Interval
    activation: Interval
    non_torch: Interval
    cuda_graph: Interval
    source: str


# Residuals of the H100 logs, every model predicted by a fit without it (docs/calibration.md).
MEASURED = Spread(
    (-0.001, 0.006),
    (-0.05, 0.06),
    (-0.05, 0.05),
    (-0.10, 0.15),
    "vLLM 0.15 to 0.19 logs on H100, cross-validated",
)
# A version without measurements: the same physics, wider.
UNMEASURED = Spread(
    (-0.005, 0.02), (-0.3, 0.4), (-0.7, 0.3), (-0.4, 0.5), "extrapolated from vLLM 0.15 to 0.19 on H100"
)
MEASURED_VERSIONS = (((0, 15, 0), (0, 19, 99)),)


@dataclass(frozen=True)
class Correction:
    """What measured rows added to the estimates of one version and GPU. Neutral by default."""

    weights_factor: float = 1.0
    activation_add_gib: float = 0.0
    non_torch_add_gib: float = 0.0
    cuda_graph_factor: float = 1.0
    ttft_factor: float = 1.0
    tpot_factor: float = 1.0
    throughput_factor: float = 1.0
    rows: int = 0


@dataclass(frozen=True)
class Calibration:
    """Corrections by (vLLM minor version such as "0.19", GPU name)."""

    corrections: Mapping[tuple[str, str], Correction] = field(default_factory=lambda: MappingProxyType({}))

    def correction(self, version: Version, gpu: str) -> Correction:
        """The correction for this version and GPU; neutral where none was measured."""
        return self.corrections.get((f"{version[0]}.{version[1]}", gpu), Correction())

    def spread(self, version: Version) -> Spread:
        """How far estimates of this version are off."""
        return MEASURED if any(low <= version <= high for low, high in MEASURED_VERSIONS) else UNMEASURED


DEFAULT = Calibration()
