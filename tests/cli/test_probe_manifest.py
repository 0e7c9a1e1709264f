"""`longspan probe` against a gateway that a test plays; `longspan manifest` as a user calls it."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from longspan.daemon.places import Places, write_private
from longspan.errors import InputError, NoDeploymentError, NoTokenError

Verb = Callable[..., Any]


class Played:
    """What the gateway answers: a status and a body for completions, whether it is ready, and what it was asked."""

    def __init__(self) -> None:
        self.status, self.tokens, self.ready, self.silent = 200, 1, True, False
        self.asked: list[tuple[str, str | None, Any]] = []
        self.release = threading.Event()


@pytest.fixture
def gateway() -> Iterator[tuple[Played, str]]:
    """A gateway on loopback."""
    played = Played()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _say(self, status: int, document: Any) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/ready":
                self._say(200 if played.ready else 503, {})
            else:
                self._say(200, {"data": [{"id": "first-model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            played.asked.append((self.path, self.headers["Authorization"], body))
            if played.silent:
                played.release.wait(60)
            self._say(
                played.status, {"usage": {"completion_tokens": played.tokens}, "choices": [{"text": " 2"}]}
            )

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield played, f"http://127.0.0.1:{server.server_port}"
    played.release.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_token_is_asked_for(longspan: Verb, gateway: tuple[Played, str], tmp_path: Path) -> None:
    """One token of the gateway's model, with the key out of a file."""
    played, url = gateway
    (tmp_path / "key").write_text("lsp_secret\n")
    said = longspan("probe", "--url", f"{url}/v1", "--key-file", str(tmp_path / "key"), "--json")
    assert said.code == 0
    assert said.document["token"] == " 2"
    ((path, key, body),) = played.asked
    assert (path, key) == ("/v1/completions", "Bearer lsp_secret")
    assert (body["model"], body["max_tokens"]) == ("first-model", 1)


@pytest.mark.parametrize("broken", [{"status": 503}, {"tokens": 0}, {"silent": True}])
def test_without_a_token_the_gateways_word_counts(
    longspan: Verb, gateway: tuple[Played, str], broken: dict[str, Any]
) -> None:
    """No token in time: a failure where the gateway sees none move, and only then, so that a queue is no failure."""
    played, url = gateway
    for name, value in broken.items():
        setattr(played, name, value)
    assert longspan("probe", "--url", url, "--timeout", "0.3").code == 0
    played.ready = False
    said = longspan("probe", "--url", url, "--timeout", "0.3")
    assert said.code == NoTokenError.exit_code
    assert "No token came" in said.err


def test_nobody_there(longspan: Verb) -> None:
    """A gateway that is gone is a failure; so is a deployment that never was, with another code."""
    assert longspan("probe", "--url", "http://127.0.0.1:9", "--timeout", "1").code == NoTokenError.exit_code
    assert longspan("probe", "--url", "ftp://x").code == InputError.exit_code
    assert longspan("probe", "--name", "never").code == NoDeploymentError.exit_code


def test_the_deployments_own_gateway(longspan: Verb, gateway: tuple[Played, str]) -> None:
    """By its name: address, model and key come out of the deployment's directory; 0.0.0.0 is asked on loopback."""
    played, url = gateway
    places = Places.of("mine")
    write_private(
        places.spec, json.dumps({"spec": {"listen": f"0.0.0.0:{url.rpartition(':')[2]}", "served_name": "m"}})
    )
    write_private(places.api_key, "lsp_k")
    assert longspan("probe", "--name", "mine").code == 0
    assert played.asked[0][1:] == (
        "Bearer lsp_k",
        {"model": "m", "prompt": "1", "max_tokens": 1, "temperature": 0},
    )


# ---- manifest
def test_manifests_are_written(longspan: Verb, tmp_path: Path) -> None:
    """Each target's text on standard output or in a file, with what stood after `--`."""
    script = longspan(
        "manifest", "slurm", "org/m", "--nodes", "2", "--sbatch", "time=1:00:00", "--", "--seed", "1"
    )
    assert script.code == 0
    assert script.out.startswith("#!/bin/bash\n")
    assert script.out.endswith(
        "--tp 8 --pp 2 --executor ray --name default --listen 0.0.0.0:8000 --foreground -- --seed 1\n"
    )
    for target, kind in (("kuberay", "RayCluster"), ("lws", "LeaderWorkerSet")):
        path = tmp_path / f"{target}.yaml"
        said = longspan(
            "manifest", target, "org/m", "--image", "i:1", "--node-selector", "a/b=c", "-o", str(path)
        )
        assert said.code == 0, said.err
        assert [document["kind"] for document in yaml.safe_load_all(path.read_text())] == [kind, "Service"]
        assert f"kubectl apply -f {path}" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("slurm",), "no model"),
        (("slurm", "m", "--tp", "9"), "needs 9 GPUs"),
        (("slurm", "m", "--nodes", "0"), "--nodes 0"),
        (("slurm", "m", "--plan", "p"), "--plan says"),
        (("slurm", "m", "--name", "A B"), "cannot be a deployment's name"),
        (("slurm", "m", "--sbatch", "a b"), "--sbatch"),
        (("slurm", "m", "--", "--port", "1"), "--port"),
        (("lws", "m"), "--image is missing"),
        (("lws", "m", "--image", "i", "--hf-secret", "A b"), "--hf-secret"),
        (("lws", "m", "--image", "i", "--node-selector", "gpu"), "LABEL=VALUE"),
        (("lws", "m", "--image", "i", "--tolerate", "a b"), "label or resource"),
        (("kuberay", "m", "--image", "i", "--mount", "models"), "--mount"),
        (("kuberay", "m", "--image", "i", "--shm-gib", "0"), "--shm-gib"),
    ],
)
def test_wishes_that_cannot_be(longspan: Verb, words: tuple[str, ...], said: str) -> None:
    """Each is named before anything is written."""
    found = longspan("manifest", *words)
    assert found.code == InputError.exit_code
    assert said in found.err
    assert found.out == ""


def test_a_key_out_of_a_file(tmp_path: Path) -> None:
    """A given key replaces the kept one; what is too short to be a secret is refused."""
    from longspan.cli.keys import ensure_api_key

    places, path = Places.of("default"), tmp_path / "key"
    own, new = ensure_api_key(places)
    path.write_text(f"{own[::-1]}\n")
    assert new
    assert ensure_api_key(places, path) == (own[::-1], False)
    assert places.api_key.read_text() == own[::-1]
    assert ensure_api_key(places) == (own[::-1], False)
    for text in ("short", "", "with blanks " * 5, "ä" * 30):
        path.write_text(text)
        with pytest.raises(InputError):
            ensure_api_key(places, path)
    with pytest.raises(InputError, match="No such file"):
        ensure_api_key(places, tmp_path / "nowhere")
