"""The conditions lock: what may be compared with what, and what a deployment or a foreign endpoint tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.bench import conditions, gathered
from longspan.bench.conditions import of_load, permission
from longspan.bench.load import Lengths, LoadSpec

LOCK = {
    "model/name": "toy",
    "engine/version": "0.32",
    "load/prompts_hash": "ab",
    "load/seed": 1,
    "node/a/driver": "580",
}
NAMES = st.sampled_from(
    ["model/name", "engine/version", "layout/tp", "node/a/driver", "load/seed", "engine/id", "what/ever"]
)
LOCKS = st.dictionaries(NAMES, st.one_of(st.none(), st.integers(0, 3), st.text(max_size=3)))


def test_a_difference_that_matters_forbids_the_comparison() -> None:
    """Another engine version forbids; it is named with both values, and another seed alone forbids nothing."""
    found = conditions.permission(LOCK, LOCK | {"engine/version": "0.33", "load/seed": 2})
    assert [str(one) for one in found.forbidding] == ["engine/version: A has 0.32, B has 0.33"]
    assert [one.name for one in found.told] == ["load/seed"]


@pytest.mark.parametrize("allowed", ["engine/version", "engine", "engine/*"])
def test_the_thing_under_test_is_allowed(allowed: str) -> None:
    """What is allowed by name, by subject or by pattern is what the comparison is about."""
    found = conditions.permission(LOCK, LOCK | {"engine/version": "0.33"}, [allowed, "layout"])
    assert not found.forbidding
    assert [one.name for one in found.under_test] == ["engine/version"]
    assert found.unused == ("layout",)


def test_a_name_is_no_prefix_of_another_name() -> None:
    """Allowing engine/v does not allow engine/version."""
    found = conditions.permission(LOCK, LOCK | {"engine/version": "0.33"}, ["engine/v"])
    assert found.forbidding


def test_what_one_side_does_not_know_is_told_and_forbids_when_strict() -> None:
    """An unknown driver is no difference that was seen, but it is said."""
    other = LOCK | {"node/a/driver": None}
    assert not conditions.permission(LOCK, other).forbidding
    assert [one.name for one in conditions.permission(LOCK, other).told] == ["node/a/driver"]
    assert [one.name for one in conditions.permission(LOCK, other, is_strict=True).forbidding] == [
        "node/a/driver"
    ]
    assert conditions.unknown(other, other) == ["node/a/driver"]


def test_cached_prompts_forbid() -> None:
    """A hit share 60 points higher is another measurement, one 5 points higher is not."""
    cold = {"cache/prefix_hit_share": 0.02}
    assert conditions.permission(cold, {"cache/prefix_hit_share": 0.62}).forbidding
    assert not conditions.differences(cold, {"cache/prefix_hit_share": 0.07})


@given(LOCKS, LOCKS)
def test_differences_are_symmetric_and_a_lock_equals_itself(
    a: dict[str, object], b: dict[str, object]
) -> None:
    """A lock has no difference from itself, and swapping the sides changes no name."""
    assert conditions.differences(a, a) == []
    assert {one.name for one in conditions.differences(a, b)} == {
        one.name for one in conditions.differences(b, a)
    }


@given(LOCKS, LOCKS)
def test_every_difference_is_in_one_class(a: dict[str, object], b: dict[str, object]) -> None:
    """No difference is lost between what forbids, what is under test and what is told."""
    found = conditions.permission(a, b, ["engine"])
    sorted_out = [one.name for one in (*found.forbidding, *found.under_test, *found.told)]
    assert sorted(sorted_out) == sorted(one.name for one in conditions.differences(a, b))


@given(st.lists(st.text(), max_size=4), st.lists(st.text(), max_size=4))
def test_the_hash_of_prompts_tells_lists_apart(a: list[str], b: list[str]) -> None:
    """Two lists of prompts share a hash only when they are the same list: ["ab"] is not ["a", "b"]."""
    assert (conditions.digest(a) == conditions.digest(b)) == (a == b)


def test_the_first_known_value_wins() -> None:
    """A later source fills what an earlier one does not know, and overrides nothing."""
    assert conditions.merged({"a": None, "b": 1}, {"a": 2, "b": 3}) == {"a": 2, "b": 1}


def test_arguments_become_conditions_without_secrets() -> None:
    """Each flag is one condition, in any spelling; a key's value is hidden."""
    found = gathered.arguments(
        ["--max_num_seqs=64", "--api-key", "s3cret", "--enforce-eager", "--a", "1", "2"]
    )
    assert found == {
        "engine/argument/max-num-seqs": "64",
        "engine/argument/api-key": "***",
        "engine/argument/enforce-eager": "yes",
        "engine/argument/a": "1 2",
    }


def test_a_deployment_tells_its_layout_and_libraries() -> None:
    """Rank map, GPUs in rank order, and per node the driver, of which a missing one is openly unknown."""
    status = {
        "model": "toy",
        "layout": {"tp": 2, "pp": 1},
        "ranks": [
            {"rank": 0, "planned_node": "n1", "gpu": ["GPU-a"]},
            {"rank": 1, "planned_node": "n2", "gpu": ["GPU-b"]},
        ],
        "nodes": [
            {"name": "n1", "facts": {"vllm": "0.32", "torch": "2.13"}, "environment": {"NCCL_IB_HCA": "mlx5"}}
        ],
    }
    found = gathered.of_deployment(status, {"vllm_arguments": ["--seed", "1"]})
    assert found["layout/rank_map"] == "0@n1 1@n2"
    assert found["layout/gpus"] == "GPU-a, GPU-b"
    assert found["engine/version"] == "0.32"
    assert found["node/n1/NCCL_IB_HCA"] == "mlx5"
    assert found["node/n1/driver"] is None
    assert found["engine/argument/seed"] == "1"


def test_a_foreign_endpoint_tells_little_and_the_rest_is_unknown() -> None:
    """What it tells is kept, what it cannot tell is None and not missing."""
    metrics = 'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0"} 1.0\n'
    found = gathered.of_endpoint({"data": [{"id": "m", "root": "org/m"}]}, {"version": "0.32"}, metrics)
    assert found["model/name"] == "org/m"
    assert found["engine/version"] == "0.32"
    assert found["engine/cache/block_size"] == "16"
    assert "engine/cache/engine" not in found
    assert found["layout/gpus"] is None
    assert gathered.of_endpoint(None, None)["engine/version"] is None


@pytest.mark.parametrize(
    ("other", "forbidding"),
    [
        (LoadSpec(concurrency=64), ["load/concurrency"]),
        (LoadSpec(prompt=Lengths(1024)), ["load/prompt/mean"]),
        (LoadSpec(extra={"temperature": 1}), ["load/extra"]),
        (LoadSpec(seed=3, salt=9, requests=500), []),
    ],
)
def test_another_load_is_another_question(other: LoadSpec, forbidding: list[str]) -> None:
    """Clients, lengths and the body's fields forbid a comparison; another sample, other texts or a longer run do not."""
    locks = [of_load(spec) for spec in (LoadSpec(), other)]
    assert [one.name for one in permission(*locks).forbidding] == forbidding
