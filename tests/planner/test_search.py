"""The search: places that exist, reasons for everything refused, objectives before speed, and answers for odd clusters."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.cluster.inventory import Cluster
from longspan.cluster.inventory_file import parse_shorthand
from longspan.model.facts import ModelFacts
from longspan.model.fetch import load_model
from longspan.plan import Layout
from longspan.planner.assemble import fill, plan_of, settle
from longspan.planner.commands import commands, picture, rank_words
from longspan.planner.engine import EngineSettings, GpuMemory
from longspan.planner.explain import document, lines
from longspan.planner.layout import places, pools, replicas, slots
from longspan.planner.options import Answer, Question
from longspan.planner.partition import best_partition
from longspan.planner.plan_file import parse_plan, to_toml
from longspan.planner.search import search
from longspan.planner.verdicts import crossing, verdicts, why_obvious_lost
from longspan.planner.whatifs import WhatIf, better_buy, what_ifs
from longspan.units import GIB
from longspan.workload import Arrival, Workload, parse_objectives


def model(name: str) -> ModelFacts:
    """A model of the built-in list."""
    return load_model(name, None, offline=True)


SMALL, LARGE = model("Qwen/Qwen3-8B"), model("meta-llama/Meta-Llama-3-70B-Instruct")


def ask(facts: ModelFacts, gpus: str, network: str = "", **wishes: object) -> Answer:
    """The answer to a question about a cluster in shorthand."""
    workload = wishes.pop("workload", Workload())
    return search(Question(facts, parse_shorthand(gpus, network), workload, **wishes))  # type: ignore[arg-type]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=4),
    st.integers(1, 16),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_replicas_stand_on_gpus_that_exist_once(counts: list[int], tp: int, pp: int, dp: int) -> None:
    """No GPU is used twice, none is invented, and a TP group inside a node never straddles it."""
    cluster = parse_shorthand("+".join(f"{count}xH100" for count in counts))
    pool = pools(cluster)[0]
    layout = Layout(tp, pp, dp)
    used = [place for group in replicas(pool, layout) for place in places(group)]
    assert len(used) == len(set(used))
    assert len(used) % layout.gpus == 0
    have = {(node.name, gpu.index) for node in cluster.nodes for gpu in node.gpus}
    assert {(place.node, place.gpu) for place in used} <= have
    if tp <= pool.widest:
        assert all(len(slot.nodes) == 1 for slot in slots(pool, tp))


def test_every_option_is_legal_and_fits() -> None:
    """What is offered has a legal layout and room for a request; what is not carries a reason."""
    found = ask(LARGE, "2x4xA100-PCIe-80GB", "ethernet:10")
    assert found.options
    assert all(option.receipt.max_concurrency >= 1 for option in found.options)
    assert all(64 % option.layout.tp == 0 for option in found.options)
    assert all(refused.why for refused in found.refused)
    assert any(refused.rule == "heads" for refused in found.refused)


def test_the_first_idea_loses_with_a_reason() -> None:
    """TP8 over 10 Gbit/s is explained by its all-reduces."""
    found = ask(LARGE, "2x4xA100-PCIe-80GB", "ethernet:10")
    assert "160 all-reduces over tcp" in why_obvious_lost(found)
    assert found.best is not None
    assert found.best.layout.tp <= 4


def test_is_distribution_needed() -> None:
    """A model that fits one GPU is told so, one that does not as well, and one that fits nowhere gets the numbers."""
    assert "fits one" in verdicts(ask(SMALL, "4xH100"))[0]
    assert "does not fit one GPU" in verdicts(ask(LARGE, "4xH100"))[0]
    nothing = ask(LARGE, "2xRTX-4090")
    assert nothing.best is None
    assert "too much" in verdicts(nothing)[-1]


def test_objectives_choose_the_cheapest_plan() -> None:
    """With a rate and objectives few GPUs are used for little load and more for more."""
    objectives = parse_objectives("ttft_p95=1s,tpot_p95=40ms")
    few, many = (
        ask(
            SMALL, "8xH100", workload=Workload(requests_per_second=rate, objectives=objectives), goal="cost"
        ).best
        for rate in (2.0, 100.0)
    )
    assert few is not None
    assert many is not None
    assert few.gpus == 1
    assert many.gpus > few.gpus


def test_the_cheapest_plan_says_its_highest_rate_and_what_would_be_cheaper() -> None:
    """At least the stated rate holds, and what-ifs speak of GPUs: tokens per second are those of the load, whatever is bought."""
    objectives = parse_objectives("ttft_p95=1s,tpot_p95=30ms")
    workload = Workload(requests_per_second=20, objectives=objectives)
    found = ask(SMALL, "8xH100", workload=workload, goal="cost")
    assert found.best is not None
    assert found.best.held_requests_per_second is not None
    assert found.best.held_requests_per_second >= 20
    changes = {one.name: one for one in what_ifs(found)}
    assert "throughput" not in changes["fp8-weights"].text
    assert 1 <= changes["fp8-weights"].gain <= 8
    assert "one-node-more" not in changes


def test_a_trace_is_said_with_its_own_rate() -> None:
    """The verdict names the trace's requests per second."""
    trace = tuple(Arrival(number / 4, 500, 100) for number in range(200))
    workload = Workload(500, 100, trace=trace, objectives=parse_objectives("ttft_p95=2s"))
    found = ask(SMALL, "2xH100", workload=workload, goal="cost")
    assert "holds at 4 requests/s on 1 GPU" in verdicts(found)[-1]


