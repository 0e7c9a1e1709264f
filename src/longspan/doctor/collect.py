"""Reads what there is: files, directories, rotated and gzipped logs, standard input."""

import bz2
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from longspan.doctor.kept import FOLDER
from longspan.doctor.match import Diagnosis, diagnose_record
from longspan.doctor.rules import MARKS, RULES
from longspan.doctor.scan import Scanner
from longspan.errors import LogUnreadableError

CHUNK_BYTES = 1 << 20
READ_BYTES = 1 << 16
# Four times what `xz -9` needs: an archive that asks for more is no log.
LZMA_LIMIT_BYTES = 1 << 28
# What a directory is searched for; the rest (sockets, shared memory, weights, what was collected from hosts) is no log.
SUFFIXES = (".log", ".out", ".err", ".txt", ".json", ".jsonl", ".gz", ".xz", ".bz2")
SKIPPED_DIRECTORIES = frozenset({".git", "__pycache__", "node_modules", "sockets", FOLDER})
STDIN = Path("-")


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of one log, decompressed by its first bytes; UTF-16 (PowerShell's redirection) becomes UTF-8.

    Raises:
        LogUnreadableError: it does not exist or may not be read.
    """
    try:
        if path == STDIN:
            yield from _read(_plain(_peekable(sys.stdin.buffer)))
            return
        with path.open("rb") as raw:
            yield from _read(_plain(raw))
    except OSError as error:
        raise LogUnreadableError(
            f"{path} cannot be read: {error.strerror or error}.", "Check the path and its permissions."
        ) from error


def _peekable(stream: IO[bytes]) -> io.BufferedReader:
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(stream)  # type: ignore[arg-type]


def _plain(raw: io.BufferedReader) -> Iterator[bytes]:
    """Blocks of one megabyte of what a file, pipe or FIFO holds, decompressed by its first bytes."""
    magic = raw.peek(6)[:6]
    if magic.startswith(b"\x1f\x8b"):
        return _decompressed(raw, lambda: zlib.decompressobj(zlib.MAX_WBITS | 16))
    if magic.startswith(b"\xfd7zXZ"):
        return _decompressed(raw, lambda: lzma.LZMADecompressor(memlimit=LZMA_LIMIT_BYTES))
    if magic.startswith(b"BZh"):
        return _decompressed(raw, bz2.BZ2Decompressor)
    return iter(lambda: raw.read(CHUNK_BYTES), b"")


def _decompressed(raw: IO[bytes], fresh: Callable[[], Any]) -> Iterator[bytes]:
    """Everything up to where an archive is cut off or damaged: the library's own file objects lose the block before that.

    One archive may hold several streams one after the other (`cat a.gz b.gz`); what follows the last one is no log.
    """
    engine, data, ended = fresh(), b"", False
    while not ended:
        if engine.eof:
            engine, data = fresh(), engine.unused_data or raw.read(READ_BYTES)
            if not data.strip(b"\0"):
                return  # the end, or padding
        elif not data and getattr(engine, "needs_input", True):
            data = raw.read(READ_BYTES)
            ended = not data  # what the engine still holds comes out below
        try:
            block = engine.decompress(data, CHUNK_BYTES)
        except (zlib.error, lzma.LZMAError, EOFError, OSError):
            return
        data = getattr(engine, "unconsumed_tail", b"")
        if block:
            yield block


def _read(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks in UTF-8."""
    first = True
    wide = ""
    for read in blocks:
        block = read
        if first:
            first = False
            if block.startswith((b"\xff\xfe", b"\xfe\xff")):
                wide = "utf-16-le" if block.startswith(b"\xff\xfe") else "utf-16-be"
                block = block[2:]
        yield block.decode(wide, "replace").encode() if wide else block


def logs_of(paths: Sequence[Path]) -> list[Path]:
    """The files to read, in a stable order: rotated ones (`x.log.2`, `x.log.1`) before the current one.

    Raises:
        LogUnreadableError: a path does not exist.
    """
    found: list[Path] = []
    for path in paths:
        if path == STDIN or path.is_file() or path.is_fifo() or path.is_char_device():
            found.append(path)
        elif path.is_dir():
            inner: list[Path] = []
            for folder, folders, names in os.walk(path):
                folders[:] = sorted(f for f in folders if f not in SKIPPED_DIRECTORIES)
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
