"""What is no fault and still worth a word where a server is slow: long waits for the first token, slow networks."""

from collections.abc import Sequence
from dataclasses import dataclass

from longspan.doctor.timeline import Event
from longspan.finding import Evidence

_TEXTS: dict[str, str] = {
    "queue": "Requests wait in the queue: a long time to the first token comes from there first. Add replicas, or raise --max-num-seqs if "
    "the KV cache has room.",
    "preempted": "Requests are preempted because the KV cache is full: they are computed twice. Lower --max-num-seqs or give the KV cache more memory.",
    "tcp-sockets": "NCCL talks over TCP sockets, not RDMA: every collective between nodes is slow. If there is InfiniBand or RoCE, mount "
    "/dev/infiniband and install libibverbs; expect NET/IB and GDRDMA in NCCL_DEBUG=INFO.",
    "no-gpudirect": "GPUDirect RDMA is off: transfers go through host memory. Load nvidia_peermem or use a kernel with DMA-BUF.",
    "tp-spans-nodes": "Tensor parallelism spans nodes: each token pays the network several times a layer. Keep TP within a node and use PP across, "
    "unless the nodes share InfiniBand or NVLink.",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hint:
    """One thing that is slow, or will be, with the line that shows it."""

    id: str
    text: str
    evidence: Evidence

    def to_json(self) -> dict[str, object]:
        """The form that `--json` prints."""
        return {
            "id": self.id,
            "text": self.text,
            "file": self.evidence.file,
            "line": self.evidence.line,
            "quote": self.evidence.text,
        }


def hints(events: Sequence[Event]) -> tuple[Hint, ...]:
    """One hint of each kind that the log gives, with its latest line."""
    latest = {e.rule.id: e for e in events if e.rule.id in _TEXTS}
    return tuple(
        Hint(i, text, Evidence(e.hit.file, e.hit.line, e.hit.text))
        for i, text in _TEXTS.items()
        if (e := latest.get(i)) is not None
    )
