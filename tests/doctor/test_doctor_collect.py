"""Files, directories, rotated and compressed logs are read; what cannot be read is said."""

import bz2
import gzip
import lzma
from pathlib import Path

import pytest
from doctor_logs import START, closed, connecting, failed, head, loading, worker, wrapped

from longspan.doctor.collect import diagnose, logs_of
from longspan.errors import LogUnreadableError

FAULT = "Nov 12 09:00:00 gpu01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gzip", "bzip2", "xz"]
)
def test_reads_compressed_logs(tmp_path: Path, pack: object) -> None:
    """By the first bytes, whatever the name."""
    path = tmp_path / "log"
    path.write_bytes(pack(FAULT.encode()))  # type: ignore[operator]
    assert [f.cause for f in diagnose([path]).findings] == ["gpu-hardware-fault"]


def test_reads_utf16(tmp_path: Path) -> None:
    """PowerShell redirects in UTF-16."""
    path = tmp_path / "x.log"
    path.write_bytes(FAULT.encode("utf-16"))
    assert diagnose([path]).findings[0].cause == "gpu-hardware-fault"


def test_a_truncated_archive_gives_what_it_holds(tmp_path: Path) -> None:
    """A log that was being rotated when the disk filled."""
    import random

    rng = random.Random(1)
    noise = "".join(f"line {rng.random()}\n" for _ in range(50_000))
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress((FAULT + noise).encode())[:-2000])
    assert diagnose([path]).findings[0].cause == "gpu-hardware-fault"


def test_directories_in_order(tmp_path: Path) -> None:
    """Older rotations first, only logs, every level."""
    (tmp_path / "b").mkdir()
    for name in ("a.log", "a.log.1", "a.log.2.gz", "a.log.10", "b/w.out", "weights.safetensors", "b/x.sock"):
        (tmp_path / name).write_bytes(b"")
    names = [str(p.relative_to(tmp_path)) for p in logs_of([tmp_path])]
    assert names == ["a.log.10", "a.log.2.gz", "a.log.1", "a.log", "b/w.out"]


def test_logs_of_two_nodes_are_one_story(tmp_path: Path) -> None:
    """The file of the node that only suffered comes first and does not win."""
    lines = head() + connecting() + loading()
    a = tmp_path / "a-head.log"
    a.write_text("\n".join(lines + closed(START + 120, range(8), "10.0.0.12") + wrapped(START + 125)))
    b = tmp_path / "b-worker.log"
    error = "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"
    b.write_text("\n".join(failed(worker(13, True), START + 119, error)))
    finding = diagnose([a, b]).findings[0]
    assert finding.cause == "weights-corrupt"
    assert finding.evidence[0].file == str(b)


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    """And not an empty log."""
    with pytest.raises(LogUnreadableError, match="does not exist"):
        diagnose([tmp_path / "none"])
