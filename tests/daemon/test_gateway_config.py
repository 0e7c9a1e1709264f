"""The gateway's file as the controller writes it."""

import pytest

from longspan.daemon.gateway_config import Upstream, max_running, render
from longspan.gateway.configfile import parse_config


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), None),
        (("--max-num-seqs", "64"), 64),
        (("--max_num_seqs=32", "--enforce-eager"), 32),
        (("--max-num-seqs=8", "--max-num-seqs", "16"), 16),
        (("--max-num-seqs", "64", "--data-parallel-size", "4"), 256),
        (("--data-parallel-size=4",), None),
        (("--max-num-seqs", "many"), None),
        (("--max-num-seqs",), None),
    ],
)
def test_how_many_run_at_once_is_read_from_the_engines_arguments(
    arguments: tuple[str, ...], expected: int | None
) -> None:
    """Where they say nothing the gateway learns it; nothing is made up."""
    assert max_running(arguments) == expected


@pytest.mark.parametrize("running", [None, 64])
def test_the_file_is_one_that_the_gateway_takes(running: int | None) -> None:
    """Including names that need quoting."""
    text = render(
        listen="127.0.0.1:8000", key_sha256="0" * 64, admin_sha256="1" * 64, ledger="/s/ledger.sqlite3", model='a "b"', upstream_key_file="/k",
        replicas=[Upstream("r0", "http://10.0.0.1:9", "ready", max_running=running)],
    )  # fmt: skip
    config = parse_config(text)
    (replica,) = config.replicas
    assert config.admin is not None
    assert (config.admin.sha256, config.ledger) == ("1" * 64, "/s/ledger.sqlite3")
    assert (replica.max_running, replica.model) == (running, 'a "b"')
