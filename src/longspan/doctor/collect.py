"""Reads what there is: files, directories, rotated and gzipped logs, standard input."""

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from longspan.doctor.kept import FOLDER
from longspan.doctor.match import Diagnosis, diagnose_record
from longspan.doctor.rules import MARKS, RULES
from longspan.doctor.scan import Scanner
from longspan.errors import LogUnreadableError

CHUNK_BYTES = 1 << 20
# What a directory is searched for; the rest (sockets, shared memory, weights) is no log.
SUFFIXES = (".log", ".out", ".err", ".txt", ".json", ".jsonl", ".gz", ".xz", ".bz2")
SKIPPED_DIRECTORIES = frozenset({".git", "__pycache__", "node_modules", "sockets"})
STDIN = Path("-")


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of one log, decompressed by its first bytes; UTF-16 (PowerShell's redirection) becomes UTF-8.

    Raises:
        LogUnreadableError: it does not exist or may not be read.
    """
    try:
        if path == STDIN:
            yield from _read(sys.stdin.buffer)
            return
        with path.open("rb") as raw:
            magic = raw.read(6)
            raw.seek(0)
            yield from _read(_opened(raw, magic))
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, OSError) as error:
        if isinstance(error, EOFError | lzma.LZMAError | gzip.BadGzipFile):
            return  # a truncated tail: what could be read has been given
        raise LogUnreadableError(
            f"{path} cannot be read: {error.strerror or error}.", "Check the path and its permissions."
        ) from error


def _opened(raw: IO[bytes], magic: bytes) -> IO[bytes]:
    if magic.startswith(b"\x1f\x8b"):
        return gzip.open(raw)  # type: ignore[return-value]
    if magic.startswith(b"\xfd7zXZ"):
        return lzma.open(raw)
    if magic.startswith(b"BZh"):
        return bz2.open(raw)
    return raw


def _read(stream: IO[bytes]) -> Iterator[bytes]:
    first = True
    wide = ""
    while block := stream.read(CHUNK_BYTES):
        if first:
            first = False
            if block.startswith((b"\xff\xfe", b"\xfe\xff")):
                wide = "utf-16-le" if block.startswith(b"\xff\xfe") else "utf-16-be"
                block = block[2:]
        yield block.decode(wide, "replace").encode() if wide else block


def logs_of(paths: Sequence[Path], *, collected: bool = False) -> list[Path]:
    """The files to read, in a stable order: rotated ones (`x.log.2`, `x.log.1`) before the current one.

    Args:
        collected: also what was collected from hosts, which is no log.

    Raises:
        LogUnreadableError: a path does not exist.
    """
    found: list[Path] = []
    skipped = SKIPPED_DIRECTORIES if collected else SKIPPED_DIRECTORIES | {FOLDER}
    for path in paths:
        if path == STDIN or path.is_file() or path.is_fifo() or path.is_char_device():
            found.append(path)
        elif path.is_dir():
            inner: list[Path] = []
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(f for f in folders if f not in skipped)
                inner += [Path(folder) / n for n in names if _is_log(n)]
            found += sorted((p for p in inner if p.is_file()), key=_rotation)
        else:
            raise LogUnreadableError(
                f"{path} does not exist.", "Name log files, directories of logs, or - for standard input."
            )
    return found


def _is_log(name: str) -> bool:
    stem = name.rstrip("0123456789.-")
    return (
        name.endswith(SUFFIXES) or stem.endswith(SUFFIXES) or name in ("syslog", "messages", "dmesg", "kern")
    )


def _rotation(path: Path) -> tuple[str, int]:
    """`x.log.10` < `x.log.2` < `x.log.1` < `x.log`: older first."""
    name = path.name.removesuffix(".gz").removesuffix(".xz").removesuffix(".bz2")
    stem, _, number = name.rpartition(".")
    if number.isdigit() and stem:
        return str(path.parent / stem), -int(number)
    return str(path.parent / name), 1


def diagnose(
    paths: Sequence[Path],
    kernels: Mapping[str, bytes] | None = None,
    nodes: Mapping[Path, str] | None = None,
) -> Diagnosis:
    """Reads all logs below these paths and says what failed.

    Args:
        kernels: node -> kernel messages of the launch's own time.
        nodes: directory -> the node whose logs lie there.

    Raises:
        LogUnreadableError: a path does not exist or may not be read.
    """
    scanner = Scanner(RULES, MARKS)
    for path in logs_of(paths):
        node = next((name for place, name in (nodes or {}).items() if place in path.parents), "")
        scanner.feed("stdin" if path == STDIN else str(path), chunks(path), node)
    for node, text in (kernels or {}).items():
        scanner.feed(f"{node}: dmesg", [text], node)
    return diagnose_record(scanner.record())
