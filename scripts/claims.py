#!/usr/bin/env python3
"""Writes docs/claims.md: claims in circulation about sizing, put to the planner. `--check` fails if the file is stale."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from longspan.cluster.catalog import require_gpu
from longspan.cluster.inventory_file import parse_shorthand
from longspan.cost import ApiPrice, FixedMonthly, Traffic, break_even
from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_model
from longspan.model.parse import parse_config
from longspan.model.requantise import stored_as
from longspan.plan import Layout
from longspan.planner.engine import EngineSettings, GpuMemory
from longspan.planner.engine_model import Site, engine_model
from longspan.planner.latency import steady
from longspan.planner.legality import check, legal_tp
from longspan.planner.links import Path as LinkPath
from longspan.planner.memory import receipt
from longspan.planner.options import Answer, Option, Question
from longspan.planner.partition import best_partition
from longspan.planner.search import search
from longspan.planner.simulate import Limits, Load
from longspan.units import GIB
from longspan.workload import Workload

TARGET = Path(__file__).parent.parent / "docs" / "claims.md"
LLAMA3_70B = "meta-llama/Meta-Llama-3-70B-Instruct"


def model(name: str) -> ModelFacts:
    """A model of the built-in list."""
    return load_model(name, None, offline=True)


def answer(facts: ModelFacts, gpus: str, network: str = "", concurrency: int = 0) -> Answer:
    """The planner's answer for 1000 prompt and 300 output tokens."""
    return search(Question(facts, parse_shorthand(gpus, network), Workload(concurrency=concurrency)))


def find(found: Answer, layout: Layout) -> Option | None:
    """The option with this layout."""
    return next((option for option in found.options if option.layout == layout), None)


def speed(option: Option | None) -> str:
    """Throughput and time per token, in closed form for all so that they compare."""
    if option is None:
        return "does not work"
    plain = replace(option, statistics=None)
    return f"{round(plain.output_tokens_per_second, -1):,.0f} tokens/s, {plain.tpot_seconds * 1000:.0f} ms per token"


def row(*cells: object) -> str:
    """A line of a table."""
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def claim_a() -> Iterator[str]:
    """TP4 x PP2 instead of TP8 over a slow network."""
    yield "## (a) Llama-3-70B on 2 nodes x 4 A100-80 PCIe: TP4 x PP2, not TP8"
    yield ""
    yield row("layout", "10 Gbit/s Ethernet", "200 Gbit/s InfiniBand")
    yield row("-", "-", "-")
    facts = model(LLAMA3_70B)
    slow = answer(facts, "2x4xA100-PCIe-80GB", "ethernet:10")
    fast = answer(facts, "2x4xA100-PCIe-80GB", "infiniband:200")
    for layout, label in (
        (Layout(8), "TP8"),
        (Layout(4, 2), "TP4 x PP2"),
        (Layout(4), "2 x TP4"),
        (Layout(2, 2), "2 x TP2 x PP2"),
    ):
        yield row(label, speed(find(slow, layout)), speed(find(fast, layout)))
    eight, best = find(slow, Layout(8)), slow.best
    assert eight is not None
    assert best is not None
    one = Load(0, 0, 0, 1, 1000)
    links = [find(found, Layout(8)).engine.communication_seconds(one) * 1000 for found in (slow, fast)]  # type: ignore[union-attr]
    yield ""
    yield (
        f"**Right about TP8, but not the end of it.** TP8 sends 160 all-reduces per token over the network: {links[0]:.0f} ms of every "
        f"step of a single user over Ethernet, {links[1]:.0f} ms over InfiniBand. TP4 x PP2 avoids that. Yet the weights are 131 GiB and four cards "
        f"have 317: each node holds the whole model, so two independent replicas need no network at all and lose half, not everything, "
        f"with a node. The plan is {best}. TP4 x PP2 is for contexts that one node's cache of {find(slow, Layout(4)).receipt.kv_tokens:,} tokens cannot hold."  # type: ignore[union-attr]
    )


