"""A plan -> what of it a machine without GPUs can run: fewer ranks by a stated rule, and the arguments that hold there. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RULE = (
    "a plan with more ranks than the rehearsal has is scaled down in this order: TP is divided by its prime factors, not below 2;"
    " then PP is lowered, not below 2; then TP goes to 1; then PP is lowered to the number of ranks"
)
# The longest prompt of the proof is below 256 tokens; the CPU build's cache has 1 GiB a rank.
CPU_MODEL_LEN = 2048
CPU_SEQUENCES = 64

_QUANTISED = "the rehearsal's weights are plain, whatever the real ones are"
_OWN_FILES = "the rehearsal reads its own files, in safetensors"
_DRAFT = "a draft model has the real model's sizes"
_SIZES = "it states sizes of the real model"
_TOKENIZER = "it asks for words of the model's own tokenizer, which is not at hand"
_EXPERTS = "exchanging tokens between experts' ranks is not in vLLM's CPU build: it ends at the first request"
_KERNEL = "it chooses among kernels of GPUs"
_GRAPHS = "compilation and CUDA graphs are for GPUs; the CPU build gets the mode that it needs"
_MEMORY = "it divides the memory of GPUs"
_TRANSFER = "moving KV caches between engines needs their network and other engines"

# Flag -> why it is left out. Longer names that begin with one ending in "-" are meant too.
EVERYWHERE: Mapping[str, str] = {
    "--quantization": _QUANTISED, "-q": _QUANTISED, "--load-format": _OWN_FILES, "--model-loader-extra-config": _OWN_FILES,
    "--config-format": _OWN_FILES, "--hf-config-path": _OWN_FILES, "--code-revision": _OWN_FILES, "--tokenizer": _OWN_FILES,
    "--tokenizer-revision": _OWN_FILES, "--speculative-config": _DRAFT, "-sc": _DRAFT, "--spec-": _DRAFT,
    "--hf-overrides": _SIZES, "--enable-lora": _SIZES, "--lora-": _SIZES, "--max-lora-": _SIZES,
}  # fmt: skip
WITHOUT_TOKENIZER: Mapping[str, str] = dict.fromkeys(
    ("--tokenizer-mode", "--reasoning-parser", "--tool-call-parser", "--enable-auto-tool-choice", "--chat-template"),
    _TOKENIZER,
)  # fmt: skip
ON_CPU: Mapping[str, str] = {
    "--enable-expert-parallel": _EXPERTS, "-ep": _EXPERTS, "--enable-ep-weight-filter": _EXPERTS, "--enable-eplb": _EXPERTS,
    "--eplb-config": _EXPERTS, "--all2all-backend": _EXPERTS, "--enable-dbo": _EXPERTS, "--dbo-": _EXPERTS,
    "--expert-placement-strategy": _EXPERTS,
    "--decode-context-parallel-size": _KERNEL, "-dcp": _KERNEL, "--dcp-": _KERNEL, "--kv-cache-dtype": _KERNEL,
    "--calculate-kv-scales": _KERNEL, "--attention-": _KERNEL, "--moe-backend": _KERNEL, "--linear-backend": _KERNEL,
    "--kernel-config": _KERNEL, "-kc": _KERNEL, "-ac": _KERNEL, "--mamba-backend": _KERNEL, "--block-size": _KERNEL,
    "--disable-custom-all-reduce": _KERNEL, "--enable-flashinfer-autotune": _KERNEL,
    "--compilation-config": _GRAPHS, "-cc": _GRAPHS, "-O": _GRAPHS, "--optimization-level": _GRAPHS,
    "--enforce-eager": _GRAPHS, "--cudagraph-": _GRAPHS, "--max-cudagraph-": _GRAPHS,
    "--gpu-memory-utilization": _MEMORY, "--kv-cache-memory-bytes": _MEMORY, "--num-gpu-blocks-override": _MEMORY,
    "--cpu-offload-": _MEMORY, "--offload-": _MEMORY, "--kv-offloading-": _MEMORY, "--swap-space": _MEMORY,
    "--max-num-batched-tokens": _MEMORY, "--enable-sleep-mode": _MEMORY,
    "--kv-transfer-config": _TRANSFER, "--ec-transfer-config": _TRANSFER, "--kv-events-config": _TRANSFER,
}  # fmt: skip
# Variables that name devices, NICs and kernels of the real nodes, or layers of the real model.
_NOT_CARRIED = re.compile(
    r"(NCCL|GLOO|TP_SOCKET|UCX|NVSHMEM|CUDA|NVIDIA|ROCR|HIP|RAY)_|.*(_BACKEND|_HOST_IP|PP_LAYER_PARTITION)$|VLLM_(USE|ENABLE)_"
)


def scaled(tp: int, pp: int, ranks: int) -> tuple[int, int]:
    """TP and PP of the rehearsal by `RULE`; as they are where there are ranks enough."""
    while tp * pp > ranks:
        factor = next((number for number in range(2, tp) if tp % number == 0), tp)
        if factor < tp:
            tp //= factor
        elif pp > 2 and tp > 1 and ranks // tp >= 2:
            pp = ranks // tp
        elif tp > 1:
            tp = 1
        else:
            pp = max(1, ranks)
            break
    return tp, pp


def spread(tp: int, pp: int, nodes: int) -> tuple[int, ...]:
    """Ranks of each node, equally many, whole stages on a node or a stage over whole nodes; on as many of `nodes` as that allows."""
    ranks = tp * pp
    count = next(
        number
        for number in range(min(nodes, ranks), 0, -1)
        if pp % number == 0 or (number % pp == 0 and ranks % number == 0)
    )
    return (ranks // count,) * count


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Something of the plan that the rehearsal runs without, or with another value."""

    what: str
    reason: str


