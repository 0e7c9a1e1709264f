"""docs/claims.md says what the planner says, and the planner says what is known to be true."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from longspan.plan import Layout

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    """The generator, loaded from scripts/."""
    spec = importlib.util.spec_from_file_location("make_claims", ROOT / "scripts" / "claims.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_claims"] = module
    spec.loader.exec_module(module)
    return module


def test_the_page_is_fresh(claims: ModuleType) -> None:
    """docs/claims.md is what the generator writes now."""
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == claims.text()


def test_tp_over_ethernet_loses(claims: ModuleType) -> None:
    """(a) On 10 Gbit/s Ethernet TP8 over two nodes is far behind TP4 x PP2; InfiniBand brings it close."""
    facts = claims.model(claims.LLAMA3_70B)
    slow = claims.answer(facts, "2x4xA100-PCIe-80GB", "ethernet:10")
    fast = claims.answer(facts, "2x4xA100-PCIe-80GB", "infiniband:200")
    tp8, pp2 = (claims.find(slow, layout).steady.tpot_seconds for layout in (Layout(8), Layout(4, 2)))
    assert tp8 > 4 * pp2
    tp8_ib, pp2_ib = (claims.find(fast, layout).steady.tpot_seconds for layout in (Layout(8), Layout(4, 2)))
    assert tp8_ib < 1.5 * pp2_ib


def test_70b_needs_four_gpus_for_its_cache(claims: ModuleType) -> None:
    """(b) TP2 on 2 x 80 GB leaves room for hardly a request of 8192 tokens; TP4 for dozens."""
    found = claims.answer(claims.model(claims.LLAMA3_70B), "4xH100")
    two, four = claims.find(found, Layout(2)), claims.find(found, Layout(4))
    assert two.receipt.max_concurrency < 2
    assert four.receipt.max_concurrency > 40


def test_many_users_want_replicas(claims: ModuleType) -> None:
    """(c) With many users over PCIe four replicas beat TP4; a single user per GPU is faster with TP4."""
    facts = claims.model("Qwen/Qwen3-14B")
    busy = claims.answer(facts, "4xA100-PCIe-80GB", concurrency=1024)
    assert (
        claims.find(busy, Layout()).steady.requests_per_second * 4
        > claims.find(busy, Layout(4)).steady.requests_per_second
    )
    idle = claims.answer(facts, "4xH100", concurrency=4)
    assert claims.find(idle, Layout()).steady.tpot_seconds > claims.find(idle, Layout(4)).steady.tpot_seconds


def test_deepseek_weighs_five_times_the_claim(claims: ModuleType) -> None:
    """(e) The FP8 file holds about 670 GB, and the plan is not TP16 x PP2."""
    found = claims.answer(claims.model("deepseek-ai/DeepSeek-V3.2"), "4x8xH100")
    assert found.best is not None
    assert found.best.layout != Layout(16, 2)
    rank = claims.find(found, Layout(8, 2)).receipt
    assert 600e9 < sum(budget.weights_bytes * 8 for budget in rank.ranks) < 760e9


def test_the_api_is_cheaper_at_fifty_million(claims: ModuleType) -> None:
    """(f) Break-even lies far above 50 million tokens a day for every mix."""
    from longspan.cost import ApiPrice, FixedMonthly, Traffic, break_even

    for share in (0.0, 0.5, 0.9):
        even = break_even(FixedMonthly(4120), ApiPrice(0.42, 0.84), Traffic(share, 1 - share))
        assert even.tokens_per_day > 150e6
