"""`python -m longspan.gateway --config FILE`: the gateway as its own process."""

import argparse
import sys
from pathlib import Path

from longspan.errors import LongspanError
from longspan.gateway.app import main


def run() -> int:
    """Parses the command line and runs; errors become one paragraph and an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m longspan.gateway", description="Run the Longspan gateway."
    )
    parser.add_argument("--config", required=True, type=Path, help="TOML file; read again when it changes")
    arguments = parser.parse_args()
    try:
        main(arguments.config)
    except LongspanError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(run())
