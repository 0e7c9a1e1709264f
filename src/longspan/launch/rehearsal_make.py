"""Fills a rehearsal's directory: random weights under the architecture's own names, and a small tokenizer where there is none.

A process of its own, in the environment of the engine, because it loads torch and transformers:

    python -m longspan.launch.rehearsal_make DIRECTORY

DIRECTORY holds config.json. The last line of standard output is {"weights": "random" or "none", "reason": why none}.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from longspan.launch.proof_texts import PROMPTS, TEXTS
from longspan.model.shrink import BEGIN_ID, END_ID, PAD_ID, SPECIAL_IDS

# The same numbers on every machine with the same torch; the copies of the nodes are compared all the same.
SEED = 20261201
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "tiktoken.model",
    "tekken.json",
)
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
)


def make_tokenizer(directory: Path, tokens: int) -> None:
    """A byte-level tokenizer learnt from the proof's own texts, so that they stay short; every text can be said with it.

    Args:
        tokens: the most ids that it may have.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    names = {PAD_ID: "<pad>", BEGIN_ID: "<begin>", END_ID: "<end>"}
    specials = [names.get(number, f"<other-{number}>") for number in range(SPECIAL_IDS)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, *PROMPTS], trainer)
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=specials[PAD_ID],
        bos_token=specials[BEGIN_ID],
        eos_token=specials[END_ID],
        chat_template=_CHAT_TEMPLATE,
    )
    whole.save_pretrained(directory)


def spread_evenly(model: Any) -> None:
    """Gives every matrix values of 1 / sqrt(columns), which keep the size of what passes through.

    The usual 0.02 is for large hidden sizes. With it, experts of a shrunken model add next to nothing: all of one layer's at zero
    moved the proof's log-probabilities by 0.009, less than its limit of 0.01 (measured, 64 experts, hidden size 256).
    """
    import torch

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim in {2, 3}:
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)


def make_weights(directory: Path, config: dict[str, Any]) -> str:
    """Writes *.safetensors as transformers would publish this architecture.

    Returns:
        why it could not; empty if it did.
    """
    import torch
    import transformers

    name = (config.get("architectures") or [""])[0]
    architecture = getattr(transformers, name, None)
    if architecture is None:
        return f"transformers {transformers.__version__} has no class {name or 'for this model'}"
    torch.manual_seed(SEED)
    try:
        # Kimi-K2 calls its type otherwise and is DeepSeek-V3; transformers finds the published names by the type.
        settings = architecture.config_class.from_dict(
            {**config, "model_type": architecture.config_class.model_type}
        )
        kind = str(config.get("dtype") or config.get("torch_dtype") or settings.dtype or "bfloat16")
        dtype = getattr(torch, kind.removeprefix("torch."))
        model = architecture._from_config(settings, dtype=dtype)  # noqa: SLF001 - what from_config of the Auto classes calls
        spread_evenly(model)
        model.save_pretrained(directory)
    except Exception as error:  # noqa: BLE001 - whatever the class dislikes, the rehearsal goes on without weights
        for file in directory.glob("*.safetensors*"):
            file.unlink()
        return f"transformers' {name} refuses the shrunken config: {type(error).__name__}: {str(error)[:200]}"
    return ""


def main(directory: Path) -> None:
    """Makes what is missing. config.json stays what it was: the real one's fields, not transformers' rendering of them."""
    text = (directory / "config.json").read_text()
    config = json.loads(text)
    with contextlib.redirect_stdout(sys.stderr):
        if not any((directory / name).exists() for name in TOKENIZER_FILES):
            sizes = [
                part["vocab_size"]
                for part in (config, *config.values())
                if isinstance(part, dict) and part.get("vocab_size")
            ]
            make_tokenizer(directory, min(sizes))
        reason = make_weights(directory, config)
    (directory / "config.json").write_text(text)
    (directory / "generation_config.json").unlink(missing_ok=True)
    sys.stdout.write(json.dumps({"weights": "none" if reason else "random", "reason": reason}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
