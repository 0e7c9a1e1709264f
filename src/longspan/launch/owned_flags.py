"""vLLM's flags that Longspan owns, in every spelling that vLLM takes: a second opinion would make `status` lie.

The list was made by going through the whole of `vllm serve --help=all` of 0.32. What is not here is vLLM's business.
"""

import re
from collections.abc import Sequence

from longspan.errors import InputError

_CHOSEN = "Leave it out: it is chosen at each start."
_TLS = "Leave it out: the gateway speaks plain HTTP to the engine. TLS belongs in front of the gateway."
_LOG = "Leave it out: ranks and readiness are read from the engine's INFO lines."
_REPLICAS = "Leave it out: several replicas of one deployment are not launched yet."

# Where ranks run, who may reach them, how we hear of them. Value: what to do instead.
OWNED_FLAGS: dict[str, str] = {
    "--tensor-parallel-size": "Use --tp instead.",
    "-tp": "Use --tp instead.",
    "--pipeline-parallel-size": "Use --pp instead.",
    "-pp": "Use --pp instead.",
    "--distributed-executor-backend": "Use --executor instead.",
    "--nnodes": "Use --nodes or --cluster instead.",
    "-n": "Use --nodes or --cluster instead.",
    "--node-rank": "Use --nodes or --cluster instead.",
    "-r": "Use --nodes or --cluster instead.",
    "--master-addr": "Use --cluster instead.",
    "--master-port": _CHOSEN,
    "--headless": "Leave it out: Longspan starts the followers.",
    "--host": "Use --listen instead, for the gateway.",
    "--port": "Use --listen instead, for the gateway.",
    "--uds": "Use --listen instead, for the gateway.",
    "--grpc": "Leave it out: the gateway speaks HTTP to the engine.",
    "--grpc-port": "Leave it out: it is a second door to the engine, without a key.",
    "--api-key": "Leave it out: the engine's key is made at each start, the client's is the gateway's.",
    "--hf-token": "Put HF_TOKEN into the environment instead: what stands on a command line can be read by every user of the host.",
    "--model": "Use the MODEL argument instead.",
    "--served-model-name": "Use --served-name instead.",
    "--revision": "Use --revision before the -- instead: it is resolved to a commit once, so that all nodes load the same.",
    # Its file may hold any flag of this list, and is read on rank 0's node only.
    "--config": "Write the file's flags after the -- instead.",
    "--enable-ssl-refresh": _TLS,
    "--uvicorn-log-level": _LOG,
    "--log-level": _LOG,
    "--logging-config": _LOG,
    "--log-config-file": _LOG,
    "-pcp": "Leave it out: prefill context parallelism is not laid out yet.",
    "--prefill-context-parallel-size": "Leave it out: prefill context parallelism is not laid out yet.",
    "--enable-elastic-ep": "Leave it out: it adds and removes ranks while the engine runs.",
    "--device-ids": "Use gpus = … and the order of the nodes in the file of --cluster instead.",
    "--ray-workers-use-nsight": "Leave it out: it changes Ray's runtime environment, which Longspan sets.",
}  # fmt: skip
# Whole families: `--data-parallel-size-local`, `--ssl-keyfile`, …
OWNED_PREFIXES: dict[str, str] = {"--data-parallel-": _REPLICAS, "--ssl-": _TLS}
OWNED_FLAGS |= dict.fromkeys(
    ("-dp", "-dpn", "-dpr", "-dpl", "-dpa", "-dpp", "-dpb", "-dph", "-dpe", "-dpm"), _REPLICAS
)


def refuse_owned_flags(arguments: Sequence[str]) -> None:
    """Checks what stood after `--`.

    Raises:
        InputError: a flag that Longspan owns, with what to do instead.
    """
    for argument in arguments:
        instead = owned_flag(argument)
        if instead:
            raise InputError(
                f"{argument.split('=', 1)[0]} decides where ranks run, who may reach them or how they are watched,"
                " and Longspan owns it.",
                instead,
            )


def owned_flag(argument: str) -> str:
    """What to do instead of a flag that Longspan owns, in any spelling that vLLM takes for it; empty for all others.

    vLLM's parser is argparse with underscores for dashes: a long flag may be cut short where it stays unambiguous
    (`--tensor-par 2`), and the value may stand at a short flag of one letter (`-n2`).
    """
    flag = argument.split("=", 1)[0]
    if re.fullmatch(r"-[a-z]+\d+", flag):
        flag = flag.rstrip("0123456789")
    elif flag.startswith("--"):
        flag = flag.split(".", 1)[0].replace("_", "-")  # --logging-config.log_level
    if len(flag) < (4 if flag.startswith("--") else 2) or not flag.startswith("-"):
        return ""
    for whole, instead in OWNED_FLAGS.items():
        if whole.startswith(flag):
            return instead
    return next((instead for prefix, instead in OWNED_PREFIXES.items() if flag.startswith(prefix)), "")
