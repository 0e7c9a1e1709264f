"""A bundle carries no secret, prompt, user name or address, and still leads to the same diagnosis."""

import json
import tarfile
from pathlib import Path

import pytest
from doctor_logs import diagnose_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from test_doctor_match import FAULTS

from longspan.cli.doctor import to_json
from longspan.doctor.bundle import write
from longspan.doctor.collect import diagnose
from longspan.doctor.redact import Redactor
from longspan.doctor.stacks import Collected
from longspan.errors import BundleError

PLANTED = {
    "Hugging Face token": ("HF_TOKEN=hf_AbCdEfGhIjKlMnOpQrSt", "hf_AbCdEfGhIjKlMnOpQrSt"),
    "API key of an argument": (
        "non-default args: {'api_key': ['lsp_9f8e7d6c5b4a'], 'port': 8000}",
        "lsp_9f8e7d6c5b4a",
    ),
    "OpenAI key": ("Incorrect API key provided: sk-proj-abc123DEF456ghi789.", "sk-proj-abc123DEF456ghi789"),
    "header": ("headers={'Authorization': 'Bearer s3cr3t-value-99'}", "s3cr3t-value-99"),
    "basic header": ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "dXNlcjpwYXNzd29yZA"),
    "password in a URL": ("proxy http://ana:hunter2@proxy.acme.corp:3128/", "hunter2"),
    "password": ("redis_password: 'tr0ub4dor'", "tr0ub4dor"),
    "Ray token": ("RAY_AUTH_TOKEN=0a1b2c3d4e5f60718293", "0a1b2c3d4e5f60718293"),
    "AWS key": ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENG", "wJalrXUtnFEMIK7MDENG"),
    "JWT": ("cookie=x; jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "eyJzdWIiOiIxIn0"),
    "prompt": (
        "Received request c-1: prompt: 'the merger with Initech', params: SamplingParams(n=1)",
        "Initech",
    ),
    "prompt with a quote in it": (
        "Received request c-1: prompt: 'don\\'t tell Initech', params: 1",
        "Initech",
    ),
    "chat content": ('{"role": "user", "content": "my diagnosis is \\"gout\\""}', "gout"),
    "token ids": ("prompt_token_ids: [101, 202, 303], lora_request: None", "202"),
    "user in a path": ("FileNotFoundError: '/home/maria/models/x'", "maria"),
    "user": ("user=maria logged in", "maria"),
    "mail": ("contact maria.k@acme.example for access", "acme.example"),
    "address": ("(RayWorkerProc pid=1, ip=10.20.30.40) x", "10.20.30.40"),
    "IPv6 address": ("tcp://[fd00:10:0:1::5]:29550", "fd00:10:0:1::5"),
    "host": ("connect to gpu-node-7.acme.internal failed", "acme"),
    "second key of a list": (
        "non-default args: {'api_key': ['first-key-1', 'second-key-2'], 'port': 1}",
        "second-key-2",
    ),
    "option and value": ("vllm serve m --api-key plainkey77 --port 1", "plainkey77"),
    "option and value in a list": ("argv=['vllm', '--hf-token', 'plainkey77']", "plainkey77"),
    "key in a variable": ("AZURE_STORAGE_KEY=Zm9vYmFyYmF6cXV4", "Zm9vYmFy"),
    "signed address": ("https://b.s3.amazonaws.com/x?X-Amz-Signature=deadbeefcafe&a=1", "deadbeefcafe"),
    "private key in one line": (
        "key -----BEGIN PRIVATE KEY-----MIIEvQIBADAN-----END PRIVATE KEY----- x",
        "MIIEvQ",
    ),
    "prompts": ('{"prompt": ["the merger", "with Initech"], "n": 1}', "Initech"),
    "answer without quotes": ("Generated text: the merger with Initech", "Initech"),
    "user in a shared path": ('File "/data/users/maria/x.py", line 3', "maria"),
    "user in a relative path": ("home/maria/x.log", "maria"),
    "user of Windows": ("C:\\Users\\maria\\models", "maria"),
    "user of a tilde": ("no such file: ~maria/x", "maria"),
    "user of sudo": ("Nov 03 09:14:22 h sudo: maria : TTY=pts/0 ; USER=root", "maria"),
    "user of sshd": ("sshd[1]: Accepted publickey for maria from 10.0.0.9 port 22", "maria"),
    "user of id": ("uid=1001(maria) gid=1001(maria)", "maria"),
    "cloud host": ("ip-10-20-30-40 kernel: x", "10-20-30-40"),
    "host of syslog": ("Nov 03 09:14:22 gpubox18 kernel: x", "gpubox18"),
    "host of NCCL": ("gpubox18:1:9 [0] NCCL INFO x", "gpubox18"),
    "named host": ("node gpubox17 is gone", "gpubox17"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_planted_things_are_gone(what: str) -> None:
    """None of the planted things is left in its line."""
    text, planted = PLANTED[what]
    assert planted not in Redactor(["gpubox17"]).line(text)


def test_a_private_key_of_many_lines() -> None:
    """All of it, and what follows stays."""
    redactor = Redactor()
    lines = [
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "b3BlbnNzaC1r",
        "-----END OPENSSH PRIVATE KEY-----",
        "x 1",
    ]
    assert [redactor.line(text) for text in lines] == ["[redacted]"] * 3 + ["x 1"]


@pytest.mark.parametrize(
    "text",
    ["--max-num-batched-tokens 8192 --port 8000", "Running: 3 reqs, tokens/s 12", "sort_key=timestamp_of_x"],
)
def test_what_names_nobody_stays(text: str) -> None:
    """A figure that explains the failure is no secret."""
    assert Redactor().line(text) == text


def test_nodes_of_the_log_are_taken_out_everywhere(tmp_path: Path) -> None:
    """Also where a line mentions them without standing in front of it."""
    log = tmp_path / "x.log"
    log.write_text(
        "".join(f"{line}\n" for line in FAULTS["hardware"][1])
        + "mesh-a7: INFO 11-02 10:00:00 x\nlost mesh-a7\n"
    )
    document = {**to_json(diagnose([log])), "timeline": [{"node": "mesh-a7"}, {"node": "worker"}]}
    out = tmp_path / "b.tar.gz"
    write(out, [log], document)
    with tarfile.open(out) as archive:
        texts = [f.read().decode() for m in archive.getmembers() if (f := archive.extractfile(m))]
    assert not any("mesh-a7" in text for text in texts)


def test_prompts_over_several_lines_are_gone() -> None:
    """Until the quotation ends, and what follows stays."""
    redactor = Redactor()
    lines = [
        "Received request c: prompt: 'dear Initech,",
        "we sell Initech",
        "bye', params: x",
        "Xid 79 of GPU 3",
    ]
    out = [redactor.line(line) for line in lines]
    assert "Initech" not in "\n".join(out)
    assert out[3] == lines[3]


@pytest.mark.parametrize(
    "text",
    [
        "Nov 02 12:00:01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "c10::Error::Error(c10::SourceLocation, std::string) at 11:00:33",
        "max_tokens=16, prompt_tokens: 12, tokens/s, eos_token_id=2, tokenizer='/models/m', vLLM 0.32.0.1",
        "Bootstrap : Using docker0:172.17.0.1<0>, connect [127.0.1.1]:33961, fe80::1%eth0",
        "https://huggingface.co/m/resolve/main/config.json",
    ],
)
def test_evidence_stays(text: str) -> None:
    """What a diagnosis needs and names nobody is left as it is."""
    assert Redactor().line(text) == text


@settings(deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 255)] * 4), min_size=1, max_size=20))
def test_addresses_keep_their_identity_and_subnet(quads: list[tuple[int, int, int, int]]) -> None:
    """Equal addresses stay equal, different ones different, and equal subnets equal."""
    redactor = Redactor()
    addresses = [f"{a % 9 + 11}.{b}.{c}.{d}" for a, b, c, d in quads]
    seen = {a: redactor.line(f"x {a} y").split()[1] for a in addresses}
    assert len(set(seen.values())) == len(seen)
    assert not set(seen.values()) & set(seen)
    for one in seen:
        for other in seen:
            same = one.rsplit(".", 1)[0] == other.rsplit(".", 1)[0]
            assert same == (seen[one].rsplit(".", 1)[0] == seen[other].rsplit(".", 1)[0])


