"""The checklist: each rule takes the facts and returns findings, or says why it could not look. Pure.

`docs/audit.md` is made of the table at the end.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from longspan.audit.facts import Facts, Listener, is_loopback
from longspan.finding import Evidence, Finding, Severity

Outcome = list[Finding] | str  # findings (none is good), or why it was not looked at

DASHBOARD_PORT = 8265  # Ray's default
FEW_REQUESTS = 100  # below that, what was observed says little; a guess
# Licences that forbid or limit commercial use, by what models call them (Hugging Face's licence ids and common words).
_RESTRICTED = re.compile(
    r"\bcc-by-nc|non-?commercial|research[- ](only|use)|\b(llama\d?|gemma)\b|deepfloyd|\bmrl\b|openrail|bigscience",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the checklist.

    Attributes:
        passes: the rule, as a sentence. why: what goes wrong without it.
    """

    name: str
    passes: str
    why: str
    severity: Severity
    check: Callable[[Facts, "Rule"], Outcome]


def _finding(
    rule: Rule, subject: str, summary: str, evidence: list[str], remedy: str, source: str = ""
) -> Finding:
    shown = tuple(Evidence(subject, 0, text) for text in evidence)
    return Finding(subject, rule.severity, f"audit-{rule.name}", summary, shown, remedy, source=source)


def _missing(facts: Facts, fact: str) -> str:
    """Why a fact was not seen, on some node or at all; empty where it was."""
    reasons = [
        f"{key.partition(':')[2]}: {why}" if ":" in key else why
        for key, why in facts.unseen.items()
        if key.partition(":")[0] == fact
    ]
    return "; ".join(reasons)


def _on_all_nodes(facts: Facts, fact: str, found: list[Finding]) -> Outcome:
    """What was found; where that is nothing, it is only good if no node was left out."""
    reason = _missing(facts, fact)
    return found or (f"not on every node: {reason}" if reason else [])


def serving(facts: Facts, rule: Rule) -> Outcome:
    """It serves, and its answers were proved (what the proof had to leave out is told as info)."""
    if facts.phase != "serving":
        return [
            _finding(rule, facts.name, f"{facts.name} does not serve: it is in the phase {facts.phase}.",
                     [f"phase {facts.phase}"], "`longspan status` and `longspan doctor` say why.")
        ]  # fmt: skip
    if facts.proof == "partly verified":
        # A model that no single GPU holds has no one-rank reference: nothing that the operator could mend, but he should know.
        left_out = _finding(
            rule, facts.name, f"The proof of {facts.name} left out {', '.join(facts.unproved) or 'a layer'}; what it looked at passed.",
            [f"{layer}: {why}" for layer, why in facts.unproved.items()] or ["proof partly verified"],
            "docs/proof.md says what each layer needs.",
        )  # fmt: skip
        return [replace(left_out, severity="info")]
    if facts.proof != "verified":
        return [
            _finding(rule, facts.name, f"The proof of {facts.name} says {facts.proof or 'nothing'}, not verified.",
                     [f"proof {facts.proof or 'none'}"], "Read it in `longspan status`; start again on whole copies.")
        ]  # fmt: skip
    return []


def versions_equal(facts: Facts, rule: Rule) -> Outcome:
    """Engine, Ray and Python are the same on all nodes."""
    if not facts.versions:
        return _missing(facts, "versions") or "no node told its versions"
    found = []
    first, *others = facts.versions
    for node in others:
        for package, version in facts.versions[node].items():
            wanted = facts.versions[first].get(package)
            if version != wanted:
                found.append(
                    _finding(rule, node, f"{node} has {package} {version or 'none'}, {first} has {wanted or 'none'}.",
                             [f"{package} {version}"], "`longspan stage --lock …` makes them equal.")
                )  # fmt: skip
    return found


def open_ports(facts: Facts, rule: Rule) -> Outcome:
    """Nothing that others reach answers a request without a key."""
    found = [
        _finding(rule, one.node, f"{one.process} on {one.node} answers anyone on port {one.port}.",
                 [f"{_at(one)} answered {one.answer} without a key"],
                 "Bind it to loopback, give it a key, or close the port to all but the nodes (nftables).")
        for one in facts.listeners
        if one.outside and one.answer is not None and 200 <= one.answer < 300
    ]  # fmt: skip
    return _on_all_nodes(facts, "listeners", found)


def _at(one: Listener) -> str:
    host = f"[{one.address}]" if ":" in one.address else one.address
    return f"{host}:{one.port}"


