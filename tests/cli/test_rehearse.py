"""`rehearse` up to the first process and after the last: what it prepares, what it says, that it takes everything down."""

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from longspan import errors
from longspan.cli import control, machine, prepare, rehearse, rehearse_layout, rehearse_model
from longspan.cli import up as bringing
from longspan.cli.rehearse_model import Checkpoint, Source
from longspan.daemon.places import Places
from longspan.deployment import DeploymentSpec
from longspan.host import Completed, LocalHost
from longspan.model.shrink import shrink
from model_made import model_directory

CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 48, "vocab_size": 151936, "decoder_sparse_step": 1,
    "max_position_embeddings": 40960, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
PLAN = """format = 1
model = "{model}"
vllm_version = "0.32.0"
notes = []

[[node]]
name = "gpu-a"
environment = {{ NCCL_SOCKET_IFNAME = "ens5", HF_HOME = "/data" }}

[[node]]
name = "gpu-b"
environment = {{}}

[[replica]]
name = "r0"
executor = "mp"
tp = 2
pp = 2
dp = 1
ep = true
dcp = 1
partition = [23, 25]
max_model_len = 32768
max_num_seqs = 16
arguments = ["--kv-cache-dtype", "fp8"]
environment = {{}}
places = ["gpu-a:0", "gpu-a:1", "gpu-b:0", "gpu-b:1"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A model of which only config.json is here."""
    return model_directory(tmp_path / "moe", CONFIG)


class Fakes:
    """What stands in for the weights' maker and the launch. `spec`: what would have been started; `downs`: how often it ended."""

    def __init__(self) -> None:
        self.spec: DeploymentSpec | None = None
        self.phase = "serving"
        self.failure: dict[str, Any] | None = None
        self.interrupted = False
        self.alive = False
        self.downs = 0
        self.handlers: dict[int, Any] = {}

    def make(self, source: Source, stages: tuple[int, ...], progress: Any) -> Checkpoint:
        """The shrunken model without its files."""
        return Checkpoint(
            Path("/made"),
            shrink(source.config, stages, own_tokenizer=False),
            own_tokenizer=False,
            weights_reason="",
        )

    def bring_up(self, spec: DeploymentSpec, places: Places, cluster: Path | None) -> bringing.Started:
        """A launch that ends as the test says."""
        self.spec, self.alive = spec, self.phase != "gone"
        if self.interrupted:
            raise KeyboardInterrupt
        return bringing.Started({"pid": 1}, self.document(spec), None)

    def document(self, spec: DeploymentSpec) -> dict[str, Any]:
        """The status of a deployment whose ranks are where they should be."""
        done = "done" if self.failure is None else "failed"
        ranks = [
            {"rank": rank, "pid": 10 + rank, "planned_node": node.name, "planned_address": node.address,
             "bundle_address": node.address}
            for rank, node in enumerate(spec.rank_nodes())
        ]  # fmt: skip
        names = ("agents", "checkpoint", "ray", "reservation", "engine", "gateway", "first token")
        return {
            "phase": self.phase, "failure": self.failure, "ranks": ranks, "first_token_seconds": 9.5, "logs": "/logs",
            "state_dir": "/nowhere", "phases": [{"phase": name, "state": done} for name in names],
            "proof": {"layers": [{"name": "completion", "state": "passed", "seen": "tokens"}]},
        }  # fmt: skip

    def running(self) -> dict[str, Any] | None:
        """The controller's record while it lives."""
        return {"pid": 1} if self.alive else None

    def take_down(self, record: dict[str, Any]) -> None:
        """The end of it."""
        self.alive = False
        self.downs += 1


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    """No engine, no weights, no process; at the end nothing may run that was started."""
    found = Fakes()
    monkeypatch.setattr(prepare, "require_engine", lambda: None)
    monkeypatch.setattr(machine, "device", lambda: "cpu")
    monkeypatch.setattr(rehearse_layout, "affordable_ranks", lambda: 4)
    monkeypatch.setattr(rehearse_model, "make", found.make)
    monkeypatch.setattr(bringing, "bring_up", found.bring_up)
    monkeypatch.setattr(Places, "running", found.running)
    monkeypatch.setattr(control, "take_down", found.take_down)
    monkeypatch.setattr(signal, "signal", lambda number, handler: found.handlers.update({number: handler}))
    yield found
    assert not found.alive


