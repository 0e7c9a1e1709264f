"""One request from its first byte to its last: attempts, held frames, deadlines, and an honest end.

Thin on purpose: where a request goes is decided by the dispatcher, what an event means by the scanner. Nothing
here awaits: everything is a callback of a connection or of the sweep.
"""

import re
from typing import TYPE_CHECKING, Any

from longspan.gateway.continuation import CAUSES, Delivered, declaration, possible, rest_of
from longspan.gateway.dialect import RESPONSES, error_body, error_event
from longspan.gateway.front import Meaning
from longspan.gateway.heads import Head
from longspan.gateway.request import Body
from longspan.gateway.sse import StreamScanner, Usage, usage_in_json
from longspan.gateway.ticket import Action, Ask, GiveUp, Reject, Send
from longspan.gateway.upstream import Upstream
from longspan.gateway.wire import NOT_TO_CLIENT, Header, find

if TYPE_CHECKING:
    from longspan.gateway.downstream import Downstream
    from longspan.gateway.server import Gateway

# An answer up to this size is held until it is whole, so that a cut one can still be retried.
STATE_WITHIN_BYTES = 8192
_RESPONSE_ID = re.compile(rb'"id": ?"([A-Za-z0-9_-]{1,128})"')
MAX_BUFFERED_BYTES = 1024 * 1024
# What a provider says about our account there; the client has nothing to do with it.
PROVIDER_REFUSALS = frozenset({401, 402, 403, 407})
JSON_HEADER: Header = (b"content-type", b"application/json")
NO_RETRY: Header = (b"x-should-retry", b"false")