def test_the_receipt_is_that_of_the_served_length() -> None:
    """Work areas that grow with `--max-model-len` are counted for the length that the command says."""
    found = ask(model("deepseek-ai/DeepSeek-V3.2"), "8xH200")
    assert found.best is not None
    plan = plan_of(found, (found.best,), "m")
    served = settle(found.question, found.best)
    assert plan.replicas[0].max_model_len == served.receipt.max_model_len > 8192
    assert served.receipt.largest_max_model_len >= served.receipt.max_model_len
    assert served.receipt.ranks[0].activation_bytes > found.best.receipt.ranks[0].activation_bytes


def test_a_group_over_nodes_says_what_it_costs() -> None:
    """If the plan is TP over the network, the milliseconds of it stand in the first lines."""
    found = ask(LARGE, "2x4xH100", "ib:400x8")
    wide = next(option for option in found.options if option.layout == Layout(8))
    text = " ".join(crossing(replace(found, options=(wide,)), wide))
    assert "spans 2 nodes" in text
    assert "ms of every token" in text
    inside = next(option for option in found.options if option.layout == Layout(4, 2))
    assert crossing(found, inside) == []


def test_objectives_without_a_rate_give_the_highest_rate() -> None:
    """The plan says how many requests per second it holds; tighter objectives hold no more."""
    loose, tight = (
        ask(SMALL, "2xH100", workload=Workload(objectives=parse_objectives(text))).best
        for text in ("ttft_p95=5s,tpot_p95=100ms", "ttft_p95=200ms,tpot_p95=12ms")
    )
    assert loose is not None
    assert tight is not None
    assert loose.held_requests_per_second is not None
    assert tight.held_requests_per_second is not None
    assert loose.held_requests_per_second >= tight.held_requests_per_second
    assert loose.held_requests_per_second > 0


def test_impossible_objectives_are_said() -> None:
    """No plan pretends to keep what cannot be kept."""
    found = ask(LARGE, "4xA100", workload=Workload(objectives=parse_objectives("tpot_p95=1ms")))
    assert any("No option keeps" in line for line in verdicts(found))


def test_unequal_gpus_share_layers_by_memory() -> None:
    """16 + 32 GB: the split gives the larger GPU more layers, and no stage could have more cache by moving one."""
    memory = (GpuMemory("a", 16 * GIB, False), GpuMemory("b", 32 * GIB, False))
    split = best_partition(SMALL, Layout(1, 2), memory, EngineSettings(max_model_len=8192))
    assert sum(split) == 36
    assert split[1] > split[0]


