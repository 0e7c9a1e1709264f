"""`quantization_config` (or NVIDIA's hf_quant_config.json) -> Quantisation."""

from collections.abc import Mapping
from typing import Any

from longspan.errors import ModelError
from longspan.model import quantisation as q
from longspan.model.quantisation import Quantisation, Rule, Scheme

Config = Mapping[str, Any]


def parse_quantisation(raw: Config | None, expert_dtype: str | None = None) -> Quantisation:
    """Reads how the weights are stored.

    Args:
        raw: the `quantization_config` of config.json, the whole of hf_quant_config.json, or None.
        expert_dtype: DeepSeek-V4's field for its routed experts.

    Raises:
        ModelError: an unknown method or a scheme without its sizes; the message names the field.
    """
    if not raw:
        return Quantisation()
    raw = raw.get("quantization", raw)
    method = str(raw.get("quant_method") or ("modelopt" if raw.get("quant_algo") else "")).lower()
    skipped = _skipped(raw)
    if raw.get("config_groups") or raw.get("quantized_layers") or raw.get("quant_algo"):
        result = _grouped(method, raw, skipped)
    else:
        result = _simple(method, raw, skipped)
    if expert_dtype == "fp4" and result.experts is None and not any(r.scheme for r in result.rules):
        # DeepSeek-V4: block FP8 everywhere but MXFP4 routed experts.
        return Quantisation(result.method, result.default, result.rules, experts=q.MXFP4)
    return result


def _skipped(raw: Config) -> tuple[Rule, ...]:
    names: list[str] = []
    for key in (
        "modules_to_not_convert",
        "ignored_layers",
        "ignore",
        "exclude_modules",
        "modules_to_not_quantize",
    ):
        names += raw.get(key) or []
    return tuple(Rule(str(name), None) for name in dict.fromkeys(names))


def _simple(method: str, raw: Config, skipped: tuple[Rule, ...]) -> Quantisation:
    """Methods with one scheme for all linear layers."""
    if method == "fp8":
        block = raw.get("weight_block_size")
        return Quantisation(method, q.fp8_block(block[0], block[1]) if block else q.FP8_TENSOR, skipped)
    if method in {"fbgemm_fp8", "ptpc_fp8"}:
        return Quantisation(method, q.FP8_CHANNEL, skipped)
    if method in {"mxfp4", "gpt_oss_mxfp4"}:
        return Quantisation(method, None, skipped, experts=q.MXFP4, experts_only=True)
    if method in {
        "gptq",
        "awq",
        "auto-round",
        "autoround",
        "gptq_marlin",
        "awq_marlin",
        "compressed_int",
        "inc",
    }:
        bits = raw.get("bits") or raw.get("w_bit")
        group = raw.get("group_size", raw.get("q_group_size", 128))  # 128 is both tools' default
        if bits is None:
            raise ModelError(
                f"quantization_config.bits is missing, so the size of the {method} weights is unknown.",
                "Take config.json from the model's own repository.",
            )
        zero = (
            bool(raw.get("zero_point", method == "awq"))
            if method.startswith("awq")
            else not raw.get("sym", True)
        )
        return Quantisation(method, q.int_group(int(bits), int(group), zero), skipped)
    if method == "bitsandbytes":
        four = raw.get("load_in_4bit") or raw.get("_load_in_4bit")
        # NF4: one float scale per 64 values; nested scales shrink that to about a byte (bitsandbytes docs).
        scheme = Scheme("nf4", 4, group=64, scale_bytes=1 if raw.get("bnb_4bit_use_double_quant") else 4)
        return Quantisation(method, scheme if four else q.INT8_CHANNEL, skipped)
    if method == "gguf":
        return Quantisation(method, Scheme("gguf", float(raw.get("bits", q.GGUF_BITS["Q4_K_M"]))), skipped)
    raise ModelError(
        f"quantization_config.quant_method is {method!r}, whose storage format is not known here.",
        "Name the bits with --weight-dtype, or use a checkpoint in FP8, INT8, INT4, NVFP4, MXFP4 or GGUF.",
    )


