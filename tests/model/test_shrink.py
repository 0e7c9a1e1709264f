"""A shrunken model is the same architecture, divides the same way, and has every kind of layer in every stage."""

import json
import os
from functools import cache
from math import gcd, lcm
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.errors import RehearsalModelError
from longspan.model import shrink as shrinking
from longspan.model.facts import ModelFacts, Recurrent
from longspan.model.parse import parse_config
from longspan.model.shrink import Shrunk, alike, shrink, unquantised
from longspan.model.shrink_layers import kind_of, period_of
from longspan.plan import Layout
from longspan.planner import legality
from longspan.planner.rank_weights import stage_bounds

DATA = os.environ.get("LONGSPAN_PLANNER_DATA") or Path(__file__).parents[2] / ".." / "shared" / "planner"
SHARED = Path(DATA) / "model_configs"

DENSE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_key_value_heads": 4, "num_hidden_layers": 29, "vocab_size": 152064,
    "max_position_embeddings": 32768, "max_window_layers": 29, "torch_dtype": "float32", "eos_token_id": 151645,
    "use_sliding_window": False, "sliding_window": 4096,
}  # fmt: skip
LATENT_EXPERTS: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8,
    "topk_group": 4, "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_attention_heads": 128, "num_key_value_heads": 128,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "vocab_size": 129280, "topk_method": "noaux_tc",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
}  # fmt: skip
SLIDING: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 3840, "intermediate_size": 15360,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "num_hidden_layers": 48, "vocab_size": 262208,
    "sliding_window": 1024, "sliding_window_pattern": 6,
}  # fmt: skip
HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 2048, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 2, "full_attention_interval": 4, "linear_num_value_heads": 32,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    "num_hidden_layers": 48, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "intermediate_size": 5120, "decoder_sparse_step": 1, "vocab_size": 151936,
}  # fmt: skip
PATTERN: dict[str, Any] = {
    "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "num_hidden_layers": 52,
    "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64,
    "expand": 2, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4, "n_routed_experts": 128, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_shared_experts": 1, "vocab_size": 131072,
    "mlp_hidden_act": "relu2",
}  # fmt: skip
VISION: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "image_token_id": 151655,
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 28, "vocab_size": 151936, "eos_token_id": 151645,
    },
    "vision_config": {
        "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048,
        "patch_size": 16, "spatial_merge_size": 2, "deepstack_visual_indexes": [5, 11, 17],
    },
}  # fmt: skip
OWN = {"dense": DENSE, "latent": LATENT_EXPERTS, "sliding": SLIDING, "hybrid": HYBRID, "pattern": PATTERN, "vision": VISION}  # fmt: skip


