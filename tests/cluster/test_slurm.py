"""What Slurm prints about an allocation, and the words of a job step. The texts are of Slurm 22.05, shortened."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cluster.slurm import (
    SRUN_WISHES,
    SlurmNode,
    expand_hostlist,
    gres_gpus,
    parse_allocation,
    srun_words,
    step_environment,
)
from longspan.errors import SlurmError

NODES = (
    "NodeName=h1 Arch=x86_64 CPUTot=64 Gres=gpu:h100:8 NodeAddr=10.0.0.1 NodeHostName=h1 State=MIXED Owner=N/A\n"
    "NodeName=h2 Arch=x86_64 CPUTot=64 Gres=(null) NodeAddr=h2.cluster NodeHostName=h2 State=MIXED\n"
    "NodeName=h3 Arch=x86_64 Gres=gpu:4 NodeAddr=10.0.0.3 State=IDLE\n"
)
JOB = (
    "JobId=42 JobName=serve UserId=ops(1000) JobState=RUNNING Reason=None NodeList={nodes} BatchHost=h1 NumNodes=2"
    " TRES=cpu=2,mem=2G,node=2,billing=2 JOB_GRES=gpu:3 {details} MinCPUsNode=1 Command=(null)\n"
)


def job(nodes: str = "h[1-2]", details: str = "") -> str:
    """A job's line."""
    return JOB.format(nodes=nodes, details=details)


def test_nodes_addresses_and_gpus() -> None:
    """Each node of the job with its address and the GPUs that the job, not the node, has."""
    details = (
        "Nodes=h1 CPU_IDs=0-3 Mem=1024 GRES=gpu:h100:2(IDX:0,3) Nodes=h2 CPU_IDs=0 Mem=1024 GRES=gpu:1(IDX:0)"
    )
    assert parse_allocation(job(details=details), NODES) == (
        SlurmNode("h1", "10.0.0.1", 2, "42"),
        SlurmNode("h2", "h2.cluster", 1, "42"),
    )


def test_one_share_for_several_nodes() -> None:
    """Slurm joins nodes with equal shares into one detail; a job without GPUs has None, not 0, of them."""
    details = "Nodes=h[1-2] CPU_IDs=0 Mem=1024 GRES=gpu:4(IDX:0-3)"
    assert [node.gpus for node in parse_allocation(job(details=details), NODES)] == [4, 4]
    assert [node.gpus for node in parse_allocation(job(), NODES)] == [None, None]


def test_heterogeneous_job() -> None:
    """Each component's nodes are reached through the leader's id and the component's number."""
    text = (
        "JobId=7 HetJobId=7 HetJobOffset=0 JobState=RUNNING NodeList=h1 JOB_GRES=gpu:2"
        " Nodes=h1 CPU_IDs=0 Mem=0 GRES=gpu:2(IDX:0-1) Power=\n"
        "JobId=8 HetJobId=7 HetJobOffset=1 JobState=RUNNING NodeList=h3 Nodes=h3 CPU_IDs=0 Mem=0 GRES= Power=\n"
    )
    found = parse_allocation(text, NODES)
    assert [(node.name, node.gpus, node.step) for node in found] == [("h1", 2, "7+0"), ("h3", None, "7+1")]
    words = srun_words("7+1", "h3")
    assert "--jobid=7" in words
    assert "--het-group=1" in words
    assert not any(word.startswith("--het-group") for word in srun_words("42", "h1"))


@pytest.mark.parametrize(
    ("text", "nodes", "said"),
    [
        (job().replace("RUNNING", "PENDING"), NODES, "PENDING"),
        (job(nodes="h[1-9]"), NODES, "does not describe h4"),
        (job(nodes=""), NODES, "cannot be read"),
        ("", NODES, "named no job"),
    ],
)
def test_what_cannot_be_used(text: str, nodes: str, said: str) -> None:
    """A job that waits, a node that Slurm does not describe, no job at all: each is said."""
    with pytest.raises(SlurmError, match=said):
        parse_allocation(text, nodes)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", ["gpu01"]),
        ("gpu[08-10]", ["gpu08", "gpu09", "gpu10"]),
        ("a[1-2,7],b-3", ["a1", "a2", "a7", "b-3"]),
        ("r[1-2]n[1-2]x", ["r1n1x", "r1n2x", "r2n1x", "r2n2x"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    """Ranges, leading zeros, several ranges in one name."""
    assert expand_hostlist(text) == names


@given(st.text(alphabet="ab[]0123456789,-x", max_size=30))
def test_any_text_is_a_list_or_an_error(text: str) -> None:
    """No text of a node list makes anything but names or the one error."""
    try:
        names = expand_hostlist(text)
    except SlurmError:
        return
    assert names
    assert all(name and not set(name) & set("[],") for name in names)


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_output_is_an_allocation_or_an_error(job_text: str, node_text: str) -> None:
    """Whatever scontrol prints, nothing but the one error leaves."""
    with contextlib.suppress(SlurmError):
        assert parse_allocation(job_text, node_text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("gpu:4", 4),
        ("gpu:h100:8(IDX:0-7)", 8),
        ("gpu:a100:2(IDX:0,3),gpu:l40s:1(IDX:2),nvme:900", 3),
        ("gpu:a100_3g.20gb:2(CNT:2)", 2),
        ("nvme:1", None),
        ("(null)", None),
        ("", None),
    ],
)
def test_gpus_of_a_gres(text: str, count: int | None) -> None:
    """Types, indices with commas and other resources beside."""
    assert gres_gpus(text) == count


def test_a_step_does_not_inherit_the_jobs_wishes() -> None:
    """What the job was asked for is no wish of the step (`--mem` beside SLURM_MEM_PER_CPU is fatal to srun), the job's
    identity and the user's own settings stay, and one machine's address does not go to another."""
    env = {
        "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_MEM_PER_CPU": "1", "SLURM_NTASKS": "16", "SLURM_EXPORT_ENV": "NONE",
        "NCCL_SOCKET_IFNAME": "ib0", "VLLM_HOST_IP": "10.0.0.1", "PATH": "/bin",
    }  # fmt: skip
    assert step_environment(env) == {
        "SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "NCCL_SOCKET_IFNAME": "ib0", "PATH": "/bin",
    }  # fmt: skip
    assert "SLURM_JOB_ID" not in SRUN_WISHES
