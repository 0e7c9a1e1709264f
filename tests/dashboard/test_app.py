"""The dashboard's HTTP side: who gets what, from where, and how much of it."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from dashboard.serving import KEY, Served, serve
from dashboard.simulated import SimulatedSource, deployment
from longspan.dashboard import app, sessions
from longspan.dashboard.source import Outcome
from longspan.errors import PortError

NOON = 1_700_000_000.0


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a coroutine test to its end."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@dataclass(slots=True)
class Client:
    """A browser without a screen."""

    http: aiohttp.ClientSession
    served: Served
    csrf: str = ""

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """A POST of JSON; its status and document."""
        async with self.http.post(self.served.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        """A GET; its status and document or text."""
        async with self.http.get(self.served.url + path) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if answer.content_type == "application/json" else text

    async def login(self) -> None:
        """Opens a session and keeps its token."""
        status, document = await self.post("/api/login", {"key": KEY})
        assert status == 200
        self.csrf = document["csrf"]

    async def act(self, verb: str, subject: str) -> tuple[int, Any]:
        """An action as our page asks for it."""
        return await self.post("/api/act", {"verb": verb, "subject": subject}, **{app.CSRF_HEADER: self.csrf})


@asynccontextmanager
async def client(source: SimulatedSource | None = None, history: Path | None = None) -> AsyncIterator[Client]:
    """A served page and a client of it, not logged in."""
    source = source or SimulatedSource(deployment(2, NOON))
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address rather than a name
    async with serve(source, history, running=False) as served, aiohttp.ClientSession(cookie_jar=jar) as http:
        yield Client(http, served)


@asynchronous
async def test_nothing_but_the_page_is_given_without_a_session() -> None:
    """The stream, the history and the actions answer 401 to whoever has not logged in; the page and its files hold no secret."""
    async with client() as one:
        assert (await one.get("/api/stream"))[0] == 401
        assert (await one.get("/api/history?name=cluster/running"))[0] == 401
        assert (await one.act("drain", "r0"))[0] == 401
        assert (await one.get("/api/session"))[0] == 204
        assert (await one.get("/"))[0] == 200
        assert one.served.source.acted == []


@asynchronous
async def test_every_answer_carries_the_policy() -> None:
    """Page, file, API and refusal alike: no other origin, no inline script, no frame, no sniffing; what is private is not stored."""
    async with client() as one:
        for path in (
            "/",
            "/static/main.js",
            "/api/session",
            "/api/stream",
            "/static/nothing.js",
            "/elsewhere",
        ):
            async with one.http.get(one.served.url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "frame-ancestors 'none'" in policy
                assert "require-trusted-types-for 'script'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert "Server" not in answer.headers
                if path.startswith("/api"):
                    assert answer.headers["Cache-Control"] == "no-store"


@asynchronous
async def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites() -> None:
    """HttpOnly and SameSite=Strict, and the key itself is in no answer and no log."""
    async with client() as one:
        async with one.http.post(one.served.url + "/api/login", json={"key": KEY}) as answer:
            cookie = answer.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert KEY not in cookie + await answer.text()
        assert KEY not in "".join(one.served.log)


@asynchronous
async def test_wrong_keys_are_limited_and_the_right_one_waits_too() -> None:
    """After five wrong ones from an address it is told to wait, with Retry-After, whatever it sends."""
    async with client() as one:
        for _ in range(sessions.MAX_FAILURES_PER_ADDRESS):
            assert (await one.post("/api/login", {"key": "lsp_wrong"}))[0] == 401
        async with one.http.post(one.served.url + "/api/login", json={"key": KEY}) as answer:
            assert answer.status == 429
            assert 0 < int(answer.headers["Retry-After"]) <= 61


@pytest.mark.parametrize("body", [b"{", b"[]", b"3", b'{"key": 7}', b"[" * 5000, b'{"key": "\\ud800"}'])
@asynchronous
async def test_a_strange_login_is_refused_in_words(body: bytes) -> None:
    """No body makes the dashboard answer 500."""
    async with client() as one:
        headers = {"Content-Type": "application/json"}
        async with one.http.post(one.served.url + "/api/login", data=body, headers=headers) as answer:
            assert answer.status in {400, 401}
            assert (await answer.json())["error"]["message"]


@asynchronous
async def test_a_form_of_another_site_cannot_log_in_or_act() -> None:
    """What a foreign page can send without asking (a form, plain text, its own origin) is refused, with the cookie and all."""
    async with client() as one:
        await one.login()
        body = json.dumps({"verb": "drain", "subject": "r0"})
        token = {app.CSRF_HEADER: one.csrf}
        for headers in (
            {"Origin": "http://evil.example", **token, "Content-Type": "application/json"},
            {"Sec-Fetch-Site": "cross-site", **token, "Content-Type": "application/json"},
            {"Content-Type": "text/plain", **token},
            {"Content-Type": "application/json"},
            {"Content-Type": "application/json", app.CSRF_HEADER: "guessed"},
        ):
            async with one.http.post(one.served.url + "/api/act", data=body, headers=headers) as answer:
                assert answer.status in {403, 415}, headers
        assert one.served.source.acted == []


@asynchronous
async def test_an_action_reaches_the_controller_once() -> None:
    """With session, token and a name of the picture; the log says who asked for what."""
    async with client() as one:
        await one.login()
        assert (await one.act("drain", "r0"))[0] == 200
        assert (await one.act("isolate", "gpu-02"))[0] == 200
        assert one.served.source.acted == [("drain", "r0"), ("isolate", "gpu-02")]
        assert any('drain "r0"' in line for line in one.served.log)


@asynchronous
async def test_only_known_verbs_and_names_are_passed_on() -> None:
    """A verb or name that the picture does not know never reaches the controller."""
    async with client() as one:
        await one.login()
        for verb, subject in (("down", "r0"), ("drain", "r9"), ("drain", "../down"), ("drain", "")):
            assert (await one.act(verb, subject))[0] in {400, 404}
        assert one.served.source.acted == []


@asynchronous
async def test_a_refusal_is_passed_on_in_its_words() -> None:
    """What the controller says against an action stands in the answer; without an answer, nothing is claimed."""
    async with client(
        SimulatedSource(deployment(2, NOON), answer=Outcome(409, "r0 is the last replica."))
    ) as one:
        await one.login()
        status, document = await one.act("drain", "r0")
        assert (status, document["error"]["message"]) == (409, "r0 is the last replica.")
        one.served.source.away = "The controller does not answer."
        status, document = await one.act("drain", "r0")
        assert status == 502
        assert "not known" in document["error"]["message"]


@asynchronous
async def test_logging_out_ends_the_session() -> None:
    """The old cookie opens nothing any more."""
    async with client() as one:
        await one.login()
        cookies = {c.key: c.value for c in one.http.cookie_jar}
        await one.post("/api/logout", {})
        async with (
            aiohttp.ClientSession(cookies=cookies) as thief,
            thief.get(one.served.url + "/api/stream") as answer,
        ):
            assert answer.status == 401


@asynchronous
async def test_a_page_that_comes_late_gets_the_last_picture() -> None:
    """While the controller is away, a new page gets the picture that there was, and after it that there is no newer one."""
    async with client() as one:
        await one.login()
        one.served.source.away = "The controller does not answer."
        await one.served.hub.look()
        async with one.http.get(
            one.served.url + "/api/stream", headers={"Accept-Encoding": "identity"}
        ) as answer:
            text = b""
            while text.count(b"\n\n") < 2:
                text += await answer.content.readany()
        first, second = (json.loads(part.split(b"data: ", 1)[1]) for part in text.split(b"\n\n")[:2])
        assert len(first["view"]["nodes"]) == 2
        assert second["reason"] == "The controller does not answer."
        assert second["lost_since_unix_seconds"] is not None
        assert "view" not in second


@asynchronous
async def test_frames_can_be_unpacked_from_any_on() -> None:
    """One compressed frame serves all: a page that joins later and misses some still reads a whole gzip stream."""
    async with client() as one:
        await one.login()
        await one.served.hub.look()
        async with one.http.get(
            one.served.url + "/api/stream", headers={"Accept-Encoding": "gzip"}, auto_decompress=False
        ) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            unpack, text = zlib.decompressobj(wbits=31), b""
            for look in range(3):
                if look:
                    await one.served.hub.look()
                    await one.served.hub.look()
                while text.count(b"\n\n") <= look:
                    text += unpack.decompress(await answer.content.readany())
        numbers = [json.loads(part.split(b"data: ", 1)[1])["number"] for part in text.split(b"\n\n") if part]
        assert numbers == sorted(set(numbers))
        assert len(numbers) >= 3


@asynchronous
async def test_the_number_of_streams_is_bounded() -> None:
    """One session cannot hold more than its share; a closed page makes room."""
    async with client() as one:
        await one.login()
        open_streams = []
        for _ in range(app.MAX_STREAMS_PER_SESSION):
            answer = await one.http.get(one.served.url + "/api/stream")
            assert answer.status == 200
            open_streams.append(answer)
        assert (await one.get("/api/stream"))[0] == 503
        for answer in open_streams:
            answer.close()
        while one.served.page._streams:
            await one.served.hub.look()  # a gone page is noticed when something is written to it
            await asyncio.sleep(0.01)
        answer = await one.http.get(one.served.url + "/api/stream")
        assert answer.status == 200
        answer.close()


@asynchronous
async def test_history_is_given_thinned_and_within_bounds(tmp_path: Path) -> None:
    """Asked for a day it gives at most the points asked for; nonsense is refused in words; unknown names are left out."""
    async with client(history=tmp_path / "h") as one:
        await one.login()
        status, document = await one.get("/api/history?name=cluster/running&name=x&hours=24&points=100")
        assert status == 200
        assert document["bucket_seconds"] == 60
        assert set(document["series"]) <= {"cluster/running"}
        for bad in ("hours=0", "hours=nan", "hours=25", "hours=x", "points=100000", "points=-1"):
            assert (await one.get(f"/api/history?name=a&{bad}"))[0] == 400, bad


@asynchronous
async def test_without_a_history_the_page_still_lives() -> None:
    """A history that cannot be opened is said in the frame and in the answer; everything else works."""
    async with client() as one:
        await one.login()
        status, document = await one.get("/api/history?name=cluster/running")
        assert status == 503
        assert document["error"]["message"] == "no file was given"


@asynchronous
async def test_a_file_is_sent_once() -> None:
    """A browser that has a file is told so, and the page's files are what the package holds, nothing above it."""
    async with client() as one:
        async with one.http.get(one.served.url + "/static/page.css") as answer:
            tag = answer.headers["ETag"]
        async with one.http.get(
            one.served.url + "/static/page.css", headers={"If-None-Match": tag}
        ) as answer:
            assert answer.status == 304
        for path in ("/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/app.py", "/static/"):
            assert (await one.get(path))[0] == 404


@asynchronous
async def test_a_taken_port_is_a_users_error() -> None:
    """It names the address and the way out."""
    async with client() as one:
        port = int(one.served.url.rsplit(":", 1)[1])
        with pytest.raises(PortError, match=str(port)):
            await app.start(one.served.page, "127.0.0.1", port)


@asynchronous
async def test_metrics_are_asked_for_with_the_callers_key() -> None:
    """No session opens them, no key of ours goes along, and a path beside the metrics cannot be spelt; away is 502."""
    async with client() as one:
        await one.login()
        headers = {"Authorization": "Bearer theirs"}
        async with one.http.get(one.served.url + "/v1/metrics/r0", headers=headers) as answer:
            assert (answer.status, await answer.text()) == (401, "/v1/metrics/r0 Bearer theirs")
        for path in ("/v1/metrics/..%2fview", "/v1/metrics/%2e%2e", "/v1/metrics/.", "/v1/view", "/v1/down"):
            assert (await one.get(path))[0] == 404, path
        one.served.source.away = "The controller does not answer:\nbroken pipe."
        assert (await one.get("/v1/sd"))[0] == 502
