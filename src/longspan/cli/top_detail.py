"""One node or one replica of `longspan top`, opened."""

import re

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longspan.cli import top_words
from longspan.cli.top_screen import COLOURS, gpu_table, port_table
from longspan.cli.top_state import TopState
from longspan.cli.top_words import NA, age, gib, number, percent
from longspan.monitor.view import ClusterView, LatencyView, NodeView, ReplicaView


def detail(view: ClusterView, state: TopState) -> Group:
    """What is opened; a node or replica that is gone says so."""
    assert state.opened is not None
    kind, name = state.opened
    if kind == "nodes":
        node = next((one for one in view.nodes if one.name == name), None)
        return _node(view, node) if node else Group(Text(f"{name} is no longer there.", "yellow"))
    replica = next((one for one in view.replicas if one.name == name), None)
    return _replica(view, replica) if replica else Group(Text(f"{name} is no longer there.", "yellow"))


def _node(view: ClusterView, node: NodeView) -> Group:
    disks = "  ".join(f"{d.path} {gib(d.used_bytes)} of {gib(d.total_bytes)} GiB" for d in node.disks)
    skew = NA if node.clock_skew_seconds is None else f"{node.clock_skew_seconds:+.2f} s"
    parts: list[RenderableType] = [
        Text.assemble((f"node {node.name}", "bold"), f"  {node.address}  last heard of: {age(node.age_seconds)}  clock {skew}"),
        Text(
            f"CPU {percent(node.cpu_share)} of {node.cpu_count or NA} cores, load {number(node.load_1min, 1)}   "
            f"RAM {gib(node.ram_used_bytes)} of {gib(node.ram_total_bytes)} GiB   "
            f"/dev/shm {gib(node.shm_used_bytes)} of {gib(node.shm_total_bytes)} GiB"
        ),
        Text(f"disks  {disks or NA}"), Text(f"GPUs   {node.gpu_source or NA}"), Text(),
    ]  # fmt: skip
    if node.gpus:
        parts += [gpu_table(node), Text()]
    parts += [port_table(node), Text(), _processes(node), Text()]
    parts += [Text(f"  ? {node.name} no longer tells {what}", "yellow") for what in node.missing]
    parts += _alarms(view, node.name)
    return Group(*parts)


def _processes(node: NodeView) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for title, right in (
        ("PID", True),
        ("PROCESS", False),
        ("CPU", True),
        ("RSS MiB", True),
        ("GPU GiB", True),
    ):
        table.add_column(title, justify="right" if right else "left", no_wrap=True)
    for one in node.processes[:20]:
        rss = NA if one.rss_bytes is None else f"{one.rss_bytes / (1 << 20):.0f}"
        table.add_row(str(one.pid), one.name, percent(one.cpu_share), rss, gib(one.gpu_memory_bytes))
    return table


def _latency(title: str, found: LatencyView | None) -> Text:
    p50, p95, p99 = top_words.tails(found)
    count = NA if found is None else number(found.count)
    return Text(
        f"{title:<9} p50 {p50:>7}  p95 {p95:>7}  p99 {p99:>7}  mean {top_words.mean(found):>8}  of {count} in a minute"
    )


def _replica(view: ClusterView, replica: ReplicaView) -> Group:
    parts: list[RenderableType] = [
        Text.assemble((f"replica {replica.name}", "bold"), f"  {replica.model}  {replica.phase}  metrics: {age(replica.age_seconds)}"),
    ]  # fmt: skip
    if replica.reason:
        parts.append(Text(replica.reason, "yellow"))
    parts += [
        Text(
            f"{number(replica.running)} running, {number(replica.waiting)} waiting   KV {percent(replica.kv_use_share)} of "
            f"{number(replica.kv_tokens)} tokens   prefix hits {percent(replica.prefix_hit_share)}   "
            f"preemptions {number(replica.preemptions_per_second, 2)}/s"
        ),
        Text(
            f"{number(replica.prompt_tokens_per_second)} prompt tokens/s, "
            f"{number(replica.generation_tokens_per_second)} generated tokens/s, {number(replica.requests_per_second, 1)} requests/s"
        ),
        Text(), _latency("TTFT", replica.ttft), _latency("TPOT", replica.tpot), _latency("queue", replica.queue),
        _latency("prefill", replica.prefill), Text(), _ranks(view, replica), Text(),
    ]  # fmt: skip
    parts += [Text(f"  ? no longer gives {name}", "yellow") for name in replica.missing]
    parts += _alarms(view, replica.name)
    return Group(*parts)


def _ranks(view: ClusterView, replica: ReplicaView) -> Table:
    gpus = {gpu.uuid: gpu for node in view.nodes for gpu in node.gpus}
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for title in ("RANK", "PP", "TP", "NODE", "PID", "GPU", "USED GiB", "USE", "WATT", "MHz"):
        table.add_column(title, justify="left" if title == "NODE" else "right", no_wrap=True)
    for rank in replica.ranks:
        gpu = gpus.get(rank.gpu_uuids[0]) if rank.gpu_uuids else None
        figures = (
            (str(gpu.index), gib(gpu.memory_used_bytes), percent(gpu.utilisation_share), number(gpu.power_watts), number(gpu.sm_clock_mhz))
            if gpu else (NA,) * 5
        )  # fmt: skip
        table.add_row(
            str(rank.rank), str(rank.pp_rank), str(rank.tp_rank), rank.node, str(rank.pid or NA), *figures
        )
    return table


def _alarms(view: ClusterView, name: str) -> list[RenderableType]:
    """The alarms about a node or replica whole, with what to do."""
    found: list[RenderableType] = []
    for alarm in view.alarms:
        finding = alarm.finding
        # "n1", "n1/3 clock", "n1 RAM", but not "n10".
        if re.match(rf"{re.escape(name)}(?![\w.-])", finding.subject):
            found.append(
                Text.assemble((f"{finding.severity:<7} ", COLOURS[finding.severity]), finding.summary)
            )
            found.append(Text(f"        {finding.remedy}", "dim"))
    return found
