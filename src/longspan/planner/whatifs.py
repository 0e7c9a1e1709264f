"""What would change the answer: settings, formats, a node more or less, a faster fabric, speculative decoding."""

from dataclasses import dataclass, replace

from longspan.cluster.inventory import Cluster, Network
from longspan.model.requantise import stored_as
from longspan.plan import Layout
from longspan.planner.layout import pools
from longspan.planner.options import Answer, Option, Question
from longspan.planner.ranking import meets
from longspan.planner.search import evaluate, search
from longspan.planner.simulate import Load
from longspan.units import GIB
from longspan.workload import Workload

# Share of drafted tokens accepted, low and high, the draft's cost as a share of the model's step, and tokens drafted. Guesses after the
# acceptance lengths that the EAGLE-3 paper (arXiv 2503.01840) and vLLM's speculators report, and for MTP the DeepSeek-V3 report
# (arXiv 2412.19437: 85 to 90 % of second tokens); prompts decide. MTP's cost is its layers' share of the model.
_DRAFTS = {
    "EAGLE": (0.6, 0.8, 0.06, 3), "MTP": (0.7, 0.9, 0.0, 1), "n-gram": (0.1, 0.5, 0.0, 4), "draft model": (0.5, 0.75, 0.15, 3),
}  # fmt: skip

# A context below this is of no use to say.
_SHORTEST = 1024
# Another layout is named in a what-if only if it gains this much over the plan's own.
_CLEARLY = 1.1


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One change: `text` for people; before and after of what the question is about, where it was computed.

    That is throughput, or GPUs saved (before over after the change) where the fewest GPUs are sought.
    """

    name: str
    text: str
    before: float = 0.0
    after: float = 0.0
    is_gpus: bool = False

    @property
    def gain(self) -> float:
        """Factor by which the answer gets better; 1 where there is none to compare."""
        if self.before <= 0 or self.after <= 0:
            return 1.0
        return self.before / self.after if self.is_gpus else self.after / self.before


def what_ifs(answer: Answer) -> list[WhatIf]:
    """Every change worth telling, for the best option; an empty list if nothing works."""
    question = answer.question
    best = answer.best
    if best is not None and not question_of_gpus(question):
        # Both sides of a comparison are closed forms, so that a simulation's detail does not pass for a gain.
        best = replace(best, statistics=None)
    found: list[WhatIf | None] = []
    if best is not None:
        found += [fewer_sequences(question, best), fp8_cache(question, best)]
    found += [formats(question, best, name) for name in ("fp8", "int4")]
    if best is None:
        found.append(_shorter("shorter", answer, "The weights as they are"))
    found += [one_node_more(question, best), one_node_less(question, best), faster_fabric(question, best)]
    if best is not None:
        drafts = [name for name in _DRAFTS if name != ("EAGLE" if question.facts.mtp_layers else "MTP")]
        found += [speculative(question, best, name) for name in drafts]
    return [one for one in found if one is not None]


def _compare(name: str, best: Option | None, changed: Question, words: str) -> WhatIf | None:
    """The changed question's answer beside the best option: in its own layout unless another is clearly better there."""
    if best is not None and question_of_gpus(changed):
        return _compare_gpus(name, best, changed, words)
    found = search(changed, simulated=0, brief=best.layout if best else Layout())
    options = found.options
    if not options:
        return _shorter(name, found, words) if best is None else None
    top = options[0]
    if best is None:
        speed = top.output_tokens_per_second
        return WhatIf(name, f"{words}: then it fits, as {top}: about {speed:,.0f} tokens/s.", 0.0, speed)
    same = next((o for o in options if o.layout == best.layout and o.pool == best.pool), None)
    if same is not None and top.output_tokens_per_second < _CLEARLY * same.output_tokens_per_second:
        top = same
    before, after = best.output_tokens_per_second, top.output_tokens_per_second
    layout = "" if str(top) == str(best) else f", as {top} instead of {best}"
    cache = total_tokens(top) / max(total_tokens(best), 1)
    return WhatIf(
        name, f"{words}: throughput x{after / before:.2f}, cache x{cache:.1f}{layout}.", before, after
    )


