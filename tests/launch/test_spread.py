"""Who gives which file to whom: this machine sends each byte once, and every node ends with all, whatever fails between nodes."""

from hypothesis import given
from hypothesis import strategies as st

from longspan.launch.spread import HERE, Spread, Transfer

NODES = ["a", "b", "c", "d", "e"]
FILES = [f"f{number}" for number in range(7)]


def check(spread: Spread) -> None:
    """What must hold at every moment."""
    takers = [one.node for one in spread.running]
    assert len(takers) == len(set(takers))
    givers = [one.giver for one in spread.running if one.giver != HERE]
    assert len(givers) == len(set(givers))
    assert sum(one.giver == HERE for one in spread.running) <= spread.streams
    for one in spread.running:
        assert one.path in spread.lacks[one.node]
        if one.giver != HERE:
            assert one.path in spread.holds[one.giver]
            assert one.giver in spread.givers
            assert (one.giver, one.node) not in spread.broken


@given(
    lacks=st.dictionaries(st.sampled_from(NODES), st.sets(st.sampled_from(FILES)), min_size=1),
    givers=st.sets(st.sampled_from(NODES)),
    streams=st.integers(1, 4),
    data=st.data(),
)
def test_every_node_gets_all(
    lacks: dict[str, set[str]], givers: set[str], streams: int, data: st.DataObject
) -> None:
    """Transfers end in any order and fail between any two; whom this machine can serve ends with everything."""
    spread = Spread.of(
        {node: sorted(files) for node, files in lacks.items()}, FILES, givers=givers, streams=streams
    )
    dead = data.draw(st.sets(st.sampled_from(NODES)), label="nodes that take nothing")
    is_broken = data.draw(st.sets(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES))), label="broken")
    sent = 0
    for _ in range(1000):
        spread.start()
        check(spread)
        if not spread.running:
            break
        one = data.draw(st.sampled_from(sorted(spread.running, key=str)))
        came = one.node not in dead and (one.giver, one.node) not in is_broken
        sent += came and one.giver == HERE
        spread.ended(one, came=came)
    for node in lacks:
        assert spread.lacks[node] == [] or node in spread.failed
    assert spread.failed <= dead
    if not dead and not is_broken and givers >= set(lacks):
        # Nobody had it before, or some node could give it: this machine sent what all lacked, once.
        assert sent == len(set.intersection(*lacks.values()))


def test_each_node_gets_something_else_first() -> None:
    """Two nodes, two files: each takes one from here, then they swap."""
    spread = Spread.of({"a": ["x", "y"], "b": ["x", "y"]}, ["x", "y"], givers=["a", "b"], streams=4)
    first = spread.start()
    assert first == [Transfer(HERE, "a", "x"), Transfer(HERE, "b", "y")]
    for one in first:
        spread.ended(one, came=True)
    assert spread.start() == [Transfer("b", "a", "y"), Transfer("a", "b", "x")]


def test_rounds_for_many_nodes() -> None:
    """64 nodes and 150 files, every transfer as long as any other: few more than 150 rounds, where one after the other would be 9,600."""
    nodes, files = [f"n{number}" for number in range(64)], [f"f{number}" for number in range(150)]
    spread = Spread.of(dict.fromkeys(nodes, files), files, givers=nodes, streams=1)
    rounds = 0
    while begun := spread.start():
        check(spread)
        rounds += 1
        for one in begun:
            spread.ended(one, came=True)
    assert not any(spread.lacks.values())
    assert rounds < 250
