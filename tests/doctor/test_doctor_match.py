"""Whole launches: the cause is found behind its consequences, and a healthy log gives nothing."""

import pytest
from doctor_logs import (
    START,
    assigned,
    closed,
    connecting,
    dead,
    diagnose_lines,
    failed,
    head,
    loading,
    ready,
    serving,
    stamp,
    stopped,
    up,
    watchdog,
    worker,
    wrapped,
)

from longspan.doctor.rules import MARKS
from longspan.doctor.rules.rule import Mark

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.30 GiB."
CORRUPT = "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered"
QUIET = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s"
SHM_WAIT = "No available shared memory broadcast block found in 60 seconds."

HEALTHY: dict[str, list[str]] = {
    "serves": up() + serving(),
    "stopped on purpose": up() + serving() + stopped(START + 400),
    "idle": up() + serving() + [f"INFO {stamp(START + 300 + 10 * i)} [l.py:1] Engine 000: {QUIET}, Running: 0 reqs" for i in range(9)],
    "noise of NCCL": head() + connecting() + [
        "n1:88:120 [0] NCCL INFO socketPollConnect: connect returned Connection refused, retrying",
        "n1:88:88 [0] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use",
        "n1:88:88 [0] NCCL INFO NET/IB : No device found.",
    ] + assigned() + loading() + ready() + serving(),
    "waits that end": [
        *head(), f"(EngineCore pid=1) INFO {stamp(START + 12)} [r.py:1] Waiting for creating a placement group of specs for 10 seconds.",
        *connecting(START + 60), *assigned(START + 70), *loading(START + 80), f"(EngineCore pid=1) INFO {stamp(START + 140)} [s.py:1] {SHM_WAIT}",
        *ready(START + 220), *serving(START + 250),
    ],
    "an earlier attempt, repaired": head() + failed("(EngineCore pid=2210)", START + 20, "OSError: [Errno 98] Address already in use")
    + wrapped(START + 25) + head(START + 100) + connecting(START + 130) + assigned(START + 140) + loading(START + 150)
    + ready(START + 300) + serving(START + 350),
    "clients' errors": up() + serving() + [
        f"(APIServer pid=1) ERROR {stamp(START + 260)} [serving_chat.py:195] Traceback (most recent call last):",
        f"(APIServer pid=1) ERROR {stamp(START + 260)} [serving_chat.py:195] ValueError: This model's maximum context length is 32768",
        'INFO:     10.0.0.40:51514 - "POST /v1/chat/completions HTTP/1.1" 401 Unauthorized',
    ],
    "another program killed": up() + serving()
    + ["Nov 12 09:05:00 gpu01 kernel: Memory cgroup out of memory: Killed process 991 (node_exporter) total-vm:1kB"] + serving(START + 600),
    "a node that joins late": [
        "[2026-11-12 09:00:00,1 W 5 5] gcs_rpc_client.h:151: Failed to connect to GCS at address 10.0.0.11:6379 within 5 seconds.",
        "2026-11-12 09:00:12,1\tINFO scripts.py:1060 -- Local node IP: 10.0.0.12",
        "Ray runtime started.",
    ],
    "newest first": (up() + serving())[::-1],
    "restarted after a crash": up() + serving() + dead(START + 400) + head(START + 500) + connecting(START + 520)
    + assigned(START + 530) + loading(START + 540) + ready(START + 700) + serving(START + 720),
    "an application's Xid": ["Nov 12 09:03:01 gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): 43, pid=4411, name=python, Ch 00000008"],
    "a raylet that is asked to end": [
        *up(), *serving(), f"2026-{stamp(START + 400)} raylet: Node received SIGTERM; draining before shutdown.",
        (f"[2026-{stamp(START + 401)},1 E 12 13] (raylet) agent_manager.cc:87: The raylet exited immediately because one Ray agent failed, "
        "agent_name = dashboard_agent."),
        "ray.exceptions.ActorDiedError: The actor died because its node has died. the actor's node was terminated expectedly: received SIGTERM",
    ],
    "a script that is done": [
        "INFO 11-12 09:00:00 [llm.py:270] Initializing an LLM engine (v0.11.0) with config: model='m'",
        "Processed prompts: 100%|##########| 1000/1000 [01:20<00:00, 12.4it/s]",
        "ERROR 11-12 09:03:00 [core_client.py:564] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
    ],
    "empty": [],
}  # fmt: skip

TRACE = [watchdog(r, 88) for r in range(16)]
XID = "Nov 12 09:04:59 gpu02 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=4411, name=python3, GPU has fallen off the bus."
LOST = f"(EngineCore pid=2210) ERROR {stamp(START + 300)} [r.py:523] RayWorkerProc rank=[11] died unexpectedly, shutting down executor."
MARKED = "(raylet) The node with node id: 7f3 and address: 10.0.0.12 has been marked dead because the detector has missed too many heartbeats"
KV = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
NCCL = "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
SHM = "node-b:1:1 [0] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Ew, error: No space left on device (28)"

