"""`longspan check`: what is wrong with these machines, before anything heavy is loaded."""

import json
from dataclasses import replace
from pathlib import Path

import click

from longspan.cli import check_record, preflighting
from longspan.cli.devices import typed_device
from longspan.cli.joining import probe_ray, read_cluster
from longspan.cli.placing import cluster_nodes, node_of
from longspan.cli.prepare import ray_head_of, ray_ports_of
from longspan.cluster.hosts import HostsFile
from longspan.cluster.link_file import write_links as links_into
from longspan.deployment import NodeSpec
from longspan.errors import CheckError, InputError
from longspan.preflight.run import Options


@click.command("check")
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A cluster file (TOML). Without it, this machine only.",
)
@click.option("--model", help="Also check that every node has this model: a directory, or a Hugging Face id.")
@click.option("--tp", type=int, default=0, help="Tensor-parallel size of the launch to come, if known.")
@click.option(
    "--no-collective", is_flag=True, help="Without the all-reduce and send/receive in the nodes' own torch."
)
@click.option(
    "--write-links",
    is_flag=True,
    help="Write the measured bandwidth into the cluster file, for the next plan.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    cluster: Path | None, model: str | None, tp: int, no_collective: bool, write_links: bool, as_json: bool
) -> int:
    """Check every node and every pair of nodes, then run a real collective among them.

    Nothing is changed on the nodes and nothing stays there. Ends with 70 when an error was found.
    """
    if write_links and (cluster is None or no_collective):
        raise InputError(
            "--write-links writes what a collective measured into a cluster file.",
            "Give --cluster, and leave out --no-collective.",
        )
    hosts = read_cluster(cluster) if cluster else None
    nodes = the_nodes(hosts)
    ports = ray_ports_of(hosts)
    path = str(Path(model).expanduser().resolve()) if model and Path(model).expanduser().is_dir() else model
    options = Options(
        model=path, own_ray=hosts is not None and hosts.ray_address is None, tp=tp, collective=not no_collective,
        ray_ports=(ports.first, ports.last) if ports else (0, 0), fixed_ports=ports.tried if ports else (),
        device=planned_device(hosts),
    )  # fmt: skip
    checked = preflighting.run(
        nodes,
        hosts,
        options,
        lambda text: click.echo(f"  {text}", err=True),
        hosts.ray_address if hosts else None,
    )
    check_record.keep_links(checked.scene)
    if as_json:
        click.echo(json.dumps(check_record.document(checked)))
    else:
        from longspan.cli.check_view import print_checked
        from longspan.cli.render import console

        print_checked(console(), checked)
        click.echo(f"\n{preflighting.summary(checked)}")
    if write_links and cluster is not None:
        _write_links(cluster, checked)
    return CheckError.exit_code if checked.count("error") else 0


def the_nodes(hosts: HostsFile | None) -> list[NodeSpec]:
    """The file's hosts, the head without ranks first; this machine where there is no file."""
    if hosts is None:
        return [preflighting.here()]
    head = ray_head_of(hosts)
    listed = [node_of(host) for host in hosts.hosts]
    if not listed:  # a Ray that runs already, whose nodes it names itself
        return list(cluster_nodes(hosts, probe_ray(hosts.ray_address) if hosts.ray_address else ()))
    # A host whose GPUs the file does not count is no head: 0 means that it runs no rank.
    return [
        node if head and node.name == head.name else replace(node, gpus=max(1, node.gpus)) for node in listed
    ]


def planned_device(hosts: HostsFile | None) -> str:
    """What the GPU types in the file promise: with one, a driver that lists no GPU on any node is an error and no reason to
    skip. Empty for plain numbers, which may mean processors, and for two vendors, which only a launch refuses."""
    used = [host for host in hosts.hosts if host.gpus != 0] if hosts else []
    return (typed_device(used) or "") if len({host.vendor for host in used}) == 1 else ""


def _write_links(cluster: Path, checked: preflighting.Checked) -> None:
    links = check_record.measured_links(checked.scene)
    if not links:
        click.echo("No pair finished its collective, so no link is written.", err=True)
        return
    cluster.write_text(links_into(cluster.read_text(), links))
    told = ", ".join(f"{name} {link.bytes_per_second * 8 / 1e9:.1f} Gbit/s" for name, link in links.items())
    click.echo(
        f"Written to {cluster}: {told} ({next(iter(links.values())).with_}, to the slowest peer).", err=True
    )
