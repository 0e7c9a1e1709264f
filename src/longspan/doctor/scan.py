"""Finds the lines that any rule knows, in one pass over bytes and with constant memory.

A log repeats itself: without its digits, one line of a server looks like ten thousand others. So each *shape* (a line
without digits) is looked up once: its words select the rules that could match, those are tried, and the ones that
cannot match this shape are forgotten for it. Later lines of the same shape cost one dictionary look-up. A rule whose
pattern names digits ("Error 803") stays with the shape and is tried on every such line.
"""

import re
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from longspan.doctor.lines import ANSI, Head, parse_head, parse_time, printable
from longspan.doctor.records import HEAD_ENDS, unwrapped
from longspan.doctor.rules.rule import Mark, Rule
from longspan.doctor.shapes import DIGITS, QUOTED, WORD_BYTES, Entry, is_open, unquoted

# The index key of any exception's name: there are too many to list.
ANY_ERROR, EXCEPTIONS = b"*error", (b"error", b"exception")
# Of so many shapes of exceptions none tells anything: a log in which every line is a new one is read on without them.
EXCEPTIONS_LIMIT = 20_000
SHAPES_LIMIT = 30_000
LINE_LIMIT_BYTES = 1 << 20
TEXT_LIMIT = 20_000
EVIDENCE_LIMIT = 400
# Hits kept of one rule: the first and the last. Where each rank writes its own line, all of a thousand ranks count.
HITS_FIRST, HITS_LAST, RANKS_FIRST = 100, 60, 1024
PER_RANK = frozenset(
    {"nccl-watchdog", "nccl-watchdog-seq", "world", "rank-assigned", "nccl-starts", "init-start", "init-done"}
)
# Lines of one shape that are looked at in full; of the later ones only the last of each block.
SHAPE_BUDGET = 1100
QUOTE_LIMIT_LINES = 200
# Marks that come with every request or every ten seconds: of one shape in one block, the first line and the last few
# are enough to know when the server last worked and whether it stalls.
LAZY = frozenset({"request-ok", "health-ok", "throughput", "throughput-zero", "throughput-idle", "queue"})
LAZY_LAST = 4

_REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\]")


@dataclass(slots=True)
class Hit:
    """One line that a rule or mark matched.

    Attributes:
        line: counts from 1.
        order: position in reading order over all files.
        count: how many lines Ray folded into this one.
    """

    rule: Rule | Mark
    file: str
    line: int
    order: int
    text: str
    head: Head
    groups: dict[str, str | None]
    time_seconds: float | None
    section: str = ""
    count: int = 1
    clock_node: str = ""  # whose clock `time_seconds` is of: the node of the line that carried the time

    @property
    def node(self) -> str:
        """The node of the line: named by itself, else the section or file that it stands in."""
        return self.head.node or self.section


@dataclass(slots=True)
class _Kept:
    first: list[Hit] = field(default_factory=list)
    last: deque[Hit] = field(default_factory=lambda: deque(maxlen=HITS_LAST))
    count: int = 0

    def add(self, hit: Hit) -> None:
        self.count += 1
        limit = RANKS_FIRST if hit.rule.id in PER_RANK else HITS_FIRST
        (self.first if len(self.first) < limit else self.last).append(hit)


@dataclass(frozen=True, slots=True)
class Record:
    """What a pass over the logs left: every hit in reading order.

    Attributes:
        hits: rule hits and marks, in reading order.
        lines, size_bytes: how much was read.
        newest_first: the file's time stamps mostly go backwards.
        counts: rule id -> number of lines, including those not kept.
    """

    hits: tuple[Hit, ...]
    lines: int
    size_bytes: int
    newest_first: bool
    counts: dict[str, int]
    files: tuple[str, ...] = ()


def evidence_text(text: str, start: int, end: int) -> str:
    """The part of a line that is quoted: all of it, or the surroundings of the match."""
    text = text.strip()
    if len(text) <= EVIDENCE_LIMIT:
        return printable(text)
    begin = max(0, min(start - 80, len(text) - EVIDENCE_LIMIT))
    return printable(text[begin : begin + max(EVIDENCE_LIMIT, min(end - start, EVIDENCE_LIMIT))].strip())


