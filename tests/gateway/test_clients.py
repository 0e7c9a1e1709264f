"""Real clients: the OpenAI and Anthropic packages, LangChain's OpenAI class, the JavaScript client, curl."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.conftest import KEY, Running

Make = Callable[..., Running]
HELLO: Any = [{"role": "user", "content": "tokens=4"}]
CUT: Any = [{"role": "user", "content": "tokens=9 die=3"}]


def test_openai_python(gateway: Make) -> None:
    """Answers, streams, usage, embeddings, responses; a cut stream raises instead of ending quietly."""
    openai = pytest.importorskip("openai")
    running = gateway()
    with openai.OpenAI(base_url=running.url + "/v1", api_key=KEY, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["m", "demo"]
        assert (
            client.chat.completions.create(model="demo", messages=HELLO).choices[0].message.content
            == "w0 w1 w2 w3 "
        )
        stream = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "w0 w1 w2 w3 "
        options: Any = {"include_usage": True}
        chunks = list(
            client.chat.completions.create(model="m", messages=HELLO, stream=True, stream_options=options)
        )
        assert chunks[-1].usage.completion_tokens == 4
        events = client.responses.create(model="m", input="tokens=4", stream=True)
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == "w0 w1 w2 w3 "
        assert client.embeddings.create(model="m", input="x", encoding_format="float").data[0].embedding == [
            0.5,
            1.0,
        ]
        with pytest.raises(openai.APIError, match="lost"):
            list(client.chat.completions.create(model="m", messages=CUT, stream=True))
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=HELLO)
    with (
        openai.OpenAI(base_url=running.url + "/v1", api_key="wrong") as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_openai_python_does_not_retry_what_is_hopeless(gateway: Make, engines: list[Any]) -> None:
    """x-should-retry: false keeps the client's two retries from multiplying ours."""
    openai = pytest.importorskip("openai")
    running = gateway()
    with (
        openai.OpenAI(base_url=running.url + "/v1", api_key=KEY) as client,
        pytest.raises(openai.InternalServerError),
    ):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "status=503"}])
    assert sum(len(engine.seen) for engine in engines) == 2


def test_anthropic_python(gateway: Make) -> None:
    """x-api-key is a key, Messages pass, and a cut stream raises."""
    anthropic = pytest.importorskip("anthropic")
    running = gateway()
    with anthropic.Anthropic(base_url=running.url, api_key=KEY, max_retries=0) as client:
        answer = client.messages.create(model="m", max_tokens=9, messages=HELLO)
        assert answer.content[0].text == "w0 w1 w2 w3 "
        with client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream:
            assert "".join(stream.text_stream) == "w0 w1 w2 w3 "
            assert stream.get_final_message().usage.output_tokens == 4
        with (
            pytest.raises(anthropic.APIError),
            client.messages.stream(model="m", max_tokens=9, messages=CUT) as stream,
        ):
            list(stream.text_stream)


def test_langchain(gateway: Make) -> None:
    """ChatOpenAI answers and streams."""
    langchain = pytest.importorskip("langchain_openai", reason="pip install langchain-openai")
    running = gateway()
    chat = langchain.ChatOpenAI(base_url=running.url + "/v1", api_key=KEY, model="m", max_retries=0)
    assert chat.invoke("tokens=4").content == "w0 w1 w2 w3 "
    assert "".join(chunk.content for chunk in chat.stream("tokens=4")) == "w0 w1 w2 w3 "


def test_curl(gateway: Make) -> None:
    """The line of the README, streaming."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    running = gateway()
    body = json.dumps({"model": "m", "messages": HELLO, "stream": True})
    command = ["curl", "-sN", running.url + "/v1/chat/completions", "-H", f"Authorization: Bearer {KEY}",
               "-H", "Content-Type: application/json", "-d", body]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith("data: [DONE]\n\n")


SCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.env.BASE, apiKey: process.env.KEY, maxRetries: 0 });
const ask = (content) => client.chat.completions.create(
  { model: "m", stream: true, messages: [{ role: "user", content }] });
let text = "";
for await (const chunk of await ask("tokens=4")) text += chunk.choices[0]?.delta?.content ?? "";
let failed = "";
try { for await (const chunk of await ask("tokens=9 die=3")); } catch (error) { failed = String(error); }
console.log(JSON.stringify({ text, failed }));
"""


def test_openai_javascript(gateway: Make, tmp_path: Path) -> None:
    """The JavaScript client streams, and throws when a stream is cut."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs Node.js 18 or newer with npm (apt-get install nodejs npm)")
    directory = tmp_path / "js"
    shutil.copytree(Path(__file__).parent / "js", directory)
    (directory / "client.mjs").write_text(SCRIPT)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    made = subprocess.run(install, cwd=directory, capture_output=True, text=True, check=False, timeout=300)
    if made.returncode:
        last = made.stderr.strip().splitlines()[-1:] or ["no reason given"]
        pytest.skip(f"`{' '.join(install)}` in tests/gateway/js does not work here: {last[0]}")
    running = gateway()
    environment = {**os.environ, "BASE": running.url + "/v1", "KEY": KEY}
    done = subprocess.run(
        ["node", "client.mjs"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["text"] == "w0 w1 w2 w3 "
    assert "lost" in result["failed"]
