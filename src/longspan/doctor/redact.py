"""Takes out of a log what must not leave the house: secrets, prompts, user names, addresses and host names.

Addresses become others of the benchmark range 198.18.0.0/15 (RFC 2544), the same one each time and with equal subnets
kept equal, so that a redacted log leads to the same diagnosis. Loopback, link-local and bridge addresses stay: they
name nobody and are evidence.
"""

import re
from collections.abc import Iterable

from longspan.doctor.addresses import kind_of_address
from longspan.doctor.lines import NCCL_HOST, SYSLOG_HOST

# What a secret's name holds; a number of tokens is none.
_NAMES = r"token(?!s|iz|_id|_ids|_count|_budget)|secret|passw(?:or)?d|api[_-]?key"
_SECRET = re.compile(
    rf"(?i)\b(?P<key>[\w.-]{{0,80}}(?:{_NAMES}|access[_-]?key|credential|private[_-]?key)[\w.-]{{0,80}})"
    r"(?P<mid>[\"']?\s*(?:=|:|=>)\s*[\"']?)(?P<value>(?!None\b|null\b|True\b|False\b|false\b|true\b|\[?redacted)[^\s\"',;}\])&]{4,})"
)
# The same as an option and its value, in a shell's or a list's words, and all values of a list.
_OPTION = re.compile(
    r"(?i)(?P<option>--[\w-]*(?:token(?!s|iz|-id|-count|-budget)|secret|passw(?:or)?d|api-?key|credential)[\w-]*[\"']?,?\s+[\"']?)"
    r"(?!-|\[?redacted)[^\s\"',\]]{4,}"
)
_SECRET_LIST = re.compile(rf"(?i)\b([\w.-]{{0,80}}(?:{_NAMES})[\w.-]{{0,80}}[\"']?\s*[=:]\s*)\[[^\[\]]*\]")
_KEY_VARIABLE = re.compile(r"\b([A-Z][A-Z0-9_]*_KEY=[\"']?)(?!\[)[^\s\"',;]{8,}")
# A signed address is as good as a password while it lasts.
_SIGNED = re.compile(
    r"(?i)([?&](?:sig|signature|key|[xX]-(?:amz|goog)-(?:signature|credential|security-token))=)(?!\[)[^&\s\"'<>]+"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)")
