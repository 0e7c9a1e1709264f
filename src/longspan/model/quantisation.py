"""How each weight matrix is stored: schemes and the rules that say which module has which.

Module names follow the checkpoint from `layers.` on (`layers.3.self_attn.q_proj`). Checkpoints name the same part
differently, so a rule is tried against the common spellings of a name.
"""

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cache, cached_property
from math import ceil


@dataclass(frozen=True)
class Scheme:
    """A storage format of one weight matrix of `out x inp` values.

    Args:
        name: `fp8`, `int8`, `int4`, `nvfp4`, `mxfp4`, `gguf`, `nf4`.
        bits: bits a value; GGUF's averages may be fractional and include their scales.
        block: (out, in) of a two-dimensional scale block. group: values along the input that share a scale.
        channel: one scale per output channel. scale_bytes: of one scale. zero_bits: bits of a group's zero point.
    """

    name: str
    bits: float
    block: tuple[int, int] | None = None
    group: int | None = None
    channel: bool = False
    scale_bytes: int = 4
    zero_bits: int = 0

    def size_bytes(self, out: int, inp: int) -> float:
        """Bytes of the matrix with its scales and zero points."""
        total = out * inp * self.bits / 8
        if self.block:
            total += ceil(out / self.block[0]) * ceil(inp / self.block[1]) * self.scale_bytes
        elif self.group:
            groups = out * ceil(inp / self.group)
            total += groups * (self.scale_bytes + self.zero_bits / 8)
        elif self.channel:
            total += out * self.scale_bytes
        return total


# Published storage formats. NVFP4: FP8 scale per 16 values; MXFP4: one exponent byte per 32 (OCP MX 1.0).
FP8_TENSOR = Scheme("fp8", 8)
FP8_CHANNEL = Scheme("fp8", 8, channel=True)
INT8_CHANNEL = Scheme("int8", 8, channel=True)
NVFP4 = Scheme("nvfp4", 4, group=16, scale_bytes=1)
MXFP4 = Scheme("mxfp4", 4, group=32, scale_bytes=1)

# llama.cpp quantize README: bits per weight of Llama-3.1-8B files by type (scales included).
GGUF_BITS = {
    "Q2_K": 3.16, "Q3_K_S": 3.64, "Q3_K_M": 4.00, "Q3_K_L": 4.30, "Q4_0": 4.66, "Q4_K_S": 4.67, "Q4_K_M": 4.89,
    "Q5_0": 5.57, "Q5_K_S": 5.57, "Q5_K_M": 5.70, "Q6_K": 6.56, "Q8_0": 8.50, "IQ4_XS": 4.46, "F16": 16.0,
}  # fmt: skip


def fp8_block(rows: int, columns: int) -> Scheme:
    """Block FP8 with one float scale a block (DeepSeek-V3 and its followers)."""
    return Scheme("fp8", 8, block=(rows, columns))


def int_group(bits: int, group: int, zero_points: bool) -> Scheme:
    """GPTQ, AWQ and packed integers: one 16-bit scale a group. `group` -1 means one per output channel."""
    if group <= 0:
        return Scheme(f"int{bits}", bits, channel=True, scale_bytes=2)
    return Scheme(f"int{bits}", bits, group=group, scale_bytes=2, zero_bits=bits if zero_points else 0)


_ALIASES = (
    ("self_attn", ("attn", "attention", "mixer")),
    ("linear_attn", ("mixer",)),
    ("mlp", ("ffn", "block_sparse_moe", "feed_forward", "mixer", "moe")),
    ("shared_experts", ("shared_expert",)),
)


_LAYER_NUMBER = re.compile(r"layers\.(\d+)(?:\.|$)")


@cache
def spellings(name: str) -> tuple[str, ...]:
    """The names under which checkpoints know a module: `mlp` is also `ffn`, `block_sparse_moe`, `mixer`, ..."""
    names = [name]
    for part, others in _ALIASES:
        token = re.compile(rf"(?<![^.]){part}(?![^.])")
        names += [token.sub(other, known) for known in names if token.search(known) for other in others]
    return tuple(names)


