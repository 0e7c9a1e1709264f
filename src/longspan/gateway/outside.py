"""Outside providers: what a request costs there, and the cap per hour."""

from collections import deque
from typing import Any

from longspan.gateway.config import Provider

HOUR_SECONDS = 3600.0
# Completion tokens assumed for a request that states no maximum; a guess that only reserves, the bill corrects it.
ASSUMED_COMPLETION_TOKENS = 256

# Fields that OpenAI-compatible services document. Others are ours or vLLM's, and may carry what should not leave.
ALLOWED_FIELDS = frozenset({
    "model", "messages", "prompt", "input", "instructions", "stream", "stream_options", "max_tokens",
    "max_completion_tokens", "max_output_tokens", "temperature", "top_p", "n", "stop", "presence_penalty",
    "frequency_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format", "seed", "tools", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "reasoning", "text", "truncation", "system", "stop_sequences", "top_k",
    "thinking", "encoding_format", "dimensions", "suffix", "echo", "best_of", "modalities", "prediction",
    "query", "documents", "top_n", "return_documents", "voice", "speed", "language",
})  # fmt: skip
ALLOWED_HEADERS = frozenset({
    b"content-type", b"accept", b"anthropic-version", b"anthropic-beta", b"openai-beta",
})  # fmt: skip


def price_usd(provider: Provider, prompt_tokens: int, completion_tokens: int) -> float:
    """The price of one request."""
    prompt = prompt_tokens * provider.prompt_usd_per_million_tokens
    return (prompt + completion_tokens * provider.completion_usd_per_million_tokens) / 1e6


def allowed_body(provider: Provider, body: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request that may leave."""
    return {name: v for name, v in body.items() if name in ALLOWED_FIELDS or name in provider.allow_fields}


class Spending:
    """What a provider has cost in the last hour, reservations of live requests included."""

    __slots__ = ("_spent", "provider", "reserved_usd", "spent_usd")

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        self.reserved_usd = 0.0
        self.spent_usd = 0.0
        self._spent: deque[tuple[float, float]] = deque()

    def estimate(self, prompt_tokens: int, max_tokens: int) -> float:
        """The price that a request may reach."""
        return price_usd(self.provider, prompt_tokens, max_tokens or ASSUMED_COMPLETION_TOKENS)

    def allows(self, prompt_tokens: int, max_tokens: int, now: float) -> bool:
        """Whether one more such request stays under the cap."""
        cap = self.provider.spend_cap_usd_per_hour
        if cap is None:
            return True
        self.forget(now)
        return self.spent_usd + self.reserved_usd + self.estimate(prompt_tokens, max_tokens) <= cap

    def reserve(self, prompt_tokens: int, max_tokens: int, now: float) -> float:
        """Sets a request's price aside; returns it."""
        self.forget(now)
        amount = self.estimate(prompt_tokens, max_tokens)
        self.reserved_usd += amount
        return amount

    def settle(self, reserved_usd: float, usd: float, now: float) -> None:
        """Replaces a reservation by the bill."""
        self.reserved_usd = max(0.0, self.reserved_usd - reserved_usd)
        if usd:
            minute = now // 60 * 60
            if self._spent and self._spent[-1][0] == minute:
                usd_before = self._spent.pop()[1]
                self._spent.append((minute, usd_before + usd))
            else:
                self._spent.append((minute, usd))
            self.spent_usd += usd
        self.forget(now)

    def forget(self, now: float) -> None:
        """Lets go of what is older than an hour."""
        while self._spent and self._spent[0][0] <= now - HOUR_SECONDS:
            self.spent_usd -= self._spent.popleft()[1]