class Exchange:
    """A request being served. It ends in exactly one of `_end_ok`, `_end_error` and `client_lost`."""

    __slots__ = (
        "_buffer", "_buffered", "_cancel", "_carried", "_client", "_closed", "_connection", "_cut", "_delivered",
        "_failure", "_gateway", "_head", "_relaying", "_rest", "_resuming", "_scanner", "_status", "_usage", "ask",
        "attempt_at", "body", "dialect", "first_at", "head", "idle_at", "meaning", "next_slow", "outside", "reason",
        "request_id", "resent", "response", "started", "target", "trace",
    )  # fmt: skip

    def __init__(
        self, gateway: "Gateway", client: "Downstream", head: Head, meaning: Meaning, ask: Ask, body: Body,
        request_id: str,
    ) -> None:  # fmt: skip
        self._gateway = gateway
        self._client = client
        self.head = head
        self.meaning = meaning
        self.dialect = meaning.dialect
        self.ask = ask
        self.body = body
        self.request_id = request_id
        self.started = gateway.now()
        self.attempt_at = self.first_at = self.idle_at = self.next_slow = 0.0
        self.target = ""  # the upstream's name
        self.outside = False
        self.reason = ""
        self.trace = self.response = ""
        self.resent = False
        self._connection: Upstream | None = None
        self._cancel: Any = None
        self._failure: tuple[int, list[Header], bytes] | None = None
        self._usage: Usage | None = None
        self._closed = self._relaying = self._resuming = False
        self._delivered: Delivered | None = None
        self._cut = ("", "")
        self._rest: dict[str, Any] | None = None
        self._carried = 0
        self._renew()

    def _renew(self) -> None:
        """Forgets the attempt before."""
        self._status = 0
        self._head: list[Header] = []
        self._scanner: StreamScanner | None = None
        self._buffer: list[bytes] = []
        self._buffered = 0

    # ---- the dispatcher's actions

    def act(self, action: Action) -> None:
        """Carries out what the dispatcher decided."""
        if self._closed:
            return
        if isinstance(action, Send):
            self._drop()
            self.target, self.outside, self.reason = action.target, action.outside, action.reason
            if self._rest is not None:
                self.reason = f"continued after {self._carried} tokens"
            self.resent = False
            self._attempt()
        elif isinstance(action, Reject):
            self._reject(action)
        elif isinstance(action, GiveUp):
            self._give_up()

    def _attempt(self, fresh: bool = False) -> None:
        if self.attempt_at:
            self._renew()
        self.attempt_at = self._gateway.now()
        self.next_slow = self.attempt_at + self._gateway.config.timeouts.ttft_seconds
        self._cancel = self._gateway.pools[self.target].acquire(self, fresh)

    def _drop(self) -> None:
        """Ends the live attempt, if any: the engine sees a closed connection and stops generating."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    # ---- the upstream's events

    def upstream_ready(self, connection: Upstream) -> None:
        """Sends the request."""
        self._cancel = None
        if self._closed:
            connection.abort()
            return
        self._connection = connection
        try:
            data = self._message()
        except Exception as error:  # noqa: BLE001 - whatever is in a body, its request must end and free its permit
            self._gateway.bug(error)
            self._drop()
            self._cut = ("An error in the gateway itself; see its log.", "internal_error")
            if self._relaying:
                self._end_cut()
            else:
                self._answer_error(500, self._cut[1], self._cut[0], ())
            return
        connection.send(self, data)

    def _message(self) -> bytes:
        """The request as the target gets it."""
        pool, outgoing = self._gateway.pools[self.target], self._gateway.outgoing
        raw = outgoing.body(self.target, self.body, self.dialect, self.ask.model, self._rest)
        head = outgoing.head(
            self.target, pool.host_header, pool.base_path, self.head, self.meaning, self.request_id, self.trace,
            len(raw),
        )  # fmt: skip
        return head + raw

    def upstream_failed(self, cause: str) -> None:
        """No connection."""
        self._cancel = None
        self._failed(cause)

    def upstream_head(self, status: int, headers: list[Header]) -> None:
        """The head came; nothing is passed on yet."""
        self._status = status
        self._head = headers
        if status < 300 and (find(headers, b"content-type") or b"").startswith(b"text/event-stream"):
            hide = self.body.stream and self.dialect.usage_option and not self.body.shows_usage
            if self._gateway.config.routing.continue_streams and not self.outside and not self._resuming:
                self._delivered = Delivered() if possible(self.dialect, self.body.fields) else None
            self._scanner = StreamScanner(self.dialect, hide, self._delivered, self._carried)
        elif self._resuming:
            self._drop()
            self._broken(
                f"{self.target} refused to go on with the answer.", "stream_interrupted", {}, "refused"
            )

    def upstream_data(self, data: bytes) -> None:
        """Body bytes came."""
        scanner = self._scanner
        if scanner is None:
            self._plain(data)
            return
        out = scanner.feed(data)
        if out:
            now = self._gateway.now()
            self.idle_at = now
            if self._resuming:
                self._resume(out)
            elif self._relaying:
                self._client.more(out)
            else:
                self._commit(now)
                self._own_state(out[:STATE_WITHIN_BYTES])
                self._client.start(self._status, self._client_headers(), out)
                if self._client.paused:
                    self.client_full()
            self._gateway.moved[self.target] = now
        if scanner.error is not None:
            self._drop()
            self._broken(
                str(scanner.error.get("message") or "the engine reported an error"),
                "engine_error",
                scanner.error,
            )

    def _resume(self, out: bytes) -> None:
        """The first bytes of a sibling's rest."""
        self._resuming = False
        self._gateway.link.content(self.ask.id)
        self._client.more(declaration(self.target, self._carried, self._cut[1]) + out)
        if self._client.paused:
            self.client_full()

    def _plain(self, data: bytes) -> None:
        """A body that is no event stream: held while small, relayed when it grows."""
        if self._relaying:
            self._client.more(data)
            self.idle_at = self._gateway.now()
            return
        self._buffer.append(data)
        self._buffered += len(data)
        if self._buffered > MAX_BUFFERED_BYTES and self._status < 500:
            now = self._gateway.now()
            self.idle_at = now
            self._commit(now)
            self._client.start(self._status, self._client_headers(), b"".join(self._buffer))
            self._buffer.clear()
        elif self._buffered > MAX_BUFFERED_BYTES:
            self._failed(f"status {self._status}")  # no error is that long: its text is not worth the memory

    def _own_state(self, beginning: bytes) -> None:
        """A stored response lives in its replica: later requests that name it must go there."""
        if self.dialect is RESPONSES and not self.outside and self._status == 200:
            found = _RESPONSE_ID.search(beginning)
            if found is not None:
                self.response = found.group(1).decode("ascii", "replace")
                self._gateway.link.own(self.ask.id, self.response)

    def _commit(self, now: float) -> None:
        """The client sees this attempt from here on: no retry any more."""
        self._relaying = True
        self.first_at = now
        self._gateway.link.content(self.ask.id)

    def upstream_end(self) -> None:
        """The body is complete as far as HTTP can tell."""
        self._connection = None
        scanner = self._scanner
        if scanner is not None:
            self._end_of_stream(scanner)
            return
        body = b"".join(self._buffer)
        if self._relaying:
            self._end_ok()
            self._client.end()
        elif (
            self._status >= 500 or self._status == 429 or (self.outside and self._status in PROVIDER_REFUSALS)
        ):
            self._failure = (self._status, self._head, body)
            if self.outside and self._status in PROVIDER_REFUSALS:  # about our key, not the client's
                text = f"The provider {self.target} refused with HTTP {self._status}."
                self._failure = (502, [JSON_HEADER], error_body(self.dialect, 502, "provider_refused", text))
            self._failed(f"status {self._status}")
        elif self._status == 200 and not body and self.dialect.generates:
            self._failed("early end")
        else:
            self.first_at = self._gateway.now()
            self._usage = usage_in_json(body) if self._status == 200 else None
            self._own_state(body[:STATE_WITHIN_BYTES])
            headers = self._client_headers()
            self._end_ok()
            self._client.answer(self._status, headers, body)

    def _end_of_stream(self, scanner: StreamScanner) -> None:
        rest = scanner.rest()
        if scanner.error is not None:
            self._broken(str(scanner.error.get("message")), "engine_error", scanner.error)
        elif not scanner.done and self.dialect.strict_end:
            self._broken("The stream ended without its end marker.", "stream_truncated", {})
        elif self._relaying:
            self._end_ok()
            self._client.end(rest)
        else:
            out = scanner.held() + rest
            self._commit(self._gateway.now())
            headers = self._client_headers()
            self._end_ok()
            self._client.start(self._status, headers, out) if out else None
            self._client.end() if out else self._client.answer(self._status, headers, b"")

    def upstream_lost(self, answered: bool) -> None:
        """The connection died."""
        connection, self._connection = self._connection, None
        if self._scanner is not None and self._scanner.done:
            self._end_of_stream(self._scanner)
        elif not answered and connection is not None and connection.reused and not self.resent:
            self.resent = True  # the engine closed an idle connection while we wrote: nobody's fault
            self._attempt(fresh=True)
        elif self._relaying:
            self._broken("The connection to the engine was lost.", "stream_interrupted", {})
        else:
            self._failed("reset")

    def _broken(self, message: str, code: str, error: dict[str, Any], cause: str = "cut") -> None:
        """The attempt failed: invisibly before content, with an error event or a sibling's rest after it."""
        scanner = self._scanner
        if not self._relaying:
            if error:
                status = error.get("code")
                status = status if isinstance(status, int) and 400 <= status < 600 else 502
                self._failure = (status, [JSON_HEADER], error_body(self.dialect, status, code, message))
            self._failed("error event" if error else "early end")
            return
        if scanner is None and not self._resuming:
            self._end_error(code)
            self._client.abort()
            return
        self._cut = (message, code)
        if scanner is not None:
            self._carried += scanner.events
            self._usage = scanner.usage
            self._scanner = None
        delivered, fields = self._delivered, self.body.fields
        if delivered is not None and delivered.whole and code in CAUSES and fields is not None:
            self._rest = rest_of(self.dialect, fields, delivered.text, self._carried)
            if self._rest is not None:
                self.idle_at = self._gateway.now()
                self._resuming = True
                self._gateway.link.broken(self.ask.id, cause)
                return
        self._end_cut()

    def _end_cut(self) -> None:
        """The stream ends with an error event that says what was delivered."""
        message, code = self._cut
        event = error_event(self.dialect, message, code, self._carried, retryable=True)
        self._end_error(code)
        self._client.end(event)

    def _failed(self, cause: str) -> None:
        self._drop()
        if self._resuming:
            self._broken("The connection to the engine was lost.", "stream_interrupted", {}, cause)
            return
        self._gateway.link.failed(self.ask.id, cause)

    # ---- the client's events

    def client_lost(self) -> None:
        """The client left: the engine is freed, what was delivered is counted."""
        if self._closed:
            return
        self._closed = True
        self._drop()
        self._gateway.over(self, "client_gone", 499, self._used())

    def client_full(self) -> None:
        """The client reads slowly."""
        if self._connection is not None:
            self._connection.pause()

    def client_drained(self) -> None:
        """The client caught up."""
        self.idle_at = self._gateway.now()
        if self._connection is not None:
            self._connection.resume()

    # ---- deadlines

    def sweep(self, now: float) -> None:
        """Looks at the deadlines; called a few times a second."""
        limits = self._gateway.config.timeouts
        if now - self.started > limits.total_seconds:
            self._deadline("request_timeout", f"The request took longer than {limits.total_seconds:g} s.")
        elif self._relaying:
            if now - self.idle_at > limits.idle_seconds and not self._client.paused:
                self._deadline("stream_idle", f"No bytes from the engine for {limits.idle_seconds:g} s.")
        elif self.body.stream and self.attempt_at and now > self.next_slow:
            self.next_slow = now + 1.0
            self._gateway.link.slow(self.ask.id)

    def stop(self) -> None:
        """The gateway ends before the request does."""
        self._deadline("gateway_stopped", "The gateway was stopped before the answer was complete.", 503)

    def _deadline(self, code: str, message: str, status: int = 504) -> None:
        self._drop()
        if self._relaying:
            self._broken(message, code, {})
        else:
            self._answer_error(status, code, message, ())

    # ---- ends

    def _used(self) -> Usage:
        """Tokens to account: the engine's numbers, else what was delivered."""
        scanner = self._scanner
        usage = dict(self._usage or {})
        if scanner is not None:
            usage = dict(scanner.usage or {})
            if "completion" not in usage or (self.dialect.name == "messages" and not scanner.done):
                usage["completion"] = max(usage.get("completion", 0), self._carried + scanner.events)
        elif self._carried:
            usage["completion"] = max(usage.get("completion", 0), self._carried)
        if "prompt" not in usage and (usage.get("completion") or self._relaying):
            usage["prompt"] = self.ask.prompt_tokens
        return usage

    def _end_ok(self) -> None:
        self._closed = True
        self._gateway.over(self, "ok" if self._status < 400 else "client_error", self._status, self._used())

    def _end_error(self, code: str) -> None:
        self._closed = True
        self._gateway.over(self, code, 200, self._used())

    def _reject(self, action: Reject) -> None:
        self._drop()
        headers = [] if action.code == "rate_limit_exceeded" else [NO_RETRY]
        if action.retry_after_seconds is not None:
            headers.insert(0, (b"retry-after", b"%d" % max(1, round(action.retry_after_seconds + 0.49))))
        self._answer_error(action.status, action.code, action.message, headers)

    def _give_up(self) -> None:
        """Nothing is left to try: the last failure, in the engine's own words if it had any."""
        if self._relaying:
            self._end_cut()
            return
        if self._failure is not None:
            status, headers, body = self._failure
            self._status, self._head = status, headers
            headers = [*self._client_headers(), NO_RETRY]
            self._closed = True
            self._gateway.over(self, f"status_{status}", status, {})
            self._client.answer(status, headers, body)
            return
        self._answer_error(
            502, "upstream_failed", f"{self.target} failed before it sent any content.", [NO_RETRY]
        )

    def _answer_error(self, status: int, code: str, message: str, headers: Any) -> None:
        self._closed = True
        self._gateway.over(self, code, status, {})
        more = [JSON_HEADER, (b"x-request-id", self.request_id.encode()), *headers]
        self._client.answer(status, more, error_body(self.dialect, status, code, message))

    def _client_headers(self) -> list[Header]:
        headers = [item for item in self._head if item[0] not in NOT_TO_CLIENT]
        headers.append((b"x-request-id", self.request_id.encode()))
        headers.append((b"x-served-by", self.target.encode()))
        if self.outside:
            if self.reason:
                headers.append((b"x-overflow-reason", self.reason.encode("ascii", "replace")))
            cost = self._gateway.outgoing.cost_text(self.target, self.ask, self._usage)
            if cost:
                headers.append((b"x-overflow-cost", cost))
        return headers