def test_a_rehearsal_ends_with_what_it_proved(
    longspan: Callable[..., Any], fakes: Fakes, config: Path
) -> None:
    """The document has both lists, the exit code is 0, and everything was taken down."""
    said = longspan("rehearse", str(config), "--tp", "2", "--pp", "2", "--nodes", "2", "--json")
    assert said.code == 0, said.err
    document = said.document
    assert document["passed"]
    assert {claim["state"] for claim in document["proved"]} == {"proved"}
    assert {"memory", "network", "tokenizer"} <= {limit["name"] for limit in document["not_proved"]}
    assert document["rehearsed"]["nodes"] == ["node-1", "node-2"]
    assert document["rehearsed"]["changes"]["experts"] == [128, 64]
    assert fakes.downs == 1
    assert fakes.spec is not None
    assert (fakes.spec.model, fakes.spec.device, fakes.spec.name) == ("/made", "cpu", rehearse.NAME)


def test_without_a_layout_two_stages_on_two_nodes(
    longspan: Callable[..., Any], fakes: Fakes, config: Path
) -> None:
    """One rank alone would rehearse nothing."""
    assert longspan("rehearse", str(config)).code == 0
    assert fakes.spec is not None
    assert (fakes.spec.tp, fakes.spec.pp, len(fakes.spec.nodes)) == (1, 2, 2)


def test_a_plan_is_rehearsed_on_nodes_of_its_names(
    longspan: Callable[..., Any], fakes: Fakes, config: Path, tmp_path: Path
) -> None:
    """Layout, executor, split, arguments and environment are the plan's, without what needs GPUs; no cluster file is needed."""
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(model=config))
    said = longspan("rehearse", "--plan", str(plan), "--", "--seed", "7")
    assert said.code == 0, said.err
    spec = fakes.spec
    assert spec is not None
    assert (spec.tp, spec.pp, spec.executor) == (2, 2, "mp")
    assert [(node.name, node.gpus) for node in spec.nodes] == [("gpu-a", 2), ("gpu-b", 2)]
    assert spec.nodes[0].env == {"HF_HOME": "/data", "VLLM_PP_LAYER_PARTITION": "1,2"}
    assert spec.vllm_arguments == ("--seed", "7", "--max-model-len", "2048", "--max-num-seqs", "16")
    for left in ("--enable-expert-parallel", "--kv-cache-dtype fp8", "NCCL_SOCKET_IFNAME"):
        assert f"without {left}:" in said.err
        assert left in said.out


def test_a_large_layout_is_scaled_down_and_says_so(
    longspan: Callable[..., Any], fakes: Fakes, config: Path
) -> None:
    """TP 16 x PP 2 on four nodes becomes TP 2 x PP 2, with the rule beside it."""
    said = longspan("rehearse", str(config), "--tp", "16", "--pp", "2", "--nodes", "4")
    assert said.code == 0, said.err
    assert fakes.spec is not None
    assert (fakes.spec.tp, fakes.spec.pp) == (2, 2)
    assert "scaled down to TP 2 x PP 2" in said.err
    assert "rule:" in said.err
    assert "size of the layout" in said.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--tp", "3"), errors.LayoutError),
        (("--pp", "49"), errors.LayoutError),
        (("--tp", "0"), errors.InputError),
        (("--ranks", "0"), errors.InputError),
        (("--on-cluster",), errors.InputError),
        (("--device", "cuda"), errors.InputError),
        (("--", "--tensor-parallel-size", "2"), errors.InputError),
    ],
)
def test_what_up_would_refuse_is_refused(
    longspan: Callable[..., Any],
    fakes: Fakes,
    config: Path,
    arguments: tuple[str, ...],
    error: type[errors.LongspanError],
) -> None:
    """An illegal layout fails as the real one would, with its exit code, before anything starts."""
    said = longspan("rehearse", str(config), *arguments)
    assert said.code == error.exit_code, said.err
    assert fakes.spec is None


def test_experts_that_only_whole_ones_fit(longspan: Callable[..., Any], fakes: Fakes, tmp_path: Path) -> None:
    """A TP size that is legal with expert parallelism alone cannot be rehearsed here, which says what to do."""
    directory = model_directory(tmp_path / "odd", {**CONFIG, "moe_intermediate_size": 801})
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.format(model=directory))
    said = longspan("rehearse", "--plan", str(plan))
    assert said.code == errors.RehearsalError.exit_code, said.err
    assert "--ranks 2" in said.err
    assert longspan("rehearse", "--plan", str(plan), "--ranks", "2").code == 0


