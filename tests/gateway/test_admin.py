"""The admin API: own key, keys that work at once, figures, and its own description."""

import contextlib
import http.client
import json
import re
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from gateway.conftest import ADMIN_KEY, KEY, Running
from gateway.test_process import call, chat, eventually
from longspan.gateway.adminspec import bad_field

Make = Callable[..., Running]


def admin(
    running: Running, method: str, path: str, body: Any = None, key: str = ADMIN_KEY
) -> tuple[int, bytes]:
    """One request to the admin port."""
    connection = http.client.HTTPConnection(running.admin_url.removeprefix("http://"), timeout=60)
    try:
        data = json.dumps(body) if body is not None else None
        connection.request(method, path, data, {"authorization": f"Bearer {key}"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_the_front_doors_key_does_not_open_it(gateway: Make) -> None:
    """Two ports, two keys."""
    running = gateway(admin=True)
    for path in ("/metrics", "/admin/status", "/admin/keys", "/nothing"):
        assert admin(running, "GET", path, key=KEY)[0] == 401
    assert call(running, "/v1/models", key=ADMIN_KEY)[0] == 401


@pytest.mark.parametrize("workers", [1, 2])
def test_a_made_key_works_until_it_is_revoked(gateway: Make, workers: int) -> None:
    """Shown once, kept as a hash, limited as asked, in the audit log; revoked at once."""
    running = gateway(admin=True, top=f"workers = {workers}\n")
    status, body = admin(running, "POST", "/admin/keys", {"name": "alice", "requests_per_minute": 2})
    assert status == 201
    key = json.loads(body)["key"]
    assert key.startswith("lsp_")
    assert eventually(lambda: call(running, "/v1/models", key=key)[0] == 200)
    answers = [call(running, "/v1/chat/completions", chat(), key=key)[0] for _ in range(3)]
    assert answers == [200, 200, 429]
    listed = admin(running, "GET", "/admin/keys")[1].decode()
    assert "alice" in listed
    assert key not in listed
    assert admin(running, "POST", "/admin/keys", {"name": "alice"})[0] == 409
    assert admin(running, "DELETE", "/admin/keys/alice")[0] == 204
    assert eventually(lambda: call(running, "/v1/models", key=key)[0] == 401)
    assert eventually(lambda: b"key revoked" in admin(running, "GET", "/admin/audit")[1])


def test_a_key_that_cannot_be_stored_is_not_made(gateway: Make) -> None:
    """An answer of success means that the key is on disk; one that is revoked is refused even where that cannot be stored."""
    running = gateway(admin=True)
    made = json.loads(admin(running, "POST", "/admin/keys", {"name": "alice"})[1])["key"]
    assert eventually(lambda: call(running, "/v1/models", key=made)[0] == 200)
    with contextlib.closing(sqlite3.connect(running.ledger)) as db:
        db.execute("alter table keys rename to gone")
    status, body = admin(running, "POST", "/admin/keys", {"name": "bob"})
    assert (status, b"no such table" in body, b"lsp_" in body) == (503, True, False)
    assert b"bob" not in admin(running, "GET", "/admin/keys")[1]
    status, body = admin(running, "DELETE", "/admin/keys/alice")
    assert (status, b"refused from now on" in body) == (503, True)
    assert eventually(lambda: call(running, "/v1/models", key=made)[0] == 401)
    call(running, "/v1/chat/completions", chat("tokens=4"), x_request_id="r-2")
    assert eventually(lambda: admin(running, "GET", "/admin/requests/r-2")[0] == 200)


def test_usage_metrics_and_export(gateway: Make) -> None:
    """The same request is in the sums, in Prometheus' text, in the status and in the exported rows."""
    running = gateway(admin=True)
    call(running, "/v1/chat/completions", chat("tokens=4", stream=True), x_request_id="r-1")
    assert eventually(lambda: admin(running, "GET", "/admin/requests/r-1")[0] == 200)
    (group,) = json.loads(admin(running, "GET", "/admin/usage?by=key")[1])["groups"]
    assert (group["group"], group["requests"], group["completion_tokens"]) == ("test", 1, 4)
    metrics = admin(running, "GET", "/metrics")[1].decode()
    assert 'longspan_gateway_tokens_total{key="test",target="e' in metrics
    assert "longspan_gateway_ttft_seconds_count 1" in metrics
    status = json.loads(admin(running, "GET", "/admin/status")[1])
    assert (status["requests"], status["outside_share"]) == ({"local": 1, "outside": 0}, 0.0)
    assert set(status["money"]) == {"outside_usd", "avoided_usd", "local_usd", "saved_usd"}
    assert set(status["queue_seconds"].values()) == {0.0}
    assert b"r-1" in admin(running, "GET", "/admin/export?format=csv")[1]
    assert json.loads(admin(running, "GET", "/admin/replay?threshold_seconds=3")[1])["outside_now"] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_refused_before_routing_is_counted(gateway: Make, workers: int) -> None:
    """By status and reason, each once; nothing that a client wrote is in a label, and an answer is no refusal."""
    running = gateway(admin=True, top=f"workers = {workers}\nmax_body_bytes = 1000\n")
    call(running, "/v1/models", key="lsp_wrong")
    call(running, "/nowhere-secret")
    call(running, "/v1/models/none-secret")
    call(running, "/v1/chat/completions", {"model": "none-secret"})
    call(running, "/v1/chat/completions", b"{")
    call(running, "/v1/../secret")
    call(running, "/v1/load_lora_adapter", {})
    assert call(running, "/v1/chat/completions", b"x" * 1001)[0] == 413
    call(running, "/health", key=None)
    call(running, "/v1/models")
    wanted = {
        (401, "invalid_api_key"): 1, (404, "not_found"): 1, (404, "model_not_found"): 2, (400, "invalid_body"): 1,
        (400, "bad_path"): 1, (403, "forbidden_path"): 1, (413, "body_too_large"): 1,
    }  # fmt: skip

    def counted() -> dict[tuple[int, str], int]:
        text = admin(running, "GET", "/metrics")[1].decode()
        assert "secret" not in text
        found = re.findall(r'longspan_gateway_refused_total{status="(\d+)",reason="(\w+)"} (\d+)', text)
        return {(int(status), reason): int(number) for status, reason, number in found}

    assert eventually(lambda: counted() == wanted), counted()


@pytest.mark.parametrize(
    "fields",
    [{}, [], {"name": "a b"}, {"name": "a", "x": 1}, {"name": "a", "max_parallel": 0}, {"name": "a", "max_parallel": True},
     {"name": "a", "priority": "first"}, {"name": "a", "models": "m"}, {"name": "a", "local_only": 1}],
)  # fmt: skip
def test_bad_keys_are_refused_with_words(fields: Any) -> None:
    """Each mistake has its sentence."""
    assert bad_field(fields)
    assert bad_field({"name": "a", "models": ["m"], "priority": "low", "tokens_per_minute": None}) == ""


def test_the_api_keeps_its_own_description(gateway: Make) -> None:
    """schemathesis calls every operation with good and bad values: no 500, no undescribed answer."""
    schemathesis = pytest.importorskip("schemathesis", reason="pip install schemathesis")
    running = gateway(admin=True)
    spec = json.loads(admin(running, "GET", "/openapi.json")[1])
    schema = schemathesis.openapi.from_dict(spec)
    schema.config.update(base_url=running.admin_url)
    for operation in schema.get_all_operations():

        @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=operation.ok().as_strategy())
        def check(case: Any) -> None:
            case.call_and_validate(headers={"Authorization": f"Bearer {ADMIN_KEY}"})

        check()


PRICES = """
[[providers]]
name = "p"
url = "http://127.0.0.1:9"
models = { m = "theirs" }
prompt_usd_per_million_tokens = 1000000.0
completion_usd_per_million_tokens = 2000000.0
"""


def test_money_saved_is_what_was_avoided_less_what_the_replicas_cost(gateway: Make) -> None:
    """7 prompt and 4 completion tokens at the provider's price; a replica's hours count whether it works or not."""
    running = gateway(PRICES, admin=True)
    text = running.path.read_text().replace('name = "e0"\n', 'name = "e0"\nusd_per_hour = 36000.0\n')
    running.path.write_text(text)
    call(running, "/v1/chat/completions", chat("tokens=4", stream=True))

    def money() -> dict[str, float]:
        found: dict[str, float] = json.loads(admin(running, "GET", "/admin/status")[1])["money"]
        return found

    assert eventually(lambda: money()["avoided_usd"] == 15.0)
    assert eventually(lambda: money()["local_usd"] > 0)
    now = money()
    assert now["saved_usd"] == pytest.approx(now["avoided_usd"] - now["local_usd"])
    metrics = admin(running, "GET", "/metrics")[1].decode()
    assert "longspan_gateway_avoided_usd_total 15.0" in metrics
    assert 'longspan_gateway_local_usd_total{replica="e0"}' in metrics