def claim_b() -> Iterator[str]:
    """70B BF16 on two 80 GB GPUs."""
    yield "## (b) 70B in BF16 on 2 x 80 GB at TP2 leaves almost no KV cache; TP4 is needed"
    yield ""
    yield row("layout", "weights per GPU", "KV cache per GPU", "tokens", "requests of 8192 tokens at once")
    yield row("-", "-", "-", "-", "-")
    facts = model(LLAMA3_70B)
    gpu = require_gpu("H100")
    for layout in (Layout(2), Layout(4)):
        found = receipt(
            facts, layout, GpuMemory(gpu.name, gpu.memory_bytes), EngineSettings(max_model_len=8192)
        )
        rank = found.ranks[0]
        yield row(
            layout, f"{rank.weights_bytes / GIB:.1f} GiB", f"{rank.kv_pool_bytes / GIB:.1f} GiB",
            f"{found.kv_tokens:,}", f"{found.max_concurrency:.1f}",
        )  # fmt: skip
    yield ""
    yield "**Confirmed.** H100-80 figures at vLLM 0.32's defaults. FP8 weights on the two GPUs are the cheaper way out where the model allows it."


def claim_c() -> Iterator[str]:
    """Replicas against tensor parallelism for small models."""
    yield "## (c) A 7B to 14B model on 4 GPUs: four replicas beat TP4"
    yield ""
    yield row("model", "GPUs", "clients", "4 x TP1", "TP4")
    yield row("-", "-", "-", "-", "-")
    won = {True: 0, False: 0}
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-14B"):
        for gpus in ("4xA100-PCIe-80GB", "4xH100"):
            for clients in (4, 64, 1024):
                found = answer(model(name), gpus, concurrency=clients)
                single, group = find(found, Layout()), find(found, Layout(4))
                assert single is not None
                assert group is not None
                won[
                    replace(single, statistics=None).output_tokens_per_second
                    > replace(group, statistics=None).output_tokens_per_second
                ] += 1
                yield row(name.split("/")[1], gpus, clients, speed(single), speed(group))
    yield ""
    yield (
        f"**It depends on the load and the link**: replicas win {won[True]} of these {won[True] + won[False]} cases. Few users read the weights faster "
        "from four GPUs than from one, so TP4 answers each of them sooner; many users fill four separate batches, and then every all-reduce is a "
        "loss, most of all over PCIe. Replicas also fail one at a time."
    )


def claim_d() -> Iterator[str]:
    """70B in four bits on consumer cards."""
    yield "## (d) 70B INT4 on 24 GB PCIe cards"
    yield ""
    yield row("GPUs", "plan", "KV tokens of each engine", "expected")
    yield row("-", "-", "-", "-")
    facts = stored_as(model(LLAMA3_70B), "int4")
    for gpus in ("2xRTX-3090", "2xRTX-4090", "4xRTX-3090", "4xRTX-4090", "8xRTX-4090"):
        found = answer(facts, gpus)
        if found.best is None:
            yield row(gpus, "nothing fits", "-", found.refused[-1].why)
            continue
        yield row(gpus, found.best, f"{found.best.receipt.kv_tokens:,}", speed(found.best))
    yield ""
    weights = (
        receipt(facts, Layout(2), GpuMemory("RTX-4090", require_gpu("RTX-4090").memory_bytes))
        .ranks[0]
        .weights_bytes
        * 2
    )
    yield (
        f"**It fits from two cards on**, barely: the weights are {weights / GIB:.0f} GiB of 48. Four cards give a usable cache. These cards have no "
        "peer-to-peer, so pipeline stages lose less than tensor parallelism once several users are there."
    )


