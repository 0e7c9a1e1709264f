"""Tables that a user adds to the gateway of a deployment."""

from pathlib import Path

import pytest

from longspan.cli import gateway_extra
from longspan.daemon.gateway_config import Upstream, render
from longspan.errors import GatewayConfigError
from longspan.gateway.configfile import parse_config

GOOD = """
[overflow]
threshold_seconds = 5

[[keys]]
name = "batch"
sha256 = "{key}"

[[providers]]
name = "outside"
url = "https://api.example.com/v1"
key_file = "{file}"
models = {{ m = "m-large" }}
"""


def test_what_is_added_stands_beside_what_the_deployment_writes(tmp_path: Path) -> None:
    """Both keys, the provider and the threshold are what the gateway reads."""
    key = tmp_path / "key"
    key.write_text("k")
    path = tmp_path / "extra.toml"
    path.write_text(GOOD.format(key="a" * 64, file=key))
    extra = gateway_extra.read(path, "127.0.0.1:8000", "m")
    ours = render(
        listen="127.0.0.1:8000", key_sha256="b" * 64, admin_sha256="c" * 64, ledger="/l", model="m",
        upstream_key_file=str(key), replicas=[Upstream("r0", "http://a:1", "out", "it starts")],
    )  # fmt: skip
    config = parse_config(f"{ours}\n{extra}")
    assert [one.name for one in config.keys] == ["default", "batch"]
    assert config.providers[0].key_file == str(key)
    assert config.overflow.threshold_seconds == 5
    assert config.replicas[0].state == "out"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('listen = "0.0.0.0:1"', "is what the deployment decides"),
        ('[[replicas]]\nname = "x"\nurl = "http://a"\nmodel = "m"', "is what the deployment decides"),
        ("[admin]\nlisten = '0.0.0.0:1'\nsha256 = ''", "is what the deployment decides"),
        ('ca_file = "/x"', "is no table"),
        ("[overflow", "is not valid TOML"),
        ("[overflow]\nthreshold = 5", "Unknown key 'threshold'"),
        ('[[keys]]\nname = "default"\nsha256 = "' + "a" * 64 + '"', "Two keys are called 'default'"),
        (
            '[[providers]]\nname = "p"\nurl = "http://a"\nkey_file = "k"\nmodels = { m = "x" }',
            "is no absolute path",
        ),
        (
            '[[providers]]\nname = "p"\nurl = "http://a"\nkey_file = "/nowhere/k"\nmodels = { m = "x" }',
            "is not there",
        ),
        ("[[keys]]\nname = 'n'\nsha256 = 5", "sha256"),
    ],
)
def test_what_cannot_be_added(tmp_path: Path, text: str, why: str) -> None:
    """What is the deployment's own, no TOML, no table, or nothing that the gateway would take: refused before anything starts."""
    path = tmp_path / "extra.toml"
    path.write_text(text)
    with pytest.raises(GatewayConfigError) as caught:
        gateway_extra.read(path, "127.0.0.1:8000", "m")
    assert why in str(caught.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    """Missing, or no text."""
    path = tmp_path / "extra.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(GatewayConfigError):
        gateway_extra.read(path, "127.0.0.1:8000", "m")
