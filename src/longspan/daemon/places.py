"""Where a deployment keeps its files on the controller's machine, and how they are read and written."""

import contextlib
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.daemon.processes import Identity, alive
from longspan.errors import InputError, StateError


def state_root() -> Path:
    """`$XDG_STATE_HOME/longspan`, by default `~/.local/state/longspan`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "longspan"


def logs_elsewhere(deployment: str, node: str) -> str:
    """Where the agent of a node on another machine keeps its logs; "~" is that machine's."""
    return f"~/.local/state/longspan/{deployment}/logs/{node}"


@dataclass(frozen=True, slots=True)
class Places:
    """The files of one deployment.

    Attributes:
        root: the deployment's directory, mode 0700.
    """

    root: Path

    @classmethod
    def of(cls, name: str) -> "Places":
        """The places of a deployment by its name.

        Raises:
            InputError: the name cannot be a directory's.
        """
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
            raise InputError(
                f"{name!r} cannot be a deployment's name.",
                "Use up to 31 of a-z, 0-9 and '-', a letter or digit first.",
            )
        return cls(state_root() / name)

    @property
    def controller(self) -> Path:
        """Who controls: pid, start time, URL and key; mode 0600; there while the deployment is."""
        return self.root / "controller.json"

    @property
    def spec(self) -> Path:
        """What is wanted."""
        return self.root / "deployment.json"

    @property
    def api_key(self) -> Path:
        """The key that clients use, mode 0600; kept over restarts."""
        return self.root / "api-key"

    @property
    def engine_key(self) -> Path:
        """The key that the gateway shows the engine, mode 0600; new at each start."""
        return self.root / "engine-key"

    @property
    def gateway_config(self) -> Path:
        """Written by the controller, read by the gateway."""
        return self.root / "gateway.toml"

    @property
    def ledger(self) -> Path:
        """The gateway's record of requests and money; kept over restarts."""
        return self.root / "ledger.sqlite3"

    @property
    def last_status(self) -> Path:
        """The last status document, which outlives a failed launch."""
        return self.root / "last-status.json"

    @property
    def launches(self) -> Path:
        """The record of every launch (`launch_store`); the doctor compares a failed one with the last good one, and takes
        its patience from how long the phases of good ones took."""
        return self.root / "launches.sqlite3"

    @property
    def preflight(self) -> Path:
        """What the pre-flight of the last `up` found; absent where there was none."""
        return self.root / "preflight.json"

    def checked(self) -> dict[str, dict[str, str]]:
        """Node -> what that pre-flight found there; empty where there was none."""
        try:
            found: dict[str, dict[str, str]] = json.loads(self.preflight.read_text())["nodes"]
        except (OSError, ValueError, LookupError, TypeError):
            return {}
        return found

    @property
    def history(self) -> Path:
        """The events of the last start, one JSON document a line."""
        return self.root / "events.jsonl"

    @property
    def resume(self) -> Path:
        """Who the start is, with its keys, mode 0600: a controller that follows one that died reads it with `history`."""
        return self.root / "resume.json"

    @property
    def logs(self) -> Path:
        """One directory per node."""
        return self.root / "logs"

    @property
    def fetched(self) -> Path:
        """What the doctor fetched of logs on other machines; a copy, made anew each time."""
        return self.root / "fetched"

    @property
    def lock(self) -> Path:
        """Held by the controller for its life."""
        return self.root / "lock"

    def running(self) -> dict[str, Any] | None:
        """The live controller's record, or None."""
        found = self.record()
        return found if found and alive(Identity(found["pid"], found["start_ticks"])) else None

    def record(self) -> dict[str, Any] | None:
        """The controller's record, whether it lives or died without its farewell; None where there is none."""
        try:
            found: dict[str, Any] = json.loads(self.controller.read_text())
        except (OSError, ValueError):
            return None
        wanted = {"pid", "start_ticks", "url", "key", "mark", "run_dir"}
        return found if isinstance(found, dict) and wanted <= found.keys() else None

    @property
    def starting(self) -> Path:
        """Locked while a controller is being started, so that two `up` at once do not start two."""
        return self.root / "starting"

    def clear_logs(self) -> None:
        """Logs are those of the last start."""
        shutil.rmtree(self.logs, ignore_errors=True)
        shutil.rmtree(self.fetched, ignore_errors=True)


@contextlib.contextmanager
def own_files(root: Path) -> Iterator[None]:
    """Turns what the system says of our own files into the user's error.

    Raises:
        StateError: one of them cannot be read or written.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise StateError(
            f"{error.filename or root} cannot be used: {error.strerror or error}.",
            "Free some space there."
            if full
            else "Give this user the right to write there, or point XDG_STATE_HOME and XDG_CACHE_HOME at a directory that is writable.",
        ) from error


def write_private(path: Path, text: str) -> None:
    """Replaces a file at once, readable by its owner only."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)
