"""Writes what others need to help: the diagnosis and the logs, redacted, in one archive."""

import io
import json
import re
import socket
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from getpass import getuser
from pathlib import Path

from longspan.doctor.collect import STDIN, chunks, logs_of
from longspan.doctor.kept import texts_of
from longspan.doctor.redact import Redactor
from longspan.doctor.stacks import Collected
from longspan.errors import BundleError

# The first and last part of each log: the launch and the failure. What lies between is serving.
HEAD_BYTES, TAIL_BYTES = 8 << 20, 24 << 20

_README = """This archive was written by `longspan doctor --bundle`.
diagnosis.json   what the doctor found
logs/            the logs it read; secrets, prompts, user names, host names and addresses were replaced
hosts/           what was collected from the hosts (stacks, sockets, counters, kernel messages), with the same replaced
Addresses of 198.18.0.0/15 stand for real ones: one address has one stand-in, and equal subnets stay equal.
Look through it before you share it: no list of patterns knows every secret.
"""


def _local_names() -> list[str]:
    names = [socket.gethostname(), socket.gethostname().split(".")[0]]
    with suppress(KeyError, OSError):
        names.append(getuser())
    return [n for n in names if n not in ("root", "localhost", "")]


def _nodes(diagnosis: dict[str, object]) -> list[str]:
    """The nodes that the logs name. A word of the language is no name that could be taken out everywhere."""
    timeline, skews = diagnosis.get("timeline"), diagnosis.get("clock_skew_seconds")
    named = {str(m.get("node", "")) for m in timeline} if isinstance(timeline, list) else set()
    named |= set(skews) if isinstance(skews, dict) else set()
    return sorted(n for n in named if re.fullmatch(r"[A-Za-z](?=.*[\d-])[\w.-]+", n))


def _excerpt(path: Path) -> Iterator[bytes]:
    """The head and the tail of a log, cut at line ends, with a note between."""
    head, tail, skipped = b"", b"", 0
    for block in chunks(path):
        if len(head) < HEAD_BYTES:
            head += block
            continue
        tail += block
        if len(tail) > 2 * TAIL_BYTES:
            skipped += len(tail) - TAIL_BYTES
            tail = tail[-TAIL_BYTES:]
    yield head
    if skipped:
        tail = tail[tail.find(b"\n") + 1 :]
        yield f"\n[{skipped} bytes left out]\n".encode()
    yield tail


def redacted_lines(data: Iterable[bytes], redactor: Redactor) -> Iterator[str]:
    """The lines of one log without what must not leave."""
    redactor.start_file()
    text = b"".join(data).decode("utf-8", "replace")
    for line in text.split("\n"):
        yield redactor.line(line)


def write(
    out: Path,
    paths: Sequence[Path],
    diagnosis: dict[str, object],
    names: Sequence[str] = (),
    raw: Sequence[Collected] = (),
) -> list[str]:
    """Writes the archive and returns the names of its members.

    Args:
        out: a .tar.gz that does not exist yet.
        paths: logs and directories, as for `diagnose`.
        diagnosis: the `--json` document; it is redacted like the logs.
        names: further host and user names to take out.
        raw: what was collected from hosts.

    Raises:
        BundleError: it exists already or cannot be written.
        LogUnreadableError: a log cannot be read.
    """
    redactor = Redactor([*_local_names(), *_nodes(diagnosis), *names])
    members: list[str] = []
    try:
        with out.open("xb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for number, path in enumerate(p for p in logs_of(paths) if p != STDIN):
                text = "\n".join(redacted_lines(_excerpt(path), redactor))
                members.append(_add(archive, f"logs/{number:03d}-{redactor.line(path.name)}.txt", text))
            for number, host in enumerate(raw):
                for name, text in sorted(texts_of(host).items()):
                    told = "\n".join(redacted_lines([text.encode()], redactor))
                    members.append(_add(archive, f"hosts/{number:03d}/{redactor.line(name)}.txt", told))
            text = json.dumps(_redacted(diagnosis, redactor), indent=1, ensure_ascii=False)
            members.append(_add(archive, "diagnosis.json", text + "\n"))
            members.append(_add(archive, "README.txt", _README))
    except FileExistsError as error:
        raise BundleError(f"{out} exists already.", "Name a file that does not exist yet.") from error
    except OSError as error:
        raise BundleError(
            f"{out} cannot be written: {error.strerror or error}.", "Choose another place."
        ) from error
    return members


def _redacted(value: object, redactor: Redactor) -> object:
    """The same document with every text in it redacted."""
    if isinstance(value, str):
        redactor.start_file()
        return redactor.line(value)
    if isinstance(value, dict):
        return {_redacted(k, redactor): _redacted(v, redactor) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(v, redactor) for v in value]
    return value


def _add(archive: tarfile.TarFile, name: str, text: str) -> str:
    data = text.encode()
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    archive.addfile(info, io.BytesIO(data))
    return name