def claim_e() -> Iterator[str]:
    """DeepSeek-V3.2 on 4 x 8 H100-80."""
    yield '## (e) DeepSeek-V3.2 on 4 nodes x 8 H100-80: "its BF16 weights are 134 GB, so TP16 x PP2"'
    yield ""
    facts = model("deepseek-ai/DeepSeek-V3.2")
    found = answer(facts, "4x8xH100")
    assert found.best is not None
    gpu = require_gpu("H100")
    whole = receipt(facts, Layout(), GpuMemory(gpu.name, gpu.memory_bytes)).ranks[0].weights_bytes
    sixteen = stored_as(facts, "bf16")
    wide = receipt(sixteen, Layout(), GpuMemory(gpu.name, gpu.memory_bytes)).ranks[0].weights_bytes
    yield row("layout", "weights per GPU", "KV tokens of each engine", "expected")
    yield row("-", "-", "-", "-")
    claimed = find(found, Layout(16, 2))
    known = [
        ("TP16 x PP2 (claimed)", claimed),
        (f"{found.best} (plan)", found.best),
        ("TP8 x PP2, 2 replicas", find(found, Layout(8, 2))),
    ]
    for label, option in known:
        if option is None:
            refused = next((r for r in found.refused if str(r.layout) in label), None)
            yield row(label, "-", "-", refused.why if refused else "cannot be placed")
            continue
        rank = option.receipt.ranks[0]
        yield row(
            label, f"{rank.weights_bytes / GIB:.1f} GiB", f"{option.receipt.kv_tokens:,}", speed(option)
        )
    yield ""
    yield (
        f"**Refuted.** The checkpoint is FP8 and its weights are {whole / GIB:.0f} GiB ({whole / 1e9:.0f} GB); in BF16 they would be {wide / 1e9:,.0f} GB. "
        "134 GB is five times too little even for the FP8 file and what a 67B model takes in BF16, so a digit was lost. TP16 puts an all-reduce of every layer on the network and holds the same MLA cache sixteen times over: MLA's cache is "
        f"not divided by TP. Attention groups with expert parallelism hold it once per group: the plan is {found.best}."
    )


def claim_f() -> Iterator[str]:
    """Own hardware at $4,120 a month against an API."""
    yield "## (f) Own hardware at $4,120 a month beats an API at $0.42/$0.84 per million tokens from 50 million tokens a day"
    yield ""
    yield row("mix (input/output)", "API price per million", "break-even, million tokens a day", "arithmetic")
    yield row("-", "-", "-", "-")
    evens = []
    for share in (0.9, 0.8, 0.5, 0.0):
        even = break_even(FixedMonthly(4120), ApiPrice(0.42, 0.84), Traffic(share * 1e6, (1 - share) * 1e6))
        evens.append(even.tokens_per_day / 1e6)
        yield row(
            f"{share:.0%} / {1 - share:.0%}",
            f"${even.api_per_million:.3f}",
            f"{even.tokens_per_day / 1e6:.0f}",
            even.arithmetic,
        )
    bill = ApiPrice(0.42, 0.84).per_month(Traffic(40e6, 10e6))
    yield ""
    yield (
        f"**Refuted.** 50 million tokens a day cost ${bill:,.0f} a month from that API at 80 % input. Break-even is at {evens[1]:.0f} million a day, and at "
        f"{evens[3]:.0f} million even if every token were output. `longspan cost` does this sum for any prices and says whether the plan can serve that much."
    )


