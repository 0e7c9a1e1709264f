"""Costs: the sums are right, and break-even is where both cost the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longspan.cost import (
    DAYS_PER_MONTH,
    ApiPrice,
    FixedMonthly,
    OwnHardware,
    RentedGpus,
    Traffic,
    break_even,
    busy_share,
    capacity_tokens_per_day,
    cost_per_million,
)
from longspan.errors import InputError


def test_parts_of_own_hardware() -> None:
    """Depreciation, interest, power with idle hours and the building's share add up by hand."""
    own = OwnHardware(48000, 4, 0, 0.06, 2.0, 0.5, 1.5, 0.2, 1000, 300)
    parts = own.parts_per_month(0.5)
    assert parts["depreciation"] == 1000
    assert parts["interest"] == pytest.approx(48000 / 2 * 0.06 / 12)
    assert parts["power"] == pytest.approx(2.0 * 0.75 * 1.5 * 730 * 0.2)
    assert own.per_month(0.5) == pytest.approx(sum(parts.values()))
    assert own.per_month(0.0) < own.per_month(1.0)


def test_idle_rented_gpus_cost_as_much_as_busy_ones() -> None:
    """Hours are paid, not tokens."""
    rented = RentedGpus(8, 2.0)
    assert rented.per_month(0.0) == rented.per_month(1.0) == 8 * 2 * 730


@given(st.floats(100, 1e5), st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.01, 0.99))
def test_both_cost_the_same_at_break_even(
    monthly: float, price_in: float, price_out: float, share: float
) -> None:
    """At the break-even traffic the API's bill is the fixed cost; below it the API is cheaper."""
    api, mix = ApiPrice(price_in, price_out), Traffic(share, 1 - share)
    even = break_even(FixedMonthly(monthly), api, mix)
    assert api.per_month(mix.scaled(even.tokens_per_day)) == pytest.approx(monthly)
    assert api.per_month(mix.scaled(even.tokens_per_day / 2)) < monthly
    assert f"{even.api_per_million:.4f}" in even.arithmetic


def test_break_even_out_of_reach_is_said() -> None:
    """A plan that cannot serve the break-even traffic never breaks even."""
    even = break_even(FixedMonthly(4120), ApiPrice(0.42, 0.84), Traffic(0.8, 0.2), 100)
    assert not even.is_reachable
    assert even.utilisation > 1
    assert break_even(FixedMonthly(4120), ApiPrice(0.42, 0.84), Traffic(0.8, 0.2), 3000).is_reachable


def test_capacity_and_share() -> None:
    """Output throughput limits the day; traffic beyond it is refused."""
    mix = Traffic(4e6, 1e6)
    assert capacity_tokens_per_day(100, mix) == pytest.approx(100 * 86400 * 5)
    assert busy_share(100, mix) == pytest.approx(1e6 / 8.64e6)
    assert cost_per_million(FixedMonthly(1000), 100, mix) == pytest.approx(1000 / (5 * DAYS_PER_MONTH))
    with pytest.raises(InputError, match="more than"):
        cost_per_million(FixedMonthly(1000), 10, mix)


def test_cached_input_is_cheaper() -> None:
    """A provider's cache price applies to the cached share."""
    traffic = Traffic(10, 0)
    assert ApiPrice(1.0, 2.0, 0.1, 0.5).per_million(traffic) == pytest.approx(0.55)
    with pytest.raises(InputError):
        break_even(FixedMonthly(1), ApiPrice(0, 0), traffic)
    with pytest.raises(InputError):
        OwnHardware(1, 0)
