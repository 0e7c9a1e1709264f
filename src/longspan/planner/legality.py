"""The legality oracle: a layout is legal, or carries the message that vLLM would print, with the legal values.

Each rule cites the vLLM code it repeats (read in 0.32); `tests/planner/test_legality_vllm.py` compares verdicts with the
installed vLLM's own configuration code. Rules that changed between versions take the version.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from longspan.model.facts import ModelFacts, Recurrent
from longspan.plan import Layout, Rejection
from longspan.planner.legality_shapes import SHAPE_RULES, ShapeRule
from longspan.planner.versions import Version, parse_version

MAX_TP = 256


@dataclass(frozen=True)
class Setting:
    """What a rule may look at beside the model and the layout.

    Args:
        nodes: GPUs of each node that the replica may use; empty means one node with enough of them.
        executor: `ray` or `mp`. version: vLLM's.
        eplb, redundant_experts: expert load balancing and its extra experts over all layers' expert groups.
    """

    nodes: tuple[int, ...] = ()
    executor: str = "ray"
    version: Version = (0, 32, 0)
    eplb: bool = False
    redundant_experts: int = 0


Rule = Callable[[ModelFacts, Layout, Setting], Rejection | None]


def check(
    facts: ModelFacts,
    layout: Layout,
    nodes: tuple[int, ...] = (),
    executor: str = "ray",
    version: str = "0.32.0",
    eplb: bool = False,
    redundant_experts: int = 0,
) -> Rejection | None:
    """The first reason why vLLM would refuse this layout, or None.

    Args:
        facts: the model. layout: one replica's split.
        nodes: GPUs per node that the replica may use, such as `(8, 8)`; empty skips the rules about nodes.
        executor: `ray` or `mp`.
    """
    setting = Setting(nodes, executor, parse_version(version), eplb, redundant_experts)
    for rule in RULES:
        found = rule(facts, layout, setting)
        if found is not None:
            return found
    for shape_rule in SHAPE_RULES:
        found = shape_rule(facts, layout, setting.version)
        if found is not None:
            return _with_legal(found, shape_rule, facts, setting.version)
    return _nodes(facts, layout, setting)


def legal_tp(facts: ModelFacts, limit: int = MAX_TP, version: str = "0.32.0") -> tuple[int, ...]:
    """Every TP size up to `limit` that this model allows, ascending."""
    return tuple(t for t in _candidates(facts, limit) if check(facts, Layout(tp=t), version=version) is None)


def _candidates(facts: ModelFacts, limit: int) -> Iterator[int]:
    """TP sizes worth testing: divisors of the heads; without attention, of the recurrent heads."""
    heads = facts.heads or next(
        (x.mixer.value_heads for x in facts.layers if isinstance(x.mixer, Recurrent)), 1
    )
    return (t for t in range(1, min(limit, heads) + 1) if heads % t == 0)


def _with_legal(found: Rejection, rule: ShapeRule, facts: ModelFacts, version: Version) -> Rejection:
    """Adds to a shape's rejection the TP sizes that pass the same rule and the heads rule."""
    layout = found.layout
    legal = tuple(
        t
        for t in _candidates(facts, 64)
        if rule(facts, Layout(t, layout.pp, layout.dp, layout.ep), version) is None
    )
    return replace(found, legal=legal, why=f"{found.why} Legal TP sizes are {_words(legal)}.")


def _words(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values)) if values else "none"


def _heads(facts: ModelFacts, layout: Layout, setting: Setting) -> Rejection | None:
    heads = facts.heads
    if not heads or heads % layout.tp == 0:
        return None
    legal = tuple(t for t in range(1, 65) if heads % t == 0)
    return Rejection(
        layout,
        "heads",
        f"Total number of attention heads ({heads}) must be divisible by tensor parallel size ({layout.tp}).",
        f"{heads} attention heads are not divisible by {layout.tp}; legal TP sizes are {_words(legal)}.",
        legal,
        "vllm/config/model.py verify_with_parallel_config",
    )


