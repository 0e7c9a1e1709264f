"""The one-rank reference with the real engine: its noise, and what a dead layer does. Three starts, about 30 s each.

The proof of whole deployments (TP=3, two hosts) is in `test_tp3.py` and `test_lab_hosts.py`.
"""

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from longspan.daemon.spare import cache_dir
from longspan.daemon.versions import installed
from longspan.launch.commands import CPU_BATCHED_TOKENS
from longspan.launch.digest import digest_checkpoint
from longspan.launch.judge import digest_layer, reference_layer
from longspan.launch.logprobs import Reference, perplexity
from longspan.launch.proof import measured_tolerance
from longspan.launch.proof_texts import TEXTS
from longspan.launch.reference import Wish, make_reference

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

DEAD_LAYER = 5
CPU_ENGINE = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


@dataclass(frozen=True)
class Runs:
    """What the engines said: of the model in its dtype and in float32, and of a copy with a dead layer."""

    model: Path
    damaged: Path
    own: Reference
    exact: Reference
    dead: Reference


def kill_layer(model: Path, target: Path) -> Path:
    """A copy of a safetensors checkpoint with one attention output projection zeroed."""
    shutil.copytree(model, target)
    with (target / "model.safetensors").open("r+b") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_bytes))
        first, end = header[f"model.layers.{DEAD_LAYER}.self_attn.o_proj.weight"]["data_offsets"]
        file.seek(8 + header_bytes + first)
        file.write(bytes(end - first))
    return target


async def run_all(model: Path, directory: Path) -> Runs:
    """Three engines, one after the other."""
    version, env = installed("vllm", "vllm-cpu"), {**os.environ, **CPU_ENGINE}

    async def reference(path: Path, dtype: str) -> Reference:
        # The same wish as a deployment's, so that what other tests have made already is not made again.
        cache = cache_dir() if path == model else directory / "cache"
        arguments = ("--max-num-batched-tokens", str(CPU_BATCHED_TOKENS))
        wish = Wish(path, version, "cpu", cache, dtype=dtype, arguments=arguments, env=env)
        made = await make_reference(wish)
        assert isinstance(made, Reference), made.reason
        return made

    damaged = kill_layer(model, directory / "damaged")
    own, exact = await reference(model, "auto"), await reference(model, "float32")
    return Runs(model, damaged, own, exact, await reference(damaged, "auto"))


@pytest.fixture(scope="module")
def runs(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All engines, once for the module."""
    return asyncio.run(run_all(demo_model, tmp_path_factory.mktemp("proof")))


def test_every_text_is_below_256_tokens(runs: Runs) -> None:
    """The logits of a whole prompt are held at once, so the texts must stay small."""
    counts = [len(text.token_ids) + 1 for text in runs.own.texts]
    assert len(counts) == len(TEXTS)
    assert max(counts) < 256


def test_the_noise_is_that_of_bfloat16(runs: Runs) -> None:
    """The limit comes from this checkpoint's own noise (measured: 0.067), and the other dtype passes under it."""
    limit = measured_tolerance(runs.own, runs.exact)
    assert 0.03 < limit.mean_abs_nats < 0.12
    assert reference_layer(runs.exact.texts, {"head": runs.own}, "head", limit).state == "passed"


def test_a_dead_layer_fails_and_names_the_node(runs: Runs) -> None:
    """One host's copy with a dead layer, whatever its digest claims: the deployment fails, and that host is named."""
    limit = measured_tolerance(runs.own, runs.exact)
    alone = reference_layer(runs.dead.texts, {"head": runs.own}, "head", limit)
    assert alone.state == "failed", alone.seen
    every = {"head": runs.own, "far": runs.dead, "third": runs.own}
    layer = reference_layer(runs.dead.texts, every, "head", limit)
    assert [finding.subject for finding in layer.findings] == ["far"]


def test_perplexity_alone_would_miss_it(runs: Runs) -> None:
    """With the same dead layer the perplexity moves by less than 3 %, as little as another text of the same kind moves it."""
    assert perplexity(runs.dead.texts) / perplexity(runs.own.texts) == pytest.approx(1, abs=0.03)


def test_its_digest_fails_before_anything_is_loaded(runs: Runs) -> None:
    """An honest digest of the damaged copy names node and file without any engine."""
    copies = {"head": digest_checkpoint(runs.model, "n"), "far": digest_checkpoint(runs.damaged, "n")}
    layer = digest_layer(copies, "head")
    assert layer.state == "failed"
    assert [(f.subject, f.cause) for f in layer.findings] == [("far", "checkpoint-file-differs")]
