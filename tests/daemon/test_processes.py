"""Processes are found and ended whole, whatever they do to hide or to stay; nothing else is touched."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from real import FAMILY, MEMBERS, family, run_python, running, wait_for

from longspan.daemon import processes

END_ALL = f"""
import json, os, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from real import FAMILY, family
from longspan.daemon import processes
home = Path(sys.argv[1])
processes.become_subreaper()
child = processes.start(["sh", "-c", FAMILY, str(home)], env={{}}, mark="m", log=home / "log")
child.wait()
pids = family(home)
found = processes.descendants(os.getpid())
left = processes.end(processes.ours("m", joined=False), grace_seconds=1)
print(json.dumps({{"pids": pids, "found": sorted(found), "left": sorted(left)}}))
"""
REAP = """
import json, os, subprocess, sys, time
from pathlib import Path
from longspan.daemon import processes
home = Path(sys.argv[1])
processes.become_subreaper()
own = processes.start(["sh", "-c", "exit 7"], env={}, mark="m", log=home / "log")
subprocess.run(["sh", "-c", "(sleep 0.1 &)"])

def zombies():
    return {pid for pid, state, parent in processes._table() if parent == os.getpid() and state == "Z"}

def wait(count):
    deadline = time.monotonic() + 60
    while len(zombies()) < count and time.monotonic() < deadline:
        time.sleep(0.01)

wait(2)
before = zombies()
processes.reap()
foreign = subprocess.Popen(["sh", "-c", "exit 9"])
while foreign.pid not in zombies():
    time.sleep(0.01)
processes.reap()
status = foreign.wait()
print(json.dumps({"before": len(before), "after": len(zombies()), "own": own.poll(), "foreign": status}))
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A marked process, ended afterwards."""
    child = processes.start(["sleep", "1000"], env={}, mark="mark-1", log=tmp_path / "log")
    yield child
    child.kill()
    child.wait()


def test_a_whole_family_is_ended(tmp_path: Path) -> None:
    """A double-forked daemon that ignores SIGTERM, a frozen process and an orphan are found below us and are gone."""
    found = run_python(END_ALL, str(tmp_path), home=tmp_path)
    assert set(found["pids"]) == set(MEMBERS)
    assert set(found["pids"].values()) <= set(found["found"])
    assert found["left"] == []
    assert [pid for pid in found["pids"].values() if running(pid)] == []


def test_the_family_outlives_its_parent(tmp_path: Path) -> None:
    """What the test above ends does not end by itself, or it would show nothing."""
    subprocess.run(["sh", "-c", FAMILY, str(tmp_path)], check=True, timeout=60)
    pids = family(tmp_path)
    try:
        assert all(running(pid) for pid in pids.values())
    finally:
        assert processes.end(set(pids.values()), grace_seconds=0.2) == set()


def test_dead_children_are_collected(tmp_path: Path) -> None:
    """Adopted zombies go, and nobody's exit status is read by the wrong one."""
    found = run_python(REAP, str(tmp_path), home=tmp_path)
    assert found["before"] == 2
    assert (found["after"], found["own"], found["foreign"]) == (0, 7, 9)


def test_an_identity_is_not_a_pid() -> None:
    """A process is known by its start time too, and a zombie is none."""
    me = processes.identity(os.getpid())
    assert me is not None
    assert processes.alive(me)
    assert not processes.alive(processes.Identity(me.pid, me.start_ticks + 1))
    child = subprocess.Popen(["true"])
    wait_for(lambda: not running(child.pid))
    assert processes.identity(child.pid) is None
    assert child.pid not in processes.descendants(os.getpid())
    child.wait()


def test_marks_are_whole_words(sleeper: subprocess.Popen[bytes]) -> None:
    """A mark finds its own processes, and no others whose mark merely begins alike."""
    wait_for(lambda: processes.marked("mark-1"))
    assert processes.marked("mark-1") == {sleeper.pid}
    assert processes.marked("mark") == set()
    assert sleeper.pid in processes.ours("another", joined=False)
    assert processes.marked("another") == set()


def test_a_process_gets_input_session_and_mark(tmp_path: Path) -> None:
    """Standard input arrives and ends, output goes to the log, and the process leads a session of its own."""
    code = "import os, sys; print(sys.stdin.read(), os.environ['LONGSPAN_MARK'], os.environ['A'], os.getsid(0) == os.getpid())"
    log = tmp_path / "deep" / "log"
    child = processes.start([sys.executable, "-c", code], env={"A": "b"}, mark="m", log=log, stdin="words")
    assert child.wait(60) == 0
    assert log.read_text() == "words m b True\n"


def test_a_program_that_does_not_exist(tmp_path: Path) -> None:
    """It is an OSError, which the agent turns into an exit."""
    with pytest.raises(OSError, match="nowhere"):
        processes.start([str(tmp_path / "nowhere")], env={}, mark="m", log=tmp_path / "log")


def test_ending_nobody() -> None:
    """A pid that is gone is no error, and none is left."""
    child = subprocess.Popen(["true"])
    child.wait()
    assert processes.end({child.pid}, grace_seconds=0) == set()
    assert processes.end(set(), grace_seconds=0) == set()


def test_shared_memory_of_the_killed(tmp_path: Path) -> None:
    """What a killed process leaves under /dev/shm is removed, unless somebody who lives has it mapped too."""
    code = """
import mmap, sys, time
for name in sys.argv[1:]:
    file = open(name, "a+b"); file.truncate(4096); globals()[name] = mmap.mmap(file.fileno(), 4096)
print("mapped", flush=True)
time.sleep(1000)
"""
    own, shared = (Path(f"/dev/shm/longspan-test-{os.getpid()}-{name}") for name in ("own", "shared"))
    with contextlib.ExitStack() as stack:
        for path in (own, shared):
            stack.callback(path.unlink, missing_ok=True)
        killed, survivor = (
            stack.enter_context(
                subprocess.Popen([sys.executable, "-c", code, *map(str, names)], stdout=subprocess.PIPE)
            )
            for names in ((own, shared), (shared,))
        )
        for child in (killed, survivor):
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == b"mapped\n"
        found = processes.shm_files({killed.pid})
        assert found == {own, shared}
        processes.end({killed.pid}, grace_seconds=0)
        processes.remove_shm(found)
        assert (own.exists(), shared.exists()) == (False, True)


def test_a_group_ends_and_the_rest_goes_on(tmp_path: Path) -> None:
    """Only what carries the group's word is ended, children too; what it mapped of shared memory goes with it."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from longspan.daemon import processes as p\n"
        "p.become_subreaper(); log = Path(sys.argv[2])\n"
        "env = {'LONGSPAN_GROUP': 'm/1'}\n"
        "one = p.start(['bash', '-c', 'sleep 1000 & sleep 1001'], env=env, mark='m', log=log)\n"
        "two = p.start(['sleep', '1002'], env={'LONGSPAN_GROUP': 'm/2'}, mark='m', log=log)\n"
        "import time\n"
        "while len(p.marked('m/1', 'LONGSPAN_GROUP')) < 3: time.sleep(0.05)\n"
        "ended = p.end_group('m/1', 'm', joined=False)\n"
        "print(len(ended.seen), len(ended.left), two.poll() is None, len(p.marked('m/1', 'LONGSPAN_GROUP')))\n"
        "p.end({two.pid}, grace_seconds=5)\n"
    )
    source = str(Path(processes.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code, source, str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["3", "0", "True", "0"], done.stderr
