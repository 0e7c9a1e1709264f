"""The gateway's configuration as text. Pure; the gateway reads it again whenever it changes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Upstream:
    """One replica as the gateway is told of it.

    Attributes:
        state: "ready", "draining" or "out". reason: why not "ready".
        max_running: sequences that its engine runs at once, where they are known: the rest waits in the gateway.
    """

    name: str
    url: str
    state: str
    reason: str = ""
    max_running: int | None = None


def render(
    *,
    listen: str,
    key_sha256: str,
    admin_sha256: str,
    ledger: str,
    model: str,
    replicas: Sequence[Upstream],
    upstream_key_file: str,
) -> str:
    """TOML; JSON strings are valid TOML basic strings.

    admin_sha256: of the key for the gateway's figures, which it tells on a free port of loopback.
    """
    lines = [
        f"listen = {json.dumps(listen)}",
        f"ledger = {json.dumps(ledger)}",
        "[admin]",
        'listen = "127.0.0.1:0"',
        f"sha256 = {json.dumps(admin_sha256)}",
        "[[keys]]",
        'name = "default"',
        f"sha256 = {json.dumps(key_sha256)}",
        "[[models]]",
        f"name = {json.dumps(model)}",
    ]
    for one in replicas:
        lines += [
            "[[replicas]]",
            f"name = {json.dumps(one.name)}",
            f"url = {json.dumps(one.url)}",
            f"model = {json.dumps(model)}",
            f"upstream_key_file = {json.dumps(upstream_key_file)}",
            f"state = {json.dumps(one.state)}",
            f"reason = {json.dumps(one.reason)}",
        ]
        lines += [f"max_running = {one.max_running}"] if one.max_running else []
    return "\n".join(lines) + "\n"


def max_running(vllm_arguments: Sequence[str]) -> int | None:
    """What vLLM's arguments say about how many sequences run at once, over all data-parallel engines.

    None where they say nothing: the default depends on vLLM's version and GPU, and the gateway learns it from metrics.
    """
    seqs = _number(vllm_arguments, "max-num-seqs")
    return seqs * (_number(vllm_arguments, "data-parallel-size") or 1) if seqs else None


def _number(arguments: Sequence[str], name: str) -> int | None:
    """The last value of an option; argparse takes dashes and underscores alike, and `--name=N`."""
    found = None
    for at, word in enumerate(arguments):
        option, equals, value = word.partition("=")
        if option.startswith("--") and option[2:].replace("_", "-") == name:
            text = value if equals else (arguments[at + 1] if at + 1 < len(arguments) else "")
            found = int(text) if text.isdecimal() else None
    return found
