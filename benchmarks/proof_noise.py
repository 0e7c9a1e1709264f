"""Makes the table of docs/proof.md: how far honest and damaged runs of a small model are from its one-rank reference.

    python benchmarks/proof_noise.py MODEL_DIRECTORY [--tp 3] [--pp 2]

MODEL_DIRECTORY holds a safetensors checkpoint in one file. Runs on the CPU, one engine after the other, about 40 s each.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from longspan.launch.logprobs import TokenLogprobs, agreement
from longspan.launch.one_rank import running_engine
from longspan.launch.prover import generate_and_score, score_texts
from longspan.launch.reference import Wish, default_argv

ENV = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def zeroed(model: Path, target: Path, tensor: str, share: float = 1.0) -> Path:
    """A copy of the checkpoint with the first `share` of one tensor zeroed."""
    shutil.copytree(model, target)
    with (target / "model.safetensors").open("r+b") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        first, end = json.loads(file.read(header_bytes))[tensor]["data_offsets"]
        file.seek(8 + header_bytes + first)
        file.write(bytes(int((end - first) * share) // 4 * 4))
    return target


async def measure(
    model: Path, dtype: str = "auto", ranks: Sequence[str] = ()
) -> tuple[tuple[TokenLogprobs, ...], float]:
    """The texts' log-probabilities, and the mean distance between decode and prefill."""
    wish = Wish(model, "", "cpu", Path("unused"), dtype=dtype, arguments=tuple(ranks))
    async with running_engine(
        lambda socket: default_argv(wish, socket),
        model="reference",
        env={**os.environ, **ENV},
        timeout_seconds=900,
    ) as endpoint:
        texts = await score_texts(endpoint)
        return texts, agreement(*await generate_and_score(endpoint)).mean_abs


async def main(model: Path, tp: int, pp: int, directory: Path) -> None:
    """Prints one row a run."""
    layers = json.loads((model / "config.json").read_text())["num_hidden_layers"]
    mp = ("--distributed-executor-backend", "mp")
    # PP > 1 on the CPU needs a warm-up, which --enforce-eager skips: vLLM 0.32 dies at the first request otherwise.
    warm = ("--no-enforce-eager", "--compilation-config", '{"mode":2,"backend":"eager"}')
    base, paths = await measure(model)
    print("| run | mean | largest | perplexity | standard errors | paths |\n|---|---|---|---|---|---|")

    def row(name: str, texts: tuple[TokenLogprobs, ...], paths: float) -> None:
        found = agreement(texts, base)
        errors = found.mean / found.mean_error if found.mean_error else 0.0
        print(
            f"| {name} | {found.mean_abs:.4f} | {found.max_abs:.2f} | {found.perplexity:.3f} "
            f"| {errors:.1f} | {paths:.4f} |",
            flush=True,
        )

    row("TP=1", base, paths)
    row("TP=1, float32", *await measure(model, "float32"))
    row(f"TP={tp}", *await measure(model, ranks=("--tensor-parallel-size", str(tp), *mp)))
    row(f"PP={pp}", *await measure(model, ranks=("--pipeline-parallel-size", str(pp), *mp, *warm)))
    for layer in (layers // 6, layers // 2, layers * 5 // 6):
        tensor = f"model.layers.{layer}.self_attn.o_proj.weight"
        damaged = zeroed(model, directory / f"dead-{layer}", tensor)
        row(f"attention output of layer {layer} zeroed", *await measure(damaged))
    for share in (0.1, 0.01):
        tensor = f"model.layers.{layers // 2}.mlp.down_proj.weight"
        damaged = zeroed(model, directory / f"down-{share}", tensor, share)
        row(f"{share:.0%} of layer {layers // 2}'s down projection zeroed", *await measure(damaged))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tp", type=int, default=3)
    parser.add_argument("--pp", type=int, default=2)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(given.model, given.tp, given.pp, Path(scratch)))
