"""Ports, CPU, memory and processes from recorded trees of sysfs and /proc."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.monitor import ports, procfs
from longspan.monitor.node import NodeSampler, process_name
from longspan.monitor.rates import increase, per_second, share

COUNTER = st.integers(0, 1 << 64)


def tree(root: Path, files: dict[str, str]) -> Path:
    """Writes a recorded tree."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def netdev(name: str, rx: int, tx: int, **more: str) -> dict[str, str]:
    """An interface of /sys/class/net."""
    base = f"class/net/{name}"
    return {
        f"{base}/statistics/rx_bytes": str(rx), f"{base}/statistics/tx_bytes": str(tx),
        f"{base}/statistics/rx_dropped": "3", f"{base}/statistics/tx_dropped": "1", f"{base}/statistics/rx_errors": "0",
        f"{base}/operstate": "up", **{f"{base}/{key}": value for key, value in more.items()},
    }  # fmt: skip


def rdma(
    name: str, rx: int, tx: int, folder: str = "counters", names=("port_rcv_data", "port_xmit_data")
) -> dict[str, str]:
    """A port of /sys/class/infiniband."""
    base = f"class/infiniband/{name}/ports/1"
    return {
        f"{base}/state": "4: ACTIVE", f"{base}/rate": "400 Gb/sec (4X NDR)", f"{base}/gid_attrs/ndevs/0": "ib0",
        f"{base}/{folder}/{names[0]}": str(rx), f"{base}/{folder}/{names[1]}": str(tx),
        f"{base}/counters/port_xmit_discards": "5", f"{base}/hw_counters/out_of_buffer": "2",
        f"{base}/counters/port_rcv_errors": "1",
    }  # fmt: skip


def read(root: Path) -> list[ports.PortReading]:
    """All ports of a tree."""
    return [ports.read(port) for port in ports.find_ports(root, root / "proc")]


def test_rdma_bytes_are_seen_beside_a_flat_interface(tmp_path):
    """InfiniBand counts words of four bytes and its interface stays flat: the port shows the traffic (case 29)."""
    device = {"device/vendor": "0x15b3"}
    before = read(tree(tmp_path, {**netdev("eth0", 100, 100, **device), **netdev("ib0", 7, 7, **device), **rdma("mlx5_0", 0, 1000)}))  # fmt: skip
    tree(tmp_path, rdma("mlx5_0", 500_000_000, 250_001_000))
    found = {port.name: port for port in ports.rates(before, read(tmp_path), 2.0)}
    assert found["mlx5_0/1"].rx_bytes_per_second == 1e9
    assert found["mlx5_0/1"].tx_bytes_per_second == 5e8
    assert found["mlx5_0/1"].rate_bits_per_second == 400e9
    assert (found["mlx5_0/1"].up, found["mlx5_0/1"].netdev) == (True, "ib0")
    assert (found["mlx5_0/1"].drops_total, found["mlx5_0/1"].errors_total) == (7, 1)
    assert found["ib0"].rx_bytes_per_second == found["eth0"].tx_bytes_per_second == 0
    assert found["eth0"].drops_total == 4


@pytest.mark.parametrize(
    "names", [("rx_bytes", "tx_bytes"), ("rx_rdma_ucast_bytes", "tx_rdma_ucast_bytes"), ("ip4InOctets", "ip4OutOctets")]
)  # fmt: skip
def test_roce_that_fills_its_own_counters_only(tmp_path, names):
    """Standard counters that are missing or stand at 0 give way to the driver's own, which count bytes."""
    before = read(
        tree(tmp_path, {**rdma("bnxt_re0", 0, 0), **rdma("bnxt_re0", 10, 20, "hw_counters", names)})
    )
    tree(tmp_path, rdma("bnxt_re0", 110, 220, "hw_counters", names))
    (port,) = ports.rates(before, read(tmp_path), 1.0)
    assert (port.rx_bytes_per_second, port.tx_bytes_per_second) == (100, 200)


def test_what_counts_twice_is_left_out(tmp_path):
    """Bridges, bonds, VLANs and the host's ends of containers are no ports of their own; a container's lone veth is one."""
    files = {
        **netdev("br0", 1, 1, **{"bridge/x": ""}), **netdev("bond0", 1, 1, **{"bonding/x": ""}),
        **netdev("eth0.7", 1, 1, uevent="DEVTYPE=vlan"), **netdev("veth1", 1, 1, **{"brport/x": ""}),
        **netdev("lo", 1, 1), **netdev("eth0", 1, 1),
    }  # fmt: skip
    found = {port.name: port.virtual for port in ports.find_ports(tree(tmp_path, files), tmp_path / "proc")}
    assert found == {"eth0": False, "lo": True}


