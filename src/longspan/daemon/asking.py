"""What the controller asks of the endpoint itself: the first token through the gateway, and the proof's evidence."""

import json
import time
from typing import Any

import aiohttp

from longspan.errors import LongspanError
from longspan.launch import prover
from longspan.launch.actions import Ask
from longspan.launch.autoscale import Seen
from longspan.launch.steps import Steps
from longspan.launch.verdict import Evidence


async def ask(question: Ask, machine: Steps, api_key: str, engine_key: str) -> Any:
    """Answers one `Ask`.

    Raises:
        aiohttp.ClientError, TimeoutError, RuntimeError: the endpoint does not answer, or wrongly.
    """
    group = machine.replicas.by_name[question.replica].group
    assert group is not None  # only a group asks
    engine = prover.Endpoint(group.engine_url, machine.spec.served_name, engine_key)
    gateway = prover.Endpoint(f"http://{machine.gateway_address}", machine.spec.served_name, api_key)
    if question.arguments.get("direct"):
        gateway = engine
    if question.what == "first_token":
        return await first_token(gateway)
    # About one replica, and with prompt_logprobs, which the gateway need not let clients ask for: the engine itself.
    return await evidence(gateway, engine)


def seen_of(status: dict[str, Any]) -> Seen:
    """The load out of the gateway's own status.

    Raises:
        LookupError, TypeError, ValueError: it is of another form.
    """
    ready = [row for row in status["replicas"] if row["state"] == "ready"]
    known = all(row["capacity"] is not None for row in ready)
    return Seen(
        queue_seconds=max((float(value) for value in status["queue_seconds"].values()), default=0.0),
        inflight=sum(int(row["inflight"]) for row in ready),
        capacity=sum(int(row["capacity"]) for row in ready) if known else None,
    )


def undisturbed(status: dict[str, Any]) -> set[str]:
    """The replicas that the gateway sends nothing new and that have none of its requests left, out of its own status.

    Raises:
        LookupError, TypeError: it is of another form.
    """
    rows = status["replicas"]
    return {str(row["name"]) for row in rows if row["state"] != "ready" and row["inflight"] == 0}


def figures_of(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What tells a replica's service from the others', out of the gateway's own status.

    Raises:
        LookupError, TypeError: it is of another form.
    """
    kept = ("requests", "failures", "ttft_seconds")
    return {str(row["name"]): {name: row[name] for name in kept} for row in status["replicas"]}


def combined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What two gateways in front of the same replicas tell, as if it were one: a replica is disturbed by either one's requests.

    Raises:
        LookupError, TypeError, ValueError: one of them is of another form.
    """
    others = {row["name"]: row for row in second["replicas"]}
    rows = []
    for row in first["replicas"]:
        other = others.get(row["name"])
        if other is None:  # it has not read of that one yet
            rows.append(row)
            continue
        known = [one["ttft_seconds"] for one in (row, other) if one["ttft_seconds"] is not None]
        sums = {name: row[name] + other[name] for name in ("inflight", "requests", "failures")}
        state = "ready" if "ready" in {row["state"], other["state"]} else row["state"]
        rows.append({**row, **sums, "state": state, "ttft_seconds": max(known, default=None)})
    queues = [first["queue_seconds"], second["queue_seconds"]]
    seconds = {
        model: max(float(queue.get(model, 0.0)) for queue in queues) for model in {*queues[0], *queues[1]}
    }
    return {**first, "replicas": rows, "queue_seconds": seconds}


async def gateway_status(admin: str, key: str) -> dict[str, Any] | None:
    """What the gateway tells of itself; None if it is away.

    Args:
        admin: its admin address, HOST:PORT.
    """
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(total=2)) as session,
            session.get(f"http://{admin}/admin/status") as response,
        ):
            found = await response.json()
            return found if isinstance(found, dict) else None
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return None


async def traffic(admin: str, key: str) -> dict[str, Any] | None:
    """What the gateway counts: requests, those waiting and running, the share that went outside, money; None if it is away.

    Args:
        admin: its admin address, HOST:PORT.
    """
    found = await gateway_status(admin, key)
    try:
        return found and {
            "running": int(found["running"]), "waiting": sum(found["waiting"].values()), "requests": found["requests"],
            "outside_share": float(found["outside_share"]), "money": found["money"],
        }  # fmt: skip
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


async def first_token(endpoint: prover.Endpoint) -> dict[str, Any]:
    """One streamed completion through the gateway, so that the first token's time is its own."""
    began = time.monotonic()
    body = {
        "model": endpoint.model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0, "stream": True,
    }  # fmt: skip
    text, ttft_seconds = "", None
    async with (
        endpoint.session() as session,
        session.post(f"{endpoint.base_url}/v1/completions", json=body) as response,
    ):
        if response.status != 200:
            raise RuntimeError(f"HTTP {response.status}: {(await response.text())[:300]}")
        async for raw in response.content:
            line = raw.decode().strip()
            if not line.startswith("data:") or line == "data: [DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise RuntimeError(str(event["error"])[:300])
            if event.get("choices"):
                ttft_seconds = ttft_seconds or time.monotonic() - began
                text += event["choices"][0]["text"]
    if ttft_seconds is None:
        raise RuntimeError("the stream ended without a token")
    return {
        "ttft_seconds": round(ttft_seconds, 3),
        "text": text,
        "detail": f"{text.strip()!r}, the first after {ttft_seconds:.2f} s",
    }


async def evidence(gateway: prover.Endpoint, engine: prover.Endpoint) -> Evidence:
    """Everything that the deployment can say about itself; an error is evidence too."""
    completion = await prover.prove_completion(gateway)
    try:
        deployed, deployed_error = await prover.score_texts(engine), ""
    except LongspanError as error:
        deployed, deployed_error = (), error.what
    try:
        generated, scored = await prover.generate_and_score(engine)
    except LongspanError as error:
        return Evidence(completion, deployed, deployed_error, paths_error=error.what)
    return Evidence(completion, deployed, deployed_error, tuple(generated), tuple(scored))
