"""A plan as a TOML file: written by `plan --save`, read by `up`."""

import json
import re
import tomllib
from collections.abc import Callable
from typing import Any

from longspan.errors import PlanFileError
from longspan.plan import Estimate, Layout, Place, Plan, Replica

FORMAT = 1
EXECUTORS = ("ray", "mp", "uni")


def to_toml(plan: Plan) -> str:
    """The file's text; `parse_plan` reads it back to an equal plan."""
    out = [
        f"format = {FORMAT}",
        f"model = {_words(plan.model)}",
        f"vllm_version = {_words(plan.vllm_version)}",
    ]
    out.append(f"notes = {_words(list(plan.notes))}")
    for node, values in plan.environment:
        out += ["", "[[node]]", f"name = {_words(node)}", f"environment = {_table(values)}"]
    for replica in plan.replicas:
        layout = replica.layout
        out += [
            "",
            "[[replica]]",
            f"name = {_words(replica.name)}",
            f"executor = {_words(replica.executor)}",
        ]
        out.append(
            f"tp = {layout.tp}\npp = {layout.pp}\ndp = {layout.dp}\nep = {str(layout.ep).lower()}\ndcp = {layout.dcp}"
        )
        out.append(f"partition = {json.dumps(list(layout.partition))}")
        out.append(f"max_model_len = {replica.max_model_len}\nmax_num_seqs = {replica.max_num_seqs}")
        out.append(f"arguments = {_words(list(replica.arguments))}")
        out.append(f"environment = {_table(replica.environment)}")
        out.append(f"places = {_words([f'{place.node}:{place.gpu}' for place in replica.places])}")
    for name, value in plan.estimates:
        out += [
            "",
            f"[estimate.{_words(name)}]",
            f"p50 = {value.p50!r}\np10 = {value.p10!r}\np90 = {value.p90!r}",
        ]
        out.append(f"unit = {_words(value.unit)}\nsource = {_words(value.source)}")
    return "\n".join(out) + "\n"


