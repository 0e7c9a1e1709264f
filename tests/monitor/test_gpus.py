"""GPUs: NVIDIA's library played by a compiled stand-in, AMD's by an object; what a card cannot say is None."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from longspan.monitor.amd import Amd
from longspan.monitor.node import NodeSampler, open_gpus
from longspan.monitor.nvml import Nvml
from longspan.monitor.view import GpuView

SOURCE = Path(__file__).parent.parent / "fixtures" / "monitor" / "nvml_standin.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The stand-in, compiled."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in of NVML: apt-get install gcc")
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-o", str(path), str(SOURCE)], check=True)
    return path


def test_nvml_is_read_whole(library):
    """Memory, load, power, clocks, throttling, ECC, the last Xid and NVLink come through the real calling convention."""
    nvml = Nvml.open(str(library))
    assert isinstance(nvml, Nvml)
    assert nvml.driver == "575.57.08"
    nvml.read(10.0)
    first, second, third = nvml.read(12.0)
    assert first == GpuView(
        "GPU-aa", 0, "NVIDIA H200", memory_total_bytes=150 << 30, memory_used_bytes=140 << 30, utilisation_share=0.97,
        power_watts=651.234, power_limit_watts=700.0, temperature_celsius=61, sm_clock_mhz=1980, memory_clock_mhz=3201,
        throttled_by=("power cap", "hardware thermal"), ecc_corrected=7, ecc_uncorrected=2, xid=79, nvlink_up=17,
        nvlink_down=1, nvlink_rx_bytes_per_second=2 * 2000 * 1024 / 2, nvlink_tx_bytes_per_second=2000 * 1024 / 2,
    )  # fmt: skip
    assert second == GpuView("GPU-bb", 1, "Tesla", memory_total_bytes=150 << 30, memory_used_bytes=0, temperature_celsius=61)  # fmt: skip
    assert third == GpuView("index 2", 2, "")  # a GPU that is lost stays in the picture, without figures
    assert nvml.memory_by_pid() == {4242: 2 << 30}


def test_no_library_is_said_and_never_zero(tmp_path):
    """Without a driver there is no GPU and a reason, no row of zeros."""
    assert Nvml.open(str(tmp_path / "nothing.so")) == "no NVIDIA driver here"
    found, source = open_gpus()
    sample = NodeSampler("n", "a", gpus=found, gpu_source=source).sample()
    assert source
    assert all(gpu.memory_total_bytes != 0 for gpu in sample.gpus)


def fails(*_):
    """What a card does that does not support something."""
    raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")


def amdsmi(**calls):
    """amdsmi as it answers for one MI300X."""
    found = {
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["h"],
        "amdsmi_get_gpu_asic_info": lambda h: {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_activity": lambda h: {"gfx_activity": 63, "umc_activity": 3},
        "amdsmi_get_power_info": lambda h: {"current_socket_power": 512, "average_socket_power": "N/A"},
        "amdsmi_get_gpu_total_ecc_count": lambda h: {"correctable_count": 1, "uncorrectable_count": 0},
        "amdsmi_get_gpu_device_uuid": lambda h: "abc",
        "amdsmi_get_gpu_memory_total": lambda h, kind: 192 << 30,
        "amdsmi_get_gpu_memory_usage": lambda h, kind: 180 << 30,
        "amdsmi_get_temp_metric": lambda h, sensor, metric: 71,
        "amdsmi_get_clock_info": lambda h, kind: {"clk": 2100 if kind == "gfx" else 1300},
        "AmdSmiMemoryType": SimpleNamespace(VRAM="vram"),
        "AmdSmiTemperatureType": SimpleNamespace(HOTSPOT="hot"),
        "AmdSmiTemperatureMetric": SimpleNamespace(CURRENT="now"),
        "AmdSmiClkType": SimpleNamespace(GFX="gfx", MEM="mem"),
    }
    return SimpleNamespace(**{**found, **calls})


def test_amd_cards_are_read_and_na_stays_unknown():
    """amdsmi's figures arrive in our units; its "N/A" and its exceptions become None."""
    (gpu,) = Amd.open(amdsmi()).read(0.0)
    assert (gpu.vendor, gpu.utilisation_share, gpu.power_watts, gpu.memory_used_bytes) == (
        "amd",
        0.63,
        512,
        180 << 30,
    )
    assert (gpu.temperature_celsius, gpu.sm_clock_mhz, gpu.ecc_uncorrected, gpu.xid) == (71, 2100, 0, None)
    (bare,) = Amd.open(
        amdsmi(
            amdsmi_get_gpu_activity=lambda h: {"gfx_activity": "N/A"}, amdsmi_get_power_info=fails,
            amdsmi_get_gpu_memory_usage=fails, amdsmi_get_temp_metric=fails,
        )
    ).read(0.0)  # fmt: skip
    assert (bare.utilisation_share, bare.power_watts, bare.memory_used_bytes, bare.temperature_celsius) == (
        None,
    ) * 4
    assert "does not answer" in Amd.open(amdsmi(amdsmi_init=fails))
