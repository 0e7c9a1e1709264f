"""One member of a real collective, in the node's own Python with torch: correctness, bandwidth and latency.

Started by `node` with the environment that the engine's rank will have; joins one process group after another as it
is told on standard input. torch is imported once, on the first request.
"""

import datetime as dt
import json
import os
import statistics
import sys
import time
from typing import Any

REPLY = "longspan-reply "
SMALL_REPEATS = 20
LARGE_REPEATS = 3


def hello() -> dict[str, Any]:
    """Imports torch and says which, and what it can do here."""
    import torch

    cuda = torch.cuda.is_available()
    told = {"torch": torch.__version__, "cuda": cuda}
    if cuda:
        told["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return told


def join(request: dict[str, Any]) -> dict[str, Any]:
    """Joins a group, checks and measures, leaves it.

    Args:
        request: rank, world, store (host, port), backend ("gloo", "nccl"), seconds (time limit of each operation),
            bytes (of the large all-reduce).

    Returns:
        {"correct", "latency_seconds" (8-byte all-reduce, median), "bus_bytes_per_second" (as nccl-tests defines it:
        2 (n-1)/n x bytes / seconds), "hop_seconds", "hop_bytes_per_second" (send and receive between neighbours)}.
    """
    import torch
    import torch.distributed as dist

    rank, world = request["rank"], request["world"]
    limit = dt.timedelta(seconds=request["seconds"])
    host, port = request["store"]
    store = dist.TCPStore(host, port, world, rank == 0, timeout=limit, wait_for_workers=False)
    begun = time.monotonic()
    dist.init_process_group(request["backend"], store=store, rank=rank, world_size=world, timeout=limit)
    try:
        device = torch.device("cuda" if request["backend"] == "nccl" else "cpu")
        wrong = _wrong(dist, torch, device, rank, world)
        formed = time.monotonic() - begun
        small = _times(torch, device, 8, SMALL_REPEATS, dist.all_reduce)
        large = _times(torch, device, request["bytes"], LARGE_REPEATS, dist.all_reduce)
        told = {
            "correct": not wrong,
            "wrong": wrong,
            "formed_seconds": formed,
            "latency_seconds": statistics.median(small),
            "bus_bytes_per_second": 2 * (world - 1) / world * request["bytes"] / min(large),
        }
        if world == 2:
            told |= _hops(dist, torch, device, rank, request["bytes"])
        if request.get("graph") and device.type == "cuda":
            told["graph"] = _graph(dist, torch, device, world)
        dist.barrier()
        return told
    finally:
        dist.destroy_process_group()


def _times(torch: Any, device: Any, count: int, repeats: int, call: Any) -> list[float]:
    """Seconds of each call on one float32 tensor of `count` bytes."""
    tensor = torch.ones(max(1, count // 4), dtype=torch.float32, device=device)
    return [_timed(torch, device, lambda: call(tensor)) for _ in range(repeats)]


def _timed(torch: Any, device: Any, call: Any) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _wrong(dist: Any, torch: Any, device: Any, rank: int, world: int) -> str:
    """What is wrong with an all-reduce whose every element has a known sum; empty where nothing is.

    Integers, so that the order of the sum does not matter; each rank and position has its own value.
    """
    positions = torch.arange(1 << 16, dtype=torch.int64, device=device)
    tensor = positions * (rank + 1) + rank
    dist.all_reduce(tensor)
    wanted = positions * (world * (world + 1) // 2) + world * (world - 1) // 2
    bad = int((tensor != wanted).sum())
    if bad:
        first = int((tensor != wanted).nonzero()[0])
        return f"{bad} of {len(positions)} sums are wrong, the first at {first}: {int(tensor[first])} for {int(wanted[first])}"
    # One value travels around the ring: send and receive with both neighbours.
    token = torch.tensor([rank], dtype=torch.int64, device=device)
    got = torch.empty_like(token)
    before, after = (rank - 1) % world, (rank + 1) % world
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, token, after), dist.P2POp(dist.irecv, got, before)]
    )
    for work in works:
        work.wait()
    return "" if int(got) == before else f"rank {before} sent {before}, {int(got)} came"


def _hops(dist: Any, torch: Any, device: Any, rank: int, count: int) -> dict[str, float]:
    """A small tensor back and forth, then a large one, between the two ranks of a pair."""
    peer = 1 - rank

    def there_and_back(tensor: Any) -> None:
        if rank == 0:
            dist.send(tensor, peer)
            dist.recv(tensor, peer)
        else:
            dist.recv(tensor, peer)
            dist.send(tensor, peer)

    small = _times(torch, device, 8, SMALL_REPEATS, there_and_back)
    large = _times(torch, device, count, LARGE_REPEATS, there_and_back)
    return {"hop_seconds": statistics.median(small) / 2, "hop_bytes_per_second": 2 * count / min(large)}


def _graph(dist: Any, torch: Any, device: Any, world: int) -> str:
    """An all-reduce inside a CUDA graph, which is how the engine runs them; empty where the replay is right."""
    tensor = torch.ones(1024, device=device)
    graph = torch.cuda.CUDAGraph()
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        dist.all_reduce(tensor)
    tensor.fill_(1.0)
    graph.replay()
    torch.cuda.synchronize()
    return "" if float(tensor[0]) == float(world) else f"the replay gave {float(tensor[0])} for {world}"


def main() -> None:
    """Requests on standard input, replies on standard output, until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = hello() if request["do"] == "hello" else join(request)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is the answer
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
        out.write(f"{REPLY}{json.dumps(reply)}\n")
        out.flush()


if __name__ == "__main__":
    main()
