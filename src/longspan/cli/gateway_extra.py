"""`longspan up --gateway FILE`: what a user adds to the gateway of a deployment (providers, overflow, keys, …), as tables of
the gateway's own file."""

import tomllib
from pathlib import Path
from typing import Any

from longspan.daemon.gateway_config import Upstream, render
from longspan.errors import GatewayConfigError
from longspan.gateway.configfile import parse_config

# What the deployment itself decides, or what its endpoint would no longer be found by.
OURS = ("listen", "workers", "replicas", "ledger", "log", "admin", "tls")


def read(path: Path, listen: str, model: str) -> str:
    """The file's text, once the gateway would take it beside what the deployment writes.

    Args:
        listen: the gateway's address. model: the name that clients use.

    Raises:
        GatewayConfigError: it cannot be read, is not TOML, holds what is not the user's to say, or the gateway refuses it.
    """
    try:
        text = path.read_text()
        tables = tomllib.loads(text)
    except OSError as error:
        raise GatewayConfigError(f"--gateway {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:  # also of an encoding
        raise GatewayConfigError(f"--gateway {path} is not valid TOML: {error}.") from error
    for name, value in tables.items():
        if name in OURS:
            raise GatewayConfigError(
                f"--gateway {path}: {name!r} is what the deployment decides.",
                "Leave it out; `longspan gateway` alone takes it.",
            )
        if not isinstance(value, dict | list):
            raise GatewayConfigError(
                f"--gateway {path}: {name!r} is no table.", "Only tables can be added, such as [overflow]."
            )
    _absolute(tables, path)
    ours = render(
        listen=listen, key_sha256="0" * 64, admin_sha256="0" * 64, ledger="/ledger", model=model,
        replicas=[Upstream("r0", "http://127.0.0.1:9", "ready")], upstream_key_file="/key",
    )  # fmt: skip
    parse_config(f"{ours}\n{text}")
    return text


def _absolute(value: Any, path: Path, name: str = "") -> None:
    """The gateway's own file lies elsewhere, so a relative path would mean another file there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _absolute(inner, path, key)
    elif isinstance(value, list):
        for inner in value:
            _absolute(inner, path, name)
    elif name.endswith("_file"):
        file = Path(str(value))
        if not file.is_absolute() or not file.is_file():
            what = "is not there" if file.is_absolute() else "is no absolute path"
            raise GatewayConfigError(
                f"--gateway {path}: {name} {str(value)!r} {what}.", "Name a file by its whole path."
            )
