"""Lines for people to paste into a shell; whatever stands in paths and names, they say what was meant. Pure."""

import json
import shlex

QUESTION = "What is the capital of France?"


def curl_line(endpoint: str, model: str, key_file: str) -> str:
    """One question by curl; the key is read by the shell, so that it stands in no history."""
    body = {
        "model": model, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}],
    }  # fmt: skip
    return (
        f'curl {shlex.quote(f"{endpoint}/chat/completions")} -H "Authorization: Bearer $(cat {shlex.quote(key_file)})"'
        f' -H "Content-Type: application/json" -d {shlex.quote(json.dumps(body, ensure_ascii=False))}'
    )


def openai_line(endpoint: str, model: str, key_file: str) -> str:
    """The same question by the OpenAI client."""
    code = (
        f"from openai import OpenAI; c = OpenAI(base_url={_text(endpoint)}, api_key=open({_text(key_file)}).read());"
        f" print(c.chat.completions.create(model={_text(model)}, temperature=0,"
        f" messages=[{{{_text('role')}: {_text('user')}, {_text('content')}: {_text(QUESTION)}}}])"
        ".choices[0].message.content)"
    )
    return f"python -c {shlex.quote(code)}"


def _text(value: str) -> str:
    """A Python literal in double quotes, which a shell's single quotes leave alone: JSON's are Python's too."""
    return json.dumps(value)