def tail(name: str) -> str:
    """A module name from `layers.` on: wrappers put `model.`, `language_model.model.` or `backbone.` before it."""
    match = re.search(r"(?<![^.])layers\.", name)
    return name[match.start() :] if match else name.removeprefix("model.").removeprefix("language_model.")


@dataclass(frozen=True)
class Rule:
    """`pattern` names modules (a name, a glob or `re:` and an expression); `scheme` None leaves them unquantised."""

    pattern: str
    scheme: Scheme | None

    @cached_property
    def is_plain(self) -> bool:
        """Whether the pattern is a name without wildcards."""
        return not self.pattern.startswith("re:") and not any(c in self.pattern for c in "*?[")

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        if self.pattern.startswith("re:"):
            return re.compile(self.pattern[3:])
        return re.compile(translate(tail(self.pattern)))

    def matches(self, name: str) -> bool:
        """Whether the rule covers this spelling: the module, one around it, or a bare part such as `gate`."""
        if self.is_plain:
            own = tail(self.pattern)
            if "." not in own:
                return own in name.split(".")
            return name == own or name.startswith(own + ".")
        if self.pattern.startswith("re:"):
            return any(self._expression.match(text) for text in (name, "model." + name))
        if self._expression.match(name) or self._expression.match("model." + name):
            return True
        # A glob that ends at a container ("layers.*.self_attn") covers what is inside it.
        parts = name.split(".")
        return any(self._expression.match(".".join(parts[:n])) for n in range(1, len(parts)))


@dataclass(frozen=True)
class Quantisation:
    """Which module is stored how.

    Args:
        method: as the checkpoint names it (`fp8`, `awq`, `compressed-tensors`, ...), "" for none.
        default: for every linear layer no rule covers; None leaves it in the activation dtype.
        rules: exceptions; the first match decides. experts_only: dense layers are never quantised (MXFP4, vLLM).
        online: quantised while loading from a 16-bit checkpoint.
    """

    method: str = ""
    default: Scheme | None = None
    rules: tuple[Rule, ...] = ()
    experts: Scheme | None = None
    experts_only: bool = False
    online: bool = False

    @cached_property
    def _exact(self) -> dict[str, Scheme | None]:
        return {
            tail(r.pattern): r.scheme for r in reversed(self.rules) if r.is_plain and "." in tail(r.pattern)
        }

    @cached_property
    def _loose(self) -> dict[str, tuple[Rule, ...]]:
        """Rules that are not whole names, by the layer number they mention; "" holds those that mention none."""
        buckets: dict[str, list[Rule]] = {"": []}
        for rule in self.rules:
            if rule.is_plain and "." in tail(rule.pattern):
                continue
            number = _LAYER_NUMBER.match(tail(rule.pattern))
            buckets.setdefault(number[1] if number else "", []).append(rule)
        return {number: tuple(rules) for number, rules in buckets.items()}

    def scheme(self, name: str) -> Scheme | None:
        """The scheme of the linear layer `name` (without `.weight`), or None where it keeps the activation dtype."""
        if self.default is None and self.experts is None and not self.rules:
            return None
        known = spellings(name)
        for spelled in known:
            parts = spelled.split(".")
            for n in range(len(parts), 1, -1):
                inner = ".".join(parts[:n])
                if inner in self._exact:
                    return self._exact[inner]
        number = _LAYER_NUMBER.match(name)
        for rule in (*self._loose.get(number[1] if number else "-", ()), *self._loose[""]):
            if any(rule.matches(spelled) for spelled in known):
                return rule.scheme
        if ".experts." in name and self.experts is not None:
            return self.experts
        if self.experts_only or name == "lm_head":
            return None
        return self.default

    @cached_property
    def label(self) -> str:
        """A short name for people: `bf16`, `fp8`, `nvfp4`, ..."""
        scheme = self.experts or self.default or next((r.scheme for r in self.rules if r.scheme), None)
        return scheme.name if scheme else "16-bit"
