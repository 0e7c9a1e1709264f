"""Corrections from measured rows, kept by version and GPU."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.planner.calibrate import Measured, fit, from_document, to_toml
from longspan.planner.calibration import Calibration, Correction

ROW = Measured("r", "0.19.0", "H100-SXM-80GB", "weights_per_gpu", 11.0, 10.0)


def test_ratios_and_differences_are_medians() -> None:
    """One wild row does not move the correction."""
    rows = [
        Measured("a", "0.19.0", "G", "torch_peak_increase_per_gpu", 2.5, 2.0),
        Measured("b", "0.19.1", "G", "torch_peak_increase_per_gpu", 2.6, 2.0),
        Measured("c", "0.19.0", "G", "torch_peak_increase_per_gpu", 90.0, 2.0),
        Measured("d", "0.18.0", "G", "weights_per_gpu", 11.0, 10.0),
        Measured("e", "0.18.0", "G", "something_else", 11.0, 10.0),
    ]
    found = fit(rows).corrections
    assert found["0.19", "G"].activation_add_gib == pytest.approx(0.6)
    assert found["0.18", "G"].weights_factor == pytest.approx(1.1)
    assert found["0.18", "G"].rows == 1


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["0.19", "0.32"]), st.sampled_from(["H100-SXM-80GB", "L40S"])),
        st.builds(
            Correction,
            weights_factor=st.floats(0.5, 2), activation_add_gib=st.floats(-3, 3), rows=st.integers(0, 99),
        ),
    )
)  # fmt: skip
def test_the_file_round_trips(corrections: dict[tuple[str, str], Correction]) -> None:
    """What was written is read back, to the last digit."""
    calibration = Calibration(corrections)
    assert from_document(tomllib.loads(to_toml(calibration))).corrections == corrections


@pytest.mark.parametrize(
    "text", ['[[correction]]\nvllm = "0.19"', "correction = 3", '[[correction]]\nvllm="1"\ngpu="g"\nodd=1']
)
def test_a_wrong_file_is_refused(text: str) -> None:
    """Missing keys, wrong shapes and unknown fields are errors, not silence."""
    with pytest.raises(ValueError, match=r"correction|unknown"):
        from_document(tomllib.loads(text))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "a", 0, -1, True])
def test_a_correction_that_is_no_number_is_refused(value: object) -> None:
    """Else it would spoil every later estimate of that version and GPU."""
    with pytest.raises(ValueError, match="weights_factor"):
        from_document({"correction": [{"vllm": "0.19", "gpu": "H100-SXM-80GB", "weights_factor": value}]})
