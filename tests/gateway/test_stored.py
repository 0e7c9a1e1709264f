"""Stored responses, through the whole process: whose they are, and that a restart of the gateway forgets nothing."""

import json
from collections.abc import Callable

import pytest

from gateway.conftest import Running, digest, stop
from gateway.test_process import call, eventually
from longspan.gateway import store

Make = Callable[..., Running]
OTHERS = "lsp_other-key"
OTHER_KEY = f'[[keys]]\nname = "other"\nsha256 = "{digest(OTHERS)}"\n'


def asked(**fields: str) -> dict[str, str]:
    """A request that makes a response."""
    return {"model": "m", "input": "hello", **fields}


@pytest.mark.parametrize("workers", [1, 2])
def test_only_its_maker_reads_continues_or_deletes_a_response(gateway: Make, workers: int) -> None:
    """At the replica that holds it, also after a restart; for another key it does not exist."""
    top = f"workers = {workers}\n"
    running = gateway(OTHER_KEY, top)
    status, headers, body = call(running, "/v1/responses", asked(request_id="resp_a"))
    assert (status, json.loads(body)["id"]) == (200, "resp_a")
    holder = headers["x-served-by"]
    assert eventually(lambda: store.load_responses(running.ledger, 9) == [("resp_a", holder, "test")])
    for restart in (False, True):
        if restart:
            stop(running.process)
            running = gateway(OTHER_KEY, top)
        for method in ("GET", "DELETE"):
            for _ in range(3):
                status, headers, _ = call(running, "/v1/responses/resp_a", method=method)
                assert (status, headers["x-served-by"]) == (200, holder)
            status, _, theirs = call(running, "/v1/responses/resp_a", method=method, key=OTHERS)
            unknown = call(running, "/v1/responses/resp_b", method=method, key=OTHERS)
            assert (status, theirs.replace(b"resp_a", b"resp_b")) == (404, unknown[2])
            assert unknown[0] == 404
        more = asked(previous_response_id="resp_a")
        assert call(running, "/v1/responses", more)[1]["x-served-by"] == holder
        assert call(running, "/v1/responses", more, key=OTHERS)[0] == 404
        assert call(running, "/v1/responses", asked(request_id="resp_a"), key=OTHERS)[0] == 409
