"""Options -> a Plan: replicas with names, places, arguments and estimates, and what fills the GPUs that are left."""

from dataclasses import replace

from longspan.cluster.inventory import Cluster
from longspan.plan import Estimate, Place, Plan, Replica
from longspan.planner.commands import node_environment
from longspan.planner.latency import with_interval
from longspan.planner.layout import places
from longspan.planner.options import Answer, Option, Question
from longspan.planner.search import receipt_at, search
from longspan.planner.versions import format_version

_FILLS = 3


def fill(question: Question, best: Option) -> tuple[Option, ...]:
    """Further options on the GPUs that the best one leaves free: other types, or too few for another of its replicas.

    Nothing is added when objectives are met with fewer GPUs on purpose.
    """
    if question.goal == "cost":
        return ()
    used = {place for group in best.groups for place in places(group)}
    found: list[Option] = []
    for _ in range(_FILLS):
        rest = leftover(question.cluster, used)
        if rest.gpu_count == 0:
            break
        more = search(replace(question, cluster=rest), simulated=1).best
        if more is None:
            break
        found.append(more)
        used |= {place for group in more.groups for place in places(group)}
    return tuple(found)


def leftover(cluster: Cluster, used: set[Place]) -> Cluster:
    """The cluster without the GPUs in use and without nodes that have none left."""
    nodes = []
    for node in cluster.nodes:
        free = tuple(gpu for gpu in node.gpus if Place(node.name, gpu.index) not in used)
        if free:
            nodes.append(replace(node, gpus=free))
    return Cluster(cluster.name, tuple(nodes))


def plan_of(answer: Answer, options: tuple[Option, ...], model: str) -> Plan:
    """The plan that these options make together."""
    question = answer.question
    replicas: list[Replica] = []
    options = tuple(settle(question, option) for option in options)
    for option in options:
        for group in option.groups:
            replicas.append(_replica(question, option, places(group), len(replicas)))
    used = {name for replica in replicas for name in replica.nodes}
    spans = any(len(replica.nodes) > 1 for replica in replicas)
    environment = tuple(
        (node.name, node_environment(node)) for node in question.cluster.nodes if node.name in used and spans
    )
    return Plan(
        model=model,
        replicas=tuple(replicas),
        vllm_version=format_version(question.settings.version),
        environment=environment,
        estimates=tuple(estimates(options).items()),
        notes=notes(options),
    )


def _replica(question: Question, option: Option, where: tuple[Place, ...], number: int) -> Replica:
    layout, settings = option.layout, question.settings
    one_node = len({place.node for place in where}) == 1
    environment = []
    if layout.partition:
        environment.append(("VLLM_PP_LAYER_PARTITION", ",".join(map(str, layout.partition))))
    arguments: list[str] = []
    if settings.utilisation is not None:
        arguments += ["--gpu-memory-utilization", f"{settings.utilisation:g}"]
    if settings.kv_dtype != "auto":
        arguments += ["--kv-cache-dtype", settings.kv_dtype]
    if settings.max_num_batched_tokens:
        arguments += ["--max-num-batched-tokens", str(settings.max_num_batched_tokens)]
    if settings.eager:
        arguments.append("--enforce-eager")
    return Replica(
        name=f"r{number}",
        layout=layout,
        places=where,
        executor="uni" if layout.gpus == 1 else "mp" if one_node else question.executor,
        max_model_len=option.receipt.max_model_len,
        max_num_seqs=settings.max_num_seqs or 0,
        arguments=tuple(arguments),
        environment=tuple(environment),
    )


def settle(question: Question, option: Option) -> Option:
    """The option with the receipt of the `--max-model-len` that it will be served with.

    That is the stated length, else the model's own limit where the cache holds it, else the longest that fits, in steps of 1024;
    a longer one takes work areas of its own, so it is tried until it holds itself.
    """
    facts, stated = question.facts, question.settings.max_model_len
    length = stated or option.receipt.largest_max_model_len
    while True:
        if not stated and length < facts.max_position:
            length = max(length // 1024 * 1024, 1024)
        found = receipt_at(question, option, length)
        if stated or length <= 1024 or found.largest_max_model_len >= length:
            return replace(option, receipt=found)
        length = min(found.largest_max_model_len, length - 1024)


def estimates(options: tuple[Option, ...]) -> dict[str, Estimate]:
    """What all replicas together do; latencies are those of the first option, which serves most of the load."""
    first = options[0]
    total = sum(option.output_tokens_per_second for option in options)
    found = {
        "output_tokens_per_second": with_interval(total, "throughput", first.engine, "tokens/s"),
        "tpot_mean_seconds": with_interval(first.tpot_seconds, "tpot", first.engine, "s"),
    }
    seen = first.statistics
    if seen is not None:
        for name, value, quantity in (
            ("ttft_p50_seconds", seen.ttft.at(50), "ttft"), ("ttft_p95_seconds", seen.ttft.at(95), "ttft"),
            ("ttft_p99_seconds", seen.ttft.at(99), "ttft"), ("tpot_p95_seconds", seen.tpot.at(95), "tpot"),
            ("e2e_p95_seconds", seen.e2e.at(95), "e2el"),
        ):  # fmt: skip
            found[name] = with_interval(value, quantity, first.engine, "s")
    if first.held_requests_per_second is not None:
        rate = first.held_requests_per_second
        found["held_requests_per_second"] = with_interval(rate, "throughput", first.engine, "requests/s")
    return found


def notes(options: tuple[Option, ...]) -> tuple[str, ...]:
    """What a person should know: guesses behind the numbers, and several engines behind one address."""
    found = []
    if any(not option.engine.is_calibrated for option in options):
        source = next(o for o in options if not o.engine.is_calibrated).engine.stages[0].costs.source
        why = (
            source
            if source.startswith("guess")
            else "pipeline stages, expert groups or links without measurements"
        )
        found.append(f"Speed is a guess here ({why}); memory is not. Its intervals are wide on purpose.")
    if sum(option.copies for option in options) > 1:
        found.append(
            "Several engines: put the Longspan gateway, or any OpenAI-compatible balancer, in front."
        )
    return tuple(found)
