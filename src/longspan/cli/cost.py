"""`longspan cost`: own hardware, rented GPUs and an API on the same traffic, and where they break even."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from longspan.cli.plan_search import read_text
from longspan.cost import (
    ApiPrice,
    BreakEven,
    FixedMonthly,
    OwnHardware,
    RentedGpus,
    Supply,
    Traffic,
    break_even,
    busy_share,
    capacity_tokens_per_day,
    cost_per_million,
)
from longspan.errors import InputError
from longspan.planner.plan_file import parse_plan

_MILLION = 1e6


@dataclass(frozen=True)
class Priced:
    """One way to get the tokens, with its bill."""

    name: str
    supply: Supply | None
    per_month: float
    per_million: float
    parts: dict[str, float]


@click.command("cost")
@click.option(
    "--input-per-day", type=float, required=True, metavar="MILLIONS", help="Input tokens a day, in millions."
)
@click.option(
    "--output-per-day",
    type=float,
    required=True,
    metavar="MILLIONS",
    help="Output tokens a day, in millions.",
)
@click.option(
    "--plan", "plan_file", type=click.Path(path_type=Path), help="A saved plan, for its throughput and GPUs."
)
@click.option(
    "--throughput", type=float, default=0.0, help="Output tokens per second that the hardware gives."
)
@click.option("--monthly", type=float, help="A monthly cost that is already known.")
@click.option("--price", type=float, help="Own hardware: price of everything bought.")
@click.option("--years", type=float, default=4.0, show_default=True, help="Own hardware: years of use.")
@click.option("--residual", type=float, default=0.0, help="Own hardware: value at the end.")
@click.option("--interest", type=float, default=0.0, help="Own hardware: interest a year (0.06).")
@click.option("--kilowatts", type=float, default=0.0, help="Own hardware: power at the wall under load.")
@click.option("--kwh", type=float, default=0.0, help="Own hardware: price of a kilowatt-hour.")
@click.option(
    "--pue",
    type=float,
    default=1.4,
    show_default=True,
    help="Own hardware: power of the building over that of the IT.",
)
@click.option("--people", type=float, default=0.0, help="People, a month.")
@click.option("--colocation", type=float, default=0.0, help="Own hardware: space and network, a month.")
@click.option("--rent", type=float, help="Rented: price of a GPU-hour.")
@click.option("--rent-gpus", type=int, help="Rented: how many GPUs (default: the plan's).")
@click.option(
    "--rent-hours", type=float, default=730.0, show_default=True, help="Rented: hours paid a month."
)
@click.option(
    "--api", nargs=2, type=float, metavar="IN OUT", help="API: price per million input and output tokens."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(input_per_day: float, output_per_day: float, as_json: bool, **given: Any) -> None:
    """Compare what the same traffic costs on own hardware, on rented GPUs and from an API."""
    for name, value in {"input_per_day": input_per_day, "output_per_day": output_per_day, **given}.items():
        for number in value if isinstance(value, tuple) else (value,):
            # nan compares with nothing and would pass every later check
            if isinstance(number, float) and not abs(number) <= 1e15:
                raise InputError(
                    f"--{name.replace('_', '-')} is {number}, which is no amount.", "Give a number."
                )
    traffic = Traffic(input_per_day * _MILLION, output_per_day * _MILLION)
    if traffic.tokens_per_day <= 0:
        raise InputError(
            "The traffic is nothing.", "State --input-per-day and --output-per-day in millions of tokens."
        )
    throughput, gpus = capacity_of(given)
    ways = supplies(given, gpus)
    api = ApiPrice(*given["api"]) if given["api"] else None
    if not ways and api is None:
        raise InputError("No price is given.", "Give --monthly, --price, --rent or --api.")
    priced = [price_of(name, supply, traffic, throughput) for name, supply in ways]
    if api is not None:
        per_million = api.per_million(traffic)
        priced.append(Priced("API", None, api.per_month(traffic), per_million, {}))
    evens = {name: break_even(supply, api, traffic, throughput) for name, supply in ways} if api else {}
    found = {
        "traffic": {
            "input_tokens_per_day": traffic.input_tokens_per_day,
            "output_tokens_per_day": traffic.output_tokens_per_day,
        },
        "throughput_output_tokens_per_second": throughput or None,
        "busy_share": busy_share(throughput, traffic) if throughput else None,
        "ways": [
            {"name": p.name, "per_month": p.per_month, "per_million_tokens": p.per_million, "parts": p.parts}
            for p in priced
        ],
        "break_even": {name: even_json(even) for name, even in evens.items()},
    }
    click.echo(json.dumps(found) if as_json else "\n".join(cost_lines(found, traffic, throughput)))


def capacity_of(given: dict[str, Any]) -> tuple[float, int]:
    """Output tokens per second and GPUs of the plan, or as stated."""
    if given["plan_file"] is None:
        return given["throughput"], 0
    plan = parse_plan(read_text(given["plan_file"], "a plan saved with `longspan plan --save`"))
    stated = dict(plan.estimates).get("output_tokens_per_second")
    return given["throughput"] or (stated.p50 if stated else 0.0), plan.gpu_count


def supplies(given: dict[str, Any], gpus: int) -> list[tuple[str, Supply]]:
    """The ways that have a price."""
    found: list[tuple[str, Supply]] = []
    if given["monthly"] is not None:
        found.append(("stated monthly cost", FixedMonthly(given["monthly"])))
    if given["price"] is not None:
        own = OwnHardware(
            given["price"], given["years"], given["residual"], given["interest"], given["kilowatts"],
            power_usage=given["pue"], price_per_kilowatt_hour=given["kwh"], people_per_month=given["people"],
            colocation_per_month=given["colocation"],
        )  # fmt: skip
        found.append(("own hardware", own))
    if given["rent"] is not None:
        count = given["rent_gpus"] or gpus
        if not count:
            raise InputError("--rent needs the number of GPUs.", "Give --rent-gpus or --plan.")
        found.append(("rented GPUs", RentedGpus(count, given["rent"], given["rent_hours"], given["people"])))
    return found


def price_of(name: str, supply: Supply, traffic: Traffic, throughput: float) -> Priced:
    """The bill of one way."""
    share = busy_share(throughput, traffic) if throughput else 0.5
    parts = supply.parts_per_month(share) if isinstance(supply, OwnHardware) else {}
    return Priced(name, supply, supply.per_month(share), cost_per_million(supply, throughput, traffic), parts)


def even_json(even: BreakEven) -> dict[str, Any]:
    """A break-even as plain values."""
    return {
        "tokens_per_day": even.tokens_per_day,
        "capacity_tokens_per_day": even.capacity_tokens_per_day or None,
        "reachable": even.is_reachable,
        "arithmetic": even.arithmetic,
    }


def cost_lines(found: dict[str, Any], traffic: Traffic, throughput: float) -> list[str]:
    """For people."""
    inputs, outputs = traffic.input_tokens_per_day / _MILLION, traffic.output_tokens_per_day / _MILLION
    out = [f"Traffic: {inputs:,.1f} million input and {outputs:,.1f} million output tokens a day"]
    if throughput:
        out.append(
            f"Hardware gives {throughput:,.0f} output tokens/s: busy {found['busy_share']:.0%} of the time, idle hours counted"
        )
        full = capacity_tokens_per_day(throughput, traffic)
        out.append(f"  at most {full / _MILLION:,.1f} million tokens a day of this mix")
    out.append("")
    for way in found["ways"]:
        parts = ", ".join(f"{name} {value:,.0f}" for name, value in way["parts"].items() if value)
        out.append(
            f"{way['name']:<22}{way['per_month']:>14,.2f} a month {way['per_million_tokens']:>10,.3f} per million tokens"
            + (f"   ({parts})" if parts else "")
        )
    for name, even in found["break_even"].items():
        out += [
            "",
            f"Break-even of {name} against the API: {even['tokens_per_day'] / _MILLION:,.1f} million tokens a day",
            f"  {even['arithmetic']}",
        ]
        if not even["reachable"]:
            out.append(
                f"  out of reach: the hardware serves at most {even['capacity_tokens_per_day'] / _MILLION:,.1f} million a day"
            )
    return out
