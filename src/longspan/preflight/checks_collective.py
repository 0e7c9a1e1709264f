"""The real collective, judged: right sums, and a rate that fits what was planned."""

import re
from collections import Counter
from collections.abc import Sequence

from longspan.finding import Finding
from longspan.preflight.check import Check, Outcome, finding, together
from longspan.preflight.environment import NIC_VARIABLES
from longspan.preflight.scene import GroupResult, Scene

# Bus bandwidth over the planned rate; a chosen threshold (KNOWLEDGE of nccl-tests users: 80 to 95 % is usual).
LEAST_SHARE = 0.7
# A pair this much slower than the median pair is worth a look even where nothing was planned (a chosen threshold).
SLOW_SHARE = 0.5


# What a member says that only waited for another.
_WAITED = re.compile(
    r"timed? ?out|timeout|connection (closed|reset|refused)|broken pipe|did not end within|store|failed to recv|got 0 bytes",
    re.IGNORECASE,
)


def only_waited(group: GroupResult) -> bool:
    """Whether a group failed and none of its members says more than that it waited for another."""
    return (
        bool(group.errors) and not group.wrong and all(_WAITED.search(text) for text in group.errors.values())
    )


def guilty(groups: Sequence[GroupResult]) -> tuple[str, ...]:
    """The fewest nodes that explain all failed groups: of pairs those that most of them share, else of the larger groups.

    Where that leaves several, those that failed by themselves and did not only wait for another.
    """
    names = suspects(groups)
    told = {name: text for group in groups if not group.ok for name, text in group.errors.items()}
    own = tuple(name for name in names if name in told and not _WAITED.search(told[name]))
    return own or names


def suspects(groups: Sequence[GroupResult]) -> tuple[str, ...]:
    """Who may be to blame by who failed with whom alone, whatever the members said."""
    failed = [group for group in groups if not group.ok]
    if not failed:
        return ()
    pairs = [frozenset(group.nodes) for group in failed if len(group.nodes) == 2]
    if pairs:
        return _cover(pairs, Counter(name for group in groups if group.ok for name in group.nodes))
    smallest = min(failed, key=lambda group: len(group.nodes))
    if wrong := tuple(name for name in smallest.nodes if name in smallest.wrong):
        return wrong
    # All pairs passed, so only what larger groups did tells nodes apart.
    common = set.intersection(*(set(group.nodes) for group in failed))
    innocent = {name for group in groups if group.ok and len(group.nodes) > 2 for name in group.nodes}
    return tuple(sorted((common - innocent) or common or smallest.nodes))


def _cover(pairs: Sequence[frozenset[str]], good: Counter[str]) -> tuple[str, ...]:
    """Nodes of which each failed pair has one: the one in most of them first; of equals those with the fewest good pairs."""
    left, found = list(pairs), set[str]()
    while left:
        count = Counter(name for pair in left for name in pair)
        most = max(count.values())
        equal = [name for name in count if count[name] == most]
        fewest = min(good[name] for name in equal)
        found |= {name for name in equal if good[name] == fewest}
        left = [pair for pair in left if not pair & found]
    return tuple(sorted(found))


def correct(scene: Scene) -> Outcome:
    """Sums and hand-overs are right, in every pair and over all nodes."""
    if scene.no_collective or not scene.groups:
        return Outcome(skipped=scene.no_collective or "no group was formed")
    names = guilty(scene.groups)
    failed = [group for group in scene.groups if not group.ok]
    if not failed:
        largest = max(scene.groups, key=lambda group: len(group.nodes))
        return Outcome(
            seen=f"{len(scene.groups)} groups with {largest.backend}, up to {len(largest.nodes)} nodes"
        )
    worst = min(failed, key=lambda group: len(group.nodes))
    said = {**worst.errors, **worst.wrong}
    who, what = next(((name, said[name]) for name in names if name in said), next(iter(said.items())))
    nics = ", ".join(_nic(scene, name) for name in names)
    cause = "collective-wrong" if worst.wrong else "collective-failed"
    summary = (
        f"The {worst.backend} all-reduce between {together(list(worst.nodes))} {'gives wrong sums' if worst.wrong else 'fails'}"
        f" ({len(failed)} of {len(scene.groups)} groups); what they share is {together(list(names))}. {who} says: {what}"
    )
    remedy = (
        "Wrong sums are a hardware fault or a broken driver: take the node out of use."
        if worst.wrong
        else f"Look at the NIC that was used ({nics}): its link, its firewall, its route to the peers."
    )
    return Outcome(
        (
            finding(
                together(list(names)),
                "error",
                cause,
                summary,
                remedy,
                where="torch.distributed",
                evidence=what,
            ),
        )
    )


