"""Adapter of the fault suite: the suite's options as a Longspan gateway configuration."""

import hashlib
import json
import sqlite3
import sys
from pathlib import Path

EXT_KEY = "sk-external-provider-secret-7777"
EXT_MODEL = "ext-only"
NAME = "longspan"
READY_PATH = "/v1/models"
START_TIMEOUT = 30
HEALTH_PATH = "/ready"
OVERFLOW_HEADERS = ["x-overflow-reason"]
CLIENT_KEY = "lsp_suite-client-key"
ROOT = Path(__file__).resolve().parents[2]


def _table(name, values):
    lines = [name] + [f"{k} = {json.dumps(v)}" for k, v in values.items() if v is not None]
    return "\n".join(lines) + "\n"


def config(engine_urls, external_url, options):
    """The configuration files of one case."""
    hints = options.get("hints", {})

    def get(name, default=None):
        return options.get(name, hints.get(name, default))

    external = options.get("external")
    affinity = get("affinity", "none" if get("balance") == "load" else "auto")
    text = _table("", {
        "listen": "127.0.0.1:@PORT@", "log": "gateway.jsonl", "ledger": "ledger.db", "workers": get("workers", 1),
        "drain_seconds": float(get("drain_s", 30)),
    })  # fmt: skip
    text += _table("[timeouts]", {
        "ttft_seconds": get("ttft_timeout_s"), "idle_seconds": get("idle_timeout_s"), "total_seconds": get("request_timeout_s"),
    })  # fmt: skip
    text += _table("[queue]", {
        "max_concurrent": get("max_concurrent"), "max_waiting": get("queue_size"), "wait_seconds": get("wait_room_s"),
    })  # fmt: skip
    text += _table("[health]", {
        "interval_seconds": get("health_interval_s"), "timeout_seconds": get("health_timeout_s"),
        "stall_seconds": get("stall_after_s"),
    })  # fmt: skip
    text += _table("[breaker]", {"failures": get("breaker_failures"), "open_seconds": get("breaker_open_s")})
    text += _table("[routing]", {"affinity": affinity})
    if external:
        text += _table("[overflow]", {"threshold_seconds": external["overflow_after_s"]})
    keys = [{"key": CLIENT_KEY}, {"key": "sk-client-secret-123"}, *get("keys", [])]
    for number, key in enumerate(keys):
        text += _table("[[keys]]", {
            "name": f"k{number}", "sha256": hashlib.sha256(key["key"].encode()).hexdigest(),
            "max_parallel": key.get("max_parallel"), "requests_per_minute": key.get("rpm"),
            "tokens_per_minute": key.get("tpm"),
        })  # fmt: skip
    text += _table("[[models]]", {"name": "m"})
    for number, url in enumerate(engine_urls):
        text += _table("[[replicas]]", {"name": f"r{number}", "url": url, "model": "m"})
    if external:
        text += _table(
            "[[providers]]", {"name": "outside", "url": external_url, "key_env": "SUITE_PROVIDER_KEY"}
        )
        text += f'models = {{ m = "m", "{EXT_MODEL}" = "{EXT_MODEL}" }}\n'
    return {"gateway.toml": text}


def command(files, port):
    """The gateway's command line."""
    path = Path(files["gateway.toml"])
    path.write_text(path.read_text().replace("@PORT@", str(port)))
    return [sys.executable, "-m", "longspan.gateway", "--config", str(path)]


def env(files):
    """The source tree and the provider's key."""
    return {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1", "SUITE_PROVIDER_KEY": EXT_KEY}


def headers():
    """The client's key."""
    return {"Authorization": "Bearer " + CLIENT_KEY}


def session_headers(session_id):
    """The header that names a session."""
    return {"X-Session-ID": session_id}


def local_only():
    """What keeps one request at home."""
    return {"X-Longspan-Local-Only": "1"}, {}


def usage(base_url, files):
    """Tokens in the ledger."""
    path = Path(files["gateway.toml"]).parent / "ledger.db"
    if not path.exists():
        return {"prompt_tokens": 0, "completion_tokens": 0}
    with sqlite3.connect(path) as db:
        row = db.execute(
            "select coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0) from requests"
        ).fetchone()
    return {"prompt_tokens": row[0], "completion_tokens": row[1]}
