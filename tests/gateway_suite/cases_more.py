"""More cases of the suite's kinds: what its fake engine can do and the developer cases do not ask for."""

import asyncio
import json
import time

from suitelib import EXT_KEY, case, check

APIS = {
    "chat": "/v1/chat/completions",
    "text": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


@case(
    "more-fin-all-apis",
    "a connection closed inside the chunked body ends in an error event in every API",
    timeout=40,
)
async def _(c):
    for name, path in APIS.items():
        for spec in ("fin:k=4,n=9", "eof:k=4,n=9", "cut:k=4,n=9"):
            r = await c.chat(spec, path=path)
            check(
                r.status == 200 and r.content.split() == ["t0", "t1", "t2", "t3"],
                f"{name} {spec}: " + r.brief(),
            )
            check(r.err and not r.done and r.end == "eof", f"{name} {spec}: no error event: " + r.brief())
            last = r.objs[-1]
            inner = last.get("error") if isinstance(last.get("error"), dict) else last
            check(
                inner.get("tokens_delivered") == 4 and inner.get("retryable") is True,
                f"{name} {spec}: {last}",
            )


@case(
    "more-errevent-all-apis",
    "an engine's error event after content keeps its words and gains tokens_delivered",
    timeout=40,
)
async def _(c):
    for name, path in APIS.items():
        r = await c.chat("errevent:k=3,code=503", path=path)
        check(
            r.err and not r.done and "tokens_delivered" in r.text and "injected failure" in r.text,
            f"{name}: " + r.brief(),
        )


@case("more-ok-all-apis", "every API streams to its end and answers whole", timeout=40)
async def _(c):
    for name, path in APIS.items():
        r = await c.chat("ok", path=path)
        check(
            r.status == 200 and r.end == "eof" and not r.err and len(r.content.split()) == 10,
            f"{name}: " + r.brief(),
        )
        r = await c.chat("ok", path=path, stream=False)
        check(r.status == 200 and "t9" in r.text, f"{name} unary: " + r.brief())


@case("more-empty", "an empty 200, stream or not, is no success", timeout=40)
async def _(c):
    await c.engines[0].control({"force": "empty"})
    for path in APIS.values():
        for stream in (True, False):
            r = await c.chat("ok", path=path, stream=stream)
            check(r.status == 200 and "t9" in r.text, f"{path} stream={stream}: " + r.brief())


@case(
    "more-role-pause",
    "a role-only chunk does not stop the first-token clock",
    options={"ttft_timeout_s": 2},
    timeout=60,
)
async def _(c):
    await c.engines[0].control({"force": "role:s=30"})
    for i in range(4):
        r = await c.chat("ok", timeout=10)
        check(r.full and r.t_first < 5, f"request {i}: " + r.brief())


@case(
    "more-silence",
    "silence in mid-stream ends in an error event at the idle limit",
    engines=1,
    options={"idle_timeout_s": 2},
    timeout=40,
)
async def _(c):
    t = time.monotonic()
    r = await c.chat("silence:k=5,s=20", timeout=15)
    check(r.err and len(r.content.split()) == 5 and time.monotonic() - t < 5, r.brief())
    check(await c.wait(lambda: c.engines[0].active == 0, 2), "engine still busy")


@case(
    "more-total",
    "the total deadline ends a hanging request and a running stream",
    engines=1,
    options={"request_timeout_s": 2},
    timeout=40,
)
async def _(c):
    r = await c.chat("hang", stream=False, timeout=10)
    check(r.status == 504 and r.json, r.brief())
    r = await c.chat("ok:n=200,gap=0.05", timeout=10)
    check(r.status == 200 and r.err and not r.done, r.brief())


@case(
    "more-rpm",
    "requests per minute: the limit passes, the next gets 429 with Retry-After",
    options={"keys": [{"key": "sk-r", "rpm": 4}]},
    timeout=30,
)
async def _(c):
    h = {"Authorization": "Bearer sk-r"}
    rs = [await c.chat("ok:n=1", stream=False, headers=h) for _ in range(6)]
    check([r.status for r in rs] == [200] * 4 + [429] * 2, str([r.status for r in rs]))
    check(int(rs[-1].headers["retry-after"]) >= 1, "no Retry-After")


@case(
    "more-key-parallel-race",
    "twenty at once on a key with three slots: never more than three",
    options={"keys": [{"key": "sk-p", "max_parallel": 3}]},
    hints={"workers": 2},
    timeout=30,
)
async def _(c):
    h = {"Authorization": "Bearer sk-p"}
    rs = await asyncio.gather(*[c.chat("ok:n=10,gap=0.1", headers=h) for _ in range(20)])
    check(sum(e.max_active for e in c.engines) <= 3, f"{[e.max_active for e in c.engines]} at once")
    check(sorted(r.status for r in rs) == [200] * 3 + [429] * 17, str([r.status for r in rs]))


@case("more-wrong-key", "no key, a wrong key: 401 and no engine sees it", timeout=20)
async def _(c):
    for h in ({"Authorization": None}, {"Authorization": "Bearer nope"}, {"Authorization": "nope"}):
        r = await c.chat("ok", headers=h)
        check(r.status == 401 and r.json["error"], r.brief())
    check(sum(c.hits()) == 0, "an engine was reached")


@case(
    "more-queue",
    "cap 2 and a wait room of 2: two run, two wait, the rest 429 with Retry-After",
    engines=1,
    options={"max_concurrent": 2, "queue_size": 2},
    timeout=40,
)
async def _(c):
    rs = await asyncio.gather(*[c.chat("ok:n=20,gap=0.05") for _ in range(8)])
    check(sum(r.full for r in rs) == 4, str([r.status for r in rs]))
    check(c.engines[0].max_active <= 2, "cap broken")
    check(
        all(
            r.headers.get("retry-after") and r.headers.get("x-should-retry") == "false"
            for r in rs
            if r.status == 429
        ),
        "headers",
    )


@case(
    "more-queue-leave",
    "clients that leave the wait room free their places",
    engines=1,
    options={"max_concurrent": 1, "queue_size": 3},
    timeout=40,
)
async def _(c):
    first = asyncio.create_task(c.chat("ok:n=40,gap=0.05"))
    await asyncio.sleep(0.3)
    gone = [asyncio.create_task(c.chat("ok")) for _ in range(3)]
    await asyncio.sleep(0.5)
    for t in gone:
        t.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    await asyncio.sleep(0.5)
    rs = await asyncio.gather(*[c.chat("ok:n=2") for _ in range(3)])
    check(all(r.full for r in rs) and (await first).full, str([r.status for r in rs]))
    check(c.engines[0].hits == 4, f"{c.engines[0].hits} hits")


@case(
    "more-retry-after",
    "an engine's 503 with Retry-After on the only replica reaches the client",
    engines=1,
    timeout=20,
)
async def _(c):
    r = await c.chat("http:status=503,retry_after=7", stream=False)
    check(
        r.status == 503
        and r.headers.get("retry-after") == "7"
        and r.headers.get("x-should-retry") == "false",
        r.brief(),
    )


@case(
    "more-429-no-breaker",
    "429 from a replica is no failure of its",
    hints={"breaker_failures": 3, "breaker_open_s": 30},
    timeout=40,
)
async def _(c):
    await c.engines[0].control({"force": "http:status=429"})
    rs = [await c.chat("ok", stream=False) for _ in range(12)]
    check(all(r.ok for r in rs), str([r.status for r in rs]))
    await c.engines[0].control({"force": None})
    h = c.engines[0].hits
    rs = [await c.chat("ok", stream=False) for _ in range(12)]
    check(all(r.ok for r in rs) and c.engines[0].hits - h >= 2, "taken out by 429")


@case(
    "more-health-500",
    "a replica whose /health fails gets no traffic and comes back",
    hints={"health_interval_s": 1, "health_timeout_s": 1},
    timeout=40,
)
async def _(c):
    await c.engines[0].control({"health_status": 500})
    await asyncio.sleep(4)
    h = c.engines[0].hits
    rs = [await c.chat("ok:n=2", stream=False) for _ in range(10)]
    check(all(r.ok for r in rs) and c.engines[0].hits == h, "still used")
    await c.engines[0].control({"health_status": 200})
    await asyncio.sleep(2.5)
    rs = [await c.chat("ok:n=2", stream=False) for _ in range(10)]
    check(all(r.ok for r in rs) and c.engines[0].hits > h, "not used again")


@case(
    "more-busy-not-dead",
    "slow health answers of a replica whose tokens flow mean nothing",
    engines=1,
    hints={"health_interval_s": 1, "health_timeout_s": 1},
    timeout=40,
)
async def _(c):
    await c.engines[0].control({"health_delay": 30})
    ts = [asyncio.create_task(c.chat("ok:n=120,gap=0.05", timeout=20)) for _ in range(3)]
    await asyncio.sleep(5)
    r = await c.chat("ok", timeout=3)
    check(r.full, r.brief())
    check(all(x.full for x in await asyncio.gather(*ts)), "streams cut")


@case(
    "more-stall-recovers",
    "a stalled replica gets traffic again after it answers a canary",
    hints={"stall_after_s": 3, "ttft_timeout_s": 4, "health_interval_s": 1},
    timeout=90,
)
async def _(c):
    await c.engines[0].control({"hang_gen": True, "running": 4})
    rs = await asyncio.gather(*[c.chat("ok", timeout=30) for _ in range(6)])
    check(all(r.full for r in rs), str([r.brief() for r in rs if not r.full][:1]))
    await c.engines[0].control({"hang_gen": False, "running": None})
    await asyncio.sleep(13)
    h = c.engines[0].hits
    rs = [await c.chat("ok:n=2", stream=False) for _ in range(20)]
    check(all(r.ok for r in rs) and c.engines[0].hits - h >= 3, f"{c.engines[0].hits - h} of 20")


@case(
    "more-headers",
    "custom headers reach the engine, keys and hop-by-hop headers do not; answers keep theirs",
    engines=1,
    timeout=20,
)
async def _(c):
    r = await c.chat(
        "echo",
        stream=False,
        headers={"X-Custom": "yes", "Connection": "close, x-drop", "X-Drop": "1", "TE": "trailers"},
    )
    seen = {k.lower(): v for k, v in c.engines[0].log[-1]["headers"].items()}
    check(seen.get("x-custom") == "yes", "custom header lost")
    check("authorization" not in seen and "te" not in seen and "x-drop" not in seen, str(sorted(seen)))
    check(r.headers.get("x-engine") == "e0" and r.headers.get("x-served-by") == "r0", str(dict(r.headers)))


@case(
    "more-usage-kept",
    "a client that asks for usage gets the chunk; one that does not never sees it",
    timeout=20,
)
async def _(c):
    r = await c.chat("ok:n=5", stream_options={"include_usage": True})
    check(
        any(o.get("choices") == [] and o["usage"]["completion_tokens"] == 5 for o in r.objs),
        "usage chunk lost",
    )
    r = await c.chat("ok:n=5", stream_options={"include_usage": False})
    check(r.full and not any(o.get("choices") == [] for o in r.objs), "usage chunk shown")
    r = await c.chat("ok:n=5", path="/v1/completions")
    check(r.full and not any(o.get("choices") == [] for o in r.objs), "usage chunk shown (completions)")


@case(
    "more-usage-partial",
    "streams that were cut or left are accounted for what was delivered",
    needs=("usage",),
    hints={"usage_log": True},
    timeout=30,
)
async def _(c):
    await asyncio.sleep(0.5)
    u0 = c.adapter.usage(c.gw.base, c.gw.paths)["completion_tokens"]
    await c.chat("cut:k=7,n=20")
    await asyncio.sleep(0.6)
    u1 = c.adapter.usage(c.gw.base, c.gw.paths)["completion_tokens"]
    check(u1 - u0 == 7, f"cut: {u1 - u0} of 7")
    t = asyncio.create_task(c.chat("ok:n=400,gap=0.05"))
    await asyncio.sleep(2)
    t.cancel()
    await asyncio.sleep(0.8)
    u2 = c.adapter.usage(c.gw.base, c.gw.paths)["completion_tokens"]
    check(20 <= u2 - u1 <= 60, f"left after 2 s: {u2 - u1}")


@case(
    "more-usage-apis",
    "usage of Responses and Messages, stream and unary, is accounted",
    needs=("usage",),
    hints={"usage_log": True},
    timeout=30,
)
async def _(c):
    for path in APIS.values():
        for stream in (True, False):
            await asyncio.sleep(0.4)
            u0 = c.adapter.usage(c.gw.base, c.gw.paths)
            await c.chat("ok:n=9", path=path, stream=stream)
            await asyncio.sleep(0.4)
            u1 = c.adapter.usage(c.gw.base, c.gw.paths)
            d = u1["completion_tokens"] - u0["completion_tokens"]
            check(d == 9 and u1["prompt_tokens"] > u0["prompt_tokens"], f"{path} stream={stream}: {d}")


@case(
    "more-overflow-unary",
    "unary requests beyond the threshold leave, too",
    engines=1,
    options={"external": {"overflow_after_s": 3}},
    timeout=90,
)
async def _(c):
    await c.engines[0].control({"slots": 2})
    await c.ext.control({"word": "x"})
    for _ in range(2):
        await asyncio.gather(*[c.chat("ok:n=30,gap=0.1", stream=False, timeout=30) for _ in range(2)])
    c.ext.reset_stats()
    rs = await asyncio.gather(*[c.chat("ok:n=30,gap=0.1", stream=False, timeout=40) for _ in range(10)])
    far = [r for r in rs if "x0" in r.content]
    check(all(r.ok for r in rs), "failures")
    check(3 <= len(far) <= 8 and all(c.overflow_reason(r) for r in far), f"{len(far)} outside")


@case(
    "more-overflow-frozen",
    "overflow works from the gateway's own ledger when metrics are frozen",
    engines=1,
    options={"external": {"overflow_after_s": 5}},
    timeout=90,
)
async def _(c):
    await c.engines[0].control({"slots": 2, "metrics_frozen": True})
    await c.ext.control({"word": "x"})
    for _ in range(2):
        await asyncio.gather(*[c.chat("ok:n=40,gap=0.1", timeout=30) for _ in range(2)])
    rs = await asyncio.gather(*[c.chat("ok:n=40,gap=0.1", timeout=40) for _ in range(12)])
    far = [r for r in rs if "x0" in r.content]
    check(all(r.full for r in rs), f"{sum(not r.full for r in rs)} of 12 failed")
    check(4 <= len(far) <= 10, f"{len(far)} of 12 outside")
    check(max(r.t_first for r in rs) < 8.5, "late")


@case(
    "more-overflow-never-two",
    "a request that leaves is ended at home: no two live generations",
    engines=1,
    options={"external": {"overflow_after_s": 2}},
    timeout=60,
)
async def _(c):
    await c.engines[0].control({"slots": 1})
    await c.ext.control({"word": "x"})
    await c.chat("ok:n=30,gap=0.1")
    rs = await asyncio.gather(*[c.chat("ok:n=30,gap=0.1", timeout=30) for _ in range(5)])
    far = [r for r in rs if "x0" in r.content]
    check(all(r.full for r in rs) and far, "failures or none outside")
    await asyncio.sleep(0.5)
    check(
        c.engines[0].done - 1 + len(far) == 5 + 0 * c.engines[0].aborted,
        f"home {c.engines[0].done}, outside {len(far)}",
    )
    check(c.engines[0].active == 0, "home still works")


@case(
    "more-provider-fails",
    "a broken provider does not break local service, its 401 is not the client's",
    options={"external": {"overflow_after_s": 5}},
    timeout=60,
)
async def _(c):
    await c.ext.control({"force": "http:status=401"})
    for e in c.engines:
        await e.control({"force": "http:status=503"})
    r = await c.chat("ok", stream=False, timeout=20)
    check(r.status in (502, 503), r.brief())
    for e in c.engines:
        await e.control({"force": None})
    rs = [await c.chat("ok", stream=False) for _ in range(6)]
    check(all(r.ok for r in rs), "local service broken")


@case(
    "more-provider-fields",
    "vLLM-only fields, cookies and sessions do not leave",
    options={"external": {"overflow_after_s": 5}},
    timeout=40,
)
async def _(c):
    r = await c.chat(
        "ok",
        model="ext-only",
        cache_salt="secret-salt",
        x_unknown=1,
        temperature=0.5,
        headers={"Cookie": "a=b", "X-Session-ID": "s1"},
    )
    check(r.ok, r.brief())
    rec = c.ext.log[-1]
    check(
        "cache_salt" not in rec["body"]
        and "x_unknown" not in rec["body"]
        and rec["body"]["temperature"] == 0.5,
        str(rec["body"]),
    )
    seen = {k.lower() for k in rec["headers"]}
    check(
        "cookie" not in seen
        and "x-session-id" not in seen
        and rec["headers"]["Authorization"] == "Bearer " + EXT_KEY,
        str(seen),
    )


@case("more-slow-reader", "a reader that stops does not grow the gateway", engines=1, timeout=60)
async def _(c):
    from suitelib import rss_mb

    body = json.dumps(
        {
            "model": "m",
            "stream": True,
            "user": "ok:n=20000,gap=0",
            "messages": [{"role": "user", "content": "hi"}],
        }
    ).encode()
    key = c.adapter.headers()["Authorization"]
    m0 = rss_mb(c.gw.proc.pid)
    ws = []
    for _ in range(6):
        r, w = await asyncio.open_connection("127.0.0.1", c.gw.port, limit=4096)
        w.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        ws.append((r, w))
    await asyncio.sleep(8)
    grown = rss_mb(c.gw.proc.pid) - m0
    for _, w in ws:
        w.transport.abort()
    check(grown < 20, f"grew {grown:.0f} MB")
    r = await c.chat("ok")
    check(r.full, r.brief())


@case("more-sse-slow-bytes", "one byte a write through three APIs arrives whole", timeout=60)
async def _(c):
    for name, path in APIS.items():
        if name == "responses":
            continue  # the fake engine leaves out response.completed here
        r = await c.chat("bytes:n=20", path=path)
        check(r.status == 200 and not r.err and "你好😀" in r.content, f"{name}: " + r.brief())


@case(
    "more-hangup-while-waiting",
    "a client that leaves before the first token frees the replica",
    engines=1,
    timeout=30,
)
async def _(c):
    t = asyncio.create_task(c.chat("slow:ttft=20"))
    await asyncio.sleep(0.7)
    t.cancel()
    check(await c.wait(lambda: c.engines[0].aborted >= 1, 2), "replica still busy")


@case(
    "more-drain-refuses",
    "after SIGTERM no new connection is taken and keep-alive ones are closed",
    hints={"drain_s": 10},
    timeout=40,
)
async def _(c):
    import os
    import signal

    t = asyncio.create_task(c.chat("ok:n=60,gap=0.05"))
    await asyncio.sleep(0.5)
    os.kill(c.gw.proc.pid, signal.SIGTERM)
    await asyncio.sleep(0.5)
    r = await c.chat("ok", timeout=3)
    check(r.end == "refused", r.brief())
    check((await t).full, "stream cut")
    check(await c.wait(lambda: c.gw.proc.poll() is not None, 5), "still runs")


@case(
    "more-worker-dies",
    "a killed worker gives back its permits and is replaced",
    engines=1,
    options={"max_concurrent": 4, "queue_size": 0},
    hints={"workers": 2},
    timeout=40,
)
async def _(c):
    import os
    import signal

    from suitelib import tree

    ts = [asyncio.create_task(c.chat("ok:n=200,gap=0.05", timeout=12)) for _ in range(4)]
    await asyncio.sleep(1)
    for pid in tree(c.gw.proc.pid)[1:]:
        os.kill(pid, signal.SIGKILL)
    await asyncio.gather(*ts)
    await asyncio.sleep(3)
    rs = await asyncio.gather(*[c.chat("ok:n=5") for _ in range(4)])
    check(all(r.full for r in rs), str([r.brief() for r in rs if not r.full][:1]))


@case(
    "more-slot-leak-ends",
    "a key's only slot comes back after every kind of end: cut, silence, slow, error event, empty, hang-up while waiting",
    options={"keys": [{"key": "sk-one", "max_parallel": 1}], "idle_timeout_s": 2, "ttft_timeout_s": 2},
    hints={"workers": 2},
    timeout=90,
)
async def _(c):
    h = {"Authorization": "Bearer sk-one"}
    for spec in (
        "cut:k=3,n=9",
        "eof:k=3",
        "silence:k=2,s=20",
        "errevent:k=2,code=503",
        "http:status=503",
        "http:status=429",
    ):
        for stream in (True, False):
            await c.chat(spec, stream=stream, headers=h, timeout=20)
            r = await c.chat("ok:n=2", headers=h)
            check(r.full, f"after {spec} stream={stream}: " + r.brief())
    for spec in ("slow:ttft=20", "ok:n=400,gap=0.05"):
        t = asyncio.create_task(c.chat(spec, headers=h))
        await asyncio.sleep(0.7)
        t.cancel()
        await asyncio.gather(t, return_exceptions=True)
        await asyncio.sleep(0.5)
        r = await c.chat("ok:n=2", headers=h)
        check(r.full, f"after leaving {spec}: " + r.brief())


@case(
    "more-leave-storm",
    "sixty clients leave at random moments: every permit of the cap comes back",
    engines=2,
    options={"max_concurrent": 8, "queue_size": 100},
    timeout=60,
)
async def _(c):
    import random

    rnd = random.Random(5)

    async def one():
        t = asyncio.create_task(c.chat("ok:n=20,gap=0.05", stream=rnd.random() < 0.7))
        await asyncio.sleep(rnd.random() * 2)
        t.cancel()
        await asyncio.gather(t, return_exceptions=True)

    await asyncio.gather(*[one() for _ in range(60)])
    check(await c.wait(lambda: sum(e.active for e in c.engines) == 0, 4), "engines still busy")
    last = [asyncio.create_task(c.chat("ok:n=60,gap=0.05")) for _ in range(8)]
    together = await c.wait(lambda: sum(e.active for e in c.engines) == 8, 4)
    rs = await asyncio.gather(*last)
    check(all(r.full for r in rs), str([r.brief() for r in rs if not r.full][:1]))
    check(together, "the cap lost permits: eight do not run together any more")


@case(
    "more-local-only-dead",
    "local_only with a dead pool: an error of ours, and nothing goes outside",
    engines=1,
    options={"external": {"overflow_after_s": 5}},
    hints={"wait_room_s": 2, "health_interval_s": 1},
    timeout=40,
)
async def _(c):
    await c.engines[0].control({"refuse": True})
    await asyncio.sleep(2)
    headers, fields = c.adapter.local_only()
    for stream in (True, False):
        r = await c.chat(
            "ok", stream=stream, headers={**c.adapter.headers(), **headers}, timeout=20, **fields
        )
        check(r.status == 503 and r.json and "retry-after" in r.headers, r.brief())
    check(c.ext.hits == 0, "went outside")
