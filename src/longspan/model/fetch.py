"""Getting a model's config: a local directory, the built-in list, or Hugging Face. The only module of this room with I/O."""

from pathlib import Path

from longspan.errors import ModelError
from longspan.model.facts import ModelFacts
from longspan.model.parse import parse_text


def load_directory(path: Path) -> ModelFacts:
    """Reads the model in a local directory (config.json, and hf_quant_config.json where there is one).

    Raises:
        ModelError: no config.json there, or it cannot be read.
    """
    config, quant = path / "config.json", path / "hf_quant_config.json"
    if not config.is_file():
        raise ModelError(
            f"{path} has no config.json, so it is not a model directory.",
            "Give the directory that holds config.json and the *.safetensors files.",
        )
    return parse_text(config.read_text(), path.name, quant.read_text() if quant.is_file() else None)
