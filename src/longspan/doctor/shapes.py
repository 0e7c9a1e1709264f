"""The index from words to rules, and what a line's shape can rule out. See `scan` for why."""

import re

from longspan.doctor.rules.rule import Mark, Rule

DIGITS = b"0123456789"
_KEPT = b"0123456789abcdefghijklmnopqrstuvwxyz_" + bytes(range(128, 256))
# Every byte of a word in lower case, everything else a space.
WORD_BYTES = bytes(
    ord(chr(b).lower()) if b < 128 and chr(b).lower().encode() in _KEPT else b if b in _KEPT else 32
    for b in range(256)
)

# What holds digits in a pattern without naming any: counts, classes of all digits, back references, group names.
_QUANTIFIER = re.compile(r"\{\d*,?\d*\}|\[[^\]]*(?:\\d|0-9)[^\]]*\]|\\\d|\(\?P<\w+>|\\d")
# Where a user's own words begin: everything after it is quoted, not reported.
QUOTED = re.compile(
    r"(?:[Rr]eceived request|Generated (?:text|response|output)|Request body|request body)\b|\b[Pp]rompt(?: ?token[_ ]ids)?['\"]?: ?['\"\[]|\bprompt=['\"]"
    r"|[\"']?(?:content|messages|input|prompt|text|arguments)[\"']: ?[\"'\[]|SamplingParams\("
)


_TOKEN = re.compile(r"\\d(?:[+*?]|\{[\d,]*\})?|\\.|\{[\d,]*\}|\(\?P<\w+>|\[[^\]]*\]|\d+")


def relaxed(pattern: str) -> str | None:
    """The pattern with any digits in place of its own, or None where a negative look-ahead forbids digits.

    Whatever digits a line of some shape holds, it can only match the pattern if the shape matches this.
    """
    if re.search(r"\(\?<?![^)]*\d", pattern):
        return None

    def loose(match: re.Match[str]) -> str:
        token = match[0]
        digits = token.isdigit() or token.startswith("\\d") or re.fullmatch(r"\[[\d-]+\]", token) is not None
        return r"\d*" if digits else token

    return _TOKEN.sub(loose, pattern)


class Entry:
    """A rule or mark and its pattern, compiled when it is first needed: most logs need a few of them.

    `digits`: the pattern names digits, so that a shape, which has none, cannot rule it out by the pattern itself.
    """

    __slots__ = ("_compiled", "_loose", "digits", "rule")

    def __init__(self, rule: Rule | Mark) -> None:
        self.rule = rule
        self.digits = any(c.isdigit() for c in _QUANTIFIER.sub("", rule.pattern))
        self._compiled: re.Pattern[str] | None = None
        self._loose: re.Pattern[str] | None = None

    def possible(self, text: str) -> bool:
        """Whether some line of this line's shape could match."""
        if not self.digits:
            return self.pattern.search(text) is not None
        if self._loose is None:
            loose = relaxed(self.rule.pattern)
            self._loose = re.compile("" if loose is None else loose)
        return self._loose.search(text) is not None

    @property
    def pattern(self) -> re.Pattern[str]:
        if self._compiled is None:
            self._compiled = re.compile(self.rule.pattern)
        return self._compiled


_QUOTE_BEGINS = re.compile(
    rb"\b[Pp]rompt['\"]?: ?(['\"])|\bprompt=(['\"])|[\"'](?:content|prompt)[\"']: ?([\"'])"
)


def unquoted(text: bytes) -> tuple[bytes, bool]:
    """The part of a line before a user's own words, and whether those go on in the next line."""
    begin = None
    if b"rompt" in text or b"content" in text:
        at = min(found for word in (b"rompt", b"content") if (found := text.find(word)) >= 0)
        begin = _QUOTE_BEGINS.search(text, max(0, at - 2))
    if begin is None:
        at = text.find(b"eceived request")
        return (text[: at - 1], False) if at > 0 else (text, False)
    mark = begin[begin.lastindex or 1]
    rest = text[begin.end() :]
    return text[: begin.start()], rest.count(mark) == rest.count(b"\\" + mark)


def is_open(text: str, at: int) -> bool:
    """Whether the quotation that begins at `at` does not end on this line."""
    mark = text[at]
    return mark in "'\"" and text.count(mark, at + 1) == text.count("\\" + mark, at + 1)
