"""Which option is better: objectives first, then the goal, and what is measured before what is guessed."""

from dataclasses import replace
from math import ceil

from longspan.planner.latency import highest_rate, serve
from longspan.planner.options import Option, Question

# An option whose links, stages or GPU family nobody measured counts for this much of its estimate beside one that was
# measured: a guess must look clearly better to win.
GUESS_WEIGHT = 0.9


def examine(question: Question, option: Option) -> Option:
    """The option with what the simulation says of it, and the fewest replicas or the highest rate where objectives are set."""
    workload = question.workload
    if workload.objectives and workload.is_open and question.goal == "cost":
        option = fewest_copies(question, option)
    ways = option.copies * option.layout.dp
    if not workload.is_open:
        workload = replace(workload, concurrency=question.clients)
    found = replace(option, statistics=serve(option.engine, option.limits, workload, ways))
    if workload.objectives and not workload.is_open:
        ceiling = found.steady.requests_per_second * 1.3
        rate = highest_rate(option.engine, option.limits, question.workload, ceiling)
        found = replace(found, held_requests_per_second=rate * ways)
    return found


def with_highest_rate(question: Question, option: Option) -> Option:
    """The option, and the highest rate at which it keeps the objectives; unchanged where it does not keep them as asked."""
    workload = question.workload
    if option.statistics is None or not (
        workload.is_open and workload.objectives and meets(question, option)
    ):
        return option
    ways = option.copies * option.layout.dp
    rate = workload.open_rate
    ceiling = max(option.steady.requests_per_second * 1.3, rate / ways)
    held = highest_rate(option.engine, option.limits, workload, ceiling, rate / ways)
    return replace(option, held_requests_per_second=held * ways)


def fewest_copies(question: Question, option: Option) -> Option:
    """The option with as few replicas as keep the objectives under the stated rate; unchanged if all of them do not."""

    def holds(copies: int) -> bool:
        tried = replace(option, groups=option.groups[:copies])
        ways = copies * option.layout.dp
        return meets(
            question, replace(tried, statistics=serve(option.engine, option.limits, question.workload, ways))
        )

    if option.copies == 1 or not holds(option.copies):
        return option
    low, high = 0, option.copies
    guess = needed_gpus(question, replace(option, statistics=None)) // option.layout.gpus
    while high - low > 1:
        # Around what the closed form expects, and then by halves.
        middle = guess if low < guess < high else (low + high) // 2
        if holds(middle):
            high, guess = middle, middle - 1
        else:
            low, guess = middle, middle + 1
    return replace(option, groups=option.groups[:high])


def meets(question: Question, option: Option) -> bool:
    """Whether the objectives hold, as far as is known of the option."""
    objectives = question.workload.objectives
    if option.held_requests_per_second is not None:
        return option.held_requests_per_second > 0
    if option.statistics is None:
        limits = [one.seconds for one in objectives if one.quantity == "tpot"]
        capacity = option.steady.requests_per_second * option.copies * option.layout.dp
        enough = capacity >= question.workload.requests_per_second
        return enough and all(option.steady.tpot_seconds <= limit for limit in limits)
    kept = option.statistics.completed_share > 0.8 or not question.workload.is_open
    return kept and all(option.statistics.meets(one) for one in objectives)


def rank(question: Question, options: list[Option]) -> list[Option]:
    """Best first: those that meet the objectives, then by the goal; smaller and simpler layouts break ties."""

    def key(option: Option) -> tuple[float, ...]:
        layout = option.layout
        simple = (layout.gpus, layout.pp, layout.dcp, layout.ep)
        unmet = not meets(question, option)
        weight = 1.0 if option.engine.is_calibrated else GUESS_WEIGHT
        if question.goal == "latency":
            return (unmet, option.tpot_seconds / weight, *simple)
        if question.goal == "cost":
            # Simulated under the same load, all give the same tokens: what differs is how fast each user sees them.
            faster = option.tpot_seconds if option.statistics else -option.output_tokens_per_second
            return (
                unmet,
                needed_gpus(question, option),
                faster * (weight if faster < 0 else 1 / weight),
                *simple,
            )
        if option.held_requests_per_second is not None:
            return (unmet, -option.held_requests_per_second * weight, *simple)
        return (unmet, -round(option.output_tokens_per_second * weight, 1), *simple)

    return sorted(options, key=key)


def needed_gpus(question: Question, option: Option) -> int:
    """GPUs that the stated rate takes: those of the option once simulated, before that by the closed form."""
    rate = question.workload.open_rate
    if option.statistics is not None or not rate:
        return option.gpus
    each = option.steady.requests_per_second * option.layout.dp
    return min(max(ceil(rate / each), 1), option.copies) * option.layout.gpus


def distinct(ranked: list[Option]) -> list[Option]:
    """The options without those that differ from a better one in name only (EP without another rank count)."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for option in ranked:
        layout = option.layout
        key = (option.pool, layout.tp, layout.pp, layout.dp, layout.dcp)
        if key not in seen:
            seen.add(key)
            found.append(option)
    return found
