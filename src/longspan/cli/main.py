"""`longspan`: finds the verb, imports only its module, and turns errors into one paragraph and an exit code."""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from longspan import __version__
from longspan.errors import LongspanError

# verb -> (module, one line of help). The help stands here so that `longspan --help` imports no verb.
VERBS: dict[str, tuple[str, str]] = {
    "plan": ("longspan.cli.plan", "Model and cluster to layouts, with a receipt of every GiB on every GPU."),
    "cost": ("longspan.cli.cost", "Own hardware, rented GPUs and an API on the same traffic; break-even."),
    "stage": ("longspan.cli.stage", "The same weights, and the same Python environment, on every node."),
    "check": ("longspan.cli.check", "Pre-flight: every node, every pair of nodes, and a real collective."),
    "up": ("longspan.cli.up", "Serve a model: start everything, end with real tokens and a proof."),
    "rehearse": ("longspan.cli.rehearse", "The plan with a shrunken model, on CPUs or the real nodes."),
    "down": ("longspan.cli.down", "Stop the deployment and leave nothing behind."),
    "status": ("longspan.cli.status", "Phases, ranks on nodes, proof, endpoint."),
    "drain": ("longspan.cli.traffic", "Take a replica or node out of traffic; what runs there may end."),
    "isolate": ("longspan.cli.traffic", "Take a replica or node out of traffic at once."),
    "scale": ("longspan.cli.scale", "Serve with more or fewer replicas, without losing a request."),
    "restore": ("longspan.cli.traffic", "Put it back into traffic."),
    "drill": ("longspan.cli.drill", "Break something on purpose; time detection, rerouting and recovery."),
    "top": ("longspan.cli.top", "Nodes, GPUs, ports, replicas, queue and alarms on one screen."),
    "logs": ("longspan.cli.logs", "The logs of a replica or node, from all machines."),
    "probe": ("longspan.cli.probe", "Ask for one token; for the probes of Kubernetes and systemd."),
    "manifest": (
        "longspan.cli.manifest",
        "Write what a scheduler needs: a Slurm batch script, a RayCluster, a LeaderWorkerSet.",
    ),
    "gateway": ("longspan.cli.gateway", "The front door alone, in front of any OpenAI-compatible upstreams"),
    "dashboard": (
        "longspan.cli.dashboard",
        "The live page: nodes, GPUs, replicas, latency, cost, alarms, a day of history.",
    ),
    "bench": ("longspan.cli.bench", "Load tests whose numbers can be believed, and their comparison."),
    "audit": ("longspan.cli.audit", "The production checklist, run over what serves."),
    "doctor": ("longspan.cli.doctor", "Say why a launch failed or hangs."),
}


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are called.

    Args:
        table: name -> (module, one line of help); a module of several commands has each under its name.
        section: the table's heading in the help.
    """

    def __init__(
        self, *args: Any, table: Mapping[str, tuple[str, str]], section: str, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.table = table
        self.section = section

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command's module and returns the command."""
        if cmd_name not in self.table:
            return None
        module = import_module(self.table[cmd_name][0])
        command = module.command if hasattr(module, "command") else getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands without importing them."""
        with formatter.section(self.section):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


@click.group(
    cls=LazyGroup, table=VERBS, section="Verbs", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="longspan")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
    """Serve one large language model across many GPUs and machines, and prove that it works."""
    ctx.obj = {"debug": debug}


def _document(error: Exception, exit_code: int, remedy: str = "") -> None:
    """With `--json` an error is a document too: standard output holds exactly one, whatever happens."""
    arguments = sys.argv[1:]
    if "--json" not in arguments[: arguments.index("--") if "--" in arguments else None]:
        return
    what = error.what if isinstance(error, LongspanError) else str(error)
    found = {"kind": type(error).__name__, "what": what, "remedy": remedy, "exit_code": exit_code}
    click.echo(json.dumps({"error": found}))


def run() -> None:
    """The entry point: no traceback reaches a user unless `--debug` is given."""
    debug = "--debug" in sys.argv[1:2]
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except LongspanError as error:
        if debug:
            raise
        click.echo(f"{click.style('error:', fg='red', bold=True)} {error.what}", err=True)
        if error.remedy:
            click.echo(f"  {error.remedy}", err=True)
        _document(error, error.exit_code, error.remedy)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except Exception as error:
        if debug:
            raise
        click.echo(
            f"{click.style('bug:', fg='red', bold=True)} {type(error).__name__}: {error}\n"
            "  This is an error in Longspan. Run again as `longspan --debug …` and report the traceback.",
            err=True,
        )
        _document(error, 1)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