def _words(value: str | list[str]) -> str:
    """A text or a list of texts as TOML. JSON's escapes are TOML's, but for surrogate pairs and an unescaped DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(values: tuple[tuple[str, str], ...]) -> str:
    return (
        "{ " + ", ".join(f"{_words(name)} = {_words(value)}" for name, value in values) + " }"
        if values
        else "{}"
    )


def parse_plan(text: str) -> Plan:
    """Reads a plan.

    Raises:
        PlanFileError: not TOML, of another format, or a field that is missing or wrong, with its name.
    """
    try:
        document = tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # no TOML, a number of thousands of digits, or nested too deep
        raise PlanFileError(f"This is no plan file: it is not TOML ({error}).", _REMEDY) from error
    if "format" not in document:
        raise PlanFileError("This is no plan file: format is missing.", _REMEDY)
    if document["format"] != FORMAT or isinstance(document["format"], bool):
        raise PlanFileError(
            f"The plan file has format {document['format']!r}, this version reads {FORMAT}.",
            "Write it again with `longspan plan --save`.",
        )
    replicas = tuple(
        _replica(table, where) for table, where in _numbered(document.get("replica", []), "replica")
    )
    names = [replica.name for replica in replicas]
    if len(set(names)) < len(names):
        raise PlanFileError(f"Two replicas have the same name: {', '.join(names)}.", _REMEDY)
    return Plan(
        model=_get(document, "model", "the plan", _is_name, "a text"),
        replicas=replicas,
        vllm_version=_get(document, "vllm_version", "the plan", _is_text, "a text"),
        environment=tuple(
            (_get(table, "name", where, _is_name, "a text"), _environment(table, where))
            for table, where in _numbered(document.get("node", []), "node")
        ),
        estimates=_estimates(document.get("estimate", {})),
        notes=tuple(_get(document, "notes", "the plan", _are_texts, "a list of texts")),
    )


_REMEDY = "Correct it, or write it again with `longspan plan --save FILE`."


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_size(value: Any) -> bool:
    return _is_count(value) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_variables(value: Any) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and isinstance(text, str) and "\0" not in text
        for name, text in value.items()
    )


def _get(table: dict[str, Any], name: str, where: str, right: Callable[[Any], bool], what: str) -> Any:
    """A field of a table, checked."""
    if name not in table:
        raise PlanFileError(f"This is no plan file: {name} of {where} is missing.", _REMEDY)
    if not right(table[name]):
        raise PlanFileError(
            f"The plan file is damaged: {name} of {where} must be {what}, not {table[name]!r}.", _REMEDY
        )
    return table[name]


def _numbered(tables: Any, kind: str) -> list[tuple[dict[str, Any], str]]:
    """The [[kind]] tables, each with the words that say which one it is."""
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise PlanFileError(f"The plan file is damaged: {kind} must be tables ([[{kind}]]).", _REMEDY)
    return [
        (table, f"{kind} {table['name']}" if _is_name(table.get("name")) else f"{kind} number {number}")
        for number, table in enumerate(tables, 1)
    ]


def _environment(table: dict[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    found = _get(table, "environment", where, _are_variables, "a table of variables with texts")
    return tuple(found.items())


def _estimates(tables: Any) -> tuple[tuple[str, Estimate], ...]:
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise PlanFileError("The plan file is damaged: estimate must be tables ([estimate.NAME]).", _REMEDY)
    found = []
    for name, table in tables.items():
        where = f"estimate {name}"
        p50, p10, p90 = (
            float(_get(table, key, where, _is_number, "a number")) for key in ("p50", "p10", "p90")
        )
        unit, source = (_get(table, key, where, _is_text, "a text") for key in ("unit", "source"))
        found.append((name, Estimate(p50, p10, p90, unit, source)))
    return tuple(found)


def _replica(table: dict[str, Any], where: str) -> Replica:
    def size(name: str) -> int:
        return int(_get(table, name, where, _is_size, "a whole number from 1 on"))

    def count(name: str) -> int:
        return int(_get(table, name, where, _is_count, "a whole number, or 0 for vLLM's own"))

    stages = _get(
        table, "partition", where,
        lambda value: isinstance(value, list) and all(map(_is_size, value)), "a list of layers per stage",
    )  # fmt: skip
    layout = Layout(
        size("tp"), size("pp"), size("dp"), _get(table, "ep", where, lambda v: isinstance(v, bool), "true or false"),
        size("dcp"), tuple(stages),
    )  # fmt: skip
    return Replica(
        name=_get(table, "name", where, _is_name, "a text"),
        layout=layout,
        places=_places(table, where, layout),
        executor=_get(table, "executor", where, lambda v: v in EXECUTORS, f"one of {', '.join(EXECUTORS)}"),
        max_model_len=count("max_model_len"),
        max_num_seqs=count("max_num_seqs"),
        arguments=tuple(_get(table, "arguments", where, _are_texts, "a list of texts")),
        environment=_environment(table, where),
    )


def _places(table: dict[str, Any], where: str, layout: Layout) -> tuple[Place, ...]:
    texts = _get(table, "places", where, _are_texts, 'a list of "node:gpu"')
    found = []
    for text in texts:
        node, _, gpu = text.rpartition(":")
        if not node or not re.fullmatch(r"\d{1,4}", gpu, re.ASCII):
            raise PlanFileError(
                f'The plan file is damaged: places of {where} must be "node:gpu", not {text!r}.', _REMEDY
            )
        found.append(Place(node, int(gpu)))
    if len(found) != layout.gpus:
        raise PlanFileError(
            f"The plan file is damaged: places of {where} are {len(found)}, {layout} needs {layout.gpus}.",
            _REMEDY,
        )
    if len(set(found)) < len(found):
        raise PlanFileError(f"The plan file is damaged: places of {where} name a GPU twice.", _REMEDY)
    return tuple(found)
