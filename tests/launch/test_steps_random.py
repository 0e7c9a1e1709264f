"""Any events in any order: the machine never raises, never breaks its promises, and always finds its end."""

from typing import Any

from driving import Drive, check, evidence, launcher_line, make_spec, make_steps, reference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longspan.launch.events import (
    AgentJoined,
    AgentSilent,
    Answered,
    DownAsked,
    Exited,
    Lines,
    StartFailed,
    Suspected,
    Tick,
    Wished,
)
from longspan.launch.steps import FRONT

names = st.sampled_from([FRONT, "a", "b"])
processes = st.sampled_from(
    [
        "ray",
        "launcher",
        "engine",
        "gateway",
        "unknown",
        "launcher.2",
        "engine.2",
        "gateway.2",
        "launcher.3",
        "launcher.x",
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["event", "kind", "have", "x"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
lines = st.one_of(
    st.sampled_from(
        [
            "Ray runtime started.", "INFO: Application startup complete.", "Loading safetensors checkpoint shards",
            "(RayWorkerProc pid=100, ip=10.0.0.1) rank 0 in world size 2 is assigned as DP rank 0",
            "(RayWorkerProc pid=101, ip=10.0.0.2) rank 1 in world size 2 is assigned as DP rank 0",
            "(RayWorkerProc pid=101, ip=10.0.0.9) rank 7 in world size 2 is assigned as DP rank 0",
            '{"event": "listening", "address": "127.0.0.1:8000"}', '{"event"', '{"event": 3}',
            launcher_line("gpus", have=2, want=2, nodes=[]), launcher_line("gpus", have=1, want=2, nodes=[]),
            launcher_line("reserved", placement_group="pg", bundles=["10.0.0.1", "10.0.0.2"]),
            launcher_line("reserved", placement_group="pg", bundles=["10.0.0.2"]),
            launcher_line("holders", holders=[{"gpu_ids": [0]}, {"gpu_ids": [1]}]),
            launcher_line("holders", holders=[{"gpu_ids": [0]}]),
            launcher_line("error", kind="gpus", have=1, want=2, missing=[], alive=[]),
        ]
    ),
    st.text(max_size=10),
    st.dictionaries(st.just("event"), json_values).map(lambda found: launcher_line(str(found.get("event")))),
    json_values.map(lambda found: f"longspan-event {found}"),
)  # fmt: skip
answers = st.one_of(
    st.builds(
        lambda what, node, epoch: Answered(f"{what[0]}:{node}{epoch}", what[1]),
        st.sampled_from(
            [
                ("facts", {"ray": "2.60.0", "vllm": "0.32.0", "python": "3.11.2"}), ("write", {}), ("ports", [1, 2, 3, 4, 5]), ("digest", None),
                ("ranks", {"100": []}), ("ranks", {"101": []}), ("ranks", {}), ("reference", reference(-1.0)),
                ("reference", reference(-2.0)), ("reference", {"skipped": "no"}), ("stopped", {"left": []}),
                ("stopped", None), ("unasked", 1), ("collect", {}),
                ("end_group", {"left": []}), ("end_group", {"left": [9]}), ("end_group", None), ("ports", None), ("swept", {"left": []}), ("swept", {"left": [8]}), ("swept", None),
            ]
        ),
        names,
        st.sampled_from(["", "#2", "#3"]),
    ),
    st.sampled_from(
        [
            Answered("first_token:", {"detail": ""}), Answered("evidence:", evidence()), Answered("evidence:", evidence(-3.0)),
            Answered("first_token:#2", {"detail": ""}), Answered("evidence:#2", evidence()), Answered("evidence:#2", error="no"),
            Answered("first_token:", error="no"), Answered("evidence:", error="no"), Answered("facts:a", error="no"),
        ]
    ),
)  # fmt: skip
events: st.SearchStrategy[Any] = st.one_of(
    st.builds(AgentJoined, names),
    st.builds(AgentSilent, names, st.floats(3, 100)),
    st.builds(
        Suspected,
        st.sampled_from(["a", "b", "r0", "r1"]),
        st.sampled_from(["", "it has not answered for 3 s"]),
    ),
    st.builds(
        Wished, st.sampled_from(["r0", "a", "x"]), st.sampled_from(["drain", "isolate", "restore", "?"])
    ),
    st.builds(StartFailed, names, st.just("no route")),
    st.builds(Exited, names, processes, st.integers(-9, 3)),
    st.builds(Lines, names, processes, st.lists(lines, max_size=4).map(tuple)),
    st.just(Tick()),
    answers,
)
slow = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def drive_to(stages: int, executor: str) -> Drive:
    """A launch that has come so far."""
    drive = Drive(make_steps(make_spec(executor=executor)))
    drive.through(stages)
    return drive


@slow
@given(
    st.integers(0, 10),
    st.sampled_from(["ray", "mp"]),
    st.lists(st.tuples(events, st.floats(0, 70)), max_size=25),
)
def test_any_order(stages: int, executor: str, told: list[tuple[Any, float]]) -> None:
    """From any phase on, any events: no exception, and every promise of `check` holds after each of them."""
    drive = drive_to(stages, executor)
    for event, seconds in told:
        drive.do(event, seconds)
    check(drive)


@slow
@given(st.sampled_from(["ray", "mp"]), st.lists(st.tuples(events, st.floats(0, 20)), max_size=40))
def test_restarts_in_any_order(executor: str, told: list[tuple[Any, float]]) -> None:
    """From a service whose engine has failed, any events: every promise holds, and no group starts before the one before it
    was confirmed to have ended on every node."""
    drive = drive_to(10, executor)
    drive.do(Exited("a", "launcher", 1))
    for event, seconds in told:
        drive.do(event, seconds)
    check(drive)


@slow
@given(
    st.integers(0, 10),
    st.lists(st.tuples(events, st.floats(0, 5)), max_size=12),
    st.lists(events, max_size=6),
)
def test_down_always_ends(stages: int, told: list[tuple[Any, float]], meanwhile: list[Any]) -> None:
    """Down, whatever happened before and happens meanwhile, is gone once the agents have answered or been given up."""
    drive = drive_to(stages, "ray")
    for event, seconds in told:
        drive.do(event, seconds)
    drive.do(DownAsked())
    for event in meanwhile:
        drive.do(event)
    drive.stop_answers()
    assert drive.machine.phase == "gone"
    check(drive)
