"""The rehearsal's model: the real config.json and tokenizer found, the shrunken checkpoint made and kept in the user's cache."""

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.cli.prepare import is_hub_id
from longspan.daemon.places import own_files
from longspan.daemon.versions import installed
from longspan.errors import ModelError, ModelFetchError, RehearsalModelError
from longspan.host import LocalHost
from longspan.launch import rehearsal_make
from longspan.launch.rehearsal_make import TOKENIZER_FILES
from longspan.model import demo, fetch
from longspan.model.facts import ModelFacts
from longspan.model.parse import parse_config
from longspan.model.shrink import Shrunk, shrink

# transformers alone takes 10 to 40 s to come up on a cold disk (measured on two cores); 64 experts are written in seconds.
MAKE_TIMEOUT_SECONDS = 900.0
# With the model's own tokenizer the embedding keeps its rows; beyond this a rehearsal is no light thing any more.
LARGEST_EMBEDDING_BYTES = 512 << 20
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_SMALL_SUFFIXES = {".json", ".txt", ".model", ".jinja", ".tiktoken", ".py"}
_NOT_COPIED = {"config.json", "hf_quant_config.json", "rehearsal.json"}
_LARGEST_SMALL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """The real model as far as it is here.

    Attributes:
        files: a directory with its tokenizer; None where only config.json is known.
    """

    name: str
    config: Mapping[str, Any]
    quant: Mapping[str, Any] | None
    files: Path | None

    @property
    def facts(self) -> ModelFacts:
        """What the real config says."""
        return parse_config(self.config, self.name, self.quant)

    @property
    def has_tokenizer(self) -> bool:
        """Whether the model's own tokenizer is at hand."""
        return self.files is not None and any((self.files / name).is_file() for name in TOKENIZER_FILES)

    @property
    def has_processor(self) -> bool:
        """Whether what prepares images or sound is at hand, with the tokenizer that it works with."""
        files = self.files
        return (
            files is not None
            and self.has_tokenizer
            and any((files / name).is_file() for name in PROCESSOR_FILES)
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A shrunken model on the disk.

    Attributes:
        weights_reason: why it has no weight files; empty if it has.
    """

    directory: Path
    shrunk: Shrunk
    own_tokenizer: bool
    weights_reason: str

    @property
    def weights_bytes(self) -> int:
        """The bytes of its weight files."""
        return sum(file.stat().st_size for file in self.directory.glob("*.safetensors"))


def find(model: str | None, revision: str | None, progress: Callable[[str], None]) -> Source:
    """The real model by what the user calls it: a directory, a config file, or an id. No weights are needed, nor fetched.

    Raises:
        ModelError, ModelFetchError: found nowhere, or no config.json.
    """
    if model is None:
        with own_files(demo.models_directory()):
            return _directory(demo.ensure_demo_model(progress))
    path = Path(model).expanduser()
    if path.is_dir():
        return _directory(path.resolve())
    if path.is_file():
        return Source(path.stem, _json(path), None, None)
    if not is_hub_id(model):
        raise ModelError(
            f"{model!r} is neither a directory on this machine nor a Hugging Face id (organisation/name).",
            "Give a directory with config.json (weights are not needed), a config file, or an id such as Qwen/Qwen3-8B.",
        )
    return _hub(model, revision)


def _directory(path: Path) -> Source:
    config = path / "config.json"
    if not config.is_file():
        raise ModelFetchError(
            f"{path} has no config.json, so it is not a model directory.",
            "Give the directory that holds config.json; its tokenizer is used too, its weights are not.",
        )
    return Source(path.name, _json(config), _quant(path), path)


def _hub(name: str, revision: str | None) -> Source:
    from huggingface_hub import snapshot_download

    patterns = [f"*{suffix}" for suffix in sorted(_SMALL_SUFFIXES)]
    try:
        path = Path(
            snapshot_download(
                name, revision=revision, allow_patterns=patterns, ignore_patterns=["*.index.json"]
            )
        )
        return Source(name, _json(path / "config.json"), _quant(path), path)
    except Exception as error:
        known = fetch.builtin_config(name)
        if known is None:
            raise ModelFetchError(
                f"config.json of {name!r} could not be fetched: {type(error).__name__}: {str(error)[:200]}",
                "Without a network, give a directory, or one of the built-in models that `longspan plan --help` names.",
            ) from error
        return Source(name, known, None, None)


def _quant(path: Path) -> Any:
    found = path / "hf_quant_config.json"
    return _json(found) if found.is_file() else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path} cannot be read: {error}.", "Take it from the model's own repository."
        ) from error


def make(source: Source, stages: tuple[int, ...], progress: Callable[[str], None]) -> Checkpoint:
    """The shrunken checkpoint, out of the cache where it has been made before.

    Args:
        stages: how many layers each pipeline stage has in the real model.

    Raises:
        RehearsalModelError: no shorter model, no processor, or the weights' maker failed. StateError: the cache.
    """
    own, encoder = source.has_tokenizer, source.facts.tower is not None
    if encoder and not source.has_processor:
        raise RehearsalModelError(
            f"{source.name} takes images or sound, and vLLM loads their processor before anything else; only its config.json is here.",
            f"Give a directory with the model's small files ({', '.join(PROCESSOR_FILES)}, tokenizer); weights are not needed.",
        )
    shrunk = shrink(source.config, stages, own_tokenizer=own, hf_quant_config=source.quant)
    if own and not encoder and 2 * shrunk.facts.vocab * shrunk.facts.hidden > LARGEST_EMBEDDING_BYTES:
        own = False
        shrunk = shrink(source.config, stages, own_tokenizer=False, hf_quant_config=source.quant)
    files = _small_files(source.files) if own and source.files else []
    text = json.dumps(shrunk.config, indent=1)
    target = demo.models_directory().parent / "rehearsals" / _key(text, files)
    with own_files(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with demo.exclusive(
            target.with_suffix(".lock"), lambda: progress("waiting for another process to make it")
        ):
            if not (target / "rehearsal.json").is_file():
                _fill(text, files, target, progress)
    made = _json(target / "rehearsal.json")
    return Checkpoint(target, shrunk, own, str(made["reason"]))


def _small_files(directory: Path) -> list[Path]:
    return sorted(
        file
        for file in directory.iterdir()
        if file.suffix in _SMALL_SUFFIXES
        and file.name not in _NOT_COPIED
        and not file.name.endswith(".index.json")
        and file.is_file()
        and file.stat().st_size < _LARGEST_SMALL_BYTES
    )


def _key(text: str, files: list[Path]) -> str:
    """Names what is made by what it is made of."""
    state = hashlib.blake2b(f"{installed('transformers')}\0{text}\0".encode(), digest_size=12)
    state.update(Path(rehearsal_make.__file__).read_bytes())
    for file in files:
        state.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return state.hexdigest()


def _fill(text: str, files: list[Path], target: Path, progress: Callable[[str], None]) -> None:
    """Makes it beside its place and renames it, so that a process that is killed leaves no half of it."""
    progress("making the shrunken model: random weights under the architecture's own names")
    with tempfile.TemporaryDirectory(prefix=f"{target.name}.tmp-", dir=target.parent) as made:
        draft = Path(made) / "model"
        draft.mkdir()
        (draft / "config.json").write_text(text)
        for file in files:
            shutil.copyfile(file, draft / file.name)
        done = LocalHost().run(
            [sys.executable, "-m", "longspan.launch.rehearsal_make", str(draft)],
            timeout_seconds=MAKE_TIMEOUT_SECONDS,
            env={"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        last = (done.stdout.strip().splitlines() or [""])[-1]
        if done.returncode != 0 or not last.startswith("{"):
            words = done.stderr.strip().splitlines()[-1:] or ["it wrote nothing"]
            raise RehearsalModelError(
                f"The shrunken model could not be made: {words[0]}",
                "It is made with torch and transformers of this environment, which the engine needs as well.",
            )
        (draft / "rehearsal.json").write_text(last)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)


def copy_for_nodes(directory: Path) -> Path:
    """The checkpoint under a path that no machine has yet, since it must be the same on all nodes."""
    copy = Path(tempfile.mkdtemp(prefix="longspan-rehearsal-", dir="/tmp"))
    for file in directory.iterdir():
        shutil.copyfile(file, copy / file.name)
    copy.chmod(0o755)  # a container reads it as another user
    return copy
