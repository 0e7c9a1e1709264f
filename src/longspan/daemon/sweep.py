"""Ends what a start left on one machine whose agent is gone: everything that carries its mark.

`python -m longspan.daemon.sweep` reads {"mark", "run_dir"} on standard input and prints {"left": [pid, …]}.
"""

import json
import shutil
import sys

from longspan.daemon import processes
from longspan.launch.words import AGENT_VARIABLE


def sweep(mark: str, run_dir: str) -> set[int]:
    """Agents first, since one that still hears ends its own.

    Returns:
        The pids that do not end.
    """
    shm = processes.shm_files(processes.marked(mark))
    left = processes.end(processes.marked(mark, AGENT_VARIABLE), grace_seconds=15)
    left |= processes.end(processes.marked(mark), grace_seconds=3)
    processes.remove_shm(shm)
    shutil.rmtree(run_dir, ignore_errors=True)
    return left


def main() -> None:
    """See the module's text."""
    wanted = json.load(sys.stdin)
    print(json.dumps({"left": sorted(sweep(wanted["mark"], wanted["run_dir"]))}))


if __name__ == "__main__":
    main()