def adapted(
    arguments: Sequence[str], *, cpu: bool, own_tokenizer: bool
) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
    """vLLM's arguments for the rehearsal, and what of them is left out.

    Args:
        cpu: on this machine's processors instead of GPUs.
        own_tokenizer: the model's tokenizer is used.
    """
    refused = {**EVERYWHERE, **(ON_CPU if cpu else {}), **({} if own_tokenizer else WITHOUT_TOKENIZER)}
    kept: list[str] = []
    left: list[LeftOut] = []
    lengths: dict[str, int] = {}
    for words in _grouped(arguments):
        flag = words[0].split("=", 1)[0].replace("_", "-")
        reason = _refusal(flag, refused)
        if reason:
            left.append(LeftOut(" ".join(words), reason))
        elif cpu and flag in {"--max-model-len", "--max-num-seqs"}:
            lengths[flag] = _number(words)
        else:
            kept += words
    if cpu:
        for flag, most in (("--max-model-len", CPU_MODEL_LEN), ("--max-num-seqs", CPU_SEQUENCES)):
            value = lengths.get(flag, 0)
            kept += [flag, str(value if 0 < value < most else most)]
            if value > most:
                left.append(
                    LeftOut(f"{flag} {value}", f"{most} instead: the cache of the CPU build is small")
                )
    return tuple(kept), tuple(left)


def _refusal(flag: str, refused: Mapping[str, str]) -> str:
    plain = re.sub(r"^(-O)\d$", r"\1", flag.split(".", 1)[0]).replace("--no-", "--")
    found = refused.get(plain)
    return found or next(
        (reason for name, reason in refused.items() if name.endswith("-") and plain.startswith(name)), ""
    )


def _grouped(arguments: Sequence[str]) -> list[list[str]]:
    """Each flag with its values. A word that begins with a dash and is no number is a flag."""
    groups: list[list[str]] = []
    for word in arguments:
        if groups and not re.match(r"--?[A-Za-z]", word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return groups


def _number(words: Sequence[str]) -> int:
    """The value of a flag; vLLM also takes 32k, 1.5M and 4Ki. 0 for auto or what is no number."""
    text = words[0].partition("=")[2] or (words[1] if len(words) > 1 else "")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)(i?)", text)
    if not found:
        return 0
    base = 1024 if found[3] or found[2] in {"K", "M"} else 1000
    return int(float(found[1]) * base ** {"": 0, "k": 1, "m": 2}[found[2].lower()])


def carried(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[LeftOut, ...]]:
    """A node's variables on a machine that is not the node, and those that would be wrong there."""
    kept = {name: value for name, value in environment.items() if not _NOT_CARRIED.match(name)}
    left = tuple(
        LeftOut(name, "it names a device, an interface or a kernel of the real node")
        for name in environment
        if name not in kept and name != "VLLM_PP_LAYER_PARTITION"
    )
    return kept, left
