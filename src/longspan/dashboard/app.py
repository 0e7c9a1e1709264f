"""The dashboard's HTTP side: files, login, the live stream, history and actions. All of it asks for a session but the page
itself, which holds nothing but its form.
"""

import asyncio
import json
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import hdrs, web

from longspan.dashboard import assets
from longspan.dashboard.exporter import Exporter
from longspan.dashboard.hub import GZIP_HEADER, Hub
from longspan.dashboard.series import OVERVIEW, thin
from longspan.dashboard.sessions import SESSION_SECONDS, Session, Sessions, same_site
from longspan.dashboard.source import VERBS, Away
from longspan.errors import PortError, StateError

MAX_STREAMS = 32
MAX_STREAMS_PER_SESSION = 6
# A page that takes nothing for so long is gone or hangs; it comes back by itself.
WRITE_SECONDS = 20.0
MAX_BODY_BYTES = 16 << 10
MAX_NAMES = 32
MAX_POINTS = 480
CSRF_HEADER = "X-Longspan-CSRF"
SECURITY = {
    # Nothing from elsewhere, nothing inline, no frames; with trusted types not even our own code can turn text into HTML.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refusal(status: int, message: str) -> web.Response:
    """An error in the shape of the gateway's."""
    return web.json_response({"error": {"message": message, "code": status}}, status=status)


class Dashboard:
    """The handlers."""

    def __init__(self, name: str, hub: Hub, key_sha256: str, log: Callable[[str], None], https: bool) -> None:
        self.name = name
        self.hub = hub
        self.sessions = Sessions(key_sha256)
        self._log = log
        self._https = https
        self._assets = assets.load()
        self._streams = 0
        # Cookies do not know ports: two dashboards on one machine must not log each other out.
        self._cookie = f"longspan_{name}"

    def routes(self) -> web.Application:
        """The application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        app.on_response_prepare.append(_secure)
        app.add_routes([
            web.get("/", self.page), web.get("/static/{file}", self.file), web.get("/health", self.health),
            web.post("/api/login", self.login), web.post("/api/logout", self.logout),
            web.get("/api/session", self.session), web.get("/api/stream", self.stream),
            web.get("/api/history", self.history), web.post("/api/act", self.act),
            *Exporter(self.hub.source, self._https).routes(),
        ])  # fmt: skip
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuses what another site sent, and turns errors into answers."""
        if request.method != "GET" and not same_site(
            request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site"), request.host
        ):
            return refusal(403, "This request comes from another site.")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return refusal(error.status, error.reason)

    # ---- files
    async def page(self, request: web.Request) -> web.Response:
        """The page."""
        return self._asset(request, "index.html")

    async def file(self, request: web.Request) -> web.Response:
        """One of its files."""
        return self._asset(request, request.match_info["file"])

    def _asset(self, request: web.Request, name: str) -> web.Response:
        asset = self._assets.get(name)
        if asset is None:
            return refusal(404, "There is no such file.")
        headers = {"ETag": f'"{asset.etag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if any(tag.value == asset.etag for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        body = asset.plain
        if "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            body, headers["Content-Encoding"] = asset.packed, "gzip"
        return web.Response(body=body, content_type=asset.kind, charset="utf-8", headers=headers)

    async def health(self, request: web.Request) -> web.Response:
        """Alive."""
        return web.json_response({"status": "alive"})

    # ---- who
    def _session(self, request: web.Request) -> Session:
        session = self.sessions.find(request.cookies.get(self._cookie, ""), time.monotonic())
        if session is None:
            raise web.HTTPUnauthorized(reason="Log in with the dashboard's key.")
        return session

    async def _fields(self, request: web.Request) -> dict[str, Any]:
        """The body, which must be a JSON object: no form of another site can send that."""
        if request.content_type != "application/json":
            raise web.HTTPUnsupportedMediaType(reason="The body must be application/json.")
        try:
            fields = await request.json()
        except (ValueError, RecursionError) as error:
            raise web.HTTPBadRequest(reason="The body is not JSON.") from error
        if not isinstance(fields, dict):
            raise web.HTTPBadRequest(reason="The body is not a JSON object.")
        return fields

    async def login(self, request: web.Request) -> web.Response:
        """Key to session cookie; a page can neither read the cookie nor send it from elsewhere."""
        address, now = request.remote or "", time.monotonic()
        if wait := self.sessions.wait_seconds(address, now):
            answer = refusal(429, f"Too many wrong keys. Try again in {wait:.0f} s.")
            answer.headers["Retry-After"] = str(int(wait) + 1)
            return answer
        key = (await self._fields(request)).get("key")
        if not isinstance(key, str):
            return refusal(400, "key is missing.")
        token = secrets.token_urlsafe(32)
        session = self.sessions.login(key.strip(), address, now, token, secrets.token_urlsafe(32))
        if session is None:
            self._log(f"wrong key from {address}")
            return refusal(401, "This is not the dashboard's key.")
        self._log(f"login from {address}")
        answer = self._about(session)
        answer.set_cookie(self._cookie, token, max_age=int(SESSION_SECONDS), httponly=True, samesite="Strict",
                          secure=self._https, path="/")  # fmt: skip
        return answer

    async def logout(self, request: web.Request) -> web.Response:
        """Ends the session."""
        self.sessions.logout(request.cookies.get(self._cookie, ""))
        answer = web.json_response({})
        answer.del_cookie(self._cookie, path="/")
        return answer

    def _about(self, session: Session) -> web.Response:
        return web.json_response({"name": self.name, "csrf": session.csrf, "overview": OVERVIEW})

    async def session(self, request: web.Request) -> web.Response:
        """What a page needs that is loaded again; nothing (204) where nobody is logged in, which is no error."""
        session = self.sessions.find(request.cookies.get(self._cookie, ""), time.monotonic())
        return self._about(session) if session else web.Response(status=204)

    # ---- what
    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: a frame a second, the newest only where the line is slow."""
        session = self._session(request)
        if self._streams >= MAX_STREAMS or session.streams >= MAX_STREAMS_PER_SESSION:
            return refusal(503, "Too many pages are open on this dashboard. Close one.")
        packed = "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})
        if packed:
            answer.headers["Content-Encoding"] = "gzip"
        self._streams += 1
        session.streams += 1
        try:
            await answer.prepare(request)
            if packed:
                await answer.write(GZIP_HEADER)
            number = -1
            while self.sessions.alive(session, time.monotonic()):
                for frame in await self.hub.after(number):
                    async with asyncio.timeout(WRITE_SECONDS):
                        await answer.write(frame.packed if packed else frame.plain)
                    number = frame.number
        except (ConnectionError, TimeoutError):
            pass  # the page has gone; if it hangs, it comes back
        finally:
            self._streams -= 1
            session.streams -= 1
        return answer

    async def history(self, request: web.Request) -> web.Response:
        """Series of the last hours: `name` once or more often, `hours`, `points` at most of each."""
        self._session(request)
        history = self.hub.history
        if history is None:
            return refusal(503, self.hub.history_trouble())
        names = request.query.getall("name", [])[:MAX_NAMES]
        hours = _number(request, "hours", 1.0, 24.0)
        most = int(_number(request, "points", 240.0, MAX_POINTS))
        now = time.time()
        try:
            bucket, found = await asyncio.to_thread(history.read, names, now - hours * 3600, now)
        except StateError as error:
            return refusal(503, str(error))
        points = {
            name: [(at, _short(mean), _short(peak)) for at, mean, peak in thin(list(rows), most)]
            for name, rows in found.items()
        }
        answer = web.json_response({"bucket_seconds": bucket, "until_unix_seconds": now, "series": points})
        answer.enable_compression()
        return answer

    async def act(self, request: web.Request) -> web.Response:
        """Drain, isolate or restore; only with the token that our own page was given."""
        session = self._session(request)
        if not secrets.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), session.csrf.encode()):
            return refusal(403, "The page is of another session. Load it again.")
        fields = await self._fields(request)
        verb, subject = fields.get("verb"), fields.get("subject")
        if verb not in VERBS or not isinstance(subject, str):
            return refusal(400, f"verb is one of {', '.join(VERBS)}, subject the name of a replica or node.")
        view = self.hub.view
        known = {r.name for r in view.replicas} | {n.name for n in view.nodes} if view else set()
        if subject not in known:
            return refusal(404, "There is no replica or node of that name.")
        try:
            outcome = await self.hub.source.act(verb, subject)
        except Away as error:
            return refusal(502, f"{error} Whether it was done is not known.")
        words = " ".join(outcome.text.split())
        self._log(f"{verb} {json.dumps(subject)} by {request.remote}: {outcome.status} {words}".strip())
        if outcome.status != 200:
            return refusal(outcome.status, outcome.text)
        return web.json_response({"done": True})


async def _secure(request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY)
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.pop("Server", None)


def _number(request: web.Request, name: str, default: float, most: float) -> float:
    try:
        value = float(request.query.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 < value <= most:  # false for NaN, too
        raise web.HTTPBadRequest(reason=f"{name} is a number above 0, at most {most:g}.")
    return value


def _short(value: float) -> float:
    """Five digits are more than a chart shows."""
    return float(f"{value:.5g}")


async def start(
    dashboard: Dashboard, host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[web.AppRunner, int]:
    """Listens; returns the runner and the port.

    Raises:
        PortError: the port is taken, or the address is not ours.
    """
    runner = web.AppRunner(dashboard.routes(), access_log=None, shutdown_timeout=1, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls, reuse_address=True).start()
    except OSError as error:
        await runner.cleanup()
        raise PortError(
            f"The dashboard cannot listen on {host}:{port}: {error.strerror or error}.",
            "Choose another address or port with --listen; port 0 takes a free one.",
        ) from error
    return runner, int(runner.addresses[0][1])
