"""What a worker process of the load generator is told, and what it tells. Pure."""

from dataclasses import dataclass, field

from longspan.bench.load import ENDPOINTS, LoadSpec
from longspan.bench.prompts import WordRate
from longspan.bench.quality import Lateness
from longspan.bench.record import RequestRecord
from longspan.bench.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go.

    Attributes:
        base: path in front of "/v1/…"; "" or "/prefix".
        key: sent as a bearer; "" none. It travels over pipes only, never in arguments.
    """

    host: str
    port: int
    tls: bool = False
    base: str = ""
    key: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """Without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base}"

    def head(self, kind: str) -> bytes:
        """The head of a request up to the value of its content-length."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.base}{ENDPOINTS[kind]} HTTP/1.1",
            f"host: {host}:{self.port}",
            "user-agent: longspan-bench",
            "content-type: application/json",
        ]
        if self.key:
            lines.append(f"authorization: Bearer {self.key}")
        return ("\r\n".join(lines) + "\r\ncontent-length: ").encode("latin-1")


@dataclass(frozen=True, slots=True)
class Job:
    """One worker's part: it sends the requests whose number is `worker` modulo `workers`."""

    target: Target
    model: str
    spec: LoadSpec
    rate: WordRate
    worker: int = 0
    workers: int = 1
    talks: tuple[tuple[str, ...], ...] = ()
    trace: tuple[TraceRequest, ...] = ()
    keep_texts: bool = False

    @property
    def concurrency(self) -> int:
        """This worker's share of the clients; 0: no limit."""
        whole = self.spec.concurrency
        return whole // self.workers + (self.worker < whole % self.workers)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a worker is: requests sent, answered and failed so far."""

    sent: int = 0
    done: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker measured.

    Attributes:
        lag, batch: how late its loop woke; how long after the first of one turn stamps were taken.
        cpu_share: of one core while the load ran.
        texts: answers by index, where they were to be kept.
    """

    records: tuple[RequestRecord, ...]
    lag: Lateness
    batch: Lateness
    cpu_share: float
    texts: dict[int, str] = field(default_factory=dict)
