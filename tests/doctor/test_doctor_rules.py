"""The table of rules tests itself."""

import csv
import re
from pathlib import Path

import pytest
from doctor_logs import diagnose_text
from doctor_texts import TEXTS
from doctor_variants import VARIANTS

from longspan.doctor.catalogue import rules_markdown
from longspan.doctor.causes import CAUSES
from longspan.doctor.deciders import DECIDERS
from longspan.doctor.rules import MARKS, RULES
from longspan.doctor.rules.rule import Mark, Rule
from longspan.doctor.scan import Scanner

ROOT = Path(__file__).parent.parent.parent
SHARED = ROOT / ".." / "shared" / "doctor"


@pytest.mark.parametrize("entry", [*RULES, *MARKS], ids=lambda entry: entry.id)
def test_each_entry_finds_its_own_example(entry: Rule | Mark) -> None:
    """Every rule and mark matches its example, and does so through the word index."""
    assert re.search(entry.pattern, entry.example)
    if entry.id in ("section", "quote"):
        return
    scanner = Scanner([entry] if isinstance(entry, Rule) else [], [] if isinstance(entry, Rule) else [entry])
    scanner.feed("x", [entry.example.encode() + b"\n"])
    assert [h.rule.id for h in scanner.record().hits] == [entry.id]


def test_the_table_is_consistent() -> None:
    """Ids are unique; causes, alternatives and deciders exist; a wrapper names no cause; weights are probabilities."""
    ids = [e.id for e in (*RULES, *MARKS)]
    assert len(ids) == len(set(ids))
    for rule in RULES:
        assert (rule.cause == "") == (rule.kind == "wrapper"), rule.id
        assert rule.cause in CAUSES or rule.kind == "wrapper", rule.id
        assert set(rule.also) <= set(CAUSES), rule.id
        assert rule.decide in DECIDERS, rule.id
        assert 0 <= rule.weight <= 1, rule.id
        assert rule.source, rule.id


def test_keys_are_words_that_a_shape_keeps() -> None:
    """An index key has letters: a key of digits only would vanish from the shape and be missed on later lines."""
    for entry in (*RULES, *MARKS):
        assert entry.words.split(), entry.id
        for word in entry.words.split():
            assert not word.isdigit(), (entry.id, word)
            assert word == word.lower(), (entry.id, word)


def test_every_decider_is_used() -> None:
    """The table of deciders holds no dead function."""
    assert set(DECIDERS) == {r.decide for r in RULES}


def test_every_cause_says_what_to_do() -> None:
    """A cause without a remedy helps nobody."""
    for cause in CAUSES.values():
        assert cause.summary.endswith("."), cause.id
        assert cause.remedy.endswith("."), cause.id


def test_rules_document_is_current() -> None:
    """docs/rules.md is what the table generates; run `python -m longspan.doctor.catalogue > docs/rules.md`."""
    assert (ROOT / "docs" / "rules.md").read_text() == rules_markdown()


@pytest.mark.parametrize(
    ("cause", "text"), [*((c, t) for c, texts in TEXTS.items() for t in texts), *VARIANTS]
)
def test_texts_of_the_field(cause: str, text: str) -> None:
    """Each text, alone as it is often sent, leads to its cause first."""
    findings = diagnose_text(text + "\n").findings
    assert findings, text
    assert findings[0].cause == cause


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/doctor")
def test_covers_the_known_taxonomy() -> None:
    """Every cause of the shared taxonomy can be named."""
    with (SHARED / "taxonomy.csv").open(newline="") as file:
        known = {row["cause_id"] for row in csv.DictReader(file)} - {"healthy"}
    assert known <= set(CAUSES)
    reachable = {r.cause for r in RULES} | {a for r in RULES for a in r.also}
    assert known <= reachable | {"ib-cross-rail", "collective-desync"}


# What no log line can carry: a description of what a person saw, or of something measured beside the log.
_NO_LINE = {"22", "24", "25", "26", "39", "45", "46", "56", "57", "80", "106", "107", "115", "116"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/doctor")
def test_covers_the_known_signatures() -> None:
    """A line with a known signature leads to its cause among the first three, wherever a line can carry it."""
    missed = []
    with (SHARED / "signatures.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["id"] in _NO_LINE:
                continue
            text = row["log_line_pattern"].split("|")[0].replace(".*", "1").replace("\\", "")
            causes = [f.cause for f in diagnose_text(f"ERROR {text}\n").findings]
            wanted = row["cause_id"] or "insufficient-evidence"
            if wanted not in causes[:3]:
                missed.append((row["id"], wanted, causes, text))
    assert len(missed) <= 12, missed