def _shorter(name: str, answer: Answer, words: str) -> WhatIf | None:
    """A change that makes the model fit if requests are shorter than asked; None if it does not fit then either."""
    near = [one for one in answer.refused if one.receipt is not None]
    most = max(near, key=lambda one: one.receipt.largest_max_model_len if one.receipt else 0, default=None)
    if most is None or most.receipt is None or most.receipt.largest_max_model_len < _SHORTEST:
        return None
    length = most.receipt.largest_max_model_len // 1024 * 1024
    return WhatIf(name, f"{words} and --max-model-len {length}: then it fits, as {most.layout}.", 0.0, 1.0)


def question_of_gpus(question: Question) -> bool:
    """Whether the fewest GPUs for a load and its objectives are sought."""
    return question.goal == "cost" and question.workload.is_open and bool(question.workload.objectives)


def _compare_gpus(name: str, best: Option, changed: Question, words: str) -> WhatIf | None:
    """How many GPUs keep the objectives after the change, by simulation on both sides."""
    top = search(changed, simulated=1, brief=best.layout).best
    if top is None:
        return None
    if not meets(changed, top):
        return WhatIf(name, f"{words}: the objectives do not hold.")
    layout = f"as {top}" + ("" if str(top) == str(best) else f" instead of {best}")
    if top.gpus == best.gpus:
        text = f"{words}: as many GPUs, {layout}, time per token x{top.tpot_seconds / best.tpot_seconds:.2f}."
    else:
        text = f"{words}: {gpus_words(top.gpus)} instead of {best.gpus} keep the objectives, {layout}."
    return WhatIf(name, text, float(best.gpus), float(top.gpus), is_gpus=True)


def gpus_words(count: int) -> str:
    """ "1 GPU", "8 GPUs"."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def total_tokens(option: Option) -> int:
    """Cache tokens of all replicas together."""
    return option.receipt.kv_tokens * option.copies * option.layout.dp


def fewer_sequences(question: Question, best: Option) -> WhatIf | None:
    """A smaller `max_num_seqs` frees the sampler's and the graphs' memory."""
    seqs = best.limits.sequences
    if seqs <= 256:
        return None
    changed = replace(question, settings=replace(question.settings, max_num_seqs=256))
    pool = next((one for one in pools(question.cluster) if one.gpu_type == best.pool), None)
    same = evaluate(changed, pool, best.layout, list(best.groups)) if pool is not None else None
    if not isinstance(same, Option) or same.receipt.kv_tokens <= best.receipt.kv_tokens:
        return None
    freed = (
        same.receipt.ranks[same.receipt.binding].kv_pool_bytes
        - best.receipt.ranks[best.receipt.binding].kv_pool_bytes
    )
    more = same.receipt.kv_tokens - best.receipt.kv_tokens
    return WhatIf(
        "max_num_seqs",
        f"max_num_seqs {seqs} -> 256 frees {freed / GIB:.2f} GiB on the binding GPU: {more:,} more cache tokens in each replica.",
    )


def fp8_cache(question: Question, best: Option) -> WhatIf | None:
    """`--kv-cache-dtype fp8`."""
    if question.settings.kv_dtype != "auto" or question.facts.kv_dtype.startswith("fp8"):
        return None
    changed = replace(question, settings=replace(question.settings, kv_dtype="fp8"))
    return _compare("fp8-cache", best, changed, "FP8 cache (--kv-cache-dtype fp8)")


def formats(question: Question, best: Option | None, name: str) -> WhatIf | None:
    """The model's weights in fewer bits."""
    label = question.facts.quantisation.label
    if label != "16-bit" and not (label in ("fp8", "int8") and name == "int4"):
        return None
    changed = replace(question, facts=stored_as(question.facts, name))
    return _compare(f"{name}-weights", best, changed, f"{name.upper()} weights")


def _grown(cluster: Cluster) -> Cluster:
    last = cluster.nodes[-1]
    return Cluster(
        cluster.name,
        (*cluster.nodes, replace(last, name=f"{last.name}-more", address=f"{last.address}-more")),
    )