@pytest.mark.parametrize("name", FAULTS)
def test_a_redacted_log_has_the_same_diagnosis(name: str) -> None:
    """Redaction takes nothing that the verdict stands on."""
    cause, lines = FAULTS[name]
    redactor = Redactor(["gpu02"])
    assert diagnose_lines([redactor.line(line) for line in lines]).findings[0].cause == cause


PLANTED_TEXT = "\n".join(text for text, _ in PLANTED.values())


def test_the_bundle(tmp_path: Path) -> None:
    """One archive with redacted logs, what was collected from hosts redacted too, the redacted diagnosis and a note; an
    existing file is not overwritten."""
    log = tmp_path / "node.log"
    log.write_text("\n".join([text for text, _ in PLANTED.values()] + FAULTS["hardware"][1]))
    out = tmp_path / "b.tar.gz"
    raw = Collected(
        "gpubox17",
        {0: PLANTED_TEXT},
        files={f"file-{number}": text for number, (text, _) in enumerate(PLANTED.values())},
    )
    members = write(out, [log], to_json(diagnose([log])), ["gpubox17"], [raw])
    assert "hosts/000/stack-rank-0.txt" in members
    assert members[-2:] == ["diagnosis.json", "README.txt"]
    with tarfile.open(out) as archive:
        texts = {m.name: archive.extractfile(m).read().decode() for m in archive.getmembers()}  # type: ignore[union-attr]
    for what, (_, planted) in PLANTED.items():
        assert all(planted not in text for name, text in texts.items() if name != "README.txt"), what
    assert json.loads(texts["diagnosis.json"])["findings"][0]["cause"] == "gpu-hardware-fault"
    with pytest.raises(BundleError, match="exists"):
        write(out, [log], {}, [])


@pytest.mark.parametrize("unit", ["a.", "x-", "1.1.1.", "ab:", "\\0", "a"])
def test_a_long_line_of_one_kind_ends(unit: str) -> None:
    """A megabyte of it took hours where a key's or a name's length had no bound; what follows is still looked at."""
    told = Redactor().line(unit * 20_000 + " password=hunter22 end")
    assert told.endswith(" password=[redacted] end")
