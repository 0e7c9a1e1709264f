"""Finding a model by what the user calls it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from longspan.errors import InputError, ModelFetchError
from longspan.model.fetch import (
    builtin_names,
    builtin_source,
    load_builtin,
    load_hub,
    load_model,
    resolve_commit,
)
from longspan.model.weights import parameters

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 8, "num_hidden_layers": 2,
    "vocab_size": 1000, "max_position_embeddings": 512,
}  # fmt: skip


def test_directory_is_read_with_the_bytes_of_its_weights(tmp_path: Path) -> None:
    """A local directory needs no network, and its safetensors files give the exact size."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "a.safetensors").write_bytes(b"x" * 100)
    facts = load_model(str(tmp_path))
    assert (facts.hidden, facts.weight_file_bytes) == (64, 100)


def test_directory_without_config_says_what_it_lacks(tmp_path: Path) -> None:
    """An empty directory is not a model."""
    with pytest.raises(ModelFetchError, match=r"no config\.json"):
        load_model(str(tmp_path))


def test_folder_of_configs_is_searched_by_id(tmp_path: Path) -> None:
    """index.csv maps ids to files, labels.csv odd labels to ids, and expanded/ wins."""
    (tmp_path / "index.csv").write_text("repo_id,file\norg/m,org__m.json\n")
    (tmp_path / "labels.csv").write_text("label,repo_id\nM (odd),org/m\n")
    (tmp_path / "org__m.json").write_text(json.dumps(CONFIG))
    assert load_model("org/m", tmp_path, offline=True).vocab == 1000
    (tmp_path / "expanded").mkdir()
    (tmp_path / "expanded" / "org__m.json").write_text(json.dumps({**CONFIG, "vocab_size": 2000}))
    assert load_model("M (odd)", tmp_path, offline=True).vocab == 2000


def test_unknown_model_offline_names_the_built_in_ones() -> None:
    """The remedy lists what can be planned without a network."""
    with pytest.raises(ModelFetchError) as caught:
        load_model("nobody/nothing", offline=True)
    assert "openai/gpt-oss-120b" in caught.value.remedy


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_model_parses_and_has_a_source(name: str) -> None:
    """Planning works offline for every listed model, whatever the case of its id."""
    facts = load_builtin(name.upper())
    assert facts is not None
    assert parameters(facts) > 1e8
    assert builtin_source(name).startswith("config.json of https://huggingface.co/")


def test_a_revision_becomes_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked once: the hub's answer; without a network what the local cache last saw of that revision; else nothing."""
    import huggingface_hub

    asked = []

    class Api:
        """The hub."""

        def model_info(self, name: str, **how: object) -> object:
            """Its answer, or none without a network."""
            asked.append((name, how["revision"]))
            if not online:
                raise ConnectionError("no network")
            return type("info", (), {"sha": "b" * 40})

    online = True
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert resolve_commit("org/m", "v1") == "b" * 40
    assert resolve_commit("org/m", "c" * 40) == "c" * 40
    assert asked == [("org/m", "v1")]
    online = False
    assert resolve_commit("org/m") is None
    refs = tmp_path / "models--org--m" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("a" * 40)
    assert resolve_commit("org/m") == "a" * 40
    assert resolve_commit("org/m", "v1") is None


def test_facts_are_those_of_the_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """config.json is read at the revision that will be served, and so are the headers of its weights, whose bytes are added up."""
    import huggingface_hub

    seen, headers = [], []

    class Api:
        """The hub."""

        def get_safetensors_metadata(self, name: str, *, revision: str | None) -> object:
            """Two files with a tensor each."""
            headers.append(revision)
            tensors = [SimpleNamespace(data_offsets=(8, 108)), SimpleNamespace(data_offsets=(0, 28))]
            found = {f"{i}.safetensors": SimpleNamespace(tensors={"w": one}) for i, one in enumerate(tensors)}
            return SimpleNamespace(files_metadata=found)

    def download(name: str, file: str, *, revision: str | None, **_: object) -> str:
        seen.append(revision)
        (tmp_path / file).write_text(json.dumps(CONFIG) if file == "config.json" else "{}")
        return str(tmp_path / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    facts = load_hub("org/m", "b" * 40)
    assert (facts.hidden, facts.weight_file_bytes) == (64, 128)
    assert set(seen) == {"b" * 40}
    assert headers == ["b" * 40]


@pytest.mark.parametrize("name", ["a" * 5000, "org/" + "b" * 400, "~no-such-account/model"])
def test_a_name_that_no_path_can_have_is_an_answer(name: str, tmp_path: Path) -> None:
    """What the system refuses to look for is not found, with and without a folder of configs."""
    (tmp_path / "index.csv").write_text("repo_id,file\na,a.json\n")
    for configs in (None, tmp_path):
        with pytest.raises(ModelFetchError):
            load_model(name, configs, offline=True)


def test_damaged_files_of_a_model_are_an_answer(tmp_path: Path) -> None:
    """A config that is no text, and an index without its columns, end in words."""
    (tmp_path / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ModelFetchError, match="not text"):
        load_model(str(tmp_path))
    (tmp_path / "index.csv").write_text("id,path\na,a.json\n")
    with pytest.raises(InputError, match="repo_id, file"):
        load_model("org/model", tmp_path, offline=True)