def keys(facts: Facts, rule: Rule) -> Outcome:
    """The gateway asks for a key, and the file with it is the owner's alone."""
    found = []
    if facts.keyless_answer is None:
        return _missing(facts, "gateway") or "the gateway was not asked"
    if facts.keyless_answer not in (401, 403):
        found.append(
            _finding(rule, facts.name, "The gateway answers without a key.",
                     [f"{facts.listen}: status {facts.keyless_answer} without a key"], "Start it again with `longspan up`.")
        )  # fmt: skip
    if facts.key_file_mode is not None and facts.key_file_mode & 0o077:
        found.append(
            _finding(rule, facts.name, "Others on this machine can read the clients' key.",
                     [f"mode {facts.key_file_mode:04o}"], "chmod 600 on the key's file, then make another key.")
        )  # fmt: skip
    return found


def tls(facts: Facts, rule: Rule) -> Outcome:
    """What clients reach from other machines is encrypted."""
    if facts.tls or is_loopback(facts.listen.rpartition(":")[0].strip("[]")):
        return []
    return [
        _finding(rule, facts.name, f"Keys and prompts reach {facts.listen} unencrypted.", [f"listens on {facts.listen} without TLS"],
                 "Put `longspan gateway` with [tls] or another proxy with a certificate in front, and listen on loopback.")
    ]  # fmt: skip


def dashboard(facts: Facts, rule: Rule) -> Outcome:
    """Ray's dashboard is on loopback: who reaches it runs code on the cluster."""
    found = [
        _finding(rule, one.node, f"Ray's dashboard on {one.node} can be reached from outside: it runs anybody's code.",
                 [_at(one)], "ray start --include-dashboard=false, or --dashboard-host=127.0.0.1.",
                 "CVE-2023-48022; Ray's security page")
        for one in facts.listeners
        if one.port == DASHBOARD_PORT and one.outside
    ]  # fmt: skip
    return _on_all_nodes(facts, "listeners", found)


def secrets(facts: Facts, rule: Rule) -> Outcome:
    """No secret stands in a command line or environment of the deployment's processes."""
    found = [
        _finding(rule, one.node, f"{one.process} on {one.node} carries a secret in its {one.where} ({one.name}).",
                 [f"{one.where}: {one.name}"], "Hand it over as a file (HF_TOKEN_PATH, --api-key-file), then change it.")
        for one in facts.secrets
    ]  # fmt: skip
    return _on_all_nodes(facts, "secrets", found)


def slow_links(facts: Facts, rule: Rule) -> Outcome:
    """No tensor-parallel group crosses nodes on Ethernet."""
    found = []
    for stage in range(facts.pp):
        nodes = list(dict.fromkeys(facts.rank_nodes[stage * facts.tp : (stage + 1) * facts.tp]))
        if len(nodes) < 2:
            continue
        unknown = [node for node in nodes if node not in facts.networks]
        if unknown:
            return f"TP crosses {', '.join(nodes)}; the cluster file does not say what network {', '.join(unknown)} has"
        slow = [node for node in nodes if facts.networks[node] == "ethernet"]
        if slow:
            found.append(
                _finding(rule, facts.name, f"TP {facts.tp} of stage {stage} crosses {', '.join(nodes)} on Ethernet: every layer waits"
                         " for it twice a token.", [f"{node}: {facts.networks[node]}" for node in slow],
                         "Plan again: TP inside a node, PP between nodes (`longspan plan`).")
            )  # fmt: skip
    return found


def context_fits(facts: Facts, rule: Rule) -> Outcome:
    """max_model_len is near what is asked for."""
    seen = facts.traffic
    if seen is None:
        return _missing(facts, "traffic") or "the engine's counters were not read"
    if seen.requests < FEW_REQUESTS:
        return f"{seen.requests} requests so far; {FEW_REQUESTS} say something"
    if seen.longest_tokens * 4 > seen.max_model_len:
        return []
    return [
        _finding(rule, facts.name, f"No request was longer than {seen.longest_tokens:,} tokens, max_model_len is {seen.max_model_len:,}.",
                 [f"{seen.requests} requests, the longest up to {seen.longest_tokens:,} tokens"],
                 "A smaller --max-model-len gives the cache to more requests at once: longspan up … -- --max-model-len N.")
    ]  # fmt: skip