def stages(facts: ModelFacts, pp: int, partition: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Layers of each stage of the real model."""
    return tuple(end - start for start, end in stage_bounds(facts, Layout(pp=pp, partition=partition)))


def check(
    config: dict[str, Any], pp: int, quant: dict[str, Any] | None = None, *, own: bool = False
) -> Shrunk:
    """Everything that is promised of every shrunken model."""
    real = unquantised(parse_config(config, hf_quant_config=quant))
    found = shrink(config, stages(real, pp), own_tokenizer=own, hf_quant_config=quant)
    small = parse_config(json.loads(json.dumps(found.config)))
    assert (small.architecture, small.model_type) == (real.architecture, real.model_type)
    assert (small.heads, small.kv_heads) == (real.heads, real.kv_heads)
    recurrent = [[x.mixer for x in facts.layers if isinstance(x.mixer, Recurrent)] for facts in (real, small)]
    assert set(recurrent[1]) == set(recurrent[0])
    if real.experts and small.experts:
        assert small.experts.count * real.experts.top_k == real.experts.count * small.experts.top_k
        assert small.experts.count >= min(real.experts.count, 64)
    assert "quantization_config" not in found.config
    assert small.quantisation == unquantised(small).quantisation
    assert small.vocab == real.vocab if own else small.vocab >= min(2048, real.vocab)
    for tp in (*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64):
        for ep in (False, True):
            layout = Layout(tp=tp, pp=pp, ep=ep)
            verdicts = [legality.check(facts, layout) for facts in (real, small)]
            assert (verdicts[0] and verdicts[0].rule) == (verdicts[1] and verdicts[1].rule), layout
    _check_stages(real, small, found, pp)
    return found


def _check_stages(real: ModelFacts, small: ModelFacts, found: Shrunk, pp: int) -> None:
    assert len(found.partition) == pp
    assert sum(found.partition) == len(small.layers) == len(found.layers)
    real_kinds, kinds = ([kind_of(layer) for layer in facts.layers] for facts in (real, small))
    assert kinds == [real_kinds[index] for index in found.layers]
    then, now = 0, 0
    for size, fewer in zip(stages(real, pp), found.partition, strict=True):
        assert set(real_kinds[then : then + size]) == set(kinds[now : now + fewer])
        assert all(then <= index < then + size for index in found.layers[now : now + fewer])
        then, now = then + size, now + fewer


@pytest.mark.parametrize("pp", [1, 2, 3, 4])
@pytest.mark.parametrize("name", OWN)
def test_every_kind_of_model_keeps_its_shape(name: str, pp: int) -> None:
    """Heads, ratios, verdicts for every TP and the kinds of layers of every stage are those of the real model."""
    check(OWN[name], pp)
    check(OWN[name], pp, own=True)


@cache
def shared_files() -> list[Path]:
    """The published configs, in the form with their defaults filled in where there is one."""
    files = [path for path in sorted(SHARED.glob("*.json")) if "hf_quant_config" not in path.name]
    return [expanded if (expanded := SHARED / "expanded" / path.name).is_file() else path for path in files]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published configs are not here")
@pytest.mark.parametrize("path", shared_files(), ids=lambda path: path.stem)
def test_every_published_config_can_be_rehearsed(path: Path) -> None:
    """No published architecture is left out, and each promise holds for it at three stages."""
    quant = SHARED / f"{path.stem}.hf_quant_config.json"
    check(json.loads(path.read_text()), 3, json.loads(quant.read_text()) if quant.is_file() else None)


@given(
    heads=st.sampled_from([6, 8, 9, 12, 16, 28, 40, 64]),
    group=st.sampled_from([1, 2, 3, 4, 8]),
    head_dim=st.sampled_from([64, 80, 128]),
    feed=st.integers(1, 700).map(lambda number: 32 * number),
    vocabulary=st.integers(3000, 200_000),
    layers=st.integers(2, 90),
    pp=st.integers(1, 6),
    explicit=st.booleans(),
)
def test_any_dense_model(
    heads: int, group: int, head_dim: int, feed: int, vocabulary: int, layers: int, pp: int, explicit: bool
) -> None:
    """Whatever the sizes, a TP size fits the shrunken model exactly where it fits the real one."""
    config = {
        **DENSE, "num_attention_heads": heads, "num_key_value_heads": heads // group if heads % group == 0 else heads,
        "hidden_size": heads * head_dim, "intermediate_size": feed, "vocab_size": vocabulary,
        "num_hidden_layers": max(layers, pp), "model_type": "qwen3" if explicit else "qwen2",
        **({"head_dim": head_dim} if explicit else {}),
    }  # fmt: skip
    check(config, pp)


@given(size=st.integers(1, 300_000), least=st.integers(1, 5000))
def test_sizes_keep_their_divisors(size: int, least: int) -> None:
    """No divisor up to 64 is lost or won, and nothing grows."""
    found = alike(size, least)
    divisors = lcm(*range(1, 65))
    assert gcd(found, divisors) == gcd(size, divisors)
    assert found <= size
    assert found >= min(size, least)


@given(
    kinds=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    times=st.integers(2, 6),
    first=st.integers(0, 3),
)
def test_a_pattern_repeats_after_its_period(kinds: list[int], times: int, first: int) -> None:
    """Whatever stands before the pattern, the period found is one of it, and no longer than its own."""
    period = period_of([*range(100, 100 + first), *kinds * times])
    whole = kinds * times
    assert period <= len(kinds)
    assert whole[period:] == whole[: len(whole) - period]


def test_a_pattern_is_kept_whole() -> None:
    """Five sliding layers before a full one: each stage has them all, and they are neighbours in the real model."""
    found = check(SLIDING, 2)
    assert found.layers == (0, 1, 2, 3, 4, 5, 24, 25, 26, 27, 28, 29)


def test_dense_layers_before_the_experts_stay_before_them() -> None:
    """The first stage keeps the last dense layer and the first with experts; an uneven split stays uneven."""
    found = check(LATENT_EXPERTS, 2)
    assert found.layers == (2, 3, 31)
    assert found.partition == (2, 1)
    assert found.config["first_k_dense_replace"] == 1
    assert found.config["num_nextn_predict_layers"] == 0
    assert (found.config["n_routed_experts"], found.config["num_experts_per_tok"]) == (64, 2)
    assert "auto_map" not in found.config
    assert found.quantisation == "fp8"


def test_a_given_split_stays_uneven() -> None:
    """Stages with more layers than the smallest keep one more."""
    real = parse_config(DENSE)
    found = shrink(DENSE, stages(real, 3, (8, 10, 11)), own_tokenizer=False)
    assert found.partition == (1, 2, 2)


def test_special_ids_are_those_of_the_small_tokenizer() -> None:
    """An image's id, far beyond the small vocabulary, becomes one that the small tokenizer has; the end is the end."""
    found = check(VISION, 2)
    assert found.config["text_config"]["eos_token_id"] == shrinking.END_ID
    assert shrinking.FIRST_OTHER_ID <= found.config["image_token_id"] < shrinking.SPECIAL_IDS
    assert found.config["vision_config"]["out_hidden_size"] == found.config["text_config"]["hidden_size"]
    assert len(found.config["vision_config"]["deepstack_visual_indexes"]) == 3
    assert found.config["vision_config"]["depth"] == 4
    assert shrink(VISION, (14, 14), own_tokenizer=True).config["image_token_id"] == 151655


def test_layers_that_no_known_field_explains_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather than rehearsing another architecture, it says that it cannot."""
    monkeypatch.setattr(shrinking, "with_layers", lambda text, kept, count: {**text, "num_hidden_layers": 1})
    with pytest.raises(RehearsalModelError, match="Qwen2ForCausalLM"):
        shrink(DENSE, (15, 14), own_tokenizer=False)
