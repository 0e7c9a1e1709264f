"""What one chunk of a stream carries: content or none, and how many tokens, as far as the stream says it. Pure.

A chunk counts as content when it carries text, reasoning or a tool call; an empty text without a role counts too (a special token that prints
nothing); a chunk that only names the role does not.
"""

from typing import Any

_DELTA_TEXT = ("content", "reasoning", "reasoning_content", "refusal")
_DELTA_PARTS = ("tool_calls", "function_call", "audio")


def content(choice: dict[str, Any]) -> tuple[int, str]:
    """Characters of content of a choice (0: an empty text that is a token), -1 for no content; and its text."""
    if "delta" not in choice:
        text = choice.get("text")
        if not isinstance(text, str):
            return -1, ""
        return (len(text), text) if text or not choice.get("finish_reason") else (-1, "")
    delta = choice["delta"]
    if not isinstance(delta, dict):
        return -1, ""
    length = 0
    for name in _DELTA_TEXT:
        value = delta.get(name)
        if isinstance(value, str):
            length += len(value)
    for name in _DELTA_PARTS:
        if delta.get(name):
            length += len(str(delta[name]))
    text = delta.get("content")
    if length:
        return length, text if isinstance(text, str) else ""
    is_token = text == "" and "role" not in delta and not choice.get("finish_reason")
    return (0, "") if is_token else (-1, "")


def told_tokens(choice: dict[str, Any], usage: Any) -> int:
    """Tokens of this chunk, where the stream says it: token ids, log probabilities, or a running usage; 0: it does not."""
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    if isinstance(logprobs, dict):
        items = logprobs.get("content") or logprobs.get("tokens")
        if isinstance(items, list) and items:
            return len(items)
    if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
        return max(0, int(usage["completion_tokens"]))
    return 0


def first_share(lengths: list[int], tokens: int) -> int:
    """Tokens of the first content chunk by its share of the characters; at least 1, and at least 1 left for each other.

    With as many chunks as tokens it is 1. An estimate: used only where the stream does not say it.
    """
    chunks = len(lengths)
    if not chunks or tokens <= 0:
        return 0
    if tokens <= chunks:
        return 1
    total = sum(lengths)
    share = tokens * lengths[0] / total if total else tokens / chunks
    return min(max(1, round(share)), tokens - (chunks - 1))
