"""The checklist: a healthy deployment has no finding, each fault has its own, and what was not seen is not called good."""

from dataclasses import replace
from typing import Any

import pytest

from longspan.audit.facts import Facts, Listener, SecretSeen, Traffic
from longspan.audit.rules import RULES, audit
from longspan.audit.traffic import read_traffic

HEALTHY = Facts(
    name="default", phase="serving", listen="127.0.0.1:8000", tls=False, tp=8, pp=2, joined_ray=False, proof="verified",
    versions={"a": {"vllm": "0.20", "ray": "2.60"}, "b": {"vllm": "0.20", "ray": "2.60"}},
    rank_nodes=("a",) * 8 + ("b",) * 8, networks={"a": "infiniband", "b": "infiniband"},
    listeners=(Listener("a", "10.0.0.1", 4711, "engine", 401), Listener("a", "127.0.0.1", 8265, "dashboard")),
    key_file_mode=0o600, keyless_answer=401, replicas=2, uncounted=(), uncollected={},
    traffic=Traffic(1000, 20_000, 32_768, 0, 0.6), licence="apache-2.0",
)  # fmt: skip


def states(facts: Facts) -> dict[str, str]:
    """rule -> passed, its severity where it found something, or skipped."""
    return {
        line.rule.name: "skipped" if line.skipped else line.rule.severity if line.findings else "passed"
        for line in audit(facts)
    }


def test_a_healthy_deployment_passes() -> None:
    """No false alarm: every rule looked and found nothing."""
    assert set(states(HEALTHY).values()) == {"passed"}


@pytest.mark.parametrize(
    ("rule", "changes", "said"),
    [
        ("serving", {"phase": "engine"}, "in the phase engine"),
        ("serving", {"proof": "failed"}, "says failed"),
        ("serving", {"proof": ""}, "says nothing"),
        ("versions-equal", {"versions": {"a": {"vllm": "0.20"}, "b": {"vllm": "0.19"}}}, "b has vllm 0.19, a has 0.20"),
        ("versions-equal", {"versions": {"a": {"ray": "2"}, "b": {"ray": None}}}, "b has ray none"),
        ("keys", {"keyless_answer": 200}, "without a key"),
        ("keys", {"key_file_mode": 0o644}, "can read the clients' key"),
        ("open-ports", {"listeners": (Listener("b", "0.0.0.0", 8001, "vllm", 200),)}, "vllm on b answers anyone on port 8001"),
        ("dashboard", {"listeners": (Listener("a", "::", 8265, "dashboard"),)}, "dashboard on a"),
        ("secrets", {"secrets": (SecretSeen("b", "python3 x", "argv", "--token"),)}, "python3 x on b carries a secret in its argv"),
        ("tls", {"listen": "0.0.0.0:8000"}, "unencrypted"),
        ("tls", {"listen": "[::]:8000"}, "unencrypted"),
        ("slow-links", {"rank_nodes": ("a", "b") * 8, "networks": {"a": "ethernet", "b": "ethernet"}}, "crosses a, b on Ethernet"),
        ("memory-fits", {"traffic": Traffic(1000, 20_000, 32_768, 7, 1.0)}, "threw 7 requests"),
        ("context-fits", {"traffic": Traffic(1000, 2_000, 32_768, 0, 0.1)}, "max_model_len is 32,768"),
        ("standby", {"replicas": 1}, "nobody else"),
        ("drain", {"uncounted": ("r1",)}, "r1 cannot be drained"),
        ("metrics", {"uncollected": {"gateway": "HTTP 502"}}, "gateway gives Prometheus no metrics"),
        ("licence", {"licence": "cc-by-nc-4.0"}, "cc-by-nc-4.0"),
        ("licence", {"licence": "llama3.1"}, "llama3.1"),
    ],
)  # fmt: skip
def test_each_fault_is_found_alone(rule: str, changes: dict[str, Any], said: str) -> None:
    """The rule of the fault, and no other, finds it, with evidence and a remedy."""
    facts = replace(HEALTHY, **changes)
    failing = {name for name, state in states(facts).items() if state not in ("passed", "skipped")}
    assert failing == {rule}
    (line,) = [line for line in audit(facts) if line.rule.name == rule]
    assert any(said in finding.summary for finding in line.findings)
    for finding in line.findings:
        assert finding.evidence
        assert finding.remedy
        assert finding.cause == f"audit-{rule}"


