"""From measured rows to corrections, one per vLLM minor version and GPU type."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from longspan.planner.calibration import Calibration, Correction
from longspan.planner.versions import parse_version

# measured quantity -> (key of the prediction, field of the correction, whether it is a ratio).
QUANTITIES: dict[str, tuple[str, str, bool]] = {
    "weights_per_gpu": ("weights_gib_per_gpu", "weights_factor", True),
    "torch_peak_increase_per_gpu": ("activation_gib_per_gpu", "activation_add_gib", False),
    "non_torch_per_gpu": ("non_torch_gib_per_gpu", "non_torch_add_gib", False),
    "cuda_graph_pool_per_gpu": ("cuda_graph_gib_per_gpu", "cuda_graph_factor", True),
    "ttft": ("ttft_ms", "ttft_factor", True),
    "ttft_median": ("ttft_ms", "ttft_factor", True),
    "ttft_mean": ("ttft_ms", "ttft_factor", True),
    "tpot": ("tpot_ms", "tpot_factor", True),
    "tpot_median": ("tpot_ms", "tpot_factor", True),
    "tpot_mean": ("tpot_ms", "tpot_factor", True),
    "output_throughput": ("output_tok_s", "throughput_factor", True),
}


# No correction is as large; keeps nan and inf out of every later estimate.
_MOST = 1e6


@dataclass(frozen=True)
class Measured:
    """One measured value beside its prediction. `gpu` is the catalogue's name."""

    row_id: str
    version: str
    gpu: str
    quantity: str
    value: float
    predicted: float


def minor(version: str) -> str:
    """ "0.19.0" -> "0.19"."""
    parsed = parse_version(version)
    return f"{parsed[0]}.{parsed[1]}"


def fit(measured: Iterable[Measured]) -> Calibration:
    """The median ratio or difference of every component, by version and GPU. Quantities that correct nothing are left out."""
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for m in measured:
        if m.quantity not in QUANTITIES or m.predicted <= 0:
            continue
        _, field, ratio = QUANTITIES[m.quantity]
        values = groups.setdefault((minor(m.version), m.gpu), {}).setdefault(field, [])
        values.append(m.value / m.predicted if ratio else m.value - m.predicted)
    return Calibration(
        {
            key: Correction(
                rows=sum(len(v) for v in fields.values()), **{name: median(v) for name, v in fields.items()}
            )
            for key, fields in groups.items()
        }
    )


def to_toml(calibration: Calibration) -> str:
    """The calibration file: one table per version and GPU."""
    lines = [
        "# Written by `longspan plan --calibrate`. Factors multiply an estimate, *_add_gib are added to it.",
        "",
    ]
    for (version, gpu), c in sorted(calibration.corrections.items()):
        lines += ["[[correction]]", f'vllm = "{version}"', f'gpu = "{gpu}"']
        lines += [f"{name} = {value!r}" for name, value in vars(c).items()]
        lines.append("")
    return "\n".join(lines)


def from_document(document: Mapping[str, object]) -> Calibration:
    """Reads what `to_toml` wrote, already parsed.

    Raises:
        ValueError: a table without vllm or gpu, or a field that is not known.
    """
    found = {}
    tables = document.get("correction", [])
    if not isinstance(tables, list):
        raise ValueError("`correction` is not a list of tables")  # noqa: TRY004  one kind of error for a wrong file
    for table in tables:
        fields = dict(table)
        if "vllm" not in fields or "gpu" not in fields:
            raise ValueError("a [[correction]] has no vllm or no gpu")
        key = (str(fields.pop("vllm")), str(fields.pop("gpu")))
        unknown = set(fields) - set(Correction.__dataclass_fields__)
        if unknown:
            raise ValueError(f"unknown fields {', '.join(sorted(unknown))}")
        for name, value in fields.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _MOST:
                raise ValueError(f"{name} is {str(value)[:40]}, not a number")
            if name.endswith("_factor") and value <= 0:
                raise ValueError(f"{name} is {value}, not above 0")
        found[key] = Correction(**fields)
    return Calibration(found)
