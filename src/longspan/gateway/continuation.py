"""A stream that was cut after content goes on at a sibling: the delivered text is sent as the beginning of the answer
(vLLM's `continue_final_message`). Off by default, and declared to the client, for the rest is sampled anew. Pure.
"""

import json
from typing import Any

from longspan.gateway.dialect import CHAT, TEXT, Dialect

# More delivered text than this is not sent again.
MAX_TEXT_CHARACTERS = 512 * 1024
# Failures after which the rest may be asked for elsewhere; what the engine itself reports is not among them.
CAUSES = frozenset({"stream_interrupted", "stream_truncated", "stream_idle"})
# With these the state of the answer is more than its text: a grammar's place, several answers, an answer begun before.
_STATEFUL = (
    "tools", "functions", "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar", "continue_final_message", "echo", "best_of", "use_beam_search", "prompt_logprobs", "logprobs",
)  # fmt: skip
_LIMITS = ("max_completion_tokens", "max_tokens", "min_tokens")


def possible(dialect: Dialect, fields: dict[str, Any] | None) -> bool:
    """Whether the rest of this request's answer could be asked for elsewhere, should its stream be cut."""
    if fields is None or fields.get("stream") is not True or fields.get("n", 1) != 1:
        return False
    if any(fields.get(name) for name in _STATEFUL):
        return False
    if dialect is CHAT:
        messages = fields.get("messages")
        return isinstance(messages, list) and bool(messages) and isinstance(messages[-1], dict)
    return dialect is TEXT and isinstance(fields.get("prompt"), str)


def rest_of(dialect: Dialect, fields: dict[str, Any], text: str, tokens: int) -> dict[str, Any] | None:
    """The request for the rest of an answer of which `text`, about `tokens` long, was delivered.

    None if the client's own limit leaves no room for a rest.
    """
    rest = dict(fields)
    for name in _LIMITS:
        value = rest.get(name)
        if isinstance(value, int):
            if name != "min_tokens" and value <= tokens:
                return None
            rest[name] = max(0, value - tokens)
    if dialect is CHAT:
        rest["messages"] = [*fields["messages"], {"role": "assistant", "content": text}]
        rest["continue_final_message"] = True
        rest["add_generation_prompt"] = False
    else:
        rest["prompt"] = fields["prompt"] + text
    return rest


def declaration(target: str, tokens: int, cause: str) -> bytes:
    """A comment in the stream (WHATWG HTML, 9.2.6): read by people and by clients that look, ignored by all others."""
    told = {"target": target, "tokens_delivered": tokens, "cause": cause}
    return b": longspan-continued " + json.dumps(told).encode() + b"\n\n"


def joined_usage(value: dict[str, Any], carried: int) -> dict[str, Any]:
    """A usage event of the rest as that of the whole: what was sent again as prompt was completion."""
    usage = dict(value["usage"])
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if isinstance(prompt, int) and isinstance(completion, int):
        usage["prompt_tokens"] = max(0, prompt - carried)
        usage["completion_tokens"] = completion + carried
    return {**value, "usage": usage}


class Delivered:
    """The text that a client has got so far, over all attempts.

    whole: it is all there is: one choice, plain text, not finished, not too long.
    """

    __slots__ = ("_parts", "_size", "whole")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self.whole = True

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self._parts)

    def take(self, value: Any) -> None:
        """One content event, parsed; None for one that could not be."""
        choices = value.get("choices") if isinstance(value, dict) else None
        choice = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
        if not isinstance(choice, dict) or choice.get("finish_reason"):
            self.whole = False
            return
        delta = choice.get("delta")
        text = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        other = isinstance(delta, dict) and any(
            v for name, v in delta.items() if name not in ("role", "content")
        )
        if not isinstance(text, str) or other or self._size > MAX_TEXT_CHARACTERS:
            self.whole = False
            return
        self._parts.append(text)
        self._size += len(text)
