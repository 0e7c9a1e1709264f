"""Prompts of known length that no prefix cache has seen, and the bodies of requests. Pure and seeded.

No tokenizer is needed: prompts are made of common English words of four letters, most of which are one token in every
common vocabulary, and two requests before the run tell from their `usage` how many tokens a word and the template really are.
Words of one width make a prompt one slice of a long text, so that building it costs next to nothing while the load runs.

Each prompt begins with words drawn from the run's salt and its own index. Prefix caches hash blocks in a chain, so a
difference in the first block makes every later block unknown too.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longspan.bench.draws import Draws, Generators
from longspan.bench.load import Lengths, LoadSpec
from longspan.bench.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest

_WORDS = """
able also area away baby back ball band bank base bear beat been best bill bird blow blue boat
body bone book born both burn busy call calm came camp card care case cast cell city club coal
coat code cold come cook cool copy corn cost crew crop dark data date days dead deal deep desk
diet door down draw drop dust duty each earn east easy edge even ever face fact fair fall farm
fast feel feet fell file fill film find fine fire firm fish five flat flow food foot form four
free from full fund gain game gate gave gift girl give glad goal goes gold gone good gray grew
grow hair half hall hand hard head hear heat held help here high hill hold hole home hope hour
huge idea into iron item join jump just keep kept kind king knew know lack lady laid lake land
lane last late lead left less life lift like line list live load loan long look lord lose loss
lost love luck made mail main make male mark mass meal mean meat meet mile milk mind mine miss
mode moon more most move much must name near neck need news next nice nine none nose note okay
once only open over pace pack page paid pain pair palm park part pass past path
"""
WORDS = tuple(_WORDS.split())
WIDTH = 5  # letters and the blank behind them
SALT_WORDS = 12
_TEXT_WORDS = 1 << 17


@dataclass(frozen=True, slots=True)
class WordRate:
    """How words become tokens: tokens = overhead + words x each. The overhead is the chat template's."""

    tokens_each: float = 1.0
    overhead_tokens: float = 0.0

    def words(self, tokens: int) -> int:
        """How many words make so many tokens; at least 1."""
        return max(1, round((tokens - self.overhead_tokens) / self.tokens_each))


