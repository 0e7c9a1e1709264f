"""Fixtures for all tests."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from lab.build import Lab, build_lab, why_no_lab
from lanes import ENGINES, Lanes, Networks, can_have_own_network
from longspan.errors import LongspanError

# No timing decides a test: a shared machine may stall any example. In CI the examples are the same in every run, so that a
# change is judged by itself; at home they are new each time.
settings.register_profile(
    "steady",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("steady")

_networks = Networks() if "PYTEST_XDIST_WORKER" in os.environ and can_have_own_network() else None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """See `lanes`."""
    return Lanes(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest lane begins first."""
    items.sort(key=lambda item: not item.nodeid.startswith(ENGINES))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test in the network of its lane, before its fixtures are made."""
    if _networks is not None:
        _networks.enter(own=not item.nodeid.startswith(ENGINES))


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model in the user's cache, which `longspan up` uses too; converted here where it is not there yet (1 min)."""
    from longspan.model import demo

    try:
        demo.require_tools()
        demo.gguf_file()
    except LongspanError as error:
        pytest.skip(f"{error} (or: make test)")
    return demo.ensure_demo_model(print)


@pytest.fixture(scope="session")
def make_lab() -> Callable[..., AbstractContextManager[Lab]]:
    """`build_lab`, on machines that can have a lab; elsewhere the test is skipped with the reason and the remedy."""
    if reason := why_no_lab():
        pytest.skip(reason)
    return build_lab