def test_mixed_clusters_use_both_types() -> None:
    """A model that neither type holds alone is spread over both with a layer split; otherwise the rest is filled."""
    both = ask(LARGE, "2xA100-PCIe-80GB+4xRTX-4090")
    assert any(option.layout.partition for option in both.options)
    mixed = ask(SMALL, "2xH100+4xL40S")
    assert mixed.best is not None
    options = (mixed.best, *fill(mixed.question, mixed.best))
    plan = plan_of(mixed, options, "m")
    assert {place.node for replica in plan.replicas for place in replica.places} == {"node0", "node1"}


def test_uneven_nodes_are_filled() -> None:
    """8 + 4 + 2 GPUs: no GPU that could serve stays idle."""
    found = ask(SMALL, "8xH100+4xH100+2xH100")
    assert found.best is not None
    plan = plan_of(found, (found.best, *fill(found.question, found.best)), "m")
    used = [place for replica in plan.replicas for place in replica.places]
    assert len(used) == len(set(used))
    assert len(used) >= 12


@pytest.mark.parametrize("gpus", ["8xH100", "2x4xA100-PCIe-80GB", "2xA100-PCIe-80GB+4xRTX-4090"])
def test_plans_survive_their_file(gpus: str) -> None:
    """A saved plan reads back equal."""
    found = ask(LARGE, gpus)
    assert found.best is not None
    plan = plan_of(found, (found.best,), "org/model")
    assert parse_plan(to_toml(plan)) == plan


def test_commands_match_the_layout() -> None:
    """A replica over two nodes starts Ray on both and gives vLLM the sizes; one inside a node needs no Ray."""
    found = ask(LARGE, "2x2xH100", "ib:400")
    across = next(option for option in found.options if option.layout.gpus == 4 and option.layout.pp == 2)
    plan = plan_of(found, (across,), "org/model")
    typed = [str(one) for one in commands(plan, found.question.cluster)]
    assert sum("ray start" in line for line in typed) == 2
    assert "--pipeline-parallel-size 2" in typed[-1]
    assert "--distributed-executor-backend ray" in typed[-1]
    one = ask(SMALL, "2xH100").options
    single = next(option for option in one if option.layout == Layout())
    text = [str(c) for c in commands(plan_of(found, (single,), "m"), parse_shorthand("2xH100"))]
    assert len(text) == 2
    assert "CUDA_VISIBLE_DEVICES=1" in text[1]
    assert not any("ray" in line for line in text)


def test_ranks_are_named_in_vllm_order() -> None:
    """rank = (dp x PP + pp) x TP + tp."""
    assert rank_words(Layout(2, 2, 2), 5) == "DP1 PP0 TP1"
    assert rank_words(Layout(), 0) == "all"


def test_the_document_has_everything() -> None:
    """`--json` carries the receipt, the picture, the commands, the alternatives and the reasons; people get lines of it."""
    found = ask(LARGE, "2x4xA100-PCIe-80GB", "ethernet:10")
    assert found.best is not None
    options = (found.best,)
    plan = plan_of(found, options, "org/model")
    page = document(found, options, plan, what_ifs(found))
    assert page["plan"]["parts"][0]["receipt"]["ranks"][0]["weights_gib"] > 10
    assert len(page["alternatives"]) == 3
    assert {one["name"] for one in page["what_ifs"]} >= {
        "fp8-weights",
        "int4-weights",
        "one-node-more",
        "one-node-less",
        "infiniband",
    }
    text = "\n".join(lines(page))
    assert "node0 |" in text
    assert "vllm serve org/model" in text
    assert picture(plan, found.question.cluster)[1].startswith("node1")


def test_a_model_with_its_own_draft_layers_is_told_so() -> None:
    """MTP layers in the checkpoint are the draft to try first; a model without them is shown EAGLE."""
    names = {one.name for one in what_ifs(ask(model("deepseek-ai/DeepSeek-V3"), "8xH200"))}
    assert "speculative-MTP" in names
    assert "speculative-EAGLE" not in names
    assert "speculative-EAGLE" in {one.name for one in what_ifs(ask(SMALL, "1xH100"))}


