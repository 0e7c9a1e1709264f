"""Which matrix is stored how, and what that costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.model.parse_quantisation import kv_dtype, parse_quantisation
from longspan.model.quantisation import FP8_TENSOR, MXFP4, NVFP4, fp8_block, int_group


def test_sizes_by_hand() -> None:
    """Scales are counted: a float per FP8 block, 16 bits per INT4 group, a byte per 16 NVFP4 or 32 MXFP4 values."""
    assert fp8_block(128, 128).size_bytes(256, 512) == 256 * 512 + 8 * 4
    assert int_group(4, 128, zero_points=False).size_bytes(256, 512) == 256 * 512 / 2 + 256 * 4 * 2
    assert int_group(4, 128, zero_points=True).size_bytes(256, 512) == 256 * 512 / 2 + 256 * 4 * 2.5
    assert NVFP4.size_bytes(256, 512) == 256 * 512 / 2 + 256 * 32
    assert MXFP4.size_bytes(256, 512) == 256 * 512 / 2 + 256 * 16
    assert FP8_TENSOR.size_bytes(256, 512) == 256 * 512


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_a_quantised_matrix_is_never_larger_than_two_bytes_a_value_plus_scales(out: int, inp: int) -> None:
    """No scheme costs more than 16 bits a value once a scale is shared by whole rows or more."""
    for scheme in (FP8_TENSOR, NVFP4, MXFP4):
        assert scheme.size_bytes(out, inp) <= 2 * out * inp + out + 16


@pytest.mark.parametrize(
    ("raw", "quantised", "plain"),
    [
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "lm_head"]},
            ["layers.3.self_attn.q_proj", "layers.3.mlp.experts.0.up_proj"],
            ["lm_head", "layers.3.mlp.gate"],
        ),
        (
            {
                "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
            },
            ["layers.3.mlp.experts.0.up_proj"],
            ["layers.3.self_attn.o_proj", "layers.3.mlp.shared_experts.up_proj"],
        ),
        (
            {
                "quant_method": "modelopt", "quant_algo": "NVFP4",
                "ignore": ["model.language_model.layers.3.self_attn*", "model.layers.4.block_sparse_moe.gate"],
            },
            ["layers.4.self_attn.q_proj", "layers.3.mlp.down_proj"],
            ["layers.3.self_attn.q_proj", "layers.4.mlp.gate"],
        ),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
            ["layers.0.mlp.experts.0.up_proj"],
            ["layers.0.self_attn.q_proj", "layers.0.mlp.gate", "lm_head"],
        ),
    ],
)  # fmt: skip
def test_rules_of_each_method(raw: dict[str, object], quantised: list[str], plain: list[str]) -> None:
    """Ignore lists are read in every published spelling: names, parts, globs and expressions."""
    found = parse_quantisation(raw)
    assert all(found.scheme(name) is not None for name in quantised)
    assert all(found.scheme(name) is None for name in plain)


@pytest.mark.parametrize(
    ("raw", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + (16 + 4) / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True}, 4 + 16 / 64),
        ({"quant_method": "gguf", "bits": 4.5}, 4.5),
        (
            {
                "quant_method": "compressed-tensors", "format": "int-quantized",
                "config_groups": {
                    "g": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
                },
            },
            8,
        ),
    ],
    ids=["awq", "gptq", "gguf", "int8"],
)  # fmt: skip
def test_integer_formats_take_their_bits(raw: dict[str, object], bits: float) -> None:
    """Bits a value with the scales and zero points of its group; a scale a channel is less than a hundredth."""
    scheme = parse_quantisation(raw).scheme("layers.3.mlp.down_proj")
    assert scheme is not None
    assert scheme.size_bytes(1024, 2048) == pytest.approx(1024 * 2048 * bits / 8, rel=0.003)


def test_mixed_precision_lists_decide_layer_by_layer() -> None:
    """ModelOpt's MIXED_PRECISION: what is listed has its own algorithm, what is not stays as it was."""
    raw = {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {
            "model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
            "model.layers.0.linear_attn.out_proj": {"quant_algo": "FP8"},
        },
    }  # fmt: skip
    found = parse_quantisation(raw)
    assert found.scheme("layers.0.mlp.experts.0.up_proj") == NVFP4
    assert found.scheme("layers.0.linear_attn.out_proj") == FP8_TENSOR
    assert found.scheme("layers.0.self_attn.q_proj") is None


def test_experts_of_deepseek_v4_are_mxfp4() -> None:
    """`expert_dtype` fp4 overrides the block FP8 of everything else."""
    raw = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = parse_quantisation(raw, "fp4")
    assert found.scheme("layers.5.mlp.experts.0.up_proj") == MXFP4
    assert found.scheme("layers.5.attn.wq_a") == fp8_block(128, 128)


def test_kv_dtype_follows_the_checkpoint() -> None:
    """Scales for an FP8 cache in the checkpoint make the cache FP8."""
    assert kv_dtype({"quantization": {"kv_cache_quant_algo": "FP8"}}) == "fp8"
    assert kv_dtype({"kv_cache_scheme": {"num_bits": 8, "type": "float"}}) == "fp8"
    assert kv_dtype({"quant_method": "fp8"}) == "auto"
    assert kv_dtype(None) == "auto"
