"""The one-pass scanner finds what a slow, plain search finds."""

import json
import re
from random import Random

import pytest
from doctor_logs import diagnose_lines, serving, up
from hypothesis import given, settings
from hypothesis import strategies as st
from test_doctor_match import FAULTS

from longspan.doctor.lines import ANSI, parse_head
from longspan.doctor.records import unwrapped
from longspan.doctor.rules import MARKS, RULES
from longspan.doctor.rules.rule import Mark, Rule
from longspan.doctor.scan import LAZY, SHAPES_LIMIT, Scanner
from longspan.doctor.shapes import Entry

_EXAMPLES = [r.example for r in RULES] + [m.example for m in MARKS if m.id not in ("section", "quote")]
_NOISE = [
    "INFO 11-02 10:00:00 all is well 7",
    "",
    "step 12 of 99",
    "\x1b[36mcolour\x1b[0m",
    "Ünïcode 日本語",
    "x" * 300,
]
_LINES = st.lists(st.sampled_from(_EXAMPLES + _NOISE), max_size=25)


def plain(lines: list[str]) -> set[tuple[int, str]]:
    """Every rule tried on every line, the slow way."""
    found = set()
    for number, line in enumerate(lines, 1):
        text = ANSI.sub(b"", line.encode()).decode()
        low = text.lower()
        found |= {
            (number, i)
            for i, words, pattern in _PLAIN
            if any(_has(low, w) for w in words) and pattern.search(text)
        }
    return found


_PLAIN = [
    (e.id, e.words.split(), re.compile(e.pattern))
    for e in (*RULES, *MARKS)
    if e.id not in ("section", "quote") and e.id not in LAZY
]


def _has(low: str, word: str) -> bool:
    """Whether a word stands in a text as a whole word."""
    at = low.find(word)
    while at >= 0:
        around = low[max(0, at - 1) : at] + low[at + len(word) : at + len(word) + 1]
        if not re.search(r"[a-z0-9_]", around):
            return True
        at = low.find(word, at + 1)
    return False


def scanned(lines: list[str], cuts: list[int]) -> set[tuple[int, str]]:
    """What the scanner finds when the bytes come in pieces."""
    data = "\n".join(lines).encode()
    places = sorted({min(c, len(data)) for c in cuts})
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    scanner = Scanner(RULES, MARKS)
    scanner.feed("x", pieces)
    return {(h.line, h.rule.id) for h in scanner.record().hits if h.rule.id not in LAZY}


@settings(deadline=None)
@given(_LINES, st.lists(st.integers(0, 5000), max_size=6))
def test_equals_a_plain_search_however_the_bytes_are_cut(lines: list[str], cuts: list[int]) -> None:
    """Shapes, the word index and block borders change nothing but the speed (quotations apart)."""
    quoting = [line for line in lines if "prompt: '" not in line and "throughput" not in line]
    assert scanned(quoting, cuts) == plain(quoting)


@settings(deadline=None)
@given(st.sampled_from([*RULES, *MARKS]), st.randoms(use_true_random=False))
def test_a_shape_never_rules_out_what_could_match(entry: Rule | Mark, random: Random) -> None:
    """A line that matches keeps its rule possible for every line of its shape, whatever digits that has."""
    other = re.sub(r"\d", lambda _: str(random.randrange(10)), entry.example)
    assert Entry(entry).possible(other)


def test_digits_do_not_hide_behind_a_shape() -> None:
    """Two lines that differ only in digits are told apart where the digits matter."""
    scanner = Scanner(RULES, MARKS)
    texts = [f"kernel: NVRM: Xid (PCI:0000:3b:00): {n}, pid=1" for n in (13, 31, 43, 79)] + [
        "CUDA Error 101: x",
        "CUDA Error 802: x",
    ]
    scanner.feed("x", ["\n".join(texts).encode()])
    assert [(h.rule.id, h.line) for h in scanner.record().hits] == [("gpu-ecc", 4), ("cuda-802", 6)]


def test_memory_stays_bounded_on_lines_that_never_repeat() -> None:
    """The dictionary of shapes forgets; the hits kept per rule are capped, and counted nevertheless."""
    scanner = Scanner(RULES, MARKS)
    words = [
        f"w{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}{chr(97 + i // 676 % 26)}{'z' * (i // 17576)}"
        for i in range(SHAPES_LIMIT + 5000)
    ]
    scanner.feed("x", ["\n".join(f"unique {w} Traceback (most recent call last):" for w in words).encode()])
    record = scanner.record()
    assert record.counts["traceback"] == len(words)
    assert len(record.hits) < 1000
    assert len(scanner._shapes) <= SHAPES_LIMIT


def test_survives_what_logs_really_hold() -> None:
    """Broken UTF-8, carriage returns of progress bars, a missing last newline and one endless line."""
    scanner = Scanner(RULES, MARKS)
    bar = b"\rLoading  10%\rLoading  20%\rtorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    scanner.feed(
        "x",
        [b"\xff\xfe\x00 broken \xc3\n", bar + b"\n", b"x" * (3 << 20), b"\nDuplicate GPU detected : rank 1"],
    )
    assert [h.rule.id for h in scanner.record().hits] == ["cuda-oom", "duplicate-gpu"]


