"""The labelled cases of the shared material: right causes, no false alarms, calibrated confidence."""

import json
from pathlib import Path

import pytest

from longspan.doctor.collect import diagnose

CASES = Path(__file__).parent.parent.parent / ".." / "shared" / "doctor" / "cases"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared/doctor/cases")
NAMES = sorted(p.stem for p in CASES.glob("*.expected") if p.with_suffix(".log").exists())


def expected(name: str) -> dict[str, object]:
    """The label of a case."""
    label = json.loads((CASES / f"{name}.expected").read_text())
    assert isinstance(label, dict)
    return label


@pytest.mark.parametrize("name", NAMES)
def test_case(name: str) -> None:
    """The first finding is the labelled cause; a healthy log gives none."""
    label = expected(name)
    findings = diagnose([CASES / f"{name}.log"]).findings
    if label["cause_id"] == "healthy":
        assert findings == ()
        return
    also = label["also_ok"]
    assert isinstance(also, list)
    assert findings[0].cause in {label["cause_id"], *also}


def test_confidence_is_calibrated() -> None:
    """Over all fault cases the mean confidence of the first finding is near the share of right ones (Brier score below 0.15)."""
    scores = []
    for name in NAMES:
        label = expected(name)
        if label["cause_id"] == "healthy":
            continue
        first = diagnose([CASES / f"{name}.log"]).findings[0]
        also = label["also_ok"]
        assert isinstance(also, list)
        right = first.cause in {label["cause_id"], *also}
        scores.append((first.confidence - right) ** 2)
    assert sum(scores) / len(scores) < 0.15
