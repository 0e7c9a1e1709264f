"""The picture's document: what one version writes, another reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.finding import Evidence, Finding
from longspan.monitor.record import RecordError
from longspan.monitor.view import (
    AlarmView,
    ClusterView,
    GatewayView,
    GpuView,
    LatencyView,
    NodeView,
    PortView,
    QuantileView,
    ReplicaView,
    node_state,
)

FINDING = Finding("n0", "warning", "nic-drops", "eth0 drops packets", (Evidence("eth0", 0, "12/s"),), "look")
NUMBERS = st.one_of(st.none(), st.floats(0, 1e12, allow_nan=False))


@given(NUMBERS, NUMBERS, st.sampled_from(["estimate", "below", "above"]), st.text(max_size=20))
def test_document_reads_back_as_it_was(first, second, bound, text):
    """Through JSON's text and back, every field is what it was, None included."""
    view = ClusterView(
        name=text or "x", taken_at_unix_seconds=1.5, phase="serving",
        nodes=(NodeView("n0", "10.0.0.1", "up", first, gpus=(GpuView("u", 0, text, utilisation_share=second),),
                        ports=(PortView("eth0", "netdev", True, rx_bytes_per_second=first),)),),
        replicas=(ReplicaView("r0", running=first, tpot=LatencyView(3, second, QuantileView(0.01, bound))),),
        gateway=GatewayView(overflow_share=second), alarms=(AlarmView("k", 1.0, FINDING),), unknown=(text,),
    )  # fmt: skip
    assert ClusterView.from_json(json.loads(json.dumps(view.to_json()))) == view


def test_keys_of_another_version_are_no_error():
    """A key that is missing is its default, one that is new is left aside: agents of an older version still count."""
    document = {"name": "d", "taken_at_unix_seconds": 3, "nodes": [{"name": "n", "address": "a", "moon": 1}]}
    assert ClusterView.from_json(document) == ClusterView("d", 3.0, nodes=(NodeView("n", "a"),))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "no object"),
        ({"name": "d"}, "taken_at_unix_seconds"),
        ({"name": 7, "taken_at_unix_seconds": 1}, r"ClusterView\.name is int"),
        ({"name": "d", "taken_at_unix_seconds": True}, "bool"),
        ({"name": "d", "taken_at_unix_seconds": 1, "nodes": {}}, "no list"),
        ({"name": "d", "taken_at_unix_seconds": 1, "nodes": [{"name": "n", "address": "a", "state": "odd"}]}, "'odd'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(document, words):
    """A document of another form is refused with the field that does not fit."""
    with pytest.raises(RecordError, match=words):
        ClusterView.from_json(document)


def test_number_that_json_lacks_is_not_known():
    """NaN and infinity would make the document unreadable for others: they become null."""
    view = ClusterView("d", 1.0, replicas=(ReplicaView("r", running=float("nan"), waiting=float("inf")),))
    assert json.loads(json.dumps(view.to_json(), allow_nan=False))["replicas"][0]["running"] is None


@pytest.mark.parametrize(("age", "state"), [(None, "unseen"), (0.4, "up"), (3.5, "late"), (16, "silent")])
def test_age_says_the_state(age, state):
    """A node is what the age of its last sample says."""
    assert node_state(age) == state
