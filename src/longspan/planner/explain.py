"""The answer for people and for machines: one document that `--json` prints, and the lines made from it."""

from textwrap import wrap
from typing import Any

from longspan.cluster.inventory import describe
from longspan.plan import Estimate, MemoryBudget, Plan, Receipt
from longspan.planner.assemble import settle
from longspan.planner.commands import commands, picture
from longspan.planner.options import Answer, Option
from longspan.planner.verdicts import verdicts, why_lost, why_obvious_lost
from longspan.planner.whatifs import WhatIf, better_buy
from longspan.units import GIB

ALTERNATIVES = 3
_COMMANDS = 12


def document(
    answer: Answer, options: tuple[Option, ...], plan: Plan | None, changes: list[WhatIf]
) -> dict[str, Any]:
    """Everything that is known, as plain values."""
    question = answer.question
    best = answer.best
    found: dict[str, Any] = {
        "model": plan.model if plan else question.facts.name,
        "cluster": describe(question.cluster),
        "workload": workload_json(answer),
        "verdict": [*verdicts(answer), *filter(None, [better_buy(changes, best)])],
        "plan": None,
        "alternatives": [],
        "obvious": why_obvious_lost(answer),
        "refused": [refused_json(one) for one in answer.refused],
        "what_ifs": [{"name": one.name, "text": one.text, "gain": round(one.gain, 3)} for one in changes],
    }
    if plan is None or best is None:
        return found
    found["plan"] = plan_json(answer, options, plan)
    others = [option for option in answer.options[1:] if option.statistics is not None][:ALTERNATIVES]
    found["alternatives"] = [
        {**option_json(option), "why_not": why_lost(option, best, question)} for option in others
    ]
    return found


def workload_json(answer: Answer) -> dict[str, Any]:
    """The load as it was taken."""
    workload = answer.question.workload
    return {
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "requests_per_second": workload.open_rate or None,
        "concurrency": None if workload.is_open else answer.question.clients,
        "prefix_hit_share": workload.prefix_hit_share,
        "objectives": [str(one) for one in workload.objectives],
    }


def plan_json(answer: Answer, options: tuple[Option, ...], plan: Plan) -> dict[str, Any]:
    """The plan with its receipts, estimates, picture and commands."""
    return {
        "layout": " + ".join(str(option) for option in options),
        "gpus": plan.gpu_count,
        "vllm_version": plan.vllm_version,
        "parts": [option_json(settle(answer.question, option)) for option in options],
        "replicas": [
            {
                "name": replica.name,
                "layout": str(replica.layout),
                "ranks": [{"rank": i, "node": p.node, "gpu": p.gpu} for i, p in enumerate(replica.places)],
            }
            for replica in plan.replicas
        ],
        "estimates": {name: estimate_json(value) for name, value in plan.estimates},
        "environment": {node: dict(values) for node, values in plan.environment},
        "picture": picture(plan, answer.question.cluster),
        "commands": [{"node": one.node, "line": str(one)} for one in commands(plan, answer.question.cluster)],
        "notes": list(plan.notes),
    }


def option_json(option: Option) -> dict[str, Any]:
    """One option: its layout, receipt and speed."""
    return {
        "option": str(option),
        "gpu_type": option.pool,
        "replicas": option.copies,
        "tp": option.layout.tp,
        "pp": option.layout.pp,
        "dp": option.layout.dp,
        "ep": option.layout.ep,
        "dcp": option.layout.dcp,
        "partition": list(option.layout.partition),
        "gpus": option.gpus,
        "output_tokens_per_second": round(option.output_tokens_per_second, 1),
        "tpot_seconds": round(option.tpot_seconds, 5),
        "calibrated": option.engine.is_calibrated,
        "receipt": receipt_json(option.receipt),
    }


