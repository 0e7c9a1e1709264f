"""The GPU catalogue: complete, sourced, plausible, and found under the names that people use."""

import tomllib
from importlib.resources import files

import pytest

from longspan.cluster.catalog import GpuType, catalog, custom_gpu, find_gpu, require_gpu
from longspan.errors import InputError


@pytest.mark.parametrize("gpu", catalog().values(), ids=lambda gpu: gpu.name)
def test_every_number_has_a_source(gpu: GpuType) -> None:
    """Each number that is not zero says where it comes from."""
    sources = dict(gpu.sources)
    for attribute in (
        "memory_bytes", "memory_bandwidth_bytes_per_second", "bf16_flops", "fp8_flops", "fp4_flops", "int8_ops",
        "link_bytes_per_second", "power_watts",
    ):  # fmt: skip
        assert (getattr(gpu, attribute) > 0) == bool(sources.get(attribute)), attribute


@pytest.mark.parametrize("gpu", catalog().values(), ids=lambda gpu: gpu.name)
def test_numbers_are_plausible(gpu: GpuType) -> None:
    """A slip by a factor of ten or a mixed-up unit would fall outside these bounds."""
    assert 10 << 30 < gpu.memory_bytes < 300 << 30
    assert 0.2e12 < gpu.memory_bandwidth_bytes_per_second <= 8e12
    assert 50e12 < gpu.bf16_flops < 3e15
    assert gpu.fp8_flops == 0 or 1.9 < gpu.fp8_flops / gpu.bf16_flops < 2.1
    assert 10e9 < gpu.link_bytes_per_second <= 900e9
    assert gpu.link in ("nvlink", "xgmi", "pcie", "pcie-host")


def test_no_source_and_no_alias_is_wasted() -> None:
    """Every source is cited, and no spelling names two types."""
    document = tomllib.loads(files("longspan.cluster").joinpath("catalog.toml").read_text("utf-8"))
    cited = {
        value[1]
        for entry in document["gpu"]
        for value in entry.values()
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], int | float)
    }
    assert cited == set(document["sources"])
    for gpu in catalog().values():
        for alias in (gpu.name, *gpu.aliases):
            assert find_gpu(alias) is gpu, alias


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80GB"), ("h200_sxm", "H200-SXM-141GB"), ("A100-80GB-PCIe", "A100-PCIe-80GB"),
        ("A100 80GB SXM4", "A100-SXM-80GB"), ("NVIDIA A100-SXM4-40GB", "A100-SXM-40GB"), ("RTX4090", "RTX-4090"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"), ("AMD Instinct MI300X", "MI300X-192GB"), ("b300_sxm", "B300-SXM-288GB"),
    ],
)  # fmt: skip
def test_spellings(spelling: str, name: str) -> None:
    """What nvidia-smi, rocm-smi and benchmark files print is found."""
    assert require_gpu(spelling).name == name


@pytest.mark.parametrize("spelling", ["A100 48GB", "A100-PCIe", "24GB", "", "H999"])
def test_unknown_or_ambiguous_names_are_refused(spelling: str) -> None:
    """Nothing is guessed: the error lists the known types."""
    assert find_gpu(spelling) is None
    with pytest.raises(InputError, match="not in the catalogue"):
        require_gpu(spelling)


def test_a_user_can_describe_an_unknown_gpu() -> None:
    """Three numbers are enough, and a forgotten one is named."""
    table = {"memory_gib": 64, "memory_bandwidth_gb_per_second": 1600, "bf16_tflops": 200}
    assert custom_gpu("X1", table).memory_bytes == 64 << 30
    with pytest.raises(InputError, match="memory_bandwidth_gb_per_second"):
        custom_gpu("X1", {"memory_gib": 64, "bf16_tflops": 200})
    with pytest.raises(InputError, match="tflop"):
        custom_gpu("X1", {**table, "tflop": 3})
