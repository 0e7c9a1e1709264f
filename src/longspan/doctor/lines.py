"""What the front of a log line tells: node, process, rank, time and level."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# Colours and cursor moves, titles and links (OSC), device strings, character sets.
ANSI = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?|\x1b[()][A-Z0-9]"
)
# What a terminal acts upon instead of showing it, and what turns the direction of reading.
_ACTS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with every character that a terminal would act upon shown as U+FFFD: who writes a log does not write to our screen."""
    return _ACTS.sub("\ufffd", text)


_RAY = re.compile(
    r"\((?P<proc>[A-Za-z][\w:.]*(?!=))?\s*(?:pid=(?P<pid>\d{1,18}))?(?:, ?ip=(?P<ip>[\d.]+|[0-9a-f:]+))?\)"
)
_VLLM = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL) (\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)")
_ISO = re.compile(r"\b(?:19|20)\d\d[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_GLOG = re.compile(r"\[?\b[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
SYSLOG_HOST = re.compile(
    r"^(?:<\d+>)?(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.\d+)? (?:(?P<host>\S*[^\s:]) )?"
)
_ISO_HOST = re.compile(r"^(?:19|20)\d\d-\d\d-\d\dT[\d:.,+Z-]+ (?P<host>[\w.-]+) [\w./@-]+(?:\[\d+\])?: ")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)

# "node-a: ", "[node-a] ", "gpu01 | ", "[pod/vllm-0/vllm] ", "[1,5]<stderr>: ", "3: " (srun -l), each before anything else.
_NODE = re.compile(
    r"^\s*(?:\[(?:pod/)?(?P<bracket>(?=[\w./-]*[a-z])(?!rank|gpu\]|c10d|rank\d|info|warn|error|debug)[a-z][\w./-]*[\d\w])\]:? "
    r"|(?P<colon>(?=[\w.-]*[\d-])[a-z][\w.-]*)(?::| ?\|)\s(?!line )|\[(?P<mpi>\d+,\d+)\]<\w+>:|(?P<task>\d{1,5}): (?=\S))"
)
NCCL_HOST = re.compile(r"(?:^|\s)(?P<host>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")
_RANK = re.compile(r"\[[Rr]ank ?(\d{1,9})\]|\bRank (\d{1,9})\]|\brank[= ](\d{1,9})\b")
_CPP_LEVEL = re.compile(r"^(?:\([^)]*\) ?)*\[(?:\d{4}-\S+ [\d:,.]+ ([IWEFC]) |([IWEF])\d{3,4} )")
_WORD_LEVEL = re.compile(
    # Not the value of a variable: "run with NCCL_DEBUG=INFO for details" is no line of that level.
    r"(?<![=\w`])(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b(?!:\w)|[Ll]evel\"?[=:] ?\"?(debug|info|warn|warning|error|fatal)\b|NCCL (INFO|WARN)\b"
)
_LEVELS = {
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "ERROR",
    "C": "ERROR",
    "CRITICAL": "ERROR",
    "FATAL": "ERROR",
    "WARN": "WARNING",
}


@dataclass(frozen=True, slots=True)
class Head:
    """The front of one line.

    Attributes:
        node: the machine as the line itself names it; empty if it does not.
        process: vLLM's or Ray's name of the process ("Worker_PP1_TP5", "EngineCore", "raylet").
        rank: global rank, -1 if the line does not say.
        time_seconds: seconds since the first of January of a leap year (most lines carry no year), or None.
        level: DEBUG, INFO, WARNING, ERROR, or empty. NCCL's own levels count as "NCCL".
    """

    node: str = ""
    process: str = ""
    pid: int = 0
    rank: int = -1
    time_seconds: float | None = None
    level: str = ""


def _seconds(month: int, rest: Sequence[str], fraction: str | None = None) -> float | None:
    """`rest`: day, hour, minute and second, as digits."""
    if not 1 <= month <= 12:
        return None
    day, hour, minute, second = (int(part) for part in rest)
    days = _DAYS_BEFORE[month - 1] + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second + (float(f"0.{fraction}") if fraction else 0.0)


def parse_time(text: str) -> float | None:
    """The time that a line carries: vLLM's own first, then ISO, glog and syslog. See `Head.time_seconds`."""
    if match := _VLLM.search(text):
        return _seconds(int(match[2]), match.groups()[2:6])
    if match := _ISO.search(text) or _GLOG.search(text):
        return _seconds(int(match[1]), match.groups()[1:5], match[6])
    if match := SYSLOG_HOST.match(text):
        return _seconds(_MONTHS.index(match[1]) + 1, match.groups()[1:5])
    return None


def _node(text: str) -> str:
    if (match := SYSLOG_HOST.match(text) or _ISO_HOST.match(text)) and match["host"]:
        return match["host"]
    if match := _NODE.match(text):
        task = f"task {match['task']}" if match["task"] else ""
        return match["bracket"] or match["colon"] or match["mpi"] or task
    if match := NCCL_HOST.search(text[:120]):
        return match["host"]
    return ""


def _level(text: str) -> str:
    if match := _VLLM.search(text):
        return _LEVELS.get(match[1], match[1])
    if match := _CPP_LEVEL.match(text):
        return _LEVELS[match[1] or match[2]]
    if match := _WORD_LEVEL.search(text[:160]):
        if match[3]:
            return "NCCL"
        word = (match[1] or match[2]).upper()
        return _LEVELS.get(word, word)
    return ""


def parse_head(text: str) -> Head:
    """Reads the front of a line without colours."""
    node, process, pid = _node(text), "", 0
    for match in _RAY.finditer(text[:240]):
        if match["proc"] is None and match["pid"] is None:
            continue
        if (
            match["pid"] is None
            and match["ip"] is None
            and match["proc"] not in ("raylet", "gcs_server", "autoscaler")
        ):
            continue
        process = match["proc"] or process
        pid = int(match["pid"] or pid)
        node = node or match["ip"] or ""
    rank = -1
    if match_rank := _RANK.search(text):
        rank = int(next(g for g in match_rank.groups() if g is not None))
    return Head(node, process, pid, rank, parse_time(text), _level(text))