def _expert_parallel(facts: ModelFacts, layout: Layout, setting: Setting) -> Rejection | None:
    if not layout.ep or facts.experts:
        return None
    return Rejection(
        layout,
        "experts",
        "Number of experts in the model must be greater than 0 when expert parallelism is enabled.",
        "The model has no experts, so there is nothing for expert parallelism to divide.",
        source="vllm/config/model.py _verify_with_expert_parallelism",
    )


def _pipeline(facts: ModelFacts, layout: Layout, setting: Setting) -> Rejection | None:
    if layout.pp == 1:
        return None
    if facts.architecture in NO_PIPELINE:
        return Rejection(
            layout,
            "pipeline",
            "Pipeline parallelism is not supported for this model. Supported models implement the `SupportsPP` interface.",
            f"vLLM's {facts.architecture} cannot be split into stages; PP must be 1.",
            (1,),
            "vllm/config/model.py verify_with_parallel_config",
        )
    count = len(facts.layers)
    if layout.partition and len(layout.partition) != layout.pp:
        return Rejection(
            layout,
            "partition",
            f"len(partitions)={len(layout.partition)} does not match pp_size={layout.pp}.",
            f"The partition names {len(layout.partition)} stages, the layout {layout.pp}.",
            source="vllm/distributed/utils.py get_pp_indices",
        )
    if layout.partition and sum(layout.partition) != count:
        return Rejection(
            layout,
            "partition",
            f"sum(partitions)={sum(layout.partition)} does not match num_hidden_layers={count}.",
            f"The partition places {sum(layout.partition)} layers, the model has {count}.",
            source="vllm/distributed/utils.py get_pp_indices",
        )
    if layout.pp > count or (layout.partition and min(layout.partition) < 1):
        return Rejection(
            layout,
            "pipeline",
            "(vLLM does not refuse this, but a stage without layers has no KV cache)",
            f"{count} layers cannot fill {layout.pp} pipeline stages.",
            tuple(range(1, min(count, 64) + 1)),
            "vllm/distributed/utils.py get_pp_indices",
        )
    return None


def _context_size(facts: ModelFacts, layout: Layout, setting: Setting) -> Rejection | None:
    """Checked before anything about the model: vLLM's ParallelConfig knows none."""
    tp, dcp = layout.tp, layout.dcp
    if tp % dcp == 0:
        return None
    legal = tuple(d for d in range(1, tp + 1) if tp % d == 0)
    return Rejection(
        layout,
        "dcp",
        f"tp_size={tp} must be divisible by dcp_size={dcp}.",
        f"DCP {dcp} does not divide TP {tp}; legal DCP sizes are {_words(legal)}.",
        legal,
        "vllm/config/parallel.py _validate_parallel_config",
    )