def test_quotations_are_not_reports() -> None:
    """Error text within a user's prompt is not matched, on one line or on several."""
    scanner = Scanner(RULES, MARKS)
    lines = [
        "(APIServer pid=1) INFO 11-12 09:00:00 [logger.py:42] Received request c-1: prompt: 'why Duplicate GPU detected?', params: 1",
        '{"role": "user", "content": "OSError: [Errno 28] No space left on device"}',
        "(APIServer pid=1) INFO 11-12 09:00:01 [logger.py:42] Received request c-2: prompt: 'my log says",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "what now?', params: 1",
        "(Worker pid=1) ERROR 11-12 09:00:02 [x.py:1] torch.OutOfMemoryError: CUDA out of memory.",
    ]
    scanner.feed("x", ["\n".join(lines).encode()])
    assert [h.line for h in scanner.record().hits] == [6]


def test_last_signs_of_life_are_kept() -> None:
    """Of lines that come with every request the last ones of a block are kept: they tell when it last worked."""
    scanner = Scanner(RULES, MARKS)
    lines = up() + serving(times=500)
    scanner.feed("x", ["\n".join(lines).encode()])
    hits = [h for h in scanner.record().hits if h.rule.id == "throughput"]
    assert hits[-1].line == len(lines)


def test_heads_of_lines() -> None:
    """Node, process, rank, level and time are read from each of the formats that meet in one log."""
    ray = parse_head(
        "(RayWorkerProc pid=3535, ip=10.0.0.12) (Worker_PP1_TP5 pid=3535) ERROR 11-12 09:15:06 [m.py:953] x"
    )
    assert (ray.node, ray.process, ray.pid, ray.level) == ("10.0.0.12", "Worker_PP1_TP5", 3535, "ERROR")
    assert parse_head("node-b: (Worker pid=1) INFO 09-25 18:55:26 [x.py:1] x").node == "node-b"
    assert parse_head("Nov 12 09:00:00 gpu01 kernel: NVRM: x").node == "gpu01"
    assert parse_head("[rank3]:[E822 16:31:16.135435629 ProcessGroupNCCL.cpp:632] x").rank == 3
    assert parse_head("n1:7:9 [0] misc/socket.cc:30 NCCL WARN x").node == "n1"
    assert parse_head("RuntimeError: CUDA error").node == ""
    same = [
        "INFO 11-12 09:15:06 [x.py:1] y", "2026-11-12 09:15:06,000\tINFO x.py:1 -- y", "[W1112 09:15:06.000 x.cpp:1] y", "Nov 12 09:15:06 h k: y",
        "2026-11-12T09:15:06.000Z stderr F y",
    ]  # fmt: skip
    assert {parse_head(line).time_seconds for line in same} == {parse_head(same[0]).time_seconds}


def wrapped(shipper: str, line: str) -> str:
    """A line as Docker, journald or a structured logger keeps it."""
    at = "2026-11-02T10:00:00.000000001Z"
    records: dict[str, dict[str, str]] = {
        "docker": {"log": line + "\n", "stream": "stderr", "time": at},
        "journald": {"__REALTIME_TIMESTAMP": "1", "_HOSTNAME": "gpu01", "MESSAGE": line},
        "structured": {"timestamp": at, "level": "info", "message": line, "host": "gpu01"},
    }
    return json.dumps(records[shipper])


@pytest.mark.parametrize("shipper", ["docker", "journald", "structured"])
@pytest.mark.parametrize(
    "name", [name for name in FAULTS if "without a time" not in name]
)  # a record has one
def test_lines_in_json(name: str, shipper: str) -> None:
    """What a shipper wrapped into JSON leads to the same cause; its own level "info" takes nothing back."""
    cause, lines = FAULTS[name]
    findings = diagnose_lines([wrapped(shipper, line) for line in lines]).findings
    assert findings[0].cause == cause
    assert findings[0].evidence[0].text in lines


def test_several_lines_in_one_record() -> None:
    """A whole traceback in one record is read line by line, and counts as the one line of the file that it is."""
    text = 'Traceback (most recent call last):\n  File "x.py", line 1, in y\nOSError: [Errno 98] Address already in use'
    findings = diagnose_lines(["INFO plain", json.dumps({"msg": text})]).findings
    assert findings[0].cause == "port-in-use"
    assert findings[0].evidence[0].line == 2
    assert unwrapped(b'{"a": 1}') == b'{"a": 1}'
    assert unwrapped(b'{"msg": broken}') == b'{"msg": broken}'


def test_the_value_of_a_variable_is_no_level() -> None:
    """ "run with NCCL_DEBUG=INFO" and "set VLLM_LOGGING_LEVEL=DEBUG" do not make a line harmless."""
    assert (
        parse_head("RuntimeError: unhandled system error (run with NCCL_DEBUG=INFO for details)").level == ""
    )
    assert parse_head("please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG` to turn on").level == ""
    assert parse_head("(Worker pid=1) INFO 11-02 10:00:00 [x.py:1] y").level == "INFO"
    assert parse_head("[2026-01-01] ERROR: y").level == "ERROR"


def test_a_kernel_line_without_a_host_names_none() -> None:
    """`kernel:` is who speaks, not where."""
    head = parse_head("Nov 02 12:00:01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.")
    assert head.node == ""
    assert head.time_seconds is not None
    assert parse_head("Nov 02 12:00:01 gpu02 kernel: x").node == "gpu02"