def claim_g() -> Iterator[str]:
    """A mixed tensor-parallel group."""
    yield "## (g) An A100 and an RTX 4090 in one tensor-parallel group"
    yield ""
    facts = model("Qwen/Qwen3-14B")
    big, small = require_gpu("A100-PCIe-80GB"), require_gpu("RTX-4090")
    path = LinkPath("pcie-host", small.link_bytes_per_second)
    load = Workload(concurrency=32)
    yield row("layout", "binding GPU", "KV tokens", "expected")
    yield row("-", "-", "-", "-")
    settings = EngineSettings(max_model_len=8192)
    for label, wanted, gpu, memory in (
        ("A100 alone", Layout(), big, (big,)),
        ("TP2 over both", Layout(2), small, (small,)),
        ("PP2, layers split by memory", Layout(1, 2), small, (big, small)),
    ):
        layout = wanted
        sizes = tuple(GpuMemory(one.name, one.memory_bytes, fabric=False) for one in memory)
        if wanted.pp == 2:
            layout = replace(wanted, partition=best_partition(facts, wanted, sizes, settings))
        found = receipt(facts, layout, sizes if layout.pp == 2 else sizes[0], settings)
        sites = (Site(big, path, path), Site(small, path)) if layout.pp == 2 else (Site(gpu, path),)
        engine = engine_model(facts, layout, sites)
        limits = Limits(2048 * layout.pp, 256, max(found.kv_tokens, 1))
        seen = steady(engine, limits, load, 32)
        binds = (big, small)[found.binding].name if layout.pp == 2 else gpu.name
        split = f" ({layout.partition[0]} + {layout.partition[1]})" if layout.partition else ""
        speed_words = f"{round(seen.batch / seen.tpot_seconds, -1):,.0f} tokens/s, {seen.tpot_seconds * 1000:.0f} ms per token"
        yield row(label + split, binds, f"{found.kv_tokens:,}", speed_words)
    yield ""
    yield (
        "**A poor idea.** vLLM gives every rank of a TP group an equal share: the A100 holds no more than the 4090 can, and each layer waits for the slower "
        "card and for an all-reduce over PCIe without peer-to-peer. The planner never builds such a group. It offers one replica on each card, or, where the "
        "model needs both, pipeline stages with the layers split by memory (`VLLM_PP_LAYER_PARTITION`)."
    )


def expert_config(intermediate: int) -> dict[str, object]:
    """A small block-FP8 mixture with experts of this width."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
        "moe_intermediate_size": intermediate, "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 151936,
        "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "decoder_sparse_step": 1, "mlp_only_layers": [],
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
    }  # fmt: skip


def claim_h() -> Iterator[str]:
    """Shapes that TP cannot divide."""
    yield "## (h) Expert feed-forward or heads that no TP divides"
    yield ""
    yield row("model", "wanted", "vLLM", "verdict")
    yield row("-", "-", "-", "-")
    odd = parse_config(expert_config(320), "experts of 320")
    small = model("HuggingFaceTB/SmolLM2-135M-Instruct")
    cases = [
        (odd, Layout(2), "0.19.0"), (odd, Layout(2), "0.32.0"), (odd, Layout(4), "0.32.0"), (odd, Layout(4, ep=True), "0.32.0"),
        (small, Layout(2), "0.32.0"), (small, Layout(3), "0.32.0"), (model("deepseek-ai/DeepSeek-V3"), Layout(14), "0.32.0"),
    ]  # fmt: skip
    for facts, layout, version in cases:
        refused = check(facts, layout, version=version)
        words = "legal" if refused is None else str(refused).replace("|", "/").replace("\n", " ")
        yield row(facts.name.split("/")[-1], layout, version, words)
    yield ""
    old = ", ".join(map(str, legal_tp(odd, version="0.19.0"))) or "none"
    new = ", ".join(map(str, legal_tp(odd))) or "none"
    yield (
        f"**Expert parallelism is the way out.** Block-FP8 experts of width 320 can be cut at TP {old} in vLLM 0.19 and at TP {new} in 0.32, which refines "
        "the scale blocks; whole experts can be spread over the same GPUs with `--enable-expert-parallel`. For heads there is no way out but another TP "
        "size, pipeline stages or replicas."
    )


def text() -> str:
    """The whole file."""
    out = [
        "# Claims, put to the planner", "",
        "Generated by `python scripts/claims.py`; CI fails when it is stale. Memory is a receipt; speeds are estimates whose intervals",
        "`longspan plan` prints (wide for GPUs, links and stages that nobody measured), for 1000 prompt and 300 output tokens, 16 clients a GPU",
        "unless stated, in closed form.", "",
    ]  # fmt: skip
    for claim in (claim_a, claim_b, claim_c, claim_d, claim_e, claim_f, claim_g, claim_h):
        out += [*claim(), ""]
    return "\n".join(out)


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0
            if TARGET.read_text(encoding="utf-8") == text()
            else "docs/claims.md is stale: run python scripts/claims.py"
        )
    TARGET.write_text(text(), encoding="utf-8")
