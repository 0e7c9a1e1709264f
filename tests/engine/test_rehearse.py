"""`longspan rehearse`, for real: a mixture of experts that is nowhere on this machine, in two stages on two nodes; and over ssh."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from engine.running import Before, Longspan
from lab.build import Lab
from lab.hosts import HostSpec
from longspan.model.shrink import shrink
from model_made import model_directory

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
# The shapes of a mixture of experts of the Qwen3 kind; no published model's.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 1536, "intermediate_size": 4608,
    "moe_intermediate_size": 640, "num_experts": 96, "num_experts_per_tok": 6, "norm_topk_prob": True, "head_dim": 64,
    "num_attention_heads": 24, "num_key_value_heads": 4, "num_hidden_layers": 36, "vocab_size": 120_000,
    "decoder_sparse_step": 1, "max_position_embeddings": 32768, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "eos_token_id": 119_999, "hidden_act": "silu",
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of which only config.json exists."""
    return model_directory(tmp_path / "some-moe", CONFIG)


def proved(document: dict[str, Any]) -> dict[str, str]:
    """Claim -> state."""
    return {claim["name"]: claim["state"] for claim in document["proved"]}


def test_two_stages_of_experts_on_this_machine(model: Path, tmp_path: Path) -> None:
    """Every claim is proved, the reference among them, though no weight of the model exists; nothing is left behind."""
    before = Before.now()
    longspan = Longspan(tmp_path / "state")
    done = longspan.run("rehearse", str(model), "--pp", "2", "--nodes", "2", "--json", "--", "--seed", "3", timeout_seconds=600)  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    states = proved(document)
    assert set(states.values()) == {"proved"}
    assert {"proof: reference", "proof: paths", "proof: digests", "ranks", "loading", "end"} <= set(states)
    assert document["rehearsed"]["changes"]["layers"] == [36, 2]
    assert "experts" not in document["rehearsed"]["changes"]  # half of 96 would have other divisors
    assert {"quantised weights", "tokenizer", "memory"} <= {limit["name"] for limit in document["not_proved"]}
    assert longspan.run("status", "--name", "reh").returncode != 0
    assert before.left_by(longspan) == []


def tensor_names(directory: Path) -> set[str]:
    """The names in the headers of all weight files, with N for each number."""
    names: set[str] = set()
    for file in directory.glob("*.safetensors"):
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        names |= {re.sub(r"\d+", "N", name) for name in header if name != "__metadata__"}
    return names


def made(config: dict[str, Any], directory: Path) -> dict[str, Any]:
    """What the maker of weights says, having run as `rehearse` runs it."""
    small = shrink(config, (config["num_hidden_layers"],), own_tokenizer=False).config
    model_directory(directory, small)
    argv = [sys.executable, "-m", "longspan.launch.rehearsal_make", str(directory)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})  # fmt: skip
    assert json.loads((directory / "config.json").read_text()) == small
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_weights_have_the_published_names(tmp_path: Path) -> None:
    """Experts one by one, also for a type that only calls itself otherwise; an unknown architecture says why it has none."""
    latent = {
        **CONFIG, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2", "q_lora_rank": 96, "kv_lora_rank": 64,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 64, "num_experts_per_tok": 4,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
        "num_key_value_heads": 24,
    }  # fmt: skip
    del latent["num_experts"], latent["head_dim"], latent["decoder_sparse_step"]
    assert made(latent, tmp_path / "latent") == {"weights": "random", "reason": ""}
    names = tensor_names(tmp_path / "latent")
    assert {f"model.layers.N.mlp.experts.N.{part}_proj.weight" for part in ("gate", "up", "down")} <= names
    assert "model.layers.N.self_attn.kv_a_proj_with_mqa.weight" in names
    unknown = made({**CONFIG, "architectures": ["NobodysForCausalLM"]}, tmp_path / "unknown")
    assert unknown["weights"] == "none"
    assert "NobodysForCausalLM" in unknown["reason"]
    assert tensor_names(tmp_path / "unknown") == set()


@pytest.mark.lab
def test_over_ssh_on_the_real_nodes(
    make_lab: Callable[..., AbstractContextManager[Lab]], model: Path, tmp_path: Path
) -> None:
    """The shrunken model is brought to hosts behind ssh, runs there on their own NICs, and is gone from them afterwards."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/root"),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with make_lab([HostSpec("h1", "eth0"), HostSpec("h2", "ens7")], env=env) as lab:
        hosts = tmp_path / "hosts.toml"
        hosts.write_text(
            "".join(
                f'[[node]]\nname = "{host.name}"\naddress = "{host.address}"\ngpus = 1\nssh = "{host.name}"\n'
                for host in lab.hosts
            )
        )
        longspan = Longspan(tmp_path / "state", {"PATH": f"{lab.bin}:{os.environ['PATH']}"})
        done = longspan.run(
            "rehearse", str(model), "--cluster", str(hosts), "--on-cluster", "--device", "cpu", "--json", timeout_seconds=600
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        document = json.loads(done.stdout)
        assert document["rehearsed"]["nodes"] == ["h1", "h2"]
        assert proved(document)["ranks"] == "proved"
        assert "network" not in {limit["name"] for limit in document["not_proved"]}
        assert longspan.processes() == []
    assert list(Path("/tmp").glob("longspan-rehearsal-*")) == []
