"""`longspan bench import`: results of other load generators, to be compared with each other and with ours."""

import hashlib
import json
from pathlib import Path

import click

from longspan.bench import store as kept
from longspan.bench.foreign import read
from longspan.cli.bench_store import store_option


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--name", help="What the result is called.  [default: the file's name and a hash of its content]"
)
@store_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(file: Path, name: str | None, store: Path, as_json: bool) -> None:
    """Store what `vllm bench serve --save-detailed`, guidellm or AIPerf (profile_export.jsonl) wrote.

    A result of `longspan bench` is stored too, by its own name. What a tool does not tell stays unknown, and is said: none of them says how well its own client kept up.
    """
    document = kept.read_document(file)
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:8]
    results = read(document, name or f"{file.stem}-{content}")
    for result in results:
        kept.save(store, result)
    if as_json:
        found = [
            {"result_id": one.result_id, "requests": len(one.requests), "notes": list(one.notes)}
            for one in results
        ]
        click.echo(json.dumps({"store": str(store), "results": found}))
        return
    for result in results:
        failed = sum(one.failed for one in result.requests)
        tool = result.load.get("imported_from", "longspan bench")
        click.echo(f"{result.result_id}: {len(result.requests):,} requests of {tool}, {failed:,} failed")
        for note in result.notes:
            click.echo(f"  {note}")