def one_node_more(question: Question, best: Option | None) -> WhatIf | None:
    """Another node like the last one."""
    if not question.cluster.nodes[-1].gpus:
        return None
    count = len(question.cluster.nodes[-1].gpus)
    if best is not None and question_of_gpus(question) and meets(question, best):
        return None  # what keeps the objectives needs no more
    changed = replace(question, cluster=_grown(question.cluster), workload=_same_load(question))
    words = f"One more node like the last ({gpus_words(count)})"
    found = _compare("one-node-more", best, changed, words)
    if found is None or found.gain >= 1.0:
        return found
    # The plan of today still stands there; another one is no answer if it is slower.
    return WhatIf("one-node-more", f"{words}: no gain for this load.", found.before, found.before)


def one_node_less(question: Question, best: Option | None) -> WhatIf | None:
    """What still serves after losing the first node."""
    if len(question.cluster.nodes) < 2 or best is None:
        return None
    changed = replace(
        question,
        cluster=Cluster(question.cluster.name, question.cluster.nodes[1:]),
        workload=_same_load(question),
    )
    found = _compare("one-node-less", best, changed, "After losing a node, planned anew")
    return found or WhatIf("one-node-less", "After losing a node nothing fits: there is no warm fallback.")


def _same_load(question: Question) -> Workload:
    """The same load: more hardware does not bring more clients."""
    workload = question.workload
    return workload if workload.is_open else replace(workload, concurrency=question.clients)


def faster_fabric(question: Question, best: Option | None) -> WhatIf | None:
    """InfiniBand where there is none."""
    if best is not None and question_of_gpus(question) and meets(question, best):
        return None
    if len(question.cluster.nodes) < 2 or all(node.network.is_rdma for node in question.cluster.nodes):
        return None
    fabric = Network("infiniband", 200e9)
    nodes = tuple(replace(node, network=fabric) for node in question.cluster.nodes)
    changed = replace(question, cluster=Cluster(question.cluster.name, nodes))
    return _compare("infiniband", best, changed, "200 Gbit/s InfiniBand between the nodes")


def speculative(question: Question, best: Option, name: str) -> WhatIf | None:
    """Expected gain of speculative decoding at this batch: accepted tokens per step against the dearer step.

    With acceptance a and k drafted tokens a step yields (1 - a^(k+1)) / (1 - a) tokens (Leviathan et al. 2023).
    """
    low, high, draft, count = _DRAFTS[name]
    if name == "MTP":
        draft = question.facts.mtp_layers / len(question.facts.layers)
    batch = best.steady.batch
    held = question.workload.prompt_tokens + question.workload.output_tokens / 2
    plain = best.engine.step_seconds(Load(0, 0, 0, batch, batch * held))
    checked = best.engine.step_seconds(Load(0, 0, 0, batch * (count + 1), batch * held))

    def gain(accepted: float) -> float:
        return (1 - accepted ** (count + 1)) / (1 - accepted) / (checked / plain + draft)

    first, last = gain(low), gain(high)
    verdict = (
        "worth trying"
        if first > 1.05
        else "only for few users at a time"
        if last > 1.05
        else "not here: the batch already fills the GPU"
    )
    memory = (
        f", about {draft * best.receipt.ranks[0].weights_bytes / GIB:.1f} GiB a GPU"
        if draft
        else ", no memory"
    )
    return WhatIf(
        f"speculative-{name}",
        f"Speculative decoding ({name}, {count} token{'s' if count > 1 else ''}{memory}): time per token x{1 / last:.2f} to x{1 / first:.2f} at a batch of {batch:.0f} (a guess): {verdict}.",
    )


# What one can decide to buy or to switch on, and from which gain on it is worth a sentence at the top.
_BUYS = ("shorter", "fp8-weights", "int4-weights", "fp8-cache", "one-node-more", "infiniband")
_WORTH = 1.25


def better_buy(changes: list[WhatIf], best: Option | None) -> str:
    """The change that gains most, in one sentence; empty where none gains much."""
    known = [one for one in changes if one.name in _BUYS and one.after > 0]
    if best is None:
        return f"What would make it fit: {' '.join(one.text for one in known)}" if known else ""
    # A change that costs nothing but a flag goes before hardware that gains about as much.
    top = max(known, key=lambda one: (round(one.gain, 1), one.name == "fp8-weights"), default=None)
    return f"The better buy: {top.text}" if top is not None and top.gain >= _WORTH else ""
