"""What load is made: arrivals, lengths, conversations, limits. Frozen, and written into every result."""

from dataclasses import asdict, dataclass, field
from typing import Any

from longspan.bench.arrivals import Pattern
from longspan.errors import InputError

ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings"}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in tokens.

    Attributes:
        kind: "fixed" (always the mean), "uniform" (mean ± spread share), "normal" (standard deviation = spread x mean),
            "lognormal" (coefficient of variation = spread; the long tail that real prompts have).
    """

    mean: int
    kind: str = "fixed"
    spread: float = 0.0

    def __post_init__(self) -> None:
        """Refuses lengths that cannot be.

        Raises:
            InputError: no length, or an unknown kind.
        """
        if self.kind not in ("fixed", "uniform", "normal", "lognormal"):
            raise InputError(
                f"{self.kind!r} is no distribution of lengths.", "fixed, uniform, normal or lognormal."
            )
        if not 1 <= self.mean < 10**8 or not 0 <= self.spread <= (1 if self.kind == "uniform" else 10):
            raise InputError(f"Lengths around {self.mean} tokens with a spread of {self.spread} cannot be.")


def parse_lengths(text: str) -> Lengths:
    """Reads "512", "uniform:512:0.5", "normal:512:0.2", "lognormal:512:1".

    Raises:
        InputError: it is none of these.
    """
    kind, _, rest = text.partition(":") if ":" in text else ("fixed", "", text)
    mean, _, spread = rest.partition(":")
    try:
        return Lengths(int(mean), kind, float(spread or 0))
    except ValueError:
        raise InputError(
            f"{text!r} is no length.", 'Write "512" or "uniform:512:0.5" (kind:mean:spread).'
        ) from None


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """Everything that decides which requests are sent when.

    Attributes:
        kind: "chat", "completions" or "embeddings".
        pattern: the arrivals.
        requests: measured requests; 0: until `duration_seconds` is over.
        warmup: requests before the measured ones, of the same kind and in the same flow; in no figure.
        duration_seconds: no request is sent after it; 0: no limit. A run has a limit of one sort or the other.
        concurrency: clients of a closed loop; with other arrivals the most requests in flight, 0 for no limit.
        prompt, output: lengths in tokens of random prompts and of answers.
        prompts: "random", "sharegpt" or "trace", which bring their own texts or lengths.
        shared_prefix_tokens: the first tokens of every prompt that are the same, to measure a prefix cache on purpose.
        turns: questions of a conversation; each carries the answers before it. think_seconds: pause between them.
        ignore_eos: ask for exactly the output's length. stream: ask for a stream.
        timeout_seconds: a request that takes longer has failed.
        seed: of arrivals and lengths. salt: makes prompts distinct from those of other runs; drawn anew unless given.
        extra: further fields of every request's body, as the user gave them.
    """

    kind: str = "chat"
    pattern: Pattern = field(default_factory=Pattern)
    requests: int = 100
    warmup: int = 0
    duration_seconds: float = 0.0
    concurrency: int = 1
    prompt: Lengths = field(default_factory=lambda: Lengths(512))
    output: Lengths = field(default_factory=lambda: Lengths(128))
    prompts: str = "random"
    shared_prefix_tokens: int = 0
    turns: int = 1
    think_seconds: float = 0.0
    ignore_eos: bool = True
    stream: bool = True
    timeout_seconds: float = 600.0
    seed: int = 0
    salt: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses a load that is none.

        Raises:
            InputError: neither a number of requests nor a duration, a closed loop without clients, ...
        """
        if self.kind not in ENDPOINTS:
            raise InputError(f"{self.kind!r} is no kind of request.", f"One of: {', '.join(ENDPOINTS)}.")
        if self.requests <= 0 and self.duration_seconds <= 0:
            raise InputError("The load has no end.", "Give a number of requests or a duration.")
        if not self.pattern.is_open and self.concurrency < 1:
            raise InputError("A closed loop needs at least one client.", "Give --concurrency, or a --rate.")
        if self.turns < 1 or (self.turns > 1 and self.kind != "chat"):
            raise InputError("Several turns are for chat only, and at least one is needed.")

    @property
    def total(self) -> int:
        """Requests with warm-up; 0 when only time ends the run."""
        return self.requests + self.warmup if self.requests else 0

    def document(self) -> dict[str, Any]:
        """The load as plain data; a trace's offsets are left out, its file's hash is in the conditions."""
        found = asdict(self)
        found["pattern"].pop("offsets")
        return found
