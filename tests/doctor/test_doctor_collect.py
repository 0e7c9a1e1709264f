"""Files, directories, rotated and compressed logs are read; what cannot be read is said."""

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from doctor_logs import START, closed, connecting, failed, head, loading, worker, wrapped
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.doctor.collect import _plain, diagnose, logs_of
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


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_an_archive_cut_or_damaged_in_its_first_block(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """What stands before the cut counts, and a wrong byte is no crash."""
    rng = Random(2)
    noise = "".join(f"line {rng.random()}\n" for _ in range(40_000)).encode()
    packed = pack(FAULT.encode() + noise)
    path = tmp_path / "x.log.bin"
    path.write_bytes(packed[: len(packed) - 30])
    assert diagnose([path]).findings[0].cause == "gpu-hardware-fault"
    path.write_bytes(packed[:-3000] + bytes([packed[-3000] ^ 255]) * 40 + packed[-2960:])
    assert diagnose([path]).size_bytes <= len(noise) + len(FAULT)


def test_archives_one_after_the_other(tmp_path: Path) -> None:
    """`cat a.gz b.gz` is one archive, padding at its end is nothing."""
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"one\n" * 500_000) + gzip.compress(FAULT.encode()) + bytes(512))
    diagnosis = diagnose([path])
    assert diagnosis.findings[0].cause == "gpu-hardware-fault"
    assert diagnosis.lines == 500_000 + len(FAULT.splitlines())


@settings(deadline=None, max_examples=30)
@given(st.binary(max_size=3000), st.sampled_from([gzip.compress, bz2.compress, lzma.compress]))
def test_packed_is_unpacked(data: bytes, pack: Callable[[bytes], bytes]) -> None:
    """Whatever was packed comes out, and any part of the archive gives a beginning of it."""
    packed = pack(data)
    for end in (len(packed), len(packed) // 2, 3):
        with io.BufferedReader(io.BytesIO(packed[:end])) as raw:  # type: ignore[type-var]
            found = b"".join(_plain(raw))
        assert data.startswith(found) or end == 3
        assert end < len(packed) or found == data


def test_a_fifo_and_packed_input_are_read(tmp_path: Path) -> None:
    """`longspan doctor <(ssh node cat x.log.gz)`: a pipe cannot be rewound."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = Thread(target=fifo.write_bytes, args=(gzip.compress(FAULT.encode()),))
    writer.start()
    found = diagnose([fifo]).findings
    writer.join()
    assert found[0].cause == "gpu-hardware-fault"


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
