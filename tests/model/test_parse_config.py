"""config.json -> ModelFacts: dimensions by fields, published sizes, and errors that name the field."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from longspan.errors import ModelError
from longspan.model.facts import Attention, Experts, FeedForward, LatentAttention, Recurrent
from longspan.model.parse import parse_config, parse_text
from longspan.model.weights import active_parameters, parameters

# Published configs beside the repository; LONGSPAN_PLANNER_DATA names another place.
DATA = os.environ.get("LONGSPAN_PLANNER_DATA") or Path(__file__).parents[2] / ".." / "shared" / "planner"
SHARED = Path(DATA) / "model_configs"
DENSE: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
    "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 1000,
    "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
MLA: dict[str, Any] = {
    **DENSE, "model_type": "deepseek_v3", "num_key_value_heads": 8, "q_lora_rank": 32, "kv_lora_rank": 16,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 48, "first_k_dense_replace": 1,
}  # fmt: skip


def test_dense_model_counts_every_parameter() -> None:
    """The sum of all matrices is what one computes by hand."""
    facts = parse_config(DENSE)
    attention = 64 * 64 * 2 + 2 * 64 * 16  # q, o; k, v with 2 heads of 8
    layer = attention + 3 * 64 * 160 + 2 * 64
    assert parameters(facts) == 3 * layer + 2 * 1000 * 64 + 64


def test_first_layers_are_dense_and_the_rest_have_experts() -> None:
    """first_k_dense_replace decides, not the model's name; shared experts stand beside the routed ones."""
    facts = parse_config(MLA)
    assert [type(x.feeds[0]) for x in facts.layers] == [FeedForward, Experts, Experts]
    experts = facts.experts
    assert experts is not None
    assert (experts.count, experts.top_k, experts.shared_intermediate) == (8, 2, 48)
    assert facts.is_mla
    assert facts.kv_heads == 1


def test_fewer_parameters_work_on_a_token_than_there_are() -> None:
    """Only top-k of the routed experts are active, and the embedding table is only read."""
    facts = parse_config(MLA)
    assert active_parameters(facts) < parameters(facts)


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        (
            {
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "sliding_window": 64,
            },
            "SFS",
        ),
        ({"sliding_window": 64, "sliding_window_pattern": 2}, "SFS"),
        ({"sliding_window": 64}, "SSS"),
        ({"sliding_window": 64, "use_sliding_window": False}, "FFF"),
        ({"sliding_window": 64, "max_window_layers": 2}, "FFS"),
        ({"hybrid_layer_pattern": [0, 1, 1], "sliding_window": 64}, "FSS"),
        ({"attention_chunk_size": 32, "no_rope_layers": [1, 0, 1]}, "CFC"),
    ],
)
def test_layer_kinds_come_from_fields(changes: dict[str, Any], kinds: str) -> None:
    """Every way in which configs state sliding and chunked layers is understood."""
    facts = parse_config({**DENSE, **changes})
    found = ""
    for layer in facts.layers:
        assert isinstance(layer.mixer, Attention)
        found += "S" if layer.mixer.window else "C" if layer.mixer.chunk else "F"
    assert found == kinds


def test_hybrid_pattern_gives_mixers_and_feeds_alone() -> None:
    """Nemotron-H letters: Mamba, attention, feed-forward and experts are layers of their own."""
    facts = parse_config(
        {
            **DENSE, "model_type": "nemotron_h", "hybrid_override_pattern": "M-*E", "num_hidden_layers": 4,
            "n_groups": 2, "ssm_state_size": 16, "mamba_num_heads": 4, "mamba_head_dim": 32, "conv_kernel": 4,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        }
    )  # fmt: skip
    kinds = [type(x.mixer) if x.mixer else type(x.feeds[0]) for x in facts.layers]
    assert kinds == [Recurrent, FeedForward, Attention, Experts]
    assert facts.is_hybrid


def test_text_model_of_a_multimodal_config_is_found() -> None:
    """Dimensions come from text_config, the encoder from vision_config."""
    facts = parse_config(
        {
            "model_type": "x", "text_config": DENSE,
            "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 14},
        }
    )  # fmt: skip
    assert facts.hidden == 64
    assert facts.tower is not None
    assert facts.tower.heads == 4


