"""Fixtures for all tests."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from lab.build import Lab, build_lab, why_no_lab


@pytest.fixture(scope="session")
def make_lab() -> Callable[..., AbstractContextManager[Lab]]:
    """`build_lab`, on machines that can have a lab; elsewhere the test is skipped with the reason and the remedy."""
    if reason := why_no_lab():
        pytest.skip(reason)
    return build_lab
