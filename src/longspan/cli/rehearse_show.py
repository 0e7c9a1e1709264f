"""What is about to be rehearsed, and what came out of it, for people and as the one document."""

import json
from dataclasses import dataclass
from typing import Any

import click

from longspan.cli.rehearse_layout import Wanted
from longspan.cli.rehearse_model import Checkpoint, Source
from longspan.deployment import DeploymentSpec
from longspan.launch import rehearsal
from longspan.launch.rehearsal import LeftOut
from longspan.launch.rehearsal_report import Report, Scene
from longspan.model.shrink import head_size

_MARKS = {
    "proved": ("✓", "green"),
    "failed": ("✗", "red"),
    "not reached": ("·", "dim"),
    "skipped": ("-", "yellow"),
}


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Everything that is about to be run."""

    source: Source
    wanted: Wanted
    checkpoint: Checkpoint
    spec: DeploymentSpec
    left_out: tuple[LeftOut, ...]
    here: bool

    @property
    def scene(self) -> Scene:
        """For the report."""
        real, small = self.source.facts, self.checkpoint.shrunk.facts
        return Scene(
            cpu=self.spec.device == "cpu",
            here=self.here,
            executor=self.spec.executor,
            real=(self.wanted.spec.tp, self.wanted.spec.pp),
            rehearsed=(self.spec.tp, self.spec.pp),
            nodes=len(self.spec.used_nodes()),
            weights_bytes=self.checkpoint.weights_bytes,
            weights_reason=self.checkpoint.weights_reason,
            own_tokenizer=self.checkpoint.own_tokenizer,
            quantisation=self.checkpoint.shrunk.quantisation,
            head_sizes=(head_size(real), head_size(small)),
            layers=(len(real.layers), len(small.layers)),
            experts=real.experts is not None,
            encoder=real.tower is not None,
            arguments=self.spec.vllm_arguments,
            left_out=self.left_out,
        )


def say_plan(found: Rehearsal) -> None:
    """What is rehearsed, before it takes its minute."""
    scene, shrunk = found.scene, found.checkpoint.shrunk
    (tp, pp), (small_tp, small_pp) = scene.real, scene.rehearsed
    smaller = "" if scene.real == scene.rehearsed else f", scaled down to TP {small_tp} x PP {small_pp}"
    where = "on this machine's processors" if found.here else "on the real nodes"
    click.echo(f"Rehearsing {found.source.name}, TP {tp} x PP {pp}{smaller}, {where}", err=True)
    if smaller:
        click.echo(f"  rule: {rehearsal.RULE}", err=True)
    changes = ", ".join(f"{change.name} {change.rehearsed} for {change.real}" for change in shrunk.changes)
    click.echo(f"  shrunken: {changes or 'nothing'}", err=True)
    if shrunk.quantisation:
        click.echo(f"  weights: plain, the real ones are stored as {shrunk.quantisation}", err=True)
    for item in found.left_out:
        click.echo(f"  without {item.what}: {item.reason}", err=True)


def show(found: Rehearsal, result: Report, status: dict[str, Any] | None, as_json: bool) -> None:
    """The report, for people or as the one document."""
    scene, shrunk = found.scene, found.checkpoint.shrunk
    if as_json:
        document = {
            "model": found.source.name,
            "architecture": shrunk.facts.architecture,
            "real": {"tp": scene.real[0], "pp": scene.real[1]},
            "rehearsed": {
                "tp": scene.rehearsed[0], "pp": scene.rehearsed[1], "executor": scene.executor,
                "device": found.spec.device, "nodes": [node.name for node in found.spec.used_nodes()],
                "layers": list(shrunk.layers), "partition": list(shrunk.partition),
                "changes": {change.name: [change.real, change.rehearsed] for change in shrunk.changes},
                "arguments": list(scene.arguments),
            },
            "first_token_seconds": (status or {}).get("first_token_seconds"),
            "failure": (status or {}).get("failure"),
            **result.to_json(),
        }  # fmt: skip
        click.echo(json.dumps(document))
        return
    from rich.text import Text

    from longspan.cli.render import console

    out = console()
    out.print("\nProved")
    for claim in result.claims:
        mark, style = _MARKS[claim.state]
        out.print(Text.assemble((f"  {mark} ", style), f"{claim.name:<18}{claim.evidence or claim.state}"))
    out.print("\nNot proved, and why")
    for limit in result.limits:
        out.print(Text(f"  - {limit.name}: {limit.reason}"))
