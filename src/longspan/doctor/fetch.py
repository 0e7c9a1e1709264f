"""Fetches the logs of nodes on other machines: the beginning and the end of each, over ssh."""

import shlex
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from longspan.errors import HostError
from longspan.host import Host

# Of each log: a launch's first error stands near its beginning or its end.
HEAD_BYTES, TAIL_BYTES = 256 << 10, 512 << 10
FILES_LIMIT = 60
FETCH_SECONDS = 60.0
_MARK = "longspan-log-begins-here"
_EACH = (
    f'printf "\\n%s %s\\n" {_MARK} "$f"; if [ "$(wc -c <"$f")" -gt {HEAD_BYTES + TAIL_BYTES} ]; '
    f'then head -c {HEAD_BYTES} "$f"; printf "\\n[left out]\\n"; tail -c {TAIL_BYTES} "$f"; else cat "$f"; fi'
)


def _command(directory: str) -> list[str]:
    """Prints all logs below a directory; a leading "~/" is the far side's home."""
    home, rest = ("~/", directory[2:]) if directory.startswith("~/") else ("", directory)
    files = f"find . -type f -size +0 ! -name '*.gz' | sort | head -n {FILES_LIMIT}"
    return ["sh", "-c", f"cd {home}{shlex.quote(rest)} && {files} | while IFS= read -r f; do {_EACH}; done"]


def parse(text: str) -> dict[str, str]:
    """The logs in what `_command` prints: relative path -> text. A path that leads outside is left out."""
    found: dict[str, str] = {}
    for part in text.split(f"\n{_MARK} ")[1:]:
        name, _, body = part.partition("\n")
        path = PurePosixPath(name)
        if not path.is_absolute() and ".." not in path.parts and path.parts:
            found[str(path)] = body
    return found


def _fetch(host: Host, directory: str, into: Path) -> str:
    try:
        done = host.run(_command(directory), timeout_seconds=FETCH_SECONDS)
    except HostError as error:
        return error.what
    logs = parse(done.stdout)
    for name, body in logs.items():
        path = into / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(body)
    return "" if logs else f"there are no logs in {directory}"


def fetch_logs(wanted: Sequence[tuple[Host, str]], into: Path) -> Mapping[str, str]:
    """Fetches the logs of several hosts at once into `into`, one directory a host; what lay there is replaced.

    Args:
        wanted: hosts, each with its directory of logs.

    Returns:
        name of the host -> why its logs are missing, for those that gave none.
    """
    shutil.rmtree(into, ignore_errors=True)
    if not wanted:
        return {}
    into.mkdir(mode=0o700, parents=True)
    with ThreadPoolExecutor(min(16, len(wanted))) as pool:
        said = list(pool.map(lambda one: _fetch(one[0], one[1], into / one[0].name), wanted))
    return {host.name: reason for (host, _), reason in zip(wanted, said, strict=True) if reason}
