"""What a node has of the model: files, sizes, readable headers, or access to the hub. Standard library only; see `gather`."""

import hashlib
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_HEADER_LIMIT_BYTES = 100_000_000  # a safetensors header is at most 100 MB by its format


def model(request: dict[str, Any]) -> dict[str, Any]:
    """The checkpoint's directory as this node and user see it; sizes and headers, not contents (the launch digests those)."""
    name = request.get("model")
    if not name:
        raise ValueError("no model was named")
    folder = Path(name)
    if not folder.is_absolute():
        raise ValueError(f"{name} is an id on Hugging Face, not a directory")
    if not folder.is_dir():
        return {"there": False}
    files = {
        path.name: path.stat().st_size
        for path in folder.iterdir()
        if path.suffix in (".json", ".safetensors", ".bin", ".model", ".txt", ".tiktoken") and path.is_file()
    }
    config = folder / "config.json"
    return {
        "there": True,
        "files": files,
        "config": hashlib.sha256(config.read_bytes()).hexdigest()[:16] if config.is_file() else "",
        "missing": _missing(folder, files),
        "damaged": [
            name for name in sorted(files) if name.endswith(".safetensors") and _damage(folder / name)
        ],
    }


def _missing(folder: Path, files: dict[str, int]) -> list[str]:
    """Weight files that the index names and that are not there."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return []
    named = set(json.loads(index.read_text())["weight_map"].values())
    return sorted(named - files.keys())


def _damage(path: Path) -> str:
    """Why a safetensors file cannot be whole; empty where its header and its size fit together."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _HEADER_LIMIT_BYTES:
                return "no header"
            header = json.loads(file.read(length))
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        size = path.stat().st_size
        return "" if size == 8 + length + max(ends, default=0) else "cut short or too long"
    except (OSError, ValueError, LookupError, TypeError) as error:
        return str(error) or type(error).__name__


def hub(request: dict[str, Any]) -> dict[str, Any]:
    """Whether this user may read the model on Hugging Face, or has it in the cache; the token itself is never told."""
    name = request.get("model")
    if not name or str(name).startswith("/"):
        raise ValueError("the model is a directory" if name else "no model was named")
    if os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in {"1", "true"}:
        raise ValueError("the model comes from ModelScope")
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    found: dict[str, Any] = {"cached": folder.is_dir() and any(folder.iterdir())}
    token = os.environ.get("HF_TOKEN") or _text(Path(os.environ.get("HF_TOKEN_PATH") or home / "token"))
    found["token"] = bool(token)
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        return {**found, "offline": True}
    base = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    request_ = urllib.request.Request(f"{base}/{name}/resolve/main/config.json", method="HEAD")  # noqa: S310
    if token:
        # Not forwarded to another host on a redirect.
        request_.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request_, timeout=8) as response:  # noqa: S310 - the user's own endpoint
            return {**found, "status": response.status}
    except urllib.error.HTTPError as error:
        error.close()
        return {**found, "status": error.code}
    except OSError as error:
        return {**found, "error": str(error)[:200]}


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


PROBES: dict[str, Any] = {"model": model, "hub": hub}
