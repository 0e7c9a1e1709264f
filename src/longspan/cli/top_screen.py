"""The one screen of `longspan top`, for 100 columns and up."""

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longspan.cli import top_state, top_words
from longspan.cli.top_state import TopState
from longspan.cli.top_words import age, gib, number, percent, rate
from longspan.monitor.rates import total
from longspan.monitor.view import AlarmView, ClusterView, NodeView, ReplicaView

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
_PHASES = {"serving": "green", "suspected": "yellow", "failed": "red"}
_STATES = {"up": "green", "late": "yellow", "silent": "red", "unseen": "dim"}
MAX_ALARMS = 6
SELECTED = "reverse"


def screen(view: ClusterView, state: TopState, *, height: int, keys: bool = True) -> Group:
    """Everything, in at most so many lines; the table with the keys scrolls with what is selected.

    Args:
        height: of the terminal in lines; 0 for no limit.
        keys: whether somebody sits there, who selects and can press some.
    """
    alarms = _alarms(view, MAX_ALARMS if height else 100)
    fixed = 3 + 2 * 2 + 2 + len(alarms) + (1 if keys else 0)  # head, two tables' titles and counts, gaps
    room = max(4, height - fixed) if height else 10_000
    share = min(len(view.replicas), max(2, room // 3))
    if state.table == "replicas" and keys:
        share = min(len(view.replicas), max(share, room - min(len(view.nodes), max(2, room // 3))))
    rest = max(1, room - share)
    marked = state.selected if keys else None
    parts: list[RenderableType] = [
        *_head(view),
        replica_table(top_state.replicas(view, state), share, marked if state.table == "replicas" else None),
        Text(),
        node_table(top_state.nodes(view, state), rest, marked if state.table == "nodes" else None),
        Text(),
        *alarms,
    ]
    if keys:
        parts.append(_footer(state))
    return Group(*parts)


def _head(view: ClusterView) -> list[Text]:
    at = datetime.fromtimestamp(view.taken_at_unix_seconds, UTC).strftime("%H:%M:%S UTC")
    tokens = total(*(r.generation_tokens_per_second for r in view.replicas))
    running, waiting = total(*(r.running for r in view.replicas)), total(*(r.waiting for r in view.replicas))
    silent = sum(node.state == "silent" for node in view.nodes)
    first = Text.assemble(
        (view.name, "bold"), f"  {view.model}  ", (view.phase, _PHASES.get(view.phase, "")), f"  {at}  ",
        f"{len(view.replicas)} replica{'s' * (len(view.replicas) != 1)} on {len(view.nodes)} node{'s' * (len(view.nodes) != 1)}",
        (f", {silent} silent" if silent else "", "red"),
    )  # fmt: skip
    gateway = view.gateway
    stale = (
        f" ({age(gateway.age_seconds)} ago)"
        if gateway.age_seconds is not None and gateway.age_seconds > 3
        else ""
    )
    second = Text.assemble(
        f"{number(tokens)} tokens/s  {number(running)} running  {number(waiting)} waiting   ", ("gateway", "bold"), f"{stale}  ",
        f"{number(gateway.waiting)} waiting  {number(gateway.requests_per_second, 1)} req/s  overflow {percent(gateway.overflow_share)}"
        f"  {top_words.NA if gateway.outside_usd_per_hour is None else f'{gateway.outside_usd_per_hour:.2f} $/h'}",
    )  # fmt: skip
    return [_cut(first), _cut(second), Text()]


def _cut(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _table(columns: Sequence[tuple[str, int, bool]]) -> Table:
    """A table of fixed widths: figures that change must not make it dance. (title, width, right-aligned)"""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
    for title, width, right in columns:
        table.add_column(title, width=width, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")  # fmt: skip
    return table


def _window(count: int, room: int, selected: int | None) -> tuple[int, int]:
    """Which rows are shown: those around the selected one."""
    if count <= room:
        return 0, count
    first = min(max(0, (selected or 0) - room // 2), count - room)
    return first, first + room


def replica_table(found: Sequence[ReplicaView], room: int, selected: int | None) -> Table:
    """The replicas; what has no place says how many there are."""
    table = _table(
        [("REPLICA", 11, False), ("STATE", 10, False), ("RUN", 5, True), ("WAIT", 5, True), ("KV", 5, True), ("TOK/S", 7, True),
         ("TTFT p50", 8, True), ("p95", 6, True), ("p99", 6, True), ("TPOT p50", 8, True), ("p99", 6, True), ("HIT", 5, True),
         ("AGE", 5, True)]
    )  # fmt: skip
    if selected is not None:
        selected = min(selected, len(found) - 1)
    first, last = _window(len(found), room, selected)
    for index, one in list(enumerate(found))[first:last]:
        ttft, tpot = top_words.tails(one.ttft), top_words.tails(one.tpot)
        table.add_row(
            one.name, Text(one.phase, _PHASES.get(one.phase, "")), number(one.running), number(one.waiting),
            Text(percent(one.kv_use_share), "yellow" if (one.kv_use_share or 0) > 0.9 else ""),
            number(one.generation_tokens_per_second), *ttft, tpot[0], tpot[2], percent(one.prefix_hit_share),
            Text(age(one.age_seconds), "yellow" if (one.age_seconds or 0) > 10 else ""),
            style=SELECTED if index == selected else "",
        )  # fmt: skip
    if last - first < len(found):
        table.caption, table.caption_justify = f"{first + 1} to {last} of {len(found)} replicas", "left"
    return table


def node_table(found: Sequence[NodeView], room: int, selected: int | None) -> Table:
    """The nodes, each with its GPUs in a few figures."""
    table = _table(
        [("NODE", 12, False), ("AGE", 6, True), ("GPUS", 4, True), ("USE", 5, True), ("MEM MAX", 7, True), ("WATT", 6, True),
         ("°C", 4, True), ("NET IN", 10, True), ("OUT", 10, True), ("RDMA IN", 10, True), ("CPU", 5, True), ("RAM", 5, True)]
    )  # fmt: skip
    if selected is not None:
        selected = min(selected, len(found) - 1)
    first, last = _window(len(found), room, selected)
    for index, one in list(enumerate(found))[first:last]:
        gpus = one.gpus
        full = top_words.highest([top_words.fullness(g) for g in gpus])
        net, rdma = top_words.traffic(one, "netdev"), top_words.traffic(one, "rdma")
        ram = one.ram_used_bytes / one.ram_total_bytes if one.ram_used_bytes and one.ram_total_bytes else None
        table.add_row(
            one.name, Text(age(one.age_seconds), _STATES[one.state]), str(len(gpus)) if gpus else top_words.NA,
            percent(top_words.middle([g.utilisation_share for g in gpus])),
            Text(percent(full), "yellow" if (full or 0) > 0.97 else ""), number(total(*(g.power_watts for g in gpus))),
            number(top_words.highest([g.temperature_celsius for g in gpus])), rate(net[0]), rate(net[1]), rate(rdma[0]),
            percent(one.cpu_share), percent(ram),
            style=SELECTED if index == selected else ("dim" if one.state in {"silent", "unseen"} else ""),
        )  # fmt: skip
    if last - first < len(found):
        table.caption, table.caption_justify = f"{first + 1} to {last} of {len(found)} nodes", "left"
    return table


def _alarms(view: ClusterView, most: int) -> list[Text]:
    lines = [alarm_line(alarm, view.taken_at_unix_seconds) for alarm in view.alarms[:most]]
    if len(view.alarms) > most:
        lines.append(Text(f"  and {len(view.alarms) - most} more alarms", "dim"))
    if not view.alarms:
        lines.append(Text("  no alarms", "green"))
    return lines + [_cut(Text(f"  ? {text}", "yellow")) for text in view.unknown[:3]]


def alarm_line(alarm: AlarmView, now: float) -> Text:
    """One alarm in one line: how bad, what, since when."""
    found = alarm.finding
    since = max(0.0, now - alarm.since_unix_seconds)
    word = f"{since:.0f} s" if since < 120 else f"{since / 60:.0f} min"
    return _cut(
        Text.assemble(
            (f"  {found.severity:<7} ", COLOURS[found.severity]), f"{found.summary} ", (f"({word})", "dim")
        )
    )


def _footer(state: TopState) -> Text:
    if state.opened:
        return Text("q quit   Esc back   ↑↓ scroll", "dim")
    order = f"{state.sort_name}{', reversed' if state.reverse else ''}"
    return _cut(
        Text(f"q quit   Tab {'nodes' if state.table == 'replicas' else 'replicas'}   ↑↓ select   Enter open   s sort ({order})   r reverse", "dim")
    )  # fmt: skip


def gpu_table(node: NodeView) -> Table:
    """Each GPU of a node: its memory in parts, load, power, clocks, errors."""
    table = _table(
        [("GPU", 3, True), ("RANK", 8, False), ("USED GiB", 8, True), ("OF", 4, True), ("WEIGHTS", 7, True), ("KV", 4, True),
         ("OTHER", 5, True), ("USE", 5, True), ("WATT", 9, True), ("°C", 4, True), ("MHz", 5, True), ("ECC", 7, True), ("XID", 4, True),
         ("NVLINK", 6, True)]
    )  # fmt: skip
    for gpu in node.gpus:
        limit = "" if gpu.power_limit_watts is None else f"/{gpu.power_limit_watts:.0f}"
        ecc = (
            top_words.NA if gpu.ecc_uncorrected is None else f"{gpu.ecc_corrected or 0}/{gpu.ecc_uncorrected}"
        )
        links = (
            top_words.NA
            if gpu.nvlink_up is None
            else f"{gpu.nvlink_up}/{gpu.nvlink_up + (gpu.nvlink_down or 0)}"
        )
        who = "" if gpu.rank is None else f"{gpu.replica} {gpu.rank}"
        table.add_row(
            str(gpu.index), who, gib(gpu.memory_used_bytes), gib(gpu.memory_total_bytes), gib(gpu.weights_bytes), gib(gpu.kv_bytes),
            gib(gpu.other_bytes), percent(gpu.utilisation_share), f"{number(gpu.power_watts)}{limit}", number(gpu.temperature_celsius),
            number(gpu.sm_clock_mhz), ecc, "-" if gpu.xid is None else str(gpu.xid), links,
        )  # fmt: skip
    return table


def port_table(node: NodeView) -> Table:
    """Each port of a node by itself."""
    table = _table(
        [("PORT", 16, False), ("KIND", 7, False), ("LINK", 10, True), ("IN", 10, True), ("OUT", 10, True), ("DROPS/S", 8, True),
         ("ERRORS/S", 8, True)]
    )  # fmt: skip
    for port in node.ports:
        speed = "down" if port.up is False else (
            top_words.NA if port.rate_bits_per_second is None else f"{port.rate_bits_per_second / 1e9:g} Gbit"
        )  # fmt: skip
        table.add_row(
            port.name, port.kind, speed, rate(port.rx_bytes_per_second), rate(port.tx_bytes_per_second),
            number(port.drops_per_second, 1), number(port.errors_per_second, 1),
        )  # fmt: skip
    return table
