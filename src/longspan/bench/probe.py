"""Asks an endpoint, before the load: is it there, does it take the key, has it the model, how many tokens is a word."""

import http.client
import json
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from longspan.bench.job import Target
from longspan.bench.load import ENDPOINTS, LoadSpec
from longspan.bench.prompts import WORDS, WordRate, word_rate
from longspan.errors import BenchError, InputError

SECONDS = 30.0
_FEW, _MANY = 24, 120


def parse_target(url: str, key: str = "") -> Target:
    """Reads "http://host:port", with or without "/v1" at its end.

    Raises:
        InputError: it is no such address, or the key holds what no header can.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.username:
        raise InputError(f"{url!r} is no address of an endpoint.", "Write http://host:port")
    if not key.isascii() or not (key == "" or key.isprintable()):
        raise InputError("The key holds characters that no header can carry.")
    tls = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port or (443 if tls else 80), tls, base, key)


def ask(
    target: Target, method: str, path: str, content: Any = None, seconds: float = SECONDS
) -> tuple[int, bytes]:
    """One request; status and body.

    Raises:
        BenchError: nobody answers, or what answers speaks no HTTP.
    """
    connection = (
        http.client.HTTPSConnection(
            target.host, target.port, timeout=seconds, context=ssl.create_default_context()
        )
        if target.tls
        else http.client.HTTPConnection(target.host, target.port, timeout=seconds)
    )
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    data = None if content is None else json.dumps(content).encode()
    if data is not None:
        headers["content-type"] = "application/json"
    try:
        connection.request(method, target.base + path, data, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 24)
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(
            f"{target.url} does not answer: {str(error) or type(error).__name__}.",
            "Is it up, and reachable from here? `longspan status` shows a deployment of this machine.",
        ) from error
    finally:
        connection.close()


def models(target: Target) -> list[str] | None:
    """The models that the endpoint lists; None where it has no such list.

    Raises:
        BenchError: it is away or refuses the key.
    """
    status, data = ask(target, "GET", "/v1/models")
    if status in (401, 403):
        what = "the key" if target.key else "requests without a key"
        raise BenchError(
            f"{target.url} refuses {what} (HTTP {status}).",
            "Put the right key into a file and give --key-file, or into the variable that --key-env names.",
        )
    if status != 200:
        return None
    try:
        found = [str(item["id"]) for item in json.loads(data)["data"]]
    except (ValueError, KeyError, TypeError):
        return None
    return found or None


def choose_model(target: Target, wanted: str) -> str:
    """The model to ask for: the one wanted, or the only one that there is.

    Raises:
        BenchError: it does not exist, or there are several to choose from.
    """
    known = models(target)
    if known is None:
        if wanted:
            return wanted
        raise BenchError(f"{target.url} lists no models.", "Say which to ask for: --model.")
    names = ", ".join(known[:20])
    if not wanted and len(known) > 1:
        raise BenchError(f"{target.url} serves several models: {names}.", "Choose one with --model.")
    if wanted and wanted not in known:
        raise BenchError(f"{target.url} has no model {wanted!r}; it has: {names}.")
    return wanted or known[0]


def measure_words(target: Target, model: str, spec: LoadSpec, salts: Sequence[str]) -> tuple[WordRate, str]:
    """How many tokens a word is, from the usage of two short requests; and a note where that cannot be told.

    Args:
        salts: two beginnings that no cache knows.

    Raises:
        BenchError: the endpoint refuses such a request.
    """
    found = []
    for salt, count in zip(salts, (_FEW, _MANY), strict=True):
        words = [*salt.split(), *(WORDS[(7 * at) % len(WORDS)] for at in range(count))]
        tokens = _prompt_tokens(target, model, spec, " ".join(words) + " ")
        if tokens is None:
            return WordRate(), "the endpoint tells no usage, so a word of the prompts is taken for a token"
        found.append((len(words), tokens))
    return word_rate(found[0], found[1]), ""


def _prompt_tokens(target: Target, model: str, spec: LoadSpec, text: str) -> int | None:
    content: dict[str, Any] = {"model": model, **spec.extra}
    if spec.kind == "embeddings":
        content["input"] = text
    elif spec.kind == "completions":
        content |= {"prompt": text, "max_tokens": 1}
    else:
        content |= {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    status, data = ask(target, "POST", ENDPOINTS[spec.kind], content, spec.timeout_seconds)
    if status != 200:
        said = data[:300].decode("utf-8", "replace")
        raise BenchError(f"{target.url} answers a first short request with HTTP {status}: {said}")
    try:
        tokens = json.loads(data)["usage"]["prompt_tokens"]
    except (ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, int) else None
