"""Another controller comes out of the record where the first one stood, whatever happened in whatever order."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from driving import Drive, evidence, launcher_line, make_spec, make_steps, outcome
from hypothesis import given, settings
from hypothesis import strategies as st
from test_steps_random import events, slow

from longspan.daemon import resume
from longspan.daemon.resume import AgentLink, Resumed
from longspan.launch import journal
from longspan.launch.actions import Action, StartAgent, Sweep
from longspan.launch.events import AgentJoined, AgentSilent, Answered, Event, Exited, Lines, Tick
from longspan.launch.steps import FRONT


@dataclass(slots=True)
class Recorded(Drive):
    """Does what the controller does with each event: records what must be, and notes what follows.

    Attributes:
        live: what a controller knows beside its machine. taken: agent -> how many of its events were recorded.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    live: Resumed = field(default_factory=lambda: Resumed({name: AgentLink() for name in (FRONT, "a", "b")}))
    taken: dict[str, int] = field(default_factory=dict)

    def note(self, actions: list[Action]) -> list[Action]:
        """What is decided."""
        self.actions += actions
        self.live.note(actions)
        return actions

    def do(self, event: Event, seconds: float = 1.0) -> list[Action]:
        """One event; those of an agent carry their number."""
        self.now += seconds
        actions, kept, _ = journal.step(self.machine, event, self.now)
        if kept is not None:
            record = journal.to_json(kept, self.now)
            if isinstance(event, AgentJoined | Lines | Exited):
                self.taken[event.node] = self.taken.get(event.node, 0) + 1
                record["agent"] = {"name": event.node, "instance": "i", "taken": self.taken[event.node]}
            self.records.append(json.loads(json.dumps(record)))
            self.live.take(kept, record)
        return self.note(actions)

    def check_replay(self) -> None:
        """A fresh machine that is fed the record stands where this one does."""
        again = make_steps(self.machine.spec)
        found = resume.replay(again, 100.0, self.records)
        assert outcome(again) == outcome(self.machine)
        assert found.gateway == self.live.gateway
        assert found.asked == self.live.asked
        assert found.starting == self.live.starting
        for name, link in self.live.links.items():
            other = found.links[name]
            assert (other.commands, other.instance, other.taken) == (link.commands, link.instance, link.taken)


def drive_to(stages: int, executor: str = "ray") -> Recorded:
    """A launch that has come so far."""
    drive = Recorded(make_steps(make_spec(executor=executor)))
    drive.through(stages)
    return drive


@slow
@given(
    st.integers(0, 10),
    st.sampled_from(["ray", "mp"]),
    st.lists(st.tuples(events, st.floats(0, 70)), max_size=25),
)
def test_any_order(stages: int, executor: str, told: list[tuple[Any, float]]) -> None:
    """From any phase on; also what came out of the record goes on as the first one would have."""
    drive = drive_to(stages, executor)
    for event, seconds in told:
        drive.do(event, seconds)
        if drive.machine.phase == "gone":
            break
    drive.check_replay()


chatter = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ['{"event": "listening", "address": "127.0.0.1:9"}', "INFO: Application startup complete.", "GET /health 200",
         "(RayWorkerProc pid=100, ip=10.0.0.1) rank 0 in world size 2 is assigned as DP rank 0", launcher_line("ranks", ranks=[])]
    ),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([("a", "launcher"), (FRONT, "gateway"), ("a", "ray"), ("b", "ray")]),
            st.lists(chatter, max_size=30),
        ),
        max_size=12,
    ),
    st.sampled_from([("a", "launcher"), (FRONT, "gateway"), ("b", "ray")]),
)
def test_logs_of_what_serves(logs: list[tuple[Any, list[str]]], ends: tuple[str, str]) -> None:
    """They are not recorded but for the lines that tell, and an exit brings the end of its log along: its words are the same."""
    drive = drive_to(10)
    before = len(drive.records)
    for (node, process), lines in logs:
        drive.do(Lines(node, process, tuple(lines)))
    for record in drive.records[before:]:
        assert not {"GET /health 200"} & set(record["lines"])
    drive.check_replay()
    drive.do(Exited(*ends, 1))
    drive.check_replay()


def test_what_was_under_way_is_known() -> None:
    """Questions without an answer and an agent that is being started: the next controller has to see to them."""
    drive = drive_to(8)
    assert set(resume.replay(make_steps(make_spec()), 100.0, drive.records).asked) == {"first_token:"}
    drive.first_token()
    drive.proof()
    drive.do(AgentSilent("b", 41))
    drive.do(Tick())
    asked = resume.replay(make_steps(make_spec()), 100.0, drive.records).asked
    assert asked == {"swept:b#2": Sweep("b", "swept:b#2")}
    assert drive.answer("swept:b#2", {"left": []}) == [StartAgent("b")]
    found = resume.replay(make_steps(make_spec()), 100.0, drive.records)
    assert (found.asked, found.starting) == ({}, {"b"})
    assert found.links["b"].commands == []


def test_evidence_survives_the_file() -> None:
    """The one answer that is no JSON."""
    for value in (evidence(), evidence(-3.0), None, {"x": 1}):
        event = Answered("evidence:#2", value)
        assert journal.from_json(json.loads(json.dumps(journal.to_json(event, 1.5)))) == (event, 1.5)


@pytest.mark.parametrize("last", [b'{"event": "Ti', b'{"event": "Tick", "now": 3}', b"\xff\n", b""])
def test_a_line_that_was_cut_off(tmp_path: Path, last: bytes) -> None:
    """It is dropped and removed: nothing had been done for it."""
    path = tmp_path / "events.jsonl"
    whole = b'{"event": "Tick", "now": 1}\n{"event": "Tick", "now": 2}\n'
    path.write_bytes(whole + last)
    assert [record["now"] for record in resume.records(path)] == [1, 2]
    assert path.read_bytes() == whole


def test_a_start_of_another_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock is not ours, and its processes are gone; no key stands in what a traceback would show."""
    start = resume.StartIdentity.new(make_spec())
    path = tmp_path / "resume.json"
    assert resume.StartIdentity.load(path) is None
    start.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert resume.StartIdentity.load(path) == start
    assert not [
        key
        for key in (start.agent_key, start.operator_key, start.engine_key, start.ray_token)
        if key in repr(start)
    ]
    boot = tmp_path / "boot"
    boot.write_text("another\n")
    monkeypatch.setattr(resume, "BOOT", boot)
    assert resume.StartIdentity.load(path) is None
    path.write_text("{}")
    assert resume.StartIdentity.load(path) is None
