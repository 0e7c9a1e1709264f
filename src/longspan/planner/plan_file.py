"""A plan as a TOML file: written by `plan --save`, read by `up`."""

import json
import tomllib
from typing import Any

from longspan.errors import PlanFileError
from longspan.plan import Estimate, Layout, Place, Plan, Replica

FORMAT = 1


def to_toml(plan: Plan) -> str:
    """The file's text; `parse_plan` reads it back to an equal plan."""
    out = [
        f"format = {FORMAT}",
        f"model = {json.dumps(plan.model)}",
        f"vllm_version = {json.dumps(plan.vllm_version)}",
    ]
    out.append(f"notes = {json.dumps(list(plan.notes), ensure_ascii=False)}")
    for node, values in plan.environment:
        out += ["", "[[node]]", f"name = {json.dumps(node)}", f"environment = {_table(values)}"]
    for replica in plan.replicas:
        layout = replica.layout
        out += [
            "",
            "[[replica]]",
            f"name = {json.dumps(replica.name)}",
            f"executor = {json.dumps(replica.executor)}",
        ]
        out.append(
            f"tp = {layout.tp}\npp = {layout.pp}\ndp = {layout.dp}\nep = {str(layout.ep).lower()}\ndcp = {layout.dcp}"
        )
        out.append(f"partition = {json.dumps(list(layout.partition))}")
        out.append(f"max_model_len = {replica.max_model_len}\nmax_num_seqs = {replica.max_num_seqs}")
        out.append(f"arguments = {json.dumps(list(replica.arguments))}")
        out.append(f"environment = {_table(replica.environment)}")
        out.append(f"places = {json.dumps([f'{place.node}:{place.gpu}' for place in replica.places])}")
    for name, value in plan.estimates:
        out += ["", f"[estimate.{name}]", f"p50 = {value.p50!r}\np10 = {value.p10!r}\np90 = {value.p90!r}"]
        out.append(f"unit = {json.dumps(value.unit)}\nsource = {json.dumps(value.source)}")
    return "\n".join(out) + "\n"


def _table(values: tuple[tuple[str, str], ...]) -> str:
    return (
        "{ " + ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values) + " }"
        if values
        else "{}"
    )


def parse_plan(text: str) -> Plan:
    """Reads a plan.

    Raises:
        PlanFileError: not a plan, or of a newer format.
    """
    try:
        document = tomllib.loads(text)
        if document["format"] != FORMAT:
            raise PlanFileError(
                f"The plan file has format {document['format']}, this version reads {FORMAT}.",
                "Write it again with `longspan plan --save`.",
            )
        return Plan(
            model=document["model"],
            replicas=tuple(_replica(table) for table in document.get("replica", [])),
            vllm_version=document["vllm_version"],
            environment=tuple((t["name"], tuple(t["environment"].items())) for t in document.get("node", [])),
            estimates=tuple(
                (name, Estimate(float(t["p50"]), float(t["p10"]), float(t["p90"]), t["unit"], t["source"]))
                for name, t in document.get("estimate", {}).items()
            ),
            notes=tuple(document["notes"]),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanFileError(
            f"This is no plan file: {type(error).__name__} at {error}.",
            "Write one with `longspan plan --save FILE`.",
        ) from error


def _replica(table: dict[str, Any]) -> Replica:
    places = [text.rsplit(":", 1) for text in table["places"]]
    return Replica(
        name=table["name"],
        layout=Layout(
            table["tp"], table["pp"], table["dp"], table["ep"], table["dcp"], tuple(table["partition"])
        ),
        places=tuple(Place(node, int(gpu)) for node, gpu in places),
        executor=table["executor"],
        max_model_len=table["max_model_len"],
        max_num_seqs=table["max_num_seqs"],
        arguments=tuple(table["arguments"]),
        environment=tuple(table["environment"].items()),
    )
