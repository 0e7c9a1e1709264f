"""`longspan bench`: a group whose default subcommand is `run`, so that `longspan bench URL` measures."""

from importlib import import_module

import click

# subcommand -> (module, one line of help); imported when it is called.
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "run": ("longspan.cli.bench_run", "Measure an endpoint (the default: `longspan bench URL`)."),
    "compare": (
        "longspan.cli.bench_compare",
        "Is B better than A, worse, or can it not be told; for CI too.",
    ),
    "import": ("longspan.cli.bench_import", "Store results of vllm bench serve, guidellm or AIPerf."),
    "report": ("longspan.cli.bench_report", "A result as one HTML file, or as Markdown."),
    "list": ("longspan.cli.bench_list", "The stored results."),
}
DEFAULT = "run"


class BenchGroup(click.Group):
    """Finds subcommands lazily; what is none of them is an argument of `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts `run` in front unless a subcommand or a call for help stands there."""
        if args and args[0] not in SUBCOMMANDS and args[0] not in ("-h", "--help"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The subcommands, in the order of the table."""
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the subcommand's module and returns its `command`."""
        if cmd_name not in SUBCOMMANDS:
            return None
        command = import_module(SUBCOMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands without importing them."""
        with formatter.section("Subcommands"):
            formatter.write_dl([(name, text) for name, (_, text) in SUBCOMMANDS.items()])


@click.group("bench", cls=BenchGroup)
def command() -> None:
    """Load tests whose numbers can be believed; `longspan bench URL` is short for `longspan bench run URL`."""