def test_a_failing_step_gives_its_own_exit_code(
    longspan: Callable[..., Any], fakes: Fakes, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was proved until then is said all the same, in one document."""
    monkeypatch.setattr(bringing, "failure_of", lambda status: errors.LaunchError(status["failure"]["what"]))
    fakes.phase, fakes.failure = "gone", {"kind": "launch", "what": "rank 1 died", "remedy": ""}
    said = longspan("rehearse", str(config), "--json")
    assert said.code == errors.LaunchError.exit_code
    assert not said.document["passed"]
    assert said.document["failure"]["what"] == "rank 1 died"
    assert "rank 1 died" in said.err


def test_an_interrupted_rehearsal_is_taken_down(
    longspan: Callable[..., Any], fakes: Fakes, config: Path
) -> None:
    """Whatever happens, nothing is left running."""
    fakes.interrupted = True
    assert longspan("rehearse", str(config)).code == 130
    assert fakes.downs == 1
    assert fakes.handlers == {signal.SIGTERM: signal.default_int_handler}  # whoever stops it does the same


def test_one_rehearsal_at_a_time(longspan: Callable[..., Any], fakes: Fakes, config: Path) -> None:
    """A second one does not take the first one down."""
    fakes.alive = True
    said = longspan("rehearse", str(config))
    fakes.alive = False
    assert said.code == errors.DeploymentExistsError.exit_code
    assert fakes.downs == 0


def test_a_model_is_found_without_weights(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory, a bare config file, and without a network an id that is built in."""
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(CONFIG))
    assert rehearse_model.find(str(config), None, print).files == config
    assert not rehearse_model.find(str(config), None, print).has_tokenizer
    assert rehearse_model.find(str(bare), None, print).facts.heads == 32

    def no_network(*_: Any, **__: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    assert rehearse_model.find("Qwen/Qwen3-30B-A3B", None, print).facts.experts is not None
    with pytest.raises(errors.ModelFetchError, match="no network"):
        rehearse_model.find("nobody/knows-it", None, print)
    with pytest.raises(errors.ModelError):
        rehearse_model.find("/nowhere/model", None, print)


def test_a_model_with_images_needs_its_processor(tmp_path: Path) -> None:
    """vLLM would end in an image processor's error; the small files are asked for by name, and used where they are."""
    vision = {"depth": 24, "hidden_size": 1024, "num_heads": 16, "out_hidden_size": 2048, "patch_size": 16}
    text = {
        "architectures": ["SomeVision"],
        "model_type": "qwen3_vl",
        "text_config": CONFIG,
        "vision_config": vision,
    }
    directory = model_directory(tmp_path / "vision", text)
    (directory / "tokenizer.json").write_text("{}")
    source = rehearse_model.find(str(directory), None, print)
    with pytest.raises(errors.RehearsalModelError, match=r"preprocessor_config\.json"):
        rehearse_model.make(source, (24, 24), print)
    (directory / "preprocessor_config.json").write_text("{}")
    assert source.has_processor


def test_a_made_model_is_made_once(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same config and files are not made again; other tokenizer files are another model; a failed maker leaves nothing."""
    calls: list[Sequence[str]] = []

    def run(self: LocalHost, argv: Sequence[str], **_: Any) -> Completed:
        calls.append(argv)
        (Path(argv[-1]) / "model.safetensors").write_bytes(b"1234")
        return Completed(0, 'noise\n{"weights": "random", "reason": ""}\n', "")

    monkeypatch.setattr(LocalHost, "run", run)
    source = rehearse_model.find(str(config), None, print)
    first = rehearse_model.make(source, (24, 24), lambda _: None)
    assert (first.weights_bytes, first.weights_reason, first.own_tokenizer) == (4, "", False)
    assert rehearse_model.make(source, (24, 24), lambda _: None).directory == first.directory
    assert len(calls) == 1
    (config / "tokenizer.json").write_text("{}")
    second = rehearse_model.make(source, (24, 24), lambda _: None)
    assert second.own_tokenizer
    assert second.directory != first.directory
    assert (second.directory / "tokenizer.json").read_text() == "{}"
    assert second.shrunk.facts.vocab == 151936
    (config / "tokenizer.json").write_text("[]")
    monkeypatch.setattr(LocalHost, "run", lambda *_, **__: Completed(1, "", "Boom: no torch"))
    before = set(first.directory.parent.iterdir())
    with pytest.raises(errors.RehearsalModelError, match="no torch"):
        rehearse_model.make(source, (24, 24), lambda _: None)
    assert {path for path in first.directory.parent.iterdir() if path.suffix != ".lock"} <= before


def test_the_verb_is_the_module_that_the_table_names() -> None:
    """`longspan rehearse --help` shows what it can be told."""
    names = {option for parameter in rehearse.command.params for option in parameter.opts}
    assert {"--plan", "--on-cluster", "--cluster", "--tp", "--pp", "--ranks", "--json"} <= names
