"""Sequence numbers tell a desync from a dead rank from the fabric."""

from doctor_logs import diagnose_lines
from hypothesis import given, settings
from hypothesis import strategies as st

from longspan.doctor.collectives import Work, compare


def works(sequences: dict[int, int], group: str = "2/5") -> list[Work]:
    """One work per rank."""
    return [Work(rank, seq, "ALLREDUCE", 8, group) for rank, seq in sequences.items()]


@settings(deadline=None)
@given(st.integers(2, 64), st.integers(0, 10**6), st.data())
def test_equal_work_on_all_ranks_is_never_a_desync(world: int, sequence: int, data: st.DataObject) -> None:
    """All ranks: equal. Most ranks: the missing ones died. One rank: nobody can say."""
    ranks = data.draw(st.sets(st.integers(0, world - 1), min_size=1))
    result = compare(works(dict.fromkeys(ranks, sequence)), world)
    assert result.verdict in ("equal", "peer-died", "one-rank")
    if len(ranks) == world:
        assert result.verdict == "equal"
    if result.verdict == "peer-died":
        assert set(result.missing) == set(range(world)) - ranks


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 63), st.integers(0, 1000), min_size=2))
def test_different_work_in_one_group_is_a_desync(sequences: dict[int, int]) -> None:
    """Whatever else holds."""
    expected = len(set(sequences.values())) > 1
    assert (compare(works(sequences), 64).verdict == "desync") == expected


def test_groups_are_not_compared_with_each_other() -> None:
    """Two pipeline stages count their collectives separately."""
    both = works({0: 10, 1: 10}, "2/5") + works({2: 99, 3: 99}, "2/6")
    assert compare(both, 4).verdict == "equal"


def test_sends_and_receives_have_numbers_of_their_own() -> None:
    """Point-to-point works of one group may differ."""
    assert compare([Work(0, 5, "SEND", 8, ""), Work(1, 9, "RECV", 8, "")], 2).verdict == "equal"


def test_nothing_seen_says_nothing() -> None:
    """No watchdog, no verdict."""
    assert compare([], 8).verdict == "none"


def test_a_rank_whose_group_is_unknown_waits_in_the_only_one() -> None:
    """The line that names the group may be cut off; two groups leave it open."""
    said = "[rank{0}]:[E1 P.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=1) ran"
    named = "[rank{0}]:[E1 P.cpp:2] [PG ID {2} PG GUID 67 Rank {0}] failure detected by watchdog at work sequence id: {1} PG status: last enqueued work: 9"
    lines = [said.format(4, 30), said.format(5, 29), named.format(4, 30, 4)]
    assert diagnose_lines(lines).findings[0].cause == "collective-desync"
    two = [
        said.format(3, 30),
        said.format(4, 30),
        said.format(5, 29),
        named.format(4, 30, 4),
        named.format(3, 30, 5),
    ]
    assert diagnose_lines(two).findings[0].cause != "collective-desync"
