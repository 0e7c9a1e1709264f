"""Logs of other machines: fetched whole, or their two ends, by the commands that really run there."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lab.build import Lab
from lab.hosts import HostSpec
from longspan.doctor.fetch import HEAD_BYTES, TAIL_BYTES, fetch_logs, parse
from longspan.host import LocalHost, SshHost


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A node's directory of logs."""
    logs = tmp_path / "it's there"
    (logs / "ray").mkdir(parents=True)
    (logs / "launcher.log").write_text("first\nlast\n")
    (logs / "ray" / "a b.out").write_text(
        "x" * (HEAD_BYTES + TAIL_BYTES) + "MIDDLE" + "y" * TAIL_BYTES + "end\n"
    )
    (logs / "ray" / "empty.err").touch()
    return logs


def test_both_ends_of_each_log(there: Path, tmp_path: Path) -> None:
    """A short log comes whole, a long one without its middle, an empty one not at all; what lay there before is gone."""
    into = tmp_path / "fetched"
    (into / "old").mkdir(parents=True)
    assert fetch_logs([(LocalHost("n1"), str(there))], into) == {}
    assert {str(p.relative_to(into)) for p in into.rglob("*") if p.is_file()} == {
        "n1/launcher.log",
        "n1/ray/a b.out",
    }
    assert (into / "n1" / "launcher.log").read_text() == "first\nlast\n"
    long = (into / "n1" / "ray" / "a b.out").read_text()
    assert long.startswith("xxx")
    assert long.endswith("yend\n")
    assert "[left out]" in long
    assert "MIDDLE" not in long


def test_what_cannot_be_fetched_is_said(tmp_path: Path) -> None:
    """A directory that is not there gives its reason and no file; nothing wanted leaves nothing."""
    into = tmp_path / "fetched"
    missing = fetch_logs([(LocalHost("n1"), str(tmp_path / "nowhere"))], into)
    assert "nowhere" in missing["n1"]
    assert fetch_logs([], into) == {}
    assert not into.exists()


def test_a_path_that_leads_outside_is_dropped() -> None:
    """A host that lies about names writes nowhere else."""
    mark = "\nlongspan-log-begins-here "
    assert parse(f"{mark}../x\n1{mark}/etc/passwd\n2{mark}./a/b.log\n3\n") == {"a/b.log": "3\n"}


@pytest.mark.lab
def test_over_ssh(make_lab: Callable[..., AbstractContextManager[Lab]], there: Path, tmp_path: Path) -> None:
    """Through a real sshd, whose shell splits the command line once more; a host that is off is named with ssh's reason."""
    with make_lab([HostSpec("h1")]) as lab:
        host = SshHost("h1", "h1", tuple(lab.ssh_options(lab["h1"])))
        into = tmp_path / "fetched"
        assert fetch_logs([(host, str(there))], into) == {}
        assert (into / "h1" / "launcher.log").read_text() == "first\nlast\n"
        lab["h1"].power_off()
        assert "h1 cannot be reached" in fetch_logs([(host, str(there))], into)["h1"]
