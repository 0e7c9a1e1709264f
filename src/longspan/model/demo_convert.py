"""Turns the demo model's GGUF file into a checkpoint that vLLM reads. Run as a process of its own: it loads torch.

python -m longspan.model.demo_convert GGUF_FILE TARGET_DIRECTORY
"""

import sys
from pathlib import Path


def convert(gguf_file: Path, target: Path) -> None:
    """Writes config.json, model.safetensors (bfloat16) and the tokenizer with its chat template into `target`.

    transformers dequantises the weights; the quantisation entry is removed from the configuration, because what
    is saved is an ordinary checkpoint.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype="bfloat16"
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
