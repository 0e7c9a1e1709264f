"""`longspan probe`: does a token come? For the probes of Kubernetes and systemd, which `/health` only lulls.

One token is asked of the gateway. Where it does not come in time, the gateway's own word counts: it sees whether the
tokens of others move, so a long queue is no failure, and a replica with work but without a token is one.
"""

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import click

from longspan.daemon.places import Places
from longspan.errors import InputError, NoDeploymentError, NoTokenError

READY_TIMEOUT_SECONDS = 5.0


@click.command("probe")
@click.option("--name", default="default", show_default=True, help="The deployment's name.")
@click.option("--url", help="Another gateway, such as http://127.0.0.1:8000. [default: the deployment's]")
@click.option("--key-file", type=click.Path(path_type=Path, dir_okay=False), help="Its key.")
@click.option("--model", help="[default: the deployment's, or the gateway's first]")
@click.option(
    "--timeout", type=float, default=30.0, show_default=True, metavar="SECONDS", help="For the token."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on standard output.")
def command(
    name: str, url: str | None, key_file: Path | None, model: str | None, timeout: float, as_json: bool
) -> int:
    """Ask for one token; exit 0 if it came, or if the gateway sees those of others move."""
    if url is None:
        url, key_file, model = _of_deployment(name, key_file, model)
    key = _key(key_file)
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InputError(f"--url {url!r} is no address.", "Such as http://127.0.0.1:8000.")
    began = time.monotonic()
    try:
        text = _one_token(base, key, model, timeout)
        said = {"token": text, "seconds": round(time.monotonic() - began, 3)}
    except (OSError, ValueError, LookupError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        why = f"{type(error).__name__}: {error}"
        if not _ready(base):
            raise NoTokenError(
                f"No token came from {base} within {timeout:g} s ({why}), and its gateway sees none move.",
                "`longspan status` and `longspan doctor` say what is wrong.",
            ) from error
        said = {"token": None, "seconds": round(time.monotonic() - began, 3), "why": why}
    if as_json:
        click.echo(json.dumps(said))
    elif said["token"] is None:
        click.echo(f"no token of its own within {timeout:g} s, but the gateway sees others move", err=True)
    else:
        click.echo(f"a token after {said['seconds']} s")
    sys.stdout.flush()
    return 0


def _of_deployment(name: str, key_file: Path | None, model: str | None) -> tuple[str, Path, str]:
    """Where the deployment's gateway listens, its key and its model, out of its directory.

    Raises:
        NoDeploymentError: it never ran here.
    """
    places = Places.of(name)
    try:
        spec: dict[str, Any] = json.loads(places.spec.read_text())["spec"]
        host, _, port = str(spec["listen"]).rpartition(":")
        served = str(spec["served_name"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise NoDeploymentError(
            f"No deployment called {name!r} was started here.", "Give --url and --key-file."
        ) from error
    everywhere = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]", "": "127.0.0.1"}  # noqa: S104 - compared
    return f"http://{everywhere.get(host, host)}:{port}", key_file or places.api_key, model or served


def _key(path: Path | None) -> str:
    try:
        return path.read_text().strip() if path else ""
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from error


def _open(url: str, key: str, body: dict[str, Any] | None, timeout: float) -> Any:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - http(s) only, checked above
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout)


def _one_token(base: str, key: str, model: str | None, timeout: float) -> str:
    """The text of one generated token; what is not an answer with a token in it is a ValueError or LookupError."""
    if model is None:
        with _open(f"{base}/v1/models", key, None, timeout) as response:
            model = str(json.load(response)["data"][0]["id"])
    body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
    with _open(f"{base}/v1/completions", key, body, timeout) as response:
        answer = json.load(response)
    if int(answer["usage"]["completion_tokens"]) < 1:
        raise ValueError("the answer holds no token")
    return str(answer["choices"][0]["text"])


def _ready(base: str) -> bool:
    try:
        with _open(f"{base}/ready", "", None, READY_TIMEOUT_SECONDS) as response:
            return bool(response.status == 200)
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        return False