_PEM_END = re.compile(r"^.*?-----END [A-Z ]*PRIVATE KEY-----")
_HEADER = re.compile(
    r"(?i)\b(authorization|x-api-key|cookie|set-cookie)([\"']?\s*[:=]\s*[\"']?)(?:bearer |basic )?[^\"'\r\n,}]+"
)
_BEARER = re.compile(r"(?i)\bbearer\s+[\w.~+/=-]{6,}")
# Keys that say what they are: Hugging Face, OpenAI and kin, ours, GitHub, AWS, GCP, Slack, JSON web tokens.
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|lsp_[A-Za-z0-9_-]{6,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}|glpat-[\w-]{16,}|nvapi-[\w-]{16,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_USERINFO = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s:@\"']+(?::[^/\s@\"']*)?@")
_HOME = re.compile(r"((?<![\w.-])(?:home|Users|users|scratch)/|\b[A-Z]:\\+Users\\+)(?!redacted)[^/\\\s\"':]+")
_TILDE = re.compile(r"(?<![\w/.~-])~[A-Za-z][\w.-]*(?=/)")
_USER = re.compile(
    r"(?i)\b((?:user(?:_?name)?|login|logname|uid)[\"']?\s*[=:]\s*[\"']?)(?!redacted|Warning|\d+\b)[A-Za-z][\w.-]{1,31}"
)
# sudo, sshd, PAM and `id`.
_ACCOUNT = re.compile(
    r"(\bsudo(?:\[\d+\])?: +|\bAccepted \w+ for |\bfor (?:invalid )?user )(?!redacted)[A-Za-z_][\w.-]*"
)
_WITH_UID = re.compile(
    r"\b((?:uid|gid|euid|egid)=\d+\()[^()\s]+(?=\))|\b[A-Za-z_][\w.-]{0,63}(?=\(uid=\d+\))"
)
# `ip-10-1-2-3`: a cloud's host name is its address.
_IP_HOST = re.compile(r"\bip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})\b")
_EMAIL = re.compile(r"\b[\w.+-]{1,80}@[\w-]{1,80}(?:\.[\w-]{1,80}){1,9}\b")
_IPV4 = re.compile(r"(?<![\d.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![\d.]*\d)")
# Eight groups, or some around a "::"; a PCI address or a time is neither.
_H = r"[0-9a-fA-F]{1,4}"
_IPV6 = re.compile(
    rf"(?<![\w:.])(?:(?:{_H}:){{7}}{_H}|(?:{_H}:){{1,6}}:(?:{_H}(?::{_H}){{0,5}})?)(?:%\w+)?(?![\w:])"
)
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b")
_DOMAIN = re.compile(
    r"\b(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.){1,9}(?:internal|local|corp|lan|intra|private|home|cluster|example|com|org|net|io|ai|dev|cloud|de|fr|uk|eu|cn|jp)\b(?!\.?\w|\()",
    re.IGNORECASE,
)
_PUBLIC = (
    "huggingface.co",
    "github.com",
    "vllm.ai",
    "ray.io",
    "pytorch.org",
    "nvidia.com",
    "pydantic.dev",
    "readthedocs.io",
    "python.org",
    "kubernetes.io",
    "hf.co",
    "svc.cluster.local",
)
_PROMPT = re.compile(
    r"(?P<open>(?:\b[Pp]rompt[\"']?: ?|\bprompt=|[\"'](?:content|reasoning_content|reasoning|prompt|suffix|text|input|query|arguments|instructions)[\"']: ?|Generated (?:text|response|output)[^:'\"]*: ?)(?P<quote>[\"']))"
)
_PROMPT_LIST = re.compile(
    r"([\"'](?:prompts?|inputs?|texts?|documents|queries)[\"']: ?)\[(?:[^\[\]\"'\\]|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')*\]"
)
_UNQUOTED = re.compile(r"(\bGenerated (?:text|response|output)[^:'\"]*: ?)(?![\"']|\[prompt\]).+")
_TOKEN_IDS = re.compile(r"(?i)(prompt_token_ids[\"']?\s*[:=]\s*)\[[^\]]*\]")


