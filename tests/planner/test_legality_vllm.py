"""The oracle against the installed vLLM's own configuration code, on CPU, with tiny configs of the same shapes."""

import json
from pathlib import Path
from typing import Any

import pytest

from longspan.model.parse import parse_config
from longspan.plan import Layout
from longspan.planner.legality import NO_PIPELINE, check

pytestmark = pytest.mark.engine

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536,
    "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30, "vocab_size": 49152,
    "max_position_embeddings": 2048, "hidden_act": "silu", "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 512, "intermediate_size": 1024,
    "moe_intermediate_size": 192, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64,
    "num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 4, "vocab_size": 32000, "hidden_act": "silu",
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "torch_dtype": "bfloat16", "norm_topk_prob": True, "tie_word_embeddings": False,
}  # fmt: skip
MLA: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 512,
    "intermediate_size": 1024, "moe_intermediate_size": 256, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_hidden_layers": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16,
    "v_head_dim": 32, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1,
    "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 32000, "max_position_embeddings": 2048,
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "torch_dtype": "bfloat16", "rope_theta": 10000.0,
}  # fmt: skip
LAYOUTS = [
    Layout(tp, pp, 1, ep, dcp)
    for tp in (1, 2, 3, 4, 5, 8, 9, 16, 32)
    for pp in (1, 2)
    for ep in (False, True)
    for dcp in (1, 2, 3, 4, 8)
]
# The rules that vLLM checks in its configuration; the others need layers and are compared below, function by function.
CONFIG_RULES = {"heads", "experts", "pipeline", "dcp"}


def vllm_verdict(model: Any, layout: Layout) -> str:
    """What vLLM's configuration says: "" or its message."""
    from pydantic import ValidationError
    from vllm.config import ParallelConfig

    try:
        parallel = ParallelConfig(
            tensor_parallel_size=layout.tp,
            pipeline_parallel_size=layout.pp,
            enable_expert_parallel=layout.ep,
            decode_context_parallel_size=layout.dcp,
            distributed_executor_backend="mp",
        )
        model.verify_with_parallel_config(parallel)
    except (ValueError, NotImplementedError, ValidationError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("config", [LLAMA, MOE, MLA], ids=["llama", "moe", "mla"])
@pytest.mark.filterwarnings("ignore")
def test_verdicts_and_words_agree_with_vllm(config: dict[str, Any], tmp_path: Path, monkeypatch: Any) -> None:
    """Every layout that vLLM's configuration refuses is refused with its message, and no other by those rules."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.config import ModelConfig

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = ModelConfig(model=str(tmp_path), skip_tokenizer_init=True)
    facts = parse_config(config)
    refused = 0
    for layout in LAYOUTS:
        theirs, ours = vllm_verdict(model, layout), check(facts, layout)
        if theirs:
            refused += 1
            assert ours is not None, f"{layout}: vLLM says {theirs}"
            assert ours.message in theirs, f"{layout}: vLLM says {theirs}, we say {ours.message}"
        else:
            assert ours is None or ours.rule not in CONFIG_RULES, f"{layout}: only we refuse: {ours}"
    assert refused > 20


@pytest.mark.filterwarnings("ignore")
def test_division_and_stage_messages_agree_with_vllm(monkeypatch: Any) -> None:
    """`divide`, `get_pp_indices` and the group check print what the oracle prints."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.distributed.utils import divide, get_pp_indices, verify_group_size_divides_partition

    with pytest.raises(AssertionError) as division:
        divide(1536, 9)
    ours = check(parse_config(LLAMA), Layout(tp=9))
    assert ours is not None
    assert ours.message == f"AssertionError: {division.value}"

    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "10,10")
    with pytest.raises(ValueError, match="does not match") as stages:
        get_pp_indices(30, 0, 2)
    ours = check(parse_config(LLAMA), Layout(pp=2, partition=(10, 10)))
    assert ours is not None
    assert ours.message == str(stages.value)

    grouped = {
        **MOE,
        "intermediate_size": 1024,
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    }
    with pytest.raises(ValueError, match="group_size") as group:
        verify_group_size_divides_partition(96, 128)
    ours = check(parse_config(grouped), Layout(tp=2))
    assert ours is not None
    assert str(group.value).startswith(ours.message)


@pytest.mark.filterwarnings("ignore")
def test_stages_agree_with_vllm(monkeypatch: Any) -> None:
    """The default split of layers over stages is vLLM's for every size."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.distributed.utils import get_pp_indices

    from longspan.planner.rank_weights import stage_bounds

    monkeypatch.delenv("VLLM_PP_LAYER_PARTITION", raising=False)
    for layers in (1, 5, 30, 61, 62, 80):
        facts = parse_config({**LLAMA, "num_hidden_layers": layers})
        for stages in range(1, min(layers, 9) + 1):
            theirs = [get_pp_indices(layers, rank, stages) for rank in range(stages)]
            assert stage_bounds(facts, Layout(pp=stages)) == theirs


@pytest.mark.filterwarnings("ignore")
def test_fp8_block_messages_agree_with_vllm(monkeypatch: Any) -> None:
    """The block checks of linear layers print what the oracle prints."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from types import SimpleNamespace

    from vllm.model_executor.layers.quantization.utils.fp8_utils import validate_fp8_block_shape

    monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_world_size", lambda: 8)
    config = {**LLAMA, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 1024, "intermediate_size": 1536,
              "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}  # fmt: skip
    ours = check(parse_config(config), Layout(tp=8))
    assert ours is not None
    with pytest.raises(ValueError, match="not divisible") as error:
        validate_fp8_block_shape(
            SimpleNamespace(tp_size=8), 1024, 2 * 1536, 1024, [1536 // 8, 1536 // 8], [128, 128]
        )
    assert ours.message == str(error.value)


@pytest.mark.filterwarnings("ignore")
def test_architectures_without_pipeline_support_are_listed() -> None:
    """NO_PIPELINE holds only architectures that the installed vLLM knows."""
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.model_executor.models import ModelRegistry

    assert set(ModelRegistry.get_supported_archs()) >= NO_PIPELINE
