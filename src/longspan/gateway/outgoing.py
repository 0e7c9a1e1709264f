"""What an upstream is sent for a request: head, body, model name; and what it will charge. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from longspan.gateway import trace
from longspan.gateway.config import GatewayConfig, Provider
from longspan.gateway.dialect import MESSAGES, Dialect
from longspan.gateway.front import Meaning
from longspan.gateway.heads import Head
from longspan.gateway.outside import ALLOWED_HEADERS, ASSUMED_COMPLETION_TOKENS, allowed_body, price_usd
from longspan.gateway.request import Body, rewrite
from longspan.gateway.sse import Usage
from longspan.gateway.ticket import Ask
from longspan.gateway.wire import NOT_TO_ENGINE, Header, connection_tokens, find, request_end, request_lead


class Outgoing:
    """Made anew with each configuration.

    Args:
        secrets: our keys at the upstreams, by their names.
        keyed: clients show keys of ours, which no engine may see.
    """

    def __init__(self, config: GatewayConfig, secrets: Mapping[str, bytes], keyed: bool) -> None:
        self._config = config
        self._secrets = secrets
        self._keyed = keyed
        self.providers: dict[str, Provider] = {provider.name: provider for provider in config.providers}
        self._models = {replica.name: replica.upstream_model or replica.model for replica in config.replicas}

    def head(
        self, target: str, host: bytes, base_path: bytes, head: Head, meaning: Meaning, request_id: str, traced: str,
        body_bytes: int,
    ) -> bytes:  # fmt: skip
        """The head of an attempt. All but its last lines is the same for every request with this head."""
        current = meaning.config is self._config  # not for a request that waited through a reload
        lead = meaning.leads.get(target) if current else None
        outside = target in self.providers
        if lead is None:
            headers = self._headers(target, head.headers, outside, meaning.dialect)
            if traced:
                headers = [
                    item for item in headers if item[0] != trace.HEADER
                ]  # ours comes with each request
            method = b"GET" if head.method == b"HEAD" else head.method
            lead = request_lead(method, base_path + head.target, host, headers)
            if current:
                meaning.leads[target] = lead
        if not outside:
            lead += b"\r\nx-request-id: " + request_id.encode()
            begun = trace.parse(traced)
            if begun is not None:
                lead += b"\r\ntraceparent: " + trace.header(begun)
        return lead + request_end(head.method, body_bytes)

    def _headers(self, target: str, given: list[Header], outside: bool, dialect: Dialect) -> list[Header]:
        """An outside provider gets a short list and never the client's key."""
        if outside:
            headers = [item for item in given if item[0] in ALLOWED_HEADERS]
        else:
            dropped = connection_tokens(given)
            headers = [item for item in given if item[0] not in NOT_TO_ENGINE and item[0] not in dropped]
        headers.append((b"accept-encoding", b"identity"))
        secret = self._secrets.get(target)
        if secret is not None:
            headers.append((b"authorization", b"Bearer " + secret))
            if outside and dialect is MESSAGES:
                headers.append((b"x-api-key", secret))
        elif not outside and not self._keyed:
            given_key = find(given, b"authorization")  # no keys here: the engine may ask for its own
            if given_key is not None:
                headers.append((b"authorization", given_key))
        return headers

    def body(
        self, target: str, body: Body, dialect: Dialect, model: str, rest: dict[str, Any] | None
    ) -> bytes:
        """The bytes of the body: as they came, but for the model's name, usage, and fields that may not leave.

        rest: the request for the rest of an answer that was cut (`continuation.py`), in place of the client's.
        """
        if not body.raw:
            return b""
        provider = self.providers.get(target)
        fields = rest or body.fields
        if rest is None and provider is not None and fields is not None:
            fields = allowed_body(provider, fields)
        if fields is not None and (rest is not None or len(fields) != len(body.fields or ())):
            body = Body(json.dumps(fields).encode(), fields, body.model, body.stream, body.shows_usage)
        name = provider.models.get(model) if provider is not None else self._models.get(target)
        return rewrite(body, dialect, name)

    def price(self, target: str, usage: Usage) -> float:
        """What a request cost at its provider; 0 at a replica of our own."""
        provider = self.providers.get(target)
        return price_usd(provider, usage.get("prompt", 0), usage.get("completion", 0)) if provider else 0.0

    def cost_text(self, target: str, ask: Ask, usage: Usage | None) -> bytes:
        """`x-overflow-cost`: the price once usage is known, else the most that was set aside; nothing if free."""
        provider = self.providers.get(target)
        if provider is None:
            return b""
        if usage is not None:
            usd = self.price(target, usage)
            return b"%.6f USD" % usd if usd else b""
        usd = price_usd(provider, ask.prompt_tokens, ask.max_tokens or ASSUMED_COMPLETION_TOKENS)
        return b"about %.6f USD" % usd if usd else b""
