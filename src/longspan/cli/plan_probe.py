"""`longspan plan --probe`: asks hosts what they have and prints the inventory."""

import json

import click

from longspan.cluster.inventory import Cluster, describe
from longspan.cluster.inventory_file import to_toml
from longspan.cluster.probe import probe_node
from longspan.errors import InputError
from longspan.host import Host, LocalHost, SshHost


def print_probe(hosts: str, as_json: bool) -> None:
    """Probes each host in turn and prints TOML (or the TOML in a JSON document).

    Raises:
        HostError: a host cannot be reached. ProbeError: it has a GPU that is not in the catalogue.
    """
    names = [name.strip() for name in hosts.split(",") if name.strip()]
    if not names:
        raise InputError("--probe names no host.", "Write --probe localhost or --probe gpu-a,gpu-b.")
    nodes = []
    for name in names:
        click.echo(f"asking {name}", err=True)
        host: Host = (
            LocalHost(name) if name in {"localhost", "127.0.0.1"} else SshHost(name.rsplit("@", 1)[-1], name)
        )
        nodes.append(probe_node(host))
    cluster = Cluster("probed", tuple(nodes))
    click.echo(describe(cluster), err=True)
    text = to_toml(cluster)
    click.echo(json.dumps({"inventory": text, "gpus": cluster.gpu_count}) if as_json else text, nl=as_json)
