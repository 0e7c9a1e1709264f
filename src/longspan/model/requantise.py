"""The same model stored another way: online quantisation, and the usual form of a published quantised checkpoint."""

from dataclasses import replace

from longspan.errors import InputError
from longspan.model.facts import ModelFacts
from longspan.model.quantisation import (
    FP8_TENSOR,
    GGUF_BITS,
    INT8_CHANNEL,
    MXFP4,
    NVFP4,
    Quantisation,
    Rule,
    Scheme,
    int_group,
)

_FLOATS = {
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
    "fp16": "float16",
    "float16": "float16",
    "fp32": "float32",
}
_SCHEMES: dict[str, Scheme] = {
    "fp8": FP8_TENSOR, "int8": INT8_CHANNEL, "w8a8": INT8_CHANNEL, "int4": int_group(4, 128, zero_points=False),
    "awq": int_group(4, 128, zero_points=True), "gptq": int_group(4, 128, zero_points=True),
    "nvfp4": NVFP4, "fp4": NVFP4, "mxfp4": MXFP4,
}  # fmt: skip
# Published 4-bit checkpoints of mixture-of-experts models leave attention alone (NVIDIA's ModelOpt recipes).
_KEEP_ATTENTION = (Rule("re:.*self_attn.*", None), Rule("re:.*linear_attn.*", None))


def known_formats() -> tuple[str, ...]:
    """The names that `stored_as` takes."""
    return (*_FLOATS, *_SCHEMES, *(f"gguf:{name}" for name in GGUF_BITS))


def stored_as(facts: ModelFacts, name: str) -> ModelFacts:
    """The model with its weights in another format.

    Args:
        name: `bf16`, `fp16`, `fp32`, `fp8`, `int8`, `int4`, `nvfp4`, `mxfp4`, or `gguf:Q4_K_M` and the like. A checkpoint that
            is stored so already is returned as it is; a float only changes the dtype of what is not quantised.

    Raises:
        InputError: an unknown format.
    """
    wanted = name.lower()
    if wanted in _FLOATS:
        dtype = _FLOATS[wanted]
        bare = facts if facts.quantisation.method == "" else replace(facts, quantisation=Quantisation())
        return replace(bare, dtype=dtype)
    if wanted.startswith("gguf:") and name[5:].upper() in GGUF_BITS:
        bits = GGUF_BITS[name[5:].upper()]
        return replace(
            facts,
            quantisation=Quantisation("gguf", Scheme("gguf", bits), (Rule("lm_head", Scheme("gguf", bits)),)),
        )
    if wanted not in _SCHEMES:
        raise InputError(f"{name!r} is not a weight format.", f"Known are {', '.join(known_formats())}.")
    scheme = _SCHEMES[wanted]
    current = facts.quantisation
    if _label(current) == scheme.name or (wanted == "fp4" and _label(current).endswith("fp4")):
        return facts
    rules = _KEEP_ATTENTION if scheme.bits == 4 and facts.experts else ()
    return replace(facts, quantisation=Quantisation(wanted, scheme, rules, online=wanted in {"fp8", "int8"}))


def _label(quantisation: Quantisation) -> str:
    """The scheme that most of the weights have: the experts' where they have their own."""
    experts = quantisation.scheme("layers.1.mlp.experts.0.up_proj")
    scheme = experts or quantisation.default or next((r.scheme for r in quantisation.rules if r.scheme), None)
    return scheme.name if scheme else "16-bit"