def test_a_proof_that_left_something_out_is_told_and_fails_nothing() -> None:
    """A model that no GPU holds alone has no one-rank reference: every audit of it would fail for what nobody can mend."""
    partly = replace(HEALTHY, proof="partly verified", unproved={"reference": "no GPU of this node is free"})
    (found,) = [finding for line in audit(partly) for finding in line.findings]
    assert (found.severity, found.evidence[0].text) == ("info", "reference: no GPU of this node is free")


@pytest.mark.parametrize(
    ("rule", "changes", "why"),
    [
        ("open-ports", {"unseen": {"listeners:b": "cannot be reached"}}, "b: cannot be reached"),
        ("secrets", {"unseen": {"secrets:b": "no Python there"}}, "no Python there"),
        ("versions-equal", {"versions": {}}, "no node"),
        ("keys", {"keyless_answer": None}, "not asked"),
        (
            "slow-links",
            {"rank_nodes": ("a", "b") * 8, "networks": {"a": "ethernet"}},
            "does not say what network b",
        ),
        ("context-fits", {"traffic": None, "unseen": {"traffic": "no answer"}}, "no answer"),
        ("context-fits", {"traffic": Traffic(3, 10, 32_768, 0, 0.0)}, "3 requests so far"),
        ("memory-fits", {"traffic": None}, "not read"),
        ("licence", {"licence": None}, "names no licence"),
        ("drain", {"uncounted": None, "unseen": {"metrics": "HTTP 503"}}, "HTTP 503"),
        ("metrics", {"uncollected": None}, "nobody was asked"),
    ],
)
def test_what_was_not_seen_is_said(rule: str, changes: dict[str, Any], why: str) -> None:
    """A rule that could not look is skipped with the reason, never passed."""
    (line,) = [line for line in audit(replace(HEALTHY, **changes)) if line.rule.name == rule]
    assert line.findings == ()
    assert why in line.skipped


def test_a_finding_outweighs_what_was_not_seen() -> None:
    """One node that cannot be looked at does not hide what another shows."""
    facts = replace(
        HEALTHY,
        listeners=(Listener("a", "0.0.0.0", 1, "x", 200),),
        unseen={"listeners:b": "cannot be reached"},
    )
    assert states(facts)["open-ports"] == "error"


def test_every_rule_says_what_and_why() -> None:
    """The page is made of these: no rule without a sentence and a reason, no name twice."""
    assert all(rule.passes.endswith(".") and rule.why for rule in RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


METRICS = """# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0",model_name="m"} 90.0
vllm:request_prompt_tokens_bucket{engine="0",le="2000.0",model_name="m"} 100.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 100.0
vllm:request_generation_tokens_bucket{engine="0",le="500.0",model_name="m"} 100.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="m"} 100.0
"""


def test_traffic_out_of_the_engines_counters() -> None:
    """The longest request is bounded by the highest bucket that holds any; beyond the last one, by the model's limit."""
    assert read_traffic(METRICS, 8192) == Traffic(100, 2500, 8192, 2, 0.25)
    beyond = METRICS.replace(
        'le="+Inf",model_name="m"} 100.0\nvllm:request_prompt_tokens_count',
        'le="+Inf",model_name="m"} 101.0\nvllm:request_prompt_tokens_count',
    )
    assert read_traffic(beyond, 8192) == Traffic(100, 8192, 8192, 2, 0.25)
    assert read_traffic("python_gc_objects_collected_total 5\n", 8192) is None