def test_a_sysfs_of_another_namespace_is_not_believed(tmp_path):
    """Where /proc/net has interfaces that sysfs lacks, sysfs is another network namespace's: theirs count, rates and drops too."""

    def dev(rx: int, tx: int) -> dict[str, str]:
        row = "{name:>6}: {rx} 5 1 2 0 0 0 0 {tx} 5 3 4 0 0 0 0"
        rows = [row.format(name="lo", rx=1, tx=1), row.format(name="ens7", rx=rx, tx=tx)]
        return {"proc/net/dev": "\n".join(["Inter-| Receive", " face |bytes", *rows])}

    before = read(tree(tmp_path, {**netdev("eth0", 9, 9), **netdev("lo", 9, 9), **dev(100, 200)}))
    tree(tmp_path, dev(300, 250))
    found = {port.name: port for port in ports.rates(before, read(tmp_path), 2.0)}
    assert set(found) == {"lo", "ens7"}
    assert (found["ens7"].rx_bytes_per_second, found["ens7"].tx_bytes_per_second) == (100, 25)
    assert (found["ens7"].drops_total, found["ens7"].errors_total, found["ens7"].up) == (6, 4, None)
    assert found["lo"].virtual
    (tmp_path / "proc/net/dev").write_text("")
    assert {port.name for port in ports.find_ports(tmp_path, tmp_path / "proc")} == {"eth0", "lo"}


def test_what_cannot_be_read_is_unknown(tmp_path):
    """A speed of -1, counters that are missing, no sysfs at all: None and no row, never 0."""
    files = {**netdev("eth0", 1, 1, speed="-1"), "class/net/eth0/operstate": "unknown"}
    (port,) = ports.rates([], read(tree(tmp_path, files)), 1.0)
    assert (port.rate_bits_per_second, port.up, port.rx_bytes_per_second) == (None, None, None)
    (tmp_path / "class/net/eth0/statistics/rx_bytes").unlink()
    assert ports.rates(read(tmp_path), read(tmp_path), 1.0)[0].rx_bytes_per_second is None
    assert ports.find_ports(tmp_path / "nowhere", tmp_path) == []


@given(COUNTER, COUNTER, st.floats(0.001, 1e6))
def test_a_counter_never_runs_backwards(before, after, seconds):
    """A rate is never negative: a counter that is smaller than before began again at 0."""
    grown = increase(before, after)
    assert grown == (after - before if after >= before else after)
    assert per_second(before, after, seconds) == grown / seconds


def test_rates_of_unknown_are_unknown():
    """Nothing is made up where a reading or the time is missing."""
    assert per_second(None, 5, 1) is per_second(5, None, 1) is per_second(1, 2, 0) is None
    assert share(1, 0) is share(None, 3) is share(2, None) is None


def proc(root: Path, busy: int, idle: int) -> Path:
    """A recorded /proc with an agent, a worker of vLLM below it, and a stranger."""
    stat = (
        "{pid} ({name}) {state} {parent} 0 0 0 0 0 0 0 0 0 {user} {system} 0 0 20 0 1 0 {start} 0 {pages} 0"
    )
    files = {
        "stat": f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1",
        "meminfo": "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB", "loadavg": "1.50 2 3 1/2 3",
        "10/stat": stat.format(pid=10, name="python3", state="S", parent=1, user=busy, system=0, start=5, pages=10),
        "10/cmdline": "/usr/bin/python3\0-m\0longspan.daemon.agent",
        "11/stat": stat.format(pid=11, name="VLLM::W (x) y", state="R", parent=10, user=busy, system=busy, start=6, pages=99),
        "11/cmdline": "VLLM::Worker_PP1_TP0\0",
        "12/stat": stat.format(pid=12, name="gone", state="Z", parent=10, user=1, system=1, start=7, pages=1),
        "99/stat": stat.format(pid=99, name="other", state="S", parent=1, user=1, system=1, start=7, pages=1),
    }  # fmt: skip
    return tree(root, files)


def test_cpu_memory_and_our_processes(tmp_path):
    """The shares of CPU are of the time between two samples; only the agent's living descendants are ours."""
    sampler = NodeSampler(
        "n", "10.0.0.1", (str(tmp_path), "/nowhere"), root=10, proc=proc(tmp_path / "p", 100, 100), sys=tmp_path / "s",
        shm=str(tmp_path), clock=iter((0.0, 2.0)).__next__,
    )  # fmt: skip
    first = sampler.sample()
    assert first.cpu_share is None
    assert first.processes[0].cpu_share is None
    proc(tmp_path / "p", 130, 170)
    view = sampler.sample()
    assert view.cpu_share == pytest.approx(0.3)
    assert (view.ram_total_bytes, view.ram_used_bytes, view.load_1min) == (1000 * 1024, 400 * 1024, 1.5)
    assert [(p.pid, p.name) for p in view.processes] == [(10, "agent"), (11, "VLLM::Worker_PP1_TP0")]
    assert view.processes[1].cpu_share == pytest.approx(60 / os.sysconf("SC_CLK_TCK") / 2)
    assert view.disks[0].total_bytes
    assert view.disks[1].total_bytes is None


def test_an_empty_proc_gives_unknowns(tmp_path):
    """Where nothing can be read nothing is claimed."""
    assert (procfs.cpu_times(tmp_path), procfs.memory(tmp_path), procfs.load_1min(tmp_path)) == (
        None,
        (None, None),
        None,
    )
    assert procfs.processes(tmp_path, [1]) == []


@pytest.mark.parametrize(
    ("title", "name"),
    [("VLLM::Worker_TP1 x", "VLLM::Worker_TP1"), ("VLLM::EngineCore_DP0", "engine core"), ("longspan.gateway", "gateway"),
     ("ray::IDLE", "ray::IDLE"), ("raylet", "raylet"), ("", "?")],
)  # fmt: skip
def test_processes_have_names_for_people(title, name):
    """What vLLM, Ray and we call a process becomes a short name."""
    assert process_name(title) == name