def test_fewer_sequences_free_memory_for_the_cache() -> None:
    """`max_num_seqs` of a large GPU's default: what 256 would free, in GiB and in tokens of the cache."""
    found = ask(SMALL, "1xH100")
    changes = {one.name: one.text for one in what_ifs(found)}
    said = re.search(
        r"max_num_seqs 1024 -> 256 frees (\d+\.\d+) GiB .*: ([\d,]+) more", changes["max_num_seqs"]
    )
    assert said is not None
    assert float(said[1]) > 0.5
    fewer = ask(SMALL, "1xH100", settings=EngineSettings(max_num_seqs=256))
    assert found.best is not None
    assert fewer.best is not None
    more = fewer.best.receipt.kv_tokens - found.best.receipt.kv_tokens
    assert int(said[2].replace(",", "")) == more
    assert "max_num_seqs" not in {one.name for one in what_ifs(fewer)}


def test_drafts_help_few_users_and_cost_memory() -> None:
    """A draft's gain is an interval that shrinks with the batch; n-grams take no memory, a draft model does."""
    alone, many = (
        {one.name: one.text for one in what_ifs(ask(SMALL, "1xH100", workload=Workload(concurrency=clients)))}
        for clients in (1, 512)
    )
    assert "worth trying" in alone["speculative-EAGLE"]
    assert "at a batch of 1 (a guess)" in alone["speculative-EAGLE"]

    def time_per_token(text: str) -> tuple[float, float]:
        found = re.search(r"x(\d+\.\d+) to x(\d+\.\d+) at a batch", text)
        assert found is not None
        return float(found[1]), float(found[2])

    few, most = time_per_token(alone["speculative-EAGLE"]), time_per_token(many["speculative-EAGLE"])
    assert few[0] < few[1]
    assert few < most
    assert "no memory" in alone["speculative-n-gram"]
    assert "GiB a GPU" in alone["speculative-draft model"]


def test_the_better_buy_is_the_largest_gain_worth_a_sentence() -> None:
    """A format goes before hardware that gains about as much; a guess about drafts is no buy, nor is a small gain."""
    best = ask(SMALL, "1xH100").best
    node, fp8 = WhatIf("one-node-more", "a node.", 1.0, 1.43), WhatIf("fp8-weights", "FP8.", 1.0, 1.4)
    draft, little = WhatIf("speculative-EAGLE", "a draft.", 1.0, 3.0), WhatIf("fp8-cache", "", 1.0, 1.2)
    assert better_buy([node, fp8, draft, little], best) == "The better buy: FP8."
    assert better_buy([node, draft, little], best) == "The better buy: a node."
    assert better_buy([draft, little], best) == ""


def test_what_would_make_it_fit_is_said() -> None:
    """Where nothing fits at the wanted length, the change and the length at which it does are named."""
    found = ask(model("Qwen/Qwen3-32B"), "1xRTX-4090")
    assert found.best is None
    page = document(found, (), None, what_ifs(found))
    assert "What would make it fit: INT4 weights and --max-model-len" in page["verdict"][-1]


def test_the_first_idea_of_a_mixed_cluster() -> None:
    """TP over different GPUs is refused in vLLM's words, or by what it wastes where it would start."""
    six = why_obvious_lost(ask(LARGE, "2xA100-PCIe-80GB+4xRTX-4090"))
    assert "must be divisible by tensor parallel size (6)" in six
    four = why_obvious_lost(ask(SMALL, "2xA100-PCIe-80GB+2xRTX-4090"))
    assert "no more than a RTX-4090 can" in four


def test_no_gpus_no_plan() -> None:
    """A cluster without GPUs is answered in words."""
    empty = Cluster("c", (replace(parse_shorthand("1xL4").nodes[0], gpus=()),))
    found = search(Question(SMALL, empty, Workload()))
    assert found.best is None
    assert verdicts(found)


def test_what_ifs_use_three_or_five_nodes_whole() -> None:
    """A node more or less leaves no power of two; the group over all GPUs is weighed there too."""
    facts = load_model("deepseek-ai/DeepSeek-V3.2", offline=True)
    question = Question(facts, parse_shorthand("3x8xH200", "infiniband:400x8"), Workload())
    found = search(question, simulated=0, brief=Layout(4, 1, 8, ep=True))
    assert Layout(4, 1, 6, ep=True) in {option.layout for option in found.options}