class Redactor:
    """Redacts one file after another, line by line, and gives one thing one name throughout.

    Args:
        names: host and user names to take out wherever they stand as words.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._subnets: dict[str, int] = {}
        self._addresses: dict[str, str] = {}
        self._six: dict[str, str] = {}
        self._domains: dict[str, str] = {}
        self._open = ""
        self._pem = False
        words = sorted({n for n in names if len(n) > 1}, key=lambda n: (-len(n), n))
        self._names = {n.lower(): f"name-{i + 1}" for i, n in enumerate(words)}
        self._word = (
            re.compile(
                r"(?<![\w-])(?:" + "|".join(re.escape(n) for n in words) + r")(?![\w-])", re.IGNORECASE
            )
            if words
            else None
        )

    def start_file(self) -> None:
        """Forgets that the last file ended within a quotation."""
        self._open = ""
        self._pem = False

    def line(self, text: str) -> str:
        """One line without what must not leave."""
        text = self._host(self._private_key(text))
        text = _PROMPT_LIST.sub(r"\1[prompt]", text)
        text = self._prompts(text)
        text = _UNQUOTED.sub(r"\1[prompt]", text)
        text = _TOKEN_IDS.sub(r"\1[redacted]", text)
        text = _HEADER.sub(r"\1\2[redacted]", text)
        text = _SECRET_LIST.sub(r"\1[redacted]", text)
        text = _OPTION.sub(r"\g<option>[redacted]", text)
        text = _SIGNED.sub(r"\1[redacted]", text)
        text = _SECRET.sub(r"\g<key>\g<mid>[redacted]", text)
        text = _KEY_VARIABLE.sub(r"\1[redacted]", text)
        text = _BEARER.sub("Bearer [redacted]", text)
        text = _KNOWN.sub("[redacted]", text)
        text = _USERINFO.sub(r"\1[redacted]@", text)
        text = _EMAIL.sub("[email]", text)
        text = _HOME.sub(r"\1redacted", text)
        text = _TILDE.sub("~redacted", text)
        text = _ACCOUNT.sub(r"\1redacted", text)
        text = _WITH_UID.sub(lambda m: (m[1] or "") + "redacted", text)
        text = _USER.sub(r"\1redacted", text)
        text = _MAC.sub("[mac]", text)
        text = _IP_HOST.sub(lambda m: "ip-" + self._address(".".join(m.groups())).replace(".", "-"), text)
        text = _IPV4.sub(lambda m: self._address(m[0]), text)
        text = _IPV6.sub(lambda m: self._address_six(m[0]), text)
        text = _DOMAIN.sub(lambda m: self._domain(m[0]), text)
        if self._word is not None:
            text = self._word.sub(lambda m: self._names[m[0].lower()], text)
        return text

    def _private_key(self, text: str) -> str:
        if self._pem:
            if not _PEM_END.match(text):
                return "[redacted]"
            self._pem = False
            text = _PEM_END.sub("[redacted]", text)
        if "-----BEGIN" in text:
            self._pem = bool((last := list(_PEM.finditer(text))) and "-----END" not in last[-1][0])
            text = _PEM.sub("[redacted]", text)
        return text

    def _host(self, text: str) -> str:
        """The host that syslog or NCCL put in front of the line, under one name throughout."""
        match = SYSLOG_HOST.match(text) or NCCL_HOST.search(text[:120])
        if match is None or (match["host"] or "localhost").lower() in ("localhost", *self._names.values()):
            return text
        name = self._names.setdefault(match["host"].lower(), f"name-{len(self._names) + 1}")
        return text[: match.start("host")] + name + text[match.end("host") :]

    def _prompts(self, text: str) -> str:
        if self._open:
            end = _closing(text, self._open, 0)
            if end < 0:
                return "[prompt]"
            self._open = ""
            return "[prompt]" + text[end:]
        result, at = "", 0
        while match := _PROMPT.search(text, at):
            end = _closing(text, match["quote"], match.end())
            result += text[at : match.end()] + "[prompt]"
            if end < 0:
                self._open = match["quote"]
                return result
            at = end
        return result + text[at:]

    def _address(self, address: str) -> str:
        if (
            address.startswith("0.")
            or any(int(part) > 255 for part in address.split("."))
            or kind_of_address(address)
        ):
            return address
        if address not in self._addresses:
            subnet = address.rsplit(".", 1)[0]
            number = self._subnets.setdefault(subnet, len(self._subnets))
            taken = sum(a.rsplit(".", 1)[0] == subnet for a in self._addresses)
            self._addresses[address] = f"198.{18 + number // 256 % 2}.{number % 256}.{taken % 254 + 1}"
        return self._addresses[address]

    def _address_six(self, address: str) -> str:
        if kind_of_address(address):
            return address
        return self._six.setdefault(address.lower(), f"2001:db8::{len(self._six) + 1:x}")

    def _domain(self, name: str) -> str:
        low = name.lower()
        if low.endswith(_PUBLIC):
            return name
        return self._domains.setdefault(low, f"host-{len(self._domains) + 1}.invalid")


def _closing(text: str, quote: str, start: int) -> int:
    """Where a quotation ends: the position of its closing quote, or -1."""
    at = start
    while (at := text.find(quote, at)) >= 0:
        backslashes = len(text[:at]) - len(text[:at].rstrip("\\"))
        # A quote inside a word ("don't") closes nothing.
        inside = at + 1 < len(text) and text[at + 1].isalpha() and at > 0 and text[at - 1].isalpha()
        if backslashes % 2 == 0 and not inside:
            return at
        at += 1
    return -1
