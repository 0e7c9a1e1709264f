"""A model as many tests want one: a directory with its config.json."""

import json
from pathlib import Path
from typing import Any


def model_directory(path: Path, config: dict[str, Any]) -> Path:
    """Makes it, without weights or a tokenizer."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path