def _grouped(method: str, raw: Config, skipped: tuple[Rule, ...]) -> Quantisation:
    """compressed-tensors and ModelOpt: groups with targets, per-layer algorithms, or one algorithm."""
    rules = list(skipped)
    default: Scheme | None = None
    layers = raw.get("quantized_layers") or {}
    groups = raw.get("config_groups") or {}
    for name, entry in layers.items():
        rules.append(Rule(str(name), _algorithm(str(entry.get("quant_algo")), entry)))
    for group in groups.values():
        weights = group.get("weights")
        if not weights:
            continue
        scheme = _weights(weights, group.get("format") or raw.get("format"))
        targets = group.get("targets") or ["Linear"]
        if "Linear" in targets and not layers:
            default = scheme
        else:
            rules += [Rule(str(t), scheme) for t in targets if not layers and str(t) != "Linear"]
    algorithm = raw.get("quant_algo")
    if default is None and not layers and not groups and algorithm:
        default = _algorithm(str(algorithm), raw)
    if method == "fp8" and raw.get("weight_block_size"):
        # A block-FP8 checkpoint whose routed experts were converted: the listed layers are the exception.
        block = raw["weight_block_size"]
        rules = [rule for rule in rules if rule.scheme is not None]
        default = q.fp8_block(block[0], block[1])
    return Quantisation(method or "modelopt", default, tuple(rules))


def _algorithm(name: str, raw: Config) -> Scheme | None:
    """ModelOpt's `quant_algo`."""
    group = int(raw.get("group_size") or 0)
    match name.upper():
        case "NONE" | "":
            return None
        case "FP8" | "FP8_PER_TENSOR":
            return q.FP8_TENSOR
        case "FP8_PB_WO" | "FP8_PB":
            return q.fp8_block(128, 128)
        case "FP8_PER_CHANNEL_PER_TOKEN":
            return q.FP8_CHANNEL
        case "NVFP4" | "NVFP4_AWQ" | "W4A16_NVFP4":
            return q.NVFP4
        case "MXFP8":
            return Scheme("fp8", 8, group=32, scale_bytes=1)
        case "W4A16_AWQ" | "W4A8_AWQ":
            return q.int_group(4, group or 128, zero_points=False)
    raise ModelError(
        f"quantization_config.quant_algo is {name!r}, whose storage format is not known here.",
        "Use a checkpoint in FP8, NVFP4, MXFP8 or W4A16_AWQ.",
    )


def _weights(weights: Config, layout: str | None) -> Scheme:
    """A `weights` entry of a compressed-tensors or ModelOpt group."""
    bits = weights.get("num_bits")
    if bits is None:
        raise ModelError(
            "quantization_config.config_groups: a group's weights have no num_bits.",
            "Take config.json from the model's own repository.",
        )
    kind, group, strategy = weights.get("type", "int"), weights.get("group_size"), weights.get("strategy")
    if kind == "float" and bits == 4:
        return q.MXFP4 if group == 32 or (layout or "").startswith("mxfp4") else q.NVFP4
    if kind == "float" and bits == 8 and strategy == "block":
        block = weights.get("block_structure") or [128, 128]
        return q.fp8_block(int(block[0]), int(block[1]))
    name = "fp8" if kind == "float" else f"int{bits}"
    if group and group > 0:
        return Scheme(
            name,
            bits,
            group=int(group),
            scale_bytes=2,
            zero_bits=0 if weights.get("symmetric", True) else bits,
        )
    return Scheme(name, bits, channel=strategy != "tensor" and strategy is not None)


def kv_dtype(raw: Config | None) -> str:
    """The KV cache dtype that the checkpoint asks for: `fp8` where scales come with it, else `auto`."""
    raw = (raw or {}).get("quantization", raw or {})
    scheme = raw.get("kv_cache_scheme") or {}
    named = str(raw.get("kv_cache_quant_algo") or "").upper()
    return (
        "fp8"
        if named.startswith("FP8") or (isinstance(scheme, Mapping) and scheme.get("num_bits") == 8)
        else "auto"
    )
