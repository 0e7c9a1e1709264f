"""The lines that `up` prints to be pasted, as a shell and Python understand them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cli.pasted import curl_line, openai_line

NAMES = ["m", "it's", 'a "b"', "$(touch /nowhere) `x`", "[bold]x[/bold]", "naïve 模型", "back\\slash"]


@pytest.mark.parametrize("model", NAMES)
def test_the_curl_line(tmp_path: Path, model: str) -> None:
    """A shell gives curl the address, the key out of the file, and a document with this model, whatever the names are."""
    folder = tmp_path / "my state's $HOME"
    folder.mkdir()
    key = folder / "api-key"
    key.write_text("lsp_x")
    fake = tmp_path / "curl"
    fake.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    fake.chmod(0o755)
    line = curl_line("http://[::1]:8000/v1", model, str(key)).replace("curl ", f"{fake} ", 1)
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    words = json.loads(done.stdout)
    assert words[0] == "http://[::1]:8000/v1/chat/completions"
    assert words[2] == "Authorization: Bearer lsp_x"
    assert json.loads(words[-1])["model"] == model


@pytest.mark.parametrize("model", NAMES)
def test_the_python_line(tmp_path: Path, model: str) -> None:
    """The OpenAI client gets address, key and model as they are."""
    key = tmp_path / 'it\'s a "key"'
    key.write_text("lsp_x")
    (tmp_path / "openai.py").write_text(
        "import json\nclass OpenAI:\n    def __init__(self, base_url, api_key):\n        self.seen = {'url': base_url, 'key': api_key}\n"
        "        self.chat = self.completions = self\n"
        "    def create(self, model, temperature, messages):\n        self.seen['model'] = model\n"
        "        self.content = json.dumps(self.seen)\n        self.message = self\n        self.choices = [self]\n        return self\n"
    )
    line = openai_line("http://127.0.0.1:8000/v1", model, str(key)).replace(
        "python ", f"{sys.executable} ", 1
    )
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout) == {"url": "http://127.0.0.1:8000/v1", "key": "lsp_x", "model": model}


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
def test_any_name_is_one_word(model: str) -> None:
    """No name opens or closes a quote."""
    import shlex

    words = shlex.split(curl_line("http://h:1/v1", model, "/k"))
    assert len(words) == 8
    assert json.loads(words[-1])["model"] == model
    assert len(shlex.split(openai_line("http://h:1/v1", model, f"/k/{model}"))) == 3