def _context(facts: ModelFacts, layout: Layout, setting: Setting) -> Rejection | None:
    tp, dcp = layout.tp, layout.dcp
    if dcp == 1:
        return None
    if facts.is_mla:
        return None
    kv, heads = facts.kv_heads, facts.heads
    legal = (
        tuple(d for d in range(1, max(1, tp // kv) + 1) if tp % d == 0 and (heads // kv) % d == 0)
        if kv
        else (1,)
    )
    source = "vllm/config/model.py verify_with_parallel_config"
    if tp <= kv:
        return Rejection(
            layout,
            "dcp",
            f"Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({tp}) to be greater than the model's "
            f"total number of KV heads ({kv}). Increase `--tensor-parallel-size` or set `--decode-context-parallel-size 1`.",
            f"DCP only removes copies of KV heads, and TP {tp} makes none of {kv} KV heads.",
            (1,),
            source,
        )
    if dcp > tp // kv:
        return Rejection(
            layout,
            "dcp",
            f"`--decode-context-parallel-size` ({dcp}) exceeds the maximum supported value ({tp // kv}) for "
            f"`--tensor-parallel-size` ({tp}) and {kv} model KV heads.",
            f"TP {tp} keeps {tp // kv} copies of each KV head, so DCP can be at most {tp // kv}; legal are {_words(legal)}.",
            legal,
            source,
        )
    if (heads // kv) % dcp:
        return Rejection(
            layout,
            "dcp",
            f"The model's number of query heads per KV head ({heads // kv}) must be divisible by "
            f"`--decode-context-parallel-size` ({dcp}) for GQA/MQA.",
            f"{heads // kv} query heads share a KV head, which DCP {dcp} does not divide; legal are {_words(legal)}.",
            legal,
            source,
        )
    return None


def _eplb(facts: ModelFacts, layout: Layout, setting: Setting) -> Rejection | None:
    if not setting.eplb:
        return None
    if not layout.ep:
        return Rejection(
            layout, "eplb", "enable_expert_parallel must be True to use EPLB.", "EPLB needs expert parallelism.",
            source="vllm/config/parallel.py _validate_parallel_config",
        )  # fmt: skip
    experts = facts.experts
    count = (experts.count if experts else 0) + setting.redundant_experts
    if count % layout.ep_size:
        return Rejection(
            layout,
            "eplb",
            f"EPLB currently only supports even distribution of experts across ranks. Got {count} experts and "
            f"{layout.ep_size} EP ranks.",
            f"{count} experts with the redundant ones are not divisible by {layout.ep_size} ranks.",
            source="vllm/model_executor/layers/fused_moe/layer.py",
        )
    return None


def _nodes(facts: ModelFacts, layout: Layout, setting: Setting) -> Rejection | None:
    """World size against the GPUs that are there, and what each executor can place."""
    nodes = setting.nodes
    if not nodes:
        return None
    world, have = layout.tp * layout.pp, sum(nodes)
    if layout.gpus > have:
        return Rejection(
            layout,
            "gpus",
            f"World size ({world}) is larger than the number of available GPUs ({max(nodes)}) in this node."
            if len(nodes) == 1
            else f"Not enough resources to allocate {layout.dp} placement groups",
            f"{layout.gpus} GPUs are wanted, {have} are there.",
            source="vllm/config/parallel.py __post_init__",
        )
    if setting.executor == "mp" and world > max(nodes):
        used = [n for n in nodes if n > 0]
        if any(n != used[0] for n in used) or world % len(used):
            return Rejection(
                layout,
                "uneven-nodes",
                f"World size ({world}) is larger than the number of available GPUs ({min(used)}) in this node. If this is "
                "intentional and you are using:\n- ray, set '--distributed-executor-backend ray'.\n"
                "- multiprocessing, set '--nnodes' appropriately.",
                f"The mp executor puts equally many ranks on every node, and {world} ranks on nodes of "
                f"{_words(tuple(used))} GPUs are uneven; use the ray executor.",
                source="vllm/config/parallel.py local_world_size",
            )
    return None


RULES: tuple[Rule, ...] = (_context_size, _heads, _expert_parallel, _pipeline, _context, _eplb)

# Architectures of vLLM 0.32 whose class does not implement SupportsPP (read from its model sources).
NO_PIPELINE = frozenset(
    [
        "AriaForConditionalGeneration",
        "CohereAsrForConditionalGeneration",
        "DiffusionGemmaForBlockDiffusion",
        "FireRedASR2ForConditionalGeneration",
        "FunASRForConditionalGeneration",
        "Gemma3nForCausalLM",
        "Gemma3nForConditionalGeneration",
        "HrmTextForCausalLM",
        "IQuestLoopCoderForCausalLM",
        "Idefics3ForConditionalGeneration",
        "Mamba2ForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "NemotronParseForConditionalGeneration",
        "PaddleOCRVLForConditionalGeneration",
        "Phi4MMForCausalLM",
        "SmolVLMForConditionalGeneration",
        "WhisperForConditionalGeneration",
        "Zamba2ForCausalLM",
    ]
)