def receipt_json(receipt: Receipt) -> dict[str, Any]:
    """The receipt of a replica, by stage."""
    return {
        "ranks": [budget_json(rank) for rank in receipt.ranks],
        "binding_stage": receipt.binding,
        "kv_tokens": receipt.kv_tokens,
        "max_model_len": receipt.max_model_len,
        "max_concurrency": round(receipt.max_concurrency, 2),
        "largest_max_model_len": receipt.largest_max_model_len,
        "estimates": {name: estimate_json(value) for name, value in receipt.estimates.items()},
    }


def budget_json(rank: MemoryBudget) -> dict[str, Any]:
    """One rank's memory in GiB."""
    return {
        "stage": rank.pp_rank,
        "gpu_gib": round(rank.total_bytes / GIB, 2),
        "usable_gib": round(rank.requested_bytes / GIB, 2),
        "weights_gib": round(rank.weights_bytes / GIB, 2),
        "weights_parts": [
            {"name": part.name, "gib": round(part.size_bytes / GIB, 3), "formula": part.formula}
            for part in rank.weights_parts
        ],
        "activation_gib": round(rank.activation_bytes / GIB, 2),
        "non_torch_gib": round(rank.non_torch_bytes / GIB, 2),
        "cuda_graph_gib": round(rank.cuda_graph_bytes / GIB, 2),
        "kv_pool_gib": round(rank.kv_pool_bytes / GIB, 2),
        "kv_bytes_per_token": round(rank.kv_bytes_per_token),
    }


def estimate_json(value: Estimate) -> dict[str, Any]:
    """A number with its interval and source."""
    return {"p10": value.p10, "p50": value.p50, "p90": value.p90, "unit": value.unit, "source": value.source}


def refused_json(one: Any) -> dict[str, Any]:
    """A layout that does not work and why."""
    found = {"gpu_type": one.pool, "layout": str(one.layout), "rule": one.rule, "why": one.why}
    if one.rejection is not None:
        found["vllm_says"] = one.rejection.message
        found["legal"] = list(one.rejection.legal)
    return found


def receipt_lines(rank: dict[str, Any], stages: int) -> list[str]:
    """One rank's receipt as lines: every GiB of the GPU."""
    name = f"stage {rank['stage']}" if stages > 1 else "each GPU"
    used = rank["weights_gib"] + rank["activation_gib"] + rank["non_torch_gib"] + rank["kv_pool_gib"]
    rest = rank["usable_gib"] - used
    rows = [
        ("weights", rank["weights_gib"]), ("KV cache", rank["kv_pool_gib"]), ("activations", rank["activation_gib"]),
        ("NCCL, context", rank["non_torch_gib"]), ("CUDA graphs", rest if rest > 0.005 else rank["cuda_graph_gib"]),
        ("left to others", rank["gpu_gib"] - rank["usable_gib"]),
    ]  # fmt: skip
    return [f"{name}, {rank['gpu_gib']:.1f} GiB:"] + [
        f"  {label:<15}{value:>8.2f} GiB" for label, value in rows
    ]


def part_lines(receipt: dict[str, Any]) -> list[str]:
    """The receipt of one part of the plan: its distinct stages, and what the engine will log."""
    ranks, binds = receipt["ranks"], receipt["binding_stage"]
    shown = sorted({0, binds, len(ranks) - 1}) if len(ranks) > 4 else range(len(ranks))
    out = [line for stage in shown for line in receipt_lines(ranks[stage], len(ranks))]
    tokens = receipt["estimates"].get("kv_tokens")
    words = interval_words(tokens) if tokens else f"{receipt['kv_tokens']:,}"
    binding = f" (stage {binds} binds)" if len(ranks) > 1 else ""
    out.append(f"cache of each engine: {words} tokens{binding},")
    length = f"{receipt['max_model_len']:,}"
    out.append(
        f"  {receipt['max_concurrency']:.1f} requests of {length} at once; longest context {receipt['largest_max_model_len']:,}"
    )
    return out


