"""`longspan stage`: the same weights, and on wish the same Python environment, on every node, before they are compared."""

import json
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from longspan.cli import allocation, joining, prepare, stage_env, stage_show
from longspan.cli.stage_copy import Progress, Reached, listing, reach, shell, sources
from longspan.cli.stage_spread import send_all
from longspan.cluster.hosts import HostEntry
from longspan.daemon import starting
from longspan.daemon.reach import slurm_host
from longspan.errors import HostError, InputError, LongspanError, ModelError, StageError
from longspan.finding import Finding
from longspan.host import LocalHost, SshHost
from longspan.launch import container, staging
from longspan.launch.checkpoint import CheckpointDigest, compare_copies
from longspan.launch.digest import checkpoint_files, digest_checkpoint
from longspan.launch.staging import NodePlan, plan_node
from longspan.units import format_bytes

DIGEST_TIMEOUT_SECONDS = 3600.0  # 700 GB sampled are seconds; --full reads them all
HERE = "this machine"


@click.command("stage")
@click.argument("model", required=False)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The cluster file. [default: the Slurm allocation]",
)
@click.option("--to", metavar="DIRECTORY", help="Where it lies on the nodes. [default: where it lies here]")
@click.option("--revision", help="Revision of a Hugging Face id.")
@click.option("--full", is_flag=True, help="Compare every byte, however large the checkpoint is.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Files that this machine sends at a time.",
)
@click.option(
    "--lock",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A requirements file with exact versions: the nodes' Python environment.",
)
@click.option(
    "--venv",
    default="~/longspan-venv",
    show_default=True,
    metavar="DIRECTORY",
    help="Where that environment is made on the nodes.",
)
@click.option(
    "--hf-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Give the nodes the Hugging Face token in this file.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    model: str | None, cluster: Path | None, to: str | None, revision: str | None, full: bool, parallel: int,
    lock: Path | None, venv: str, hf_token_file: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Bring MODEL (a directory, or a Hugging Face id that is fetched here once) to every node, and verify it there.

    This machine sends each file once; the nodes pass it on to each other. What is there already is not sent again; what was cut off
    goes on. A shared directory is recognised and only verified.
    """
    if model is None and lock is None and hf_token_file is None:
        raise InputError("There is nothing to stage.", "Give MODEL, --lock or --hf-token-file.")
    entries = _hosts(cluster)
    hosts = {entry.name: _reach(entry) for entry in entries}
    document: dict[str, Any] = {"nodes": list(hosts)}
    if lock is not None:
        document["environment"] = stage_env.stage(lock, venv, entries, hosts, parallel)
    if hf_token_file is not None:
        _write_token(hf_token_file, hosts)
    if model is not None:
        directory = _source(model, revision)
        found = document["model"] = _weights(directory, to, entries, hosts, full=full, parallel=parallel)
        click.echo(f"The same checkpoint on {len(hosts)} nodes: longspan up {found['path']} …", err=True)
    if as_json:
        click.echo(json.dumps(document))
    return 0


def bring(directory: Path, entries: list[HostEntry]) -> None:
    """A directory of this machine on these hosts, at the same path, every byte compared.

    Raises:
        LongspanError: a node cannot be reached, or does not take it.
    """
    hosts = {entry.name: _reach(entry) for entry in entries}
    _weights(directory, None, entries, hosts, full=True, parallel=4)


def remove(directory: Path, entries: list[HostEntry]) -> list[str]:
    """Takes the directory away on these hosts.

    Returns:
        what could not be removed, as sentences.
    """
    left = []
    for entry in entries:
        try:
            done = shell(_reach(entry), staging.REMOVE_DIRECTORY, str(directory))
        except HostError as error:
            left.append(f"{directory} is left on {entry.name}: {error.what}")
            continue
        if done.returncode:
            left.append(f"{directory} is left on {entry.name}: {done.stderr.strip()[-200:]}")
    return left


def _hosts(cluster: Path | None) -> list[HostEntry]:
    """The nodes that are not this machine.

    Raises:
        InputError: there are none.
    """
    found = joining.read_cluster(cluster) if cluster else allocation.allocated_hosts()
    entries = [host for host in found.hosts if host.ssh or host.slurm] if found else []
    if not entries:
        raise InputError(
            "No node is reached by ssh or Slurm, so there is nowhere to bring it.",
            "Give --cluster FILE whose nodes have ssh = …, or run inside a Slurm allocation.",
        )
    return entries


def _reach(entry: HostEntry) -> Reached:
    if entry.ssh is not None:
        return reach(SshHost(entry.name, entry.ssh))
    assert entry.slurm is not None
    return slurm_host(entry.name, entry.slurm)


def _source(model: str, revision: str | None) -> Path:
    """The directory to send; an id is fetched once, with the user's own token.

    Raises:
        ModelError: neither a directory nor an id, or Hugging Face does not give it.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if not prepare.is_hub_id(model):
        raise ModelError(
            f"{model!r} is neither a directory on this machine nor a Hugging Face id (organisation/name)."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    click.echo(f"Fetching {model} …", err=True)
    try:
        return Path(snapshot_download(model, revision=revision))
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(
            f"{model} cannot be fetched: {error}",
            "Gated models need a token: `hf auth login` on this machine.",
        ) from error


def _write_token(path: Path, hosts: dict[str, Reached]) -> None:
    """The token goes through standard input into the file where huggingface_hub looks for it, mode 0600.

    Raises:
        InputError: it cannot be read. StageError: a node does not take it.
    """
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise InputError(f"--hf-token-file {path} cannot be read: {error.strerror}.") from error
    for name, host in hosts.items():
        argv = ["sh", "-c", staging.WRITE_PRIVATE, "sh", "~/.cache/huggingface/token"]
        done = host.run(argv, stdin=token, timeout_seconds=60)
        if done.returncode:
            raise StageError(f"{name} did not take the Hugging Face token: {done.stderr.strip()[-200:]}")
    click.echo(f"Hugging Face token: on {', '.join(hosts)}", err=True)


def _weights(
    directory: Path,
    to: str | None,
    entries: list[HostEntry],
    hosts: dict[str, Reached],
    *,
    full: bool,
    parallel: int,
) -> dict[str, Any]:
    """Lists, checks the disks, sends, verifies; what was damaged there is sent once more.

    Raises:
        LongspanError: a node's, the first of them; or copies that differ.
    """
    target = to or str(directory)
    files = sources(directory, checkpoint_files)
    here = listing(LocalHost(HERE), str(directory))
    sent: dict[str, int] = dict.fromkeys(hosts, 0)
    from_here = 0
    for attempt in (1, 2):
        with ThreadPoolExecutor(16) as pool:
            listings = list(pool.map(lambda host: listing(host, target), hosts.values()))
        plans = [plan_node(name, found, files, here) for name, found in zip(hosts, listings, strict=True)]
        progress = Progress({plan.node: plan.left_bytes for plan in plans})
        if attempt == 1:
            _say_plan(directory, sum(file.size_bytes for file in files), plans)
        with stage_show.shown(progress):
            errors = send_all(
                directory, plans, entries, hosts, progress, streams=parallel, are_copies_trusted=attempt == 1
            )
        from_here += progress.here_bytes
        for node, count in progress.sent_bytes.items():
            sent[node] += count
        if errors:
            raise _joined(errors)
        click.echo("Comparing digests …", err=True)
        findings = _verify(directory, plans, entries, hosts, full=full)
        wrong = [finding for finding in findings if finding.severity == "error"]
        if not wrong:
            break
        if attempt == 2:
            raise StageError(" ".join(finding.summary for finding in wrong[:3]), wrong[0].remedy)
        _remove_wrong(wrong, plans, hosts)
    return {
        "path": plans[0].directory, "bytes": sum(file.size_bytes for file in files), "sent_bytes": sent,
        "from_here_bytes": from_here,
        "shared": [plan.node for plan in plans if plan.shared],
    }  # fmt: skip


def _say_plan(directory: Path, size_bytes: int, plans: list[NodePlan]) -> None:
    click.echo(f"{directory}: {format_bytes(size_bytes)}", err=True)
    for plan in plans:
        if plan.shared:
            text = "sees the same files (a shared file system)"
        else:
            text = f"{format_bytes(plan.left_bytes)} to send, {format_bytes(plan.present_bytes)} there"
        click.echo(f"  {plan.node}: {text}", err=True)


def _joined(errors: list[LongspanError]) -> LongspanError:
    first = errors[0]
    more = "".join(f" {error.what}" for error in errors[1:4])
    return StageError(f"{first.what}{more}", first.remedy)


def _digest_command(entry: HostEntry, host: Reached, directory: str) -> list[str]:
    """What prints a node's digests there: its Python, or that of the image in which it serves.

    Raises:
        HostError: no engine or image there.
    """
    module = ["-m", "longspan.launch.digest_main"]
    if entry.container is None:
        return [entry.python or sys.executable, *module]
    job = container.Job("stage", entry.name, f"stage-{secrets.token_hex(4)}", "", directory)
    said = host.run(container.prepare_command(entry.container, job), timeout_seconds=60).stdout
    job = replace(job, home=starting.home_said(said, entry.container))
    return container.run_command(entry.container, job, [entry.python or entry.container.python, *module])


def _verify(
    directory: Path, plans: list[NodePlan], entries: list[HostEntry], hosts: dict[str, Reached], *, full: bool
) -> tuple[Finding, ...]:
    """The nodes' digests against this machine's.

    Raises:
        StageError: a node cannot say its digests.
    """
    nonce = secrets.token_hex(16)
    by_name = {entry.name: entry for entry in entries}

    def one(plan: NodePlan) -> CheckpointDigest:
        host = hosts[plan.node]
        asked = json.dumps({"path": plan.directory, "nonce": nonce, "full": full})
        said = ""
        try:
            argv = _digest_command(by_name[plan.node], host, plan.directory)
            done = host.run(argv, stdin=asked, timeout_seconds=DIGEST_TIMEOUT_SECONDS)
            said = done.stderr.strip()[-300:]
            answer = json.loads(done.stdout)
            if "error" in answer:
                raise StageError(f"{plan.node}: {answer['error']}")
            return CheckpointDigest.from_json(answer)
        except (HostError, ValueError, LookupError, TypeError) as error:
            said = error.what if isinstance(error, HostError) else said
            raise StageError(
                f"{plan.node} has the files, but cannot digest them: {said}",
                "Install Longspan there (`longspan stage --lock …`), or correct python = … in the cluster file.",
            ) from error

    with ThreadPoolExecutor(max(1, len(plans))) as pool:
        own = pool.submit(digest_checkpoint, directory, nonce, full=full)
        theirs = list(pool.map(one, plans))
        reference = own.result()
    found: list[Finding] = []
    for plan, copy in zip(plans, theirs, strict=True):
        # One by one against the source: among many nodes a majority could be wrong together.
        found += compare_copies({HERE: reference, plan.node: copy}, HERE)
    return tuple(found)


def _remove_wrong(wrong: list[Finding], plans: list[NodePlan], hosts: dict[str, Reached]) -> None:
    """Files whose bytes are not the source's are removed there, so that the next round sends them. What the node has
    beyond that is not ours to remove."""
    for plan in plans:
        found = [
            evidence for finding in wrong if finding.subject == plan.node for evidence in finding.evidence
        ]
        paths = [evidence.file for evidence in found if evidence.text.startswith("differs")]
        if plan.shared or not paths:
            continue
        click.echo(f"  {plan.node}: {len(paths)} files are not this machine's; they are sent again", err=True)
        shell(hosts[plan.node], staging.REMOVE, staging.PART, *paths)
