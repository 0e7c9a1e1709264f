"""`longspan plan --probe`: asks hosts, or the nodes of a running Ray, what they have and prints the inventory."""

import json
import sys
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import click

from longspan.cli.joining import ask_ray
from longspan.cluster.inventory import Cluster, Node, describe
from longspan.cluster.inventory_file import to_toml
from longspan.cluster.probe import COMMANDS, answered, probe_node
from longspan.errors import EngineMissingError, InputError, ProbeError
from longspan.host import Host, LocalHost, SshHost

# "ray" is the Ray that this machine is part of, "ray:10.0.0.1:6379" the one at that address.
RAY = "ray"


def print_probe(wanted: str, as_json: bool) -> None:
    """Probes and prints TOML (or the TOML in a JSON document); what was assumed goes to stderr.

    Args:
        wanted: hosts with commas between them, or `ray[:ADDRESS]`.

    Raises:
        HostError: a host cannot be reached. RayError: the Ray cluster cannot be joined. ProbeError: a GPU that is not in the
            catalogue, or a node of Ray that did not answer.
    """
    notes: list[str] = []
    extra = ""
    if wanted == RAY or wanted.startswith(f"{RAY}:"):
        cluster, address = ray_cluster(wanted.removeprefix(RAY).lstrip(":/"), notes)
        extra = f"\n[ray]\naddress = {json.dumps(address)}\n"
    else:
        cluster = ssh_cluster(wanted, notes)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    click.echo(describe(cluster), err=True)
    text = to_toml(cluster) + extra
    document = {"inventory": text, "gpus": cluster.gpu_count, "notes": notes}
    click.echo(json.dumps(document) if as_json else text, nl=as_json)


def ssh_cluster(wanted: str, notes: list[str]) -> Cluster:
    """Each host in turn, over SSH; localhost without it."""
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise InputError(
            "--probe names no host.", "Write --probe localhost, --probe gpu-a,gpu-b or --probe ray."
        )
    nodes = []
    for name in names:
        click.echo(f"asking {name}", err=True)
        host: Host = (
            LocalHost(name) if name in {"localhost", "127.0.0.1"} else SshHost(name.rsplit("@", 1)[-1], name)
        )
        nodes.append(probe_node(host, notes=notes))
    return Cluster("probed", tuple(nodes))


def ray_cluster(address: str, notes: list[str]) -> tuple[Cluster, str]:
    """The nodes of a running Ray, each asked by a task of its own, and the address of its head."""
    if find_spec("ray") is None:
        raise EngineMissingError(
            f"Ray is not installed beside this Longspan ({sys.executable}), so no Ray cluster can be asked.",
            "Run it with the Python of that cluster, or probe the hosts over SSH: --probe HOST,HOST.",
        )
    click.echo(f"asking the nodes of Ray at {address or 'this machine'}", err=True)
    found = ask_ray("ask", address or "auto", json.dumps({"commands": COMMANDS}))
    return Cluster("probed", tuple(ray_nodes(found["nodes"], notes))), found["address"]


def ray_nodes(found: list[dict[str, Any]], notes: list[str]) -> list[Node]:
    """What `ray_join ask` brought back -> nodes, the head first. GPUs that Ray may not hand out are left out, with a note.

    Raises:
        ProbeError: a node did not answer, or has a GPU that the catalogue does not know.
    """
    counts = Counter(one["hostname"] for one in found)
    nodes = []
    for one in sorted(found, key=lambda one: (not one["head"], one["address"])):
        alone = counts[one["hostname"]] == 1
        name = one["hostname"] if alone else f"{one['hostname']}-{one['address'].replace(':', '-')}"
        if "answers" not in one:
            raise ProbeError(
                f"{name} ({one['address']}) is in the Ray cluster and did not answer: {one.get('error', 'no reason given')}",
                "`ray status` shows whether it is alive; probe the other hosts over SSH: --probe HOST,HOST.",
            )
        node = probe_node(
            answered(name, [a and (a[0], a[1], a[2]) for a in one["answers"]]), one["address"], notes
        )
        if one["gpus"] < len(node.gpus):
            notes.append(
                f"{name} has {len(node.gpus)} GPUs, and Ray may hand out {one['gpus']}: the others are left out."
            )
            node = replace(node, gpus=node.gpus[: one["gpus"]])
        elif one["gpus"] > len(node.gpus):
            notes.append(f"Ray counts {one['gpus']} GPUs on {name}, and nvidia-smi shows {len(node.gpus)}.")
        nodes.append(node)
    return nodes