def command_lines(typed: list[dict[str, str]]) -> list[str]:
    """The commands, each on a line of its own under the node where it is typed."""
    out, where = [], ""
    for one in typed[:_COMMANDS]:
        if one["node"] != where:
            where = one["node"]
            out.append(f"  # on {where}")
        out.append(f"  {one['line']}")
    if len(typed) > _COMMANDS:
        out.append(f"  # ... and {len(typed) - _COMMANDS} more (--json has all)")
    return out


def duration_words(value: dict[str, Any]) -> str:
    """ "205 (116 to 540) ms", or seconds from ten on."""
    if value["p50"] >= 10:
        return f"{interval_words(value, 1, 1)} s"
    return f"{interval_words(value, 1000)} ms"


def interval_words(value: dict[str, Any], factor: float = 1.0, digits: int = 0) -> str:
    """ "1,470 (1,100 to 1,900)"."""
    p50, p10, p90 = (value[name] * factor for name in ("p50", "p10", "p90"))
    return f"{p50:,.{digits}f} ({p10:,.{digits}f} to {p90:,.{digits}f})"


def lines(found: dict[str, Any]) -> list[str]:
    """The document for people."""
    out = [f"{found['model']} on {found['cluster']}"]
    load = found["workload"]
    rate = (
        f"{load['requests_per_second']:.3g} requests/s"
        if load["requests_per_second"]
        else f"{load['concurrency']} clients at once"
    )
    out.append(f"Load: {load['prompt_tokens']} prompt and {load['output_tokens']} output tokens, {rate}")
    out += ["", *found["verdict"]]
    plan = found["plan"]
    if plan is not None:
        out += ["", f"Plan: {plan['layout']} ({plan['gpus']} GPUs)", *estimate_lines(plan["estimates"]), ""]
        out += [f"  {line}" for line in plan["picture"]]
        for part in plan["parts"]:
            out += ["", f"Receipt of {part['option']} on {part['gpu_type']}:"]
            out += [f"  {line}" for line in part_lines(part["receipt"])]
    out += alternative_lines(found)
    if found["what_ifs"]:
        out += ["", "What if:"] + [f"  {one['text']}" for one in found["what_ifs"]]
    if plan is not None:
        out += ["", "Commands:", *command_lines(plan["commands"])]
        out += [""] + [f"Note: {note}" for note in plan["notes"]]
    return out


def fit(rows: list[str], width: int) -> list[str]:
    """The lines for a terminal: sentences are wrapped below their own indent, what is to be pasted and pictures stay whole."""
    out, pasted = [], False
    for row in rows:
        pasted = row == "Commands:" or (pasted and bool(row))
        if len(row) <= width or pasted or " | " in row:
            out.append(row)
            continue
        indent = " " * (len(row) - len(row.lstrip()))
        out += wrap(
            row, width, subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False
        )
    return out


def estimate_lines(values: dict[str, Any]) -> list[str]:
    """Speed with intervals (p10 to p90)."""
    out = [f"  {interval_words(values['output_tokens_per_second'])} output tokens/s"]
    out.append(f"  {interval_words(values['tpot_mean_seconds'], 1000, 1)} ms per token")
    if "ttft_p95_seconds" in values:
        out.append(
            f"  TTFT p50 {duration_words(values['ttft_p50_seconds'])}, p95 {duration_words(values['ttft_p95_seconds'])}"
        )
    if "held_requests_per_second" in values:
        out.append(
            f"  {interval_words(values['held_requests_per_second'], 1, 2)} requests/s within the objectives"
        )
    return out


def alternative_lines(found: dict[str, Any]) -> list[str]:
    """The runners-up, the first idea, and what cannot be."""
    out = []
    if found["alternatives"]:
        out += ["", "Next best:"] + [
            f"  {one['option']} on {one['gpu_type']}: {one['why_not']}" for one in found["alternatives"]
        ]
    if found["obvious"]:
        out += ["", "Why not the first idea:", f"  {found['obvious']}"]
    rules = {one["rule"]: one for one in found["refused"] if one["rule"] != "memory"}
    if rules:
        out += ["", "Not possible:"] + [f"  {one['layout']}: {one['why']}" for one in rules.values()]
    return out