def word_rate(few: tuple[int, int], many: tuple[int, int]) -> WordRate:
    """From two prompts' (words, tokens). A count that does not grow with the words is not believed."""
    words, tokens = many[0] - few[0], many[1] - few[1]
    if words <= 0 or tokens <= 0:
        return WordRate()
    each = tokens / words
    return WordRate(each, max(0.0, few[1] - few[0] * each))


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send, without its earlier answers.

    Attributes:
        texts: the user's turns, one a turn.
        output_tokens: asked of each answer.
    """

    index: int
    texts: tuple[str, ...]
    output_tokens: int


class PromptMaker:
    """Makes the texts of request `index`; any process can make any of them.

    Args:
        spec: the load.
        rate: what a word is in tokens.
        generators: makes a seeded generator; `random.Random`.
        talks: ShareGPT's conversations, for `spec.prompts == "sharegpt"`.
        trace: for `spec.prompts == "trace"`.
    """

    def __init__(
        self,
        spec: LoadSpec,
        rate: WordRate,
        generators: Generators,
        talks: Sequence[tuple[str, ...]] = (),
        trace: Sequence[TraceRequest] = (),
    ) -> None:
        self._spec = spec
        self._rate = rate
        self._generators = generators
        self._talks = talks
        self._trace = trace
        self._text = _random_text(generators(f"text/{spec.seed}"), _TEXT_WORDS)
        self._shared = (
            self._slice(0, rate.words(spec.shared_prefix_tokens)) if spec.shared_prefix_tokens else ""
        )

    def make(self, index: int) -> Request:
        """The request of this index."""
        rng = self._generators(f"{self._spec.seed}/{index}")
        output = draw_length(self._spec.output, rng)
        if self._talks:
            talk = self._talks[index % len(self._talks)]
            turns = talk[: self._spec.turns]
            return Request(index, (f"{self.salt(index)}{turns[0]}", *turns[1:]), output)
        if self._trace and self._spec.prompts == "trace":
            one = self._trace[index % len(self._trace)]
            return Request(index, (self._traced(index, one),), one.output_tokens)
        texts = []
        for turn in range(self._spec.turns):
            words = self._rate.words(draw_length(self._spec.prompt, rng))
            if turn == 0:
                words -= len(self._shared) // WIDTH
            texts.append(self._random(rng, f"{index}.{turn}" if turn else index, words))
        texts[0] = self._shared + texts[0]
        return Request(index, tuple(texts), output)

    def salt(self, name: int | str) -> str:
        """Words that no other run and no other request begins with."""
        digest = hashlib.blake2b(f"{self._spec.salt}/{name}".encode(), digest_size=SALT_WORDS).digest()
        return "".join(WORDS[byte % len(WORDS)] + " " for byte in digest)

    def _random(self, rng: Draws, name: int | str, words: int) -> str:
        salt = self.salt(name)[: max(1, words) * WIDTH]
        return salt + self._slice(rng.randrange(_TEXT_WORDS), words - len(salt) // WIDTH)

    def _slice(self, begin: int, words: int) -> str:
        """`words` words of the long text from the word `begin` on, going round at its end."""
        if words <= 0:
            return ""
        end = (begin + words) * WIDTH
        if end <= len(self._text):
            return self._text[begin * WIDTH : end]
        rounds = math.ceil(end / len(self._text))
        return (self._text * rounds)[begin * WIDTH : end]

    def _traced(self, index: int, one: TraceRequest) -> str:
        words = self._rate.words(one.prompt_tokens)
        if not one.blocks:
            return self._random(self._generators(f"{self._spec.seed}/{index}/t"), index, words)
        block_words = round(MOONCAKE_BLOCK_TOKENS / self._rate.tokens_each)
        parts = []
        for name in one.blocks[: math.ceil(words / block_words)]:
            rng = self._generators(f"{self._spec.seed}/block/{name}")
            parts.append(self._random(rng, f"block {name}", block_words))
        text = "".join(parts)[: words * WIDTH]
        missing = words - len(text) // WIDTH
        return text + (self._slice(index % _TEXT_WORDS, missing) if missing > 0 else "")


def draw_length(lengths: Lengths, rng: Draws) -> int:
    """One length; at least 1."""
    mean, spread = lengths.mean, lengths.spread
    if lengths.kind == "fixed" or not spread:
        return mean
    if lengths.kind == "uniform":
        return max(1, round(mean * rng.uniform(1 - spread, 1 + spread)))
    if lengths.kind == "normal":
        return max(1, round(rng.gauss(mean, mean * spread)))
    sigma = math.sqrt(math.log(1 + spread * spread))
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)))


def body(
    spec: LoadSpec, model: str, texts: Sequence[str], answers: Sequence[str], output_tokens: int
) -> bytes:
    """The JSON of one request: the turns so far, with the answers between them."""
    found: dict[str, Any] = {"model": model}
    if spec.kind == "embeddings":
        return json.dumps({**found, "input": texts[-1], **spec.extra}).encode()
    if spec.kind == "completions":
        found["prompt"] = texts[-1]
    else:
        messages = []
        for number, text in enumerate(texts):
            messages.append({"role": "user", "content": text})
            if number < len(answers):
                messages.append({"role": "assistant", "content": answers[number]})
        found["messages"] = messages
    found["max_tokens"] = output_tokens
    found["temperature"] = 0
    if spec.ignore_eos:
        found["ignore_eos"] = True
    if spec.stream:
        found |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps({**found, **spec.extra}).encode()


def _random_text(rng: Draws, words: int) -> str:
    return "".join(word + " " for word in rng.choices(WORDS, k=words))
