"""The RDMA trials over sessions: each rail by itself around the ring of nodes, then once across two rails.

A rail is the n-th RDMA port of every node, in the order in which NCCL gets them. On a rail each node writes to the next and is
written to by the one before, all at once, so that the time does not grow with the nodes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from longspan.preflight.environment import gid_index, rdma_of_all
from longspan.preflight.facts import RdmaPort
from longspan.preflight.scene import RailTrial, Scene
from longspan.preflight.session import Session, SessionLostError

WRITE_SECONDS = 2
_ROW = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$")
_UNITS = {"BW average[Gb/sec]": 1e9, "BW average[MB/sec]": 8 * 2**20}
_TROUBLE = re.compile(r"error|fail|unable|couldn't|not found|did not|no .* device", re.IGNORECASE)


def read_write_bw(status: int, text: str) -> tuple[float, str]:
    """Bits per second, or what ib_write_bw says is wrong: its last line of trouble, or its last line.

    Its table is headed "#bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]", or [MB/sec], which are MiB; with -D the
    peak is 0 (perftest #234).
    """
    unit = next((factor for head, factor in _UNITS.items() if head in text), 0.0)
    rows = [match for line in text.splitlines() if (match := _ROW.match(line))]
    if status == 0 and unit and rows:
        return float(rows[-1][1]) * unit, ""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -*")]
    trouble = [line for line in lines if _TROUBLE.search(line)]
    return 0.0, (trouble or lines or [f"status {status}, without a word"])[-1][:300]


class Rails:
    """One run; servers live in the nodes' sessions and end with them."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        scene: Scene,
        pool: ThreadPoolExecutor,
        progress: Callable[[str], None],
    ) -> None:
        self.sessions = sessions
        self.scene = scene
        self.pool = pool
        self.progress = progress
        rdma = rdma_of_all(scene.wanted, {node.name: node for node in scene.answering})
        self.ports: dict[str, Sequence[RdmaPort]] = {
            name: ports for name, ports in rdma.ports.items() if name in sessions
        }
        self.why_not = "" if self.ports else rdma.why

    def run(self) -> tuple[tuple[RailTrial, ...], str]:
        """The trials, and why there are none."""
        if len(self.ports) < 2:
            return (), self.why_not or "fewer than two nodes have RDMA"
        names = list(self.ports)
        ring = list(zip(names, [*names[1:], names[0]], strict=True))
        common = min(len(ports) for ports in self.ports.values())
        found: list[RailTrial] = []
        for rail in range(common):
            self.progress(f"RDMA writes on rail {rail + 1} of {common}, each node to the next …")
            trials, absent = self._round([(a, rail, b, rail) for a, b in ring])
            if absent:
                return (), f"ib_write_bw is not installed on {', '.join(absent)} (package perftest)"
            found += trials
        if common > 1 and all(not trial.error for trial in found):
            self.progress("an RDMA write from one rail to another …")
            found += self._round([(names[0], 0, names[1], 1)])[0]
        return tuple(found), ""

    def _round(self, writes: Sequence[tuple[str, int, str, int]]) -> tuple[list[RailTrial], list[str]]:
        """Writes whose targets all differ: (source, its rail, target, its rail). Beside them the nodes without the tool."""
        targets = {target: rail for _, _, target, rail in writes}
        served = dict(
            zip(targets, self.pool.map(lambda name: self._serve(name, targets[name]), targets), strict=True)
        )
        try:
            if absent := sorted(name for name, told in served.items() if told.get("absent")):
                return [], absent
            return list(self.pool.map(lambda write: self._write(write, served[write[2]]), writes)), []
        finally:
            list(self.pool.map(lambda name: self._ask(name, "rail_stop", 20), targets))

    def _serve(self, name: str, rail: int) -> dict[str, Any]:
        return self._ask(
            name, "rail_serve", 30, address=self.scene.want(name).address, seconds=WRITE_SECONDS, **self._port(name, rail)
        )  # fmt: skip

    def _write(self, write: tuple[str, int, str, int], served: Mapping[str, Any]) -> RailTrial:
        source, rail, target, other = write
        ends = self.ports[source][rail], self.ports[target][other]
        rate = min(port.rate_bits_per_second for port in ends)
        trial = RailTrial(source, _name(ends[0]), target, _name(ends[1]), rate, is_crossing=rail != other)
        if "port" not in served:
            why = read_write_bw(1, str(served.get("error", "")))[1]
            return trial.with_error(f"no server on {target}: {why}")
        told = self._ask(
            source, "rail_write", 60, port=served["port"], target=self.scene.want(target).address, seconds=WRITE_SECONDS,
            **self._port(source, rail),
        )  # fmt: skip
        if "error" in told:
            return trial.with_error(str(told["error"]))
        speed, error = read_write_bw(int(told["status"]), str(told["text"]))
        return trial.with_error(error) if error else trial.with_speed(speed)

    def _port(self, name: str, rail: int) -> dict[str, Any]:
        port = self.ports[name][rail]
        gid = gid_index(self.ports[name]) if port.link_layer == "Ethernet" else None
        return {"device": port.device, "number": port.number, "gid": gid}

    def _ask(self, name: str, do: str, limit_seconds: float, **arguments: Any) -> dict[str, Any]:
        try:
            return self.sessions[name].ask(do, limit_seconds, **arguments) or {}
        except (SessionLostError, ValueError) as error:
            return {"error": str(error)}


def _name(port: RdmaPort) -> str:
    return f"{port.device}:{port.number}"


def describe(trial: RailTrial) -> dict[str, Any]:
    """For `--json`."""
    return {
        "source": trial.source, "source_port": trial.source_port, "target": trial.target, "target_port": trial.target_port,
        "crossing": trial.is_crossing, "bits_per_second": trial.bits_per_second, "error": trial.error,
    }  # fmt: skip