@pytest.mark.parametrize(
    "field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"]
)
def test_missing_field_is_named(field: str) -> None:
    """A config that lacks a needed size is refused with the field's name."""
    config = {k: v for k, v in DENSE.items() if k != field}
    with pytest.raises(ModelError, match=field):
        parse_config(config)


@pytest.mark.parametrize("field", ["kv_lora_rank", "qk_nope_head_dim", "v_head_dim", "num_experts_per_tok"])
def test_missing_field_of_mla_and_experts_is_named(field: str) -> None:
    """Latent attention and experts name their missing fields too; without kv_lora_rank there is no MLA to speak of."""
    config = {k: v for k, v in MLA.items() if k != field}
    if field == "kv_lora_rank":
        assert not isinstance(parse_config({**config, "head_dim": 8}).layers[0].mixer, LatentAttention)
        return
    with pytest.raises(ModelError, match=field):
        parse_config(config)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"hidden_size": 0}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"num_attention_heads": 7}, "head_dim"),
        ({"num_key_value_heads": 16}, "num_key_value_heads"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"hybrid_override_pattern": "M?*"}, "hybrid_override_pattern"),
        ({"quantization_config": {"quant_method": "mystery"}}, "quant_method"),
    ],
)
def test_contradictory_field_is_named(changes: dict[str, Any], word: str) -> None:
    """Fields that contradict each other, or cannot be, are refused by name."""
    with pytest.raises(ModelError, match=word):
        parse_config({**DENSE, **changes})


def test_text_that_is_not_json_says_so() -> None:
    """A cut-off download is not a traceback."""
    with pytest.raises(ModelError, match="not JSON"):
        parse_text('{"hidden_size": 64', "x")


def shared_models() -> list[Any]:
    """The published configs whose dimensions reproduce the published count exactly."""
    if not (SHARED / "index.csv").is_file():
        return [
            pytest.param(None, None, marks=pytest.mark.skip(reason="the shared planner data is not here"))
        ]
    rows = csv.DictReader((SHARED / "index.csv").read_text().splitlines())
    return [
        pytest.param(row["file"], int(row["params_total"]), id=row["repo_id"])
        for row in rows
        if row["dims_check"] == "exact"
    ]


@pytest.mark.parametrize(("file", "published"), shared_models())
def test_published_parameter_counts_are_reproduced(file: str, published: int) -> None:
    """Within a hundredth of a percent: only biases and norms that no field states may be missing."""
    path = SHARED / "expanded" / file
    path = path if path.is_file() else SHARED / file
    facts = parse_config(json.loads(path.read_text()))
    assert parameters(facts) == pytest.approx(published, rel=1e-4)


def test_every_shared_config_parses() -> None:
    """No published config of the collection is refused."""
    if not SHARED.is_dir():
        pytest.skip("the shared planner data is not here")
    files = [p for p in SHARED.glob("*.json") if not p.name.endswith("hf_quant_config.json")]
    assert len(files) > 100
    for path in files:
        facts = parse_config(json.loads(path.read_text()), path.stem)
        assert parameters(facts) > 1e8, path.name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", -1), ("quantization_config", "fp8"), ("rope_scaling", {"factor": "x", "rope_type": "linear"}),
        ("head_dim", ["x"]), ("sliding_window", "abc"), ("hidden_size", float("nan")), ("vocab_size", float("inf")),
        ("num_hidden_layers", 10**12), ("mlp_only_layers", 7.5), ("n_shared_experts", float("nan")), ("moe_layer_freq", []),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_read_is_named(field: str, value: Any) -> None:
    """Whatever stands in a field, the answer is an error that names the field."""
    with pytest.raises(ModelError, match=field):
        parse_config(
            {**MLA, "kv_lora_rank": None if field in {"head_dim", "sliding_window"} else 16, field: value}
        )


def test_a_value_within_a_table_is_named_with_its_path() -> None:
    """The culprit is looked for in tables within tables."""
    quantisation = {"quant_method": "fp8", "weight_block_size": [128]}
    with pytest.raises(
        ModelError, match=r"quantization_config\.weight_block_size in config\.json is \[128\]"
    ):
        parse_config({**DENSE, "quantization_config": quantisation})


def test_deep_nesting_is_no_config() -> None:
    """A config nested too deep to be read ends in words."""
    with pytest.raises(ModelError, match="not JSON"):
        parse_text('{"a":' * 100_000)