def memory_fits(facts: Facts, rule: Rule) -> Outcome:
    """The KV cache is large enough that no request is thrown out and computed again."""
    seen = facts.traffic
    if seen is None:
        return _missing(facts, "traffic") or "the engine's counters were not read"
    if not seen.preemptions:
        return []
    return [
        _finding(rule, facts.name, f"The engine threw {seen.preemptions} requests out of its cache and computed them again.",
                 [f"{seen.preemptions} preemptions in {seen.requests} requests, cache {seen.kv_used:.0%} full now"],
                 "Raise --gpu-memory-utilization, lower --max-num-seqs, or add a replica.")
    ]  # fmt: skip


def standby(facts: Facts, rule: Rule) -> Outcome:
    """Somebody answers while a replica restarts."""
    if facts.replicas + facts.providers > 1:
        return []
    return [
        _finding(rule, facts.name, "One replica and nobody else: while it restarts, every request fails.",
                 [f"{facts.replicas} replica, {facts.providers} outside providers"],
                 "`longspan up --replicas 2`, or an outside provider for it: `longspan up --gateway FILE`.")
    ]  # fmt: skip


def drain(facts: Facts, rule: Rule) -> Outcome:
    """A replica can be taken out of traffic before it is stopped: the gateway counts what it still holds."""
    if facts.uncounted is None:
        return _missing(facts, "metrics") or "the gateway's figures were not read"
    return [
        _finding(rule, name, f"{name} cannot be drained: nobody knows when its last answer is written, so `longspan drain` waits for ever"
                 " and stopping it cuts streams.", [f"longspan_gateway_replica_inflight of {name}: not told"],
                 "`longspan status` says how the gateway is; its log says why it does not know the replica.")
        for name in facts.uncounted
    ]  # fmt: skip


def metrics(facts: Facts, rule: Rule) -> Outcome:
    """Prometheus gets the metrics of the nodes, every engine and the gateway with its own key."""
    if facts.uncollected is None:
        return _missing(facts, "metrics") or "nobody was asked for metrics"
    return [
        _finding(rule, name, f"{name} gives Prometheus no metrics, so nobody is told when it slows down.", [f"{name}: {why}"],
                 "`longspan status` says how it is; docs/monitor.md has the scrape configuration and where its key lies.")
        for name, why in facts.uncollected.items()
    ]  # fmt: skip


def licence(facts: Facts, rule: Rule) -> Outcome:
    """The model's licence allows what it is used for."""
    if facts.licence is None:
        return _missing(facts, "licence") or "the checkpoint names no licence: look on the model's page"
    if not _RESTRICTED.search(facts.licence):
        return []
    return [
        _finding(rule, facts.name, f"The model's licence limits its use: {facts.licence}.", [facts.licence],
                 "Read it; ask whoever answers for it in your organisation.")
    ]  # fmt: skip


def _rule(check: Callable[[Facts, Rule], Outcome], severity: Severity, why: str) -> Rule:
    return Rule(check.__name__.replace("_", "-"), (check.__doc__ or "").strip(), why, severity, check)


RULES: tuple[Rule, ...] = (
    _rule(serving, "error", "what was never proved may answer fluently and wrongly"),
    _rule(versions_equal, "error", "ranks of two versions hang or answer wrongly"),
    _rule(keys, "error", "anybody spends your GPUs and reads your model"),
    _rule(open_ports, "error", "engine, metrics and Ray are not made for strangers"),
    _rule(dashboard, "error", "its job API runs any code by design"),
    _rule(secrets, "error", "`ps` and /proc show them to every user, logs keep them"),
    _rule(tls, "warning", "keys and prompts can be read on the way"),
    _rule(slow_links, "warning", "all-reduces of every layer over Ethernet cost most of the speed"),
    _rule(memory_fits, "warning", "requests are computed twice, latency doubles under load"),
    _rule(context_fits, "info", "cache reserved for contexts that nobody sends"),
    _rule(standby, "warning", "a restart of minutes is an outage of minutes"),
    _rule(drain, "warning", "an upgrade cuts streams"),
    _rule(metrics, "warning", "the first to notice are the users"),
    _rule(licence, "warning", "some licences forbid commercial use or ask for a name"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One rule's outcome: findings, or why it was not looked at, or neither: passed."""

    rule: Rule
    findings: tuple[Finding, ...] = ()
    skipped: str = ""


def audit(facts: Facts) -> tuple[Line, ...]:
    """Every rule's outcome, in the table's order."""
    lines = []
    for rule in RULES:
        found = rule.check(facts, rule)
        lines.append(Line(rule, skipped=found) if isinstance(found, str) else Line(rule, tuple(found)))
    return tuple(lines)