FAULTS: dict[str, tuple[str, list[str]]] = {
    "consequences stand first": ("oom-runtime", head() + connecting() + assigned() + loading() + closed(START + 100, range(8, 16))
                                 + failed(worker(3, True), START + 130, OOM, "capture_model") + wrapped(START + 140)),
    "one rank of sixteen": ("weights-corrupt", head() + connecting() + assigned() + loading(done=False)
                            + closed(START + 60, range(8), "10.0.0.12") + failed(worker(13, True), START + 60, CORRUPT) + wrapped(START + 65)),
    "newest first": ("oom-runtime", (head() + connecting() + assigned() + loading() + failed(worker(3, True), START + 130, OOM, "capture_model")
                                     + closed(START + 131, range(8, 16)) + wrapped(START + 140))[::-1]),
    "another cause in the second attempt": ("oom-kv-cache", head() + failed("(EngineCore pid=2210)", START + 20, "OSError: [Errno 98] Address already in use")
                                            + wrapped(START + 25) + head(START + 100) + connecting(START + 120) + assigned(START + 130)
                                            + loading(START + 140) + failed("(EngineCore pid=2210)", START + 230, KV) + wrapped(START + 235)),
    "killed": ("worker-killed", [*up(), *serving(), LOST, *dead(START + 301)]),
    "the kernel's word comes last": ("oom-host-ram", [*up(), *serving(), LOST, *dead(START + 301),
                                     "Nov 12 09:05:00 gpu02 kernel: Memory cgroup out of memory: Killed process 4411 (VLLM::Worker_TP)"]),
    "node lost": ("ray-node-lost", [*up(), *serving(), MARKED, LOST, *dead(START + 301)]),
    "only wrappers": ("insufficient-evidence", up() + serving() + dead(START + 301)),
    "only survivors": ("nccl-peer-died-first", head() + connecting() + assigned() + closed(START + 60, range(8), "10.0.0.12") + wrapped(START + 65)),
    "equal sequence numbers": ("collective-hang", up() + serving() + TRACE + dead(START + 1301)),
    "a silent rank": ("nccl-peer-died-first", up() + serving() + [t for r, t in enumerate(TRACE) if r != 5] + dead(START + 1301)),
    "different sequence numbers": ("collective-desync", up() + serving() + [watchdog(r, 88 if r < 9 else 87) for r in range(16)] + dead(START + 1301)),
    "stopped because it hung": ("nccl-init-hang", [*head(), *connecting(), "*** SIGTERM received at time=1 on cpu 0 ***"]),
    "different NCCL versions": ("nccl-env-mismatch", head() + [line.replace("2.28.9", "2.27.3") if "10.0.0.12)" in line else line for line in connecting()]
                                + failed(worker(3, True), START + 50, NCCL) + wrapped(START + 60)),
    "hardware": ("gpu-hardware-fault", [*up(), *serving(), XID, LOST, *dead(START + 301)]),
    "shared memory behind NCCL's word": ("shm-too-small", [*head(), *connecting(), SHM, *failed(worker(9, True), START + 50, NCCL),
                                         *closed(START + 51, range(8)), *wrapped(START + 60)]),
    "stalled": ("collective-hang", up() + serving() + [f"INFO {stamp(START + 300 + 10 * i)} [l.py:1] Engine 000: {QUIET}, Running: 16 reqs" for i in range(20)]
                + [f"(EngineCore pid=1) INFO {stamp(START + 560 + 60 * i)} [s.py:1] {SHM_WAIT}" for i in range(3)]),
    "what may have happened is not what happened": ("worker-killed", [
        *up(), *serving(),
        ("(raylet, ip=10.0.0.12) A worker died or was killed while executing a task by an unexpected system error. Worker exit detail: Worker "
        "unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was killed by the OOM "
        "killer due to high memory usage, (2) ray stop --force was called"),
        LOST, *dead(START + 301)]),
    "an error without a time in another node's log": ("ib-transport-error", [
        *("node-b: " + line for line in head()), ("node-b: b:1:9 [0] transport/net_ib.cc:1917 NCCL WARN NET/IB: Got completion from peer 10.0.0.11<3> "
        "with status=12 opcode=0 len=0 vendor err 129"), *up(), *serving(), *closed(START + 301, range(8)), *dead(START + 301)]),
    "a full disk before a short file": ("disk-full", [
        *head(), "OSError: [Errno 28] No space left on device", *failed(worker(9, True), START + 50, CORRUPT), *wrapped(START + 60)]),
    "out of memory, then stopped": ("oom-runtime", up() + serving() + failed(worker(2, True), START + 300, OOM, "execute_model")
                                    + dead(START + 301) + stopped(START + 320)),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_logs_give_nothing(name: str) -> None:
    """No finding of any severity."""
    assert diagnose_lines(HEALTHY[name]).findings == ()


@pytest.mark.parametrize("name", FAULTS)
def test_the_cause_comes_first(name: str) -> None:
    """Behind wrappers, survivors, other attempts and wrong clocks."""
    cause, lines = FAULTS[name]
    findings = diagnose_lines(lines).findings
    assert findings
    assert findings[0].cause == cause


@pytest.mark.parametrize("name", FAULTS)
def test_findings_are_ranked_and_quote_the_log(name: str) -> None:
    """Confidence falls strictly, the first has evidence, and every quoted text stands in the log at that line."""
    _, lines = FAULTS[name]
    findings = diagnose_lines(lines).findings
    confidences = [f.confidence for f in findings]
    assert confidences == sorted(set(confidences), reverse=True)
    assert findings[0].evidence
    for finding in findings:
        for evidence in finding.evidence:
            assert evidence.text in lines[evidence.line - 1]


def test_clock_skew_is_measured_and_corrected() -> None:
    """A node whose clock is an hour behind is named, and its consequences do not become causes."""
    cause, lines = FAULTS["consequences stand first"]
    skewed = [line.replace("11-12 09:", "11-12 08:") if "ip=10.0.0.12)" in line else line for line in lines]
    by_clock = sorted(skewed, key=lambda line: line[line.find("11-12") :] if "11-12" in line else "~")
    diagnosis = diagnose_lines(by_clock)
    assert diagnosis.findings[0].cause == cause
    assert diagnosis.skew_seconds == {"10.0.0.12": pytest.approx(-3600)}


def test_wrappers_are_shown_as_consequences() -> None:
    """The reader who saw "Engine core initialization failed" first is told what it is."""
    diagnosis = diagnose_lines(FAULTS["one rank of sixteen"][1])
    assert any("Engine core initialization failed" in e.text for e in diagnosis.consequences)
    assert all(
        "Engine core initialization failed" not in e.text for f in diagnosis.findings for e in f.evidence
    )


def test_the_subject_names_node_and_rank() -> None:
    """The finding says where."""
    assert "10.0.0.12 Worker_PP1_TP5" in diagnose_lines(FAULTS["one rank of sixteen"][1]).findings[0].subject


def test_a_text_with_several_causes_offers_them() -> None:
    """Where the surroundings decide nothing, the alternatives follow with the probe that does."""
    findings = diagnose_lines(
        ["ValueError: Current node has no GPU available. current_node_resource={'CPU': 64.0}."]
    ).findings
    assert [f.cause for f in findings][:2] == ["gpu-not-visible-to-ray", "stale-placement-group"]
    assert "ray list placement-groups" in findings[1].summary


def test_insufficient_evidence_says_what_to_send() -> None:
    """An honest "not enough" asks for something."""
    finding = diagnose_lines(FAULTS["only wrappers"][1]).findings[0]
    assert finding.severity == "warning"
    assert "log" in finding.summary


def test_timeline_has_every_node_and_its_first_error() -> None:
    """Phases by node, in the common order, ending with the errors."""
    moments = diagnose_lines(FAULTS["one rank of sixteen"][1]).timeline
    assert {m.node for m in moments} >= {"10.0.0.11", "10.0.0.12"}
    assert [m.what for m in moments].index("loading weights") < [m.what for m in moments].index(
        "first error: worker-failed"
    )


LIMIT = (
    "slurmstepd: error: *** JOB 884512 ON nid003210 CANCELLED AT 2026-02-11T03:21:44 DUE TO TIME LIMIT ***"
)


def test_a_job_that_served_until_its_time_was_over_did_not_fail() -> None:
    """A word about it, no alarm; a launch that never came up failed by it."""
    served = diagnose_lines([*up(), *serving(), LIMIT]).findings
    assert [f.severity for f in served if f.cause == "worker-killed"] == ["warning"]
    assert not any(f.severity == "error" for f in served)
    assert diagnose_lines([*head(), *connecting(), LIMIT]).findings[0].severity == "error"


@pytest.mark.parametrize("mark", [mark for mark in MARKS if mark.means == "hint"], ids=lambda mark: mark.id)
def test_what_makes_a_server_slow_is_a_hint(mark: Mark) -> None:
    """A word with the line that shows it, and no fault: the queue, preemption, sockets for RDMA, TP over nodes."""
    diagnosis = diagnose_lines([*up(), *serving(), mark.example])
    told = {hint.id: hint for hint in diagnosis.hints}
    assert mark.example.strip() in told[mark.id].evidence.text
    assert told[mark.id].evidence.line == len(up()) + len(serving()) + 1
    assert diagnosis.findings == ()
    assert mark.id not in {hint.id for hint in diagnose_lines([*up(), *serving()]).hints}
