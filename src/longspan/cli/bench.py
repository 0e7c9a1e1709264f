"""`longspan bench`: a group whose default subcommand is `run`, so that `longspan bench URL` measures."""

import click

from longspan.cli.main import LazyGroup

# subcommand -> (module, one line of help); imported when it is called.
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "run": ("longspan.cli.bench_run", "Measure an endpoint (the default: `longspan bench URL`)."),
    "sweep": (
        "longspan.cli.bench_sweep",
        "Measure at rising loads: the knee, and the most that holds the SLO.",
    ),
    "versus": ("longspan.cli.bench_versus", "Measure two endpoints in turn (ABBA) and say which is better."),
    "compare": (
        "longspan.cli.bench_compare",
        "Is B better than A, worse, or can it not be told; for CI too.",
    ),
    "scaling": (
        "longspan.cli.bench_scaling",
        "Efficiency over GPUs, and where the missing per cent went.",
    ),
    "import": ("longspan.cli.bench_import", "Store results of vllm bench serve, guidellm or AIPerf."),
    "report": ("longspan.cli.bench_report", "A result as one HTML file, or as Markdown."),
    "list": ("longspan.cli.bench_list", "The stored results."),
}
DEFAULT = "run"


class BenchGroup(LazyGroup):
    """What is no subcommand is an argument of `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts `run` in front unless a subcommand or a call for help stands there."""
        if args and args[0] not in self.table and args[0] not in ("-h", "--help"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group("bench", cls=BenchGroup, table=SUBCOMMANDS, section="Subcommands")
def command() -> None:
    """Load tests whose numbers can be believed; `longspan bench URL` is short for `longspan bench run URL`."""