def _nic(scene: Scene, name: str) -> str:
    values = (scene.value(name, variable) for variable in NIC_VARIABLES)
    return f"{name}: {next(filter(None, values), 'chosen by the library').removeprefix('=')}"


def rate(scene: Scene) -> Outcome:
    """The measured bus bandwidth against the planned rate, and pairs against each other."""
    good = [group for group in scene.groups if group.ok and group.bus_bytes_per_second]
    if scene.no_collective or not good:
        return Outcome(skipped=scene.no_collective or "no group finished")
    pairs = [group for group in good if len(group.nodes) == 2] or good
    found: list[Finding] = []
    for group in pairs:
        rates_planned = [scene.want(name).rate_bits_per_second / 8 for name in group.nodes]
        planned = min(rates_planned) if len(group.nodes) > 1 else 0.0
        share = group.bus_bytes_per_second / planned if planned else 1.0
        # Gloo moves host memory over one TCP stream, so it says little about what NCCL reaches.
        if group.backend == "nccl" and share < LEAST_SHARE:
            found.append(
                finding(
                    " and ".join(group.nodes), "warning", "bandwidth-low",
                    f"{' and '.join(group.nodes)} reach {_gb(group.bus_bytes_per_second)} in an all-reduce, {share:.0%} of the {_gb(planned)} that the"
                    " cluster file plans with.",
                    "NCCL_DEBUG=INFO shows the transport (NET/IB or NET/Socket) and whether GPUDirect is used; `--write-links` keeps the measured value for"
                    " the next plan.", where="all_reduce", evidence=f"{group.bus_bytes_per_second:.0f} bytes/s",
                )
            )  # fmt: skip
    rates = sorted(group.bus_bytes_per_second for group in pairs)
    median = rates[len(rates) // 2]
    found += [
        finding(
            " and ".join(group.nodes), "warning", "pair-slow",
            f"{' and '.join(group.nodes)} reach {_gb(group.bus_bytes_per_second)}, the median pair {_gb(median)}.",
            "Compare their NICs, cables and switch ports.", where="all_reduce", evidence=f"{group.bus_bytes_per_second:.0f} bytes/s",
        )
        for group in pairs
        if len(pairs) > 2 and group.backend == "nccl" and group.bus_bytes_per_second < SLOW_SHARE * median
    ]  # fmt: skip
    latency = min(group.latency_seconds for group in pairs)
    what = f"{_gb(rates[0])} to {_gb(rates[-1])}" if len(rates) > 1 else _gb(rates[0])
    return Outcome(tuple(found), seen=f"bus {what}, latency from {latency * 1e6:.0f} µs ({pairs[0].backend})")


def _gb(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.2f} GB/s"


CHECKS = (
    Check("collective", "collective", "all-reduce and send/receive give the right values, in each pair and over all nodes",
          "the first real all-reduce would hang or be wrong after the weights are loaded", "torchrun; all_reduce_perf", "vllm#8447", correct),
    Check("collective-rate", "collective", f"bus bandwidth of NCCL at least {LEAST_SHARE:.0%} of the planned rate (a chosen threshold)",
          "the plan's speed would not be reached", "all_reduce_perf -b 8 -e 1G", "nccl-tests", rate),
)  # fmt: skip
