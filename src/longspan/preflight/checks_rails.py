"""The check of the RDMA trials: which port of which node is broken or slow, and whether rails are networks of their own."""

from statistics import median_high

from longspan.finding import Finding
from longspan.preflight.check import Check, Outcome, finding
from longspan.preflight.scene import RailTrial, Scene

LEAST_SHARE = 0.7  # of the port's rate, and of the median; chosen, as for the collective


def rails(scene: Scene) -> Outcome:
    """Every rail passes, at its rate; a write across rails passes too, or NCCL must not try it."""
    same = [trial for trial in scene.rails if not trial.is_crossing]
    if scene.no_rails or not same:
        return Outcome(skipped=scene.no_rails or "no RDMA write was tried")
    found = [*_broken(same), *_slow(same), *_separate(scene)]
    speeds = sorted(trial.bits_per_second for trial in same if not trial.error)
    seen = f"{len(same)} writes, {_gbit(speeds[0])} to {_gbit(speeds[-1])}" if speeds else ""
    return Outcome(tuple(found), seen=seen)


def _by_end(trials: list[RailTrial]) -> dict[tuple[str, str], list[RailTrial]]:
    """The trials of each (node, port), as source or target."""
    found: dict[tuple[str, str], list[RailTrial]] = {}
    for trial in trials:
        for end in ((trial.source, trial.source_port), (trial.target, trial.target_port)):
            found.setdefault(end, []).append(trial)
    return found


def _blamed(same: list[RailTrial], bad: list[RailTrial]) -> list[tuple[str, list[RailTrial]]]:
    """Bad trials by who is to blame: a port all of whose trials are bad, with neighbours that do well elsewhere; else the two
    ends together. With two nodes every trial is between the same two, so it is the two."""
    ends = _by_end(same)
    alone = {
        end: trials
        for end, trials in ends.items()
        if len({(t.source, t.target) for t in trials}) > 1
        and all(trial in bad for trial in trials)
        and all(
            any(other not in bad for other in ends[end_of])
            for trial in trials
            for end_of in ((trial.source, trial.source_port), (trial.target, trial.target_port))
            if end_of != end
        )
    }
    found = [(f"{node}, port {port},", trials) for (node, port), trials in alone.items()]
    told = {id(trial) for _, trials in found for trial in trials}
    pairs: dict[frozenset[tuple[str, str]], list[RailTrial]] = {}
    for trial in bad:
        if id(trial) not in told:
            key = frozenset({(trial.source, trial.source_port), (trial.target, trial.target_port)})
            pairs.setdefault(key, []).append(trial)
    for trials in pairs.values():
        first = trials[0]
        who = f"{first.source} ({first.source_port}) and {first.target} ({first.target_port})"
        found.append((who, trials))
    return found


def _subject(trials: list[RailTrial]) -> str:
    """The node that all trials share, if there are several nodes to choose from; else both."""
    common = set.intersection(*({trial.source, trial.target} for trial in trials))
    return " and ".join(sorted(common))


def _broken(same: list[RailTrial]) -> list[Finding]:
    bad = [trial for trial in same if trial.error]
    return [
        finding(
            _subject(trials), "error", "rail-broken",
            f"RDMA writes fail at {who} to and from its neighbours: {trials[0].error}"
            if who.endswith(",")
            else f"RDMA writes fail between {who}: {trials[0].error}",
            "Check the port's state and counters (`ibstat`, `rdma statistic`), cable and switch port; over Ethernet also the GID index, MTU, PFC and"
            " VLAN. The sockets' pre-flight says nothing about this network.",
            where="ib_write_bw", evidence="; ".join(f"{t.source} to {t.target}: {t.error}" for t in trials[:4]),
        )
        for who, trials in _blamed(same, bad)
    ]  # fmt: skip


def _slow(same: list[RailTrial]) -> list[Finding]:
    good = [trial for trial in same if not trial.error]
    if not good:
        return []
    usual = median_high(trial.bits_per_second for trial in good)
    bad = [trial for trial in good if trial.bits_per_second < LEAST_SHARE * usual]
    found = [
        finding(
            _subject(trials), "warning", "rail-slow",
            f"RDMA writes of {who} reach {_gbit(min(t.bits_per_second for t in trials))}, the others {_gbit(usual)}: every collective waits for it.",
            "Compare the PCIe link (`lspci -vv`: LnkSta), the active rate (`ibstat`), cable and switch port with those of a good one.",
            where="ib_write_bw", evidence="; ".join(f"{t.source} to {t.target}: {_gbit(t.bits_per_second)}" for t in trials[:4]),
        )
        for who, trials in _blamed(good, bad)
    ]  # fmt: skip
    rate = min(trial.rate_bits_per_second for trial in good)
    if rate and usual < LEAST_SHARE * rate:
        found.append(
            finding(
                "cluster", "warning", "rails-below-rate",
                f"RDMA writes reach {_gbit(usual)} on ports of {_gbit(rate)}, everywhere alike.",
                "Usual causes: fewer PCIe lanes than the card needs, a small MTU (`ibv_devinfo`: active_mtu), an IOMMU that translates, PFC or ECN at work.",
                where="ib_write_bw", evidence=f"median {usual:.0f} bits/s",
            )
        )  # fmt: skip
    return found


def _separate(scene: Scene) -> list[Finding]:
    """Rails that do not reach each other are built so; NCCL may still try, and hang (nccl#2013)."""
    crossing = [trial for trial in scene.rails if trial.is_crossing and trial.error]
    without = [one.name for one in scene.workers if scene.value(one.name, "NCCL_CROSS_NIC") != "0"]
    if not crossing or not without:
        return []
    trial = crossing[0]
    return [
        finding(
            "cluster", "warning", "rails-separate",
            f"{trial.source_port} of {trial.source} does not reach {trial.target_port} of {trial.target}, while each rail by itself passes: the rails are"
            " networks of their own, and a ring of NCCL that crosses them hangs.",
            'Write `env = { NCCL_CROSS_NIC = "0" }` for every node into the cluster file.',
            where="ib_write_bw", evidence=trial.error,
        )
    ]  # fmt: skip


def _gbit(bits_per_second: float) -> str:
    return f"{bits_per_second / 1e9:.0f} Gbit/s"


CHECKS = (
    Check("rails", "collective", f"an RDMA write passes on every rail, each node to the next, at {LEAST_SHARE:.0%} of the others' speed and of the rate",
          "one bad port or cable slows or hangs every collective, and sockets do not show it", "ib_write_bw -d mlx5_0 -x 3 --report_gbits",
          "nccl#2013", rails),
)  # fmt: skip