class Scanner:
    """Feeds on blocks of bytes; `record()` returns what was found."""

    def __init__(self, rules: Sequence[Rule], marks: Sequence[Mark]) -> None:
        self._index: dict[bytes, list[int]] = {}
        entries: list[Rule | Mark] = [*rules, *marks]
        self._table = [Entry(entry) for entry in entries]
        for number, entry in enumerate(entries):
            for word in entry.words.split():
                self._index.setdefault(word.encode(), []).append(number)
        self._keys = frozenset(self._index)
        self._lazy = frozenset(i for i, entry in enumerate(entries) if entry.id in LAZY)
        self._quote = next((i for i, entry in enumerate(entries) if entry.id == "quote"), -1)
        self._shapes: dict[bytes, tuple[int, ...]] = {}
        self._seen: dict[bytes, int] = {}  # shape -> how often its lines were examined
        self._kept: dict[str, _Kept] = {}
        self._order = self._lines = self._size = self._up = self._down = 0
        self._quote_open_until = self._unheard = 0
        self._files: list[str] = []

    def feed(self, name: str, chunks: Iterable[bytes], node: str = "") -> None:
        """Reads one file to its end. `name` is how it is called in the evidence, `node` whose it is, if that is known."""
        self._files.append(name)
        carry, line, section, clock = b"", 0, node, _Clock()
        for chunk in chunks:
            self._size += len(chunk)
            block = carry + chunk
            cut = block.rfind(b"\n") + 1
            if cut == 0 and len(block) < LINE_LIMIT_BYTES:
                carry = block
                continue
            cut = cut or len(block)
            carry, block = block[cut:], block[:cut]
            line, section = self._block(name, block, line, section, clock)
        if carry:
            self._block(name, carry, line, section, clock)

    def _block(self, name: str, block: bytes, line: int, section: str, clock: "_Clock") -> tuple[int, str]:
        if b"\x1b" in block:
            block = ANSI.sub(b"", block)
        lines = block.split(b"\n")
        if lines[-1] == b"":
            lines.pop()
        if block.startswith(b'{"') or b'\n{"' in block:
            lines = [unwrapped(raw) for raw in lines]
            block = b"\n".join(lines)
        later: dict[bytes, deque[int]] = {}  # shape of a lazy line -> its last indices in this block
        self._direction(lines, line)
        start, section_box = self._order - line, [section]
        shapes = block.translate(None, DIGITS).split(b"\n")[: len(lines)]
        telling = self._telling(shapes, lines)
        for i in [i for i, shape in enumerate(shapes) if shape in telling] if telling else ():
            shape = shapes[i]
            wanted = telling[shape]
            if shape in later:
                later[shape].append(i)
                continue
            if self._lazy.issuperset(wanted):
                later[shape] = deque(maxlen=LAZY_LAST)
            else:
                seen = self._seen.get(shape, 0)
                if seen >= SHAPE_BUDGET and not any(self._table[n].digits for n in wanted):
                    later[shape] = deque((i,), maxlen=LAZY_LAST)
                    continue
                self._seen[shape] = seen + 1
            self._examine(name, lines, i, line, start, wanted, section_box, clock)
        last = ((i, shape) for shape, indices in later.items() for i in indices)
        for i, shape in sorted(last):
            self._examine(name, lines, i, line, start, telling[shape], section_box, clock)
        self._order += len(lines)
        self._lines += len(lines)
        return line + len(lines), section_box[0]

    def _telling(self, shapes: list[bytes], lines: list[bytes]) -> dict[bytes, tuple[int, ...]]:
        """The shapes of a block that some rule may match, with those rules. Each shape costs one look-up, however many lines
        have it: what a healthy server writes is told apart at the speed of the interpreter's own loops."""
        first = dict(zip(reversed(shapes), range(len(shapes) - 1, -1, -1), strict=True))
        telling = {}
        for shape, i in first.items():
            wanted = self._shapes.get(shape)
            if wanted is None:
                wanted = self._new_shape(shape, lines[i])
            if wanted:
                telling[shape] = wanted
        return telling

    def _new_shape(self, shape: bytes, text: bytes) -> tuple[int, ...]:
        text, opened = unquoted(text[:TEXT_LIMIT])
        words = text.translate(WORD_BYTES).split()
        found = self._keys.intersection(words)
        wanted: tuple[int, ...] = (self._quote,) if opened else ()
        if found and not opened:
            decoded = text.decode("utf-8", "replace").rpartition(HEAD_ENDS)[2]
            numbers = {number for word in found for number in self._index[word]}
            wanted = tuple(sorted(n for n in numbers if self._table[n].possible(decoded)))
            if b"\r" in text and (not wanted or HEAD_ENDS.encode() in text):
                wanted = tuple(sorted(numbers))
        if (
            not wanted
            and self._unheard < EXCEPTIONS_LIMIT
            and any(word.endswith(EXCEPTIONS) for word in words)
        ):
            self._unheard += 1
            wanted = tuple(self._index.get(ANY_ERROR, ()))
        if len(shape) <= 4096:
            if len(self._shapes) >= SHAPES_LIMIT:
                self._shapes.clear()
                self._seen.clear()
            self._shapes[shape] = wanted
        return wanted

    def _direction(self, lines: list[bytes], line: int) -> None:
        if line > 0:
            return
        step = max(1, len(lines) // 300)
        times = [
            t for raw in lines[::step] if (t := parse_time(raw[:200].decode("utf-8", "replace"))) is not None
        ]
        for before, after in pairwise(times):
            self._up += after > before
            self._down += after < before

    def _examine(
        self,
        name: str,
        lines: list[bytes],
        i: int,
        line: int,
        start: int,
        wanted: tuple[int, ...],
        section: list[str],
        clock: "_Clock",
    ) -> None:
        whole = lines[i][:TEXT_LIMIT].decode("utf-8", "replace")
        number = line + i + 1
        for part in whole.split("\r") if "\r" in whole else (whole,):
            front, _, text = part.rpartition(HEAD_ENDS)
            head: Head | None = None
            quoted: re.Match[str] | None = None
            for index in wanted:
                rule = self._table[index].rule
                match = self._table[index].pattern.search(text)
                if match is None:
                    continue
                if head is None:
                    quoted = QUOTED.search(text)
                    head = parse_head(front + text)
                    if head.time_seconds is None:
                        clock.look_back(lines, i, line)
                    else:
                        clock.time_seconds, clock.line, clock.node = head.time_seconds, number, head.node
                if rule.id == "quote":
                    if is_open(text, match.end() - 1):
                        self._quote_open_until = number + QUOTE_LIMIT_LINES
                    continue
                if quoted is not None and quoted.start() < match.start():
                    continue
                if head.level or head.process:
                    self._quote_open_until = 0
                elif number <= self._quote_open_until:
                    continue
                if rule.id == "section":
                    section[0] = match["section"] or match["named"] or ""
                    continue
                repeated = _REPEATED.search(text)
                hit = Hit(
                    rule, name, number, start + number, evidence_text(text, match.start(), match.end()), head,
                    match.groupdict(), clock.time_seconds, section[0], int(repeated[1]) if repeated else 1,
                    clock.node or section[0],
                )  # fmt: skip
                self._kept.setdefault(rule.id, _Kept()).add(hit)

    def record(self) -> Record:
        """Everything found so far, in reading order."""
        hits = sorted(
            (h for kept in self._kept.values() for h in (*kept.first, *kept.last)), key=lambda h: h.order
        )
        return Record(
            tuple(hits), self._lines, self._size, self._down > 4 and self._down > 3 * self._up,
            {key: kept.count for key, kept in self._kept.items()}, tuple(self._files),
        )  # fmt: skip


class _Clock:
    """The time of the latest line that had one; a traceback's own lines carry none."""

    __slots__ = ("line", "node", "searched", "time_seconds")

    def __init__(self) -> None:
        self.time_seconds: float | None = None
        self.line = 0
        self.node = ""
        self.searched = 0  # up to this line there is no time after `line`

    def look_back(self, lines: list[bytes], i: int, line: int) -> None:
        """Looks for a nearer time in the lines just above."""
        known, self.searched = max(self.line, self.searched), line + i
        for j in range(i - 1, max(-1, i - 40), -1):
            if line + j + 1 <= known:
                return
            text = lines[j][:300].decode("utf-8", "replace")
            time = parse_time(text)
            if time is not None:
                self.time_seconds, self.line, self.node = time, line + j + 1, parse_head(text).node
                return
