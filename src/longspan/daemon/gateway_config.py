"""The gateway's configuration as text. Pure; the gateway reads it again whenever it changes."""

import json


def render(
    *,
    listen: str,
    key_sha256: str,
    model: str,
    url: str,
    upstream_key_file: str,
    state: str,
    reason: str,
) -> str:
    """TOML; JSON strings are valid TOML basic strings."""
    lines = [
        f"listen = {json.dumps(listen)}",
        "[[keys]]",
        'name = "default"',
        f"sha256 = {json.dumps(key_sha256)}",
        "[[models]]",
        f"name = {json.dumps(model)}",
    ]
    if url:
        lines += [
            "[[replicas]]",
            'name = "r0"',
            f"url = {json.dumps(url)}",
            f"model = {json.dumps(model)}",
            f"upstream_key_file = {json.dumps(upstream_key_file)}",
            f"state = {json.dumps(state)}",
            f"reason = {json.dumps(reason)}",
        ]
    return "\n".join(lines) + "\n"
