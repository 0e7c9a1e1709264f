"""The end of one group, fed by hand."""

from types import SimpleNamespace
from typing import Any

from longspan.launch.fence import Fence


def test_a_host_lost_while_ports_are_asked_for_is_waited_for() -> None:
    nodes: Any = tuple(SimpleNamespace(name=name, address="127.0.0.2") for name in ("n1", "n2"))
    fence = Fence(nodes, "m", "m/1", 2, False, 0.0, 1.0, 1)
    for call in fence.begin([]):
        fence.answered(call.call, {"left": []}, "", 0.5)  # type: ignore[union-attr]
    (asked,) = fence.tick(2.0)
    fence.lost("n2", 2.5)
    fence.answered(asked.call, [1], "", 3.0)  # type: ignore[union-attr]
    assert fence.step != "done"
    fence.returned("n2", 60.0)
    assert fence.step == "done"
