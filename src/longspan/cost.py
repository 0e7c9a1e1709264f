"""What serving costs: own hardware, rented GPUs and API prices on the same traffic, with the arithmetic shown.

Nothing here knows a price: prices change by the week, so the user states them and they are printed back.
"""

from dataclasses import dataclass

from longspan.errors import InputError

HOURS_PER_MONTH = 730.0
DAYS_PER_MONTH = HOURS_PER_MONTH / 24
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Traffic:
    """Tokens of one day: input and output apart, since APIs price them apart."""

    input_tokens_per_day: float
    output_tokens_per_day: float

    @property
    def tokens_per_day(self) -> float:
        """Both together."""
        return self.input_tokens_per_day + self.output_tokens_per_day

    def scaled(self, factor: float) -> "Traffic":
        """The same mix, more or less of it."""
        return Traffic(self.input_tokens_per_day * factor, self.output_tokens_per_day * factor)


@dataclass(frozen=True, slots=True)
class ApiPrice:
    """A provider's price per million tokens; `cached_input_share` of the input at `cached_input` where there is one."""

    input_per_million: float
    output_per_million: float
    cached_input_per_million: float | None = None
    cached_input_share: float = 0.0

    def per_month(self, traffic: Traffic) -> float:
        """The bill of a month (30.4 days)."""
        return self.per_million(traffic) * traffic.tokens_per_day * DAYS_PER_MONTH / _MILLION

    def per_million(self, traffic: Traffic) -> float:
        """The mean price of a million tokens of this mix."""
        cached = self.cached_input_share if self.cached_input_per_million is not None else 0.0
        per_input = self.input_per_million * (1 - cached) + (self.cached_input_per_million or 0.0) * cached
        total = traffic.tokens_per_day
        if total <= 0:
            return 0.0
        return (
            per_input * traffic.input_tokens_per_day + self.output_per_million * traffic.output_tokens_per_day
        ) / total


@dataclass(frozen=True, slots=True)
class OwnHardware:
    """Servers that are bought.

    Attributes:
        price: of everything bought. life_years: over which it is written off, to `residual` at the end.
        interest_per_year: cost of the capital bound, on the mean of price and residual.
        power_kilowatts: drawn at the wall under load; `idle_share` of it without load.
        power_usage: of the building: total over IT power (PUE).
        price_per_kilowatt_hour, people_per_month, colocation_per_month: as the user pays them.
    """

    price: float
    life_years: float = 4.0
    residual: float = 0.0
    interest_per_year: float = 0.0
    power_kilowatts: float = 0.0
    idle_share: float = 0.35
    power_usage: float = 1.4
    price_per_kilowatt_hour: float = 0.0
    people_per_month: float = 0.0
    colocation_per_month: float = 0.0

    def __post_init__(self) -> None:
        if self.life_years <= 0:
            raise InputError("The life of the hardware must be above 0 years.")

    def parts_per_month(self, busy_share: float) -> dict[str, float]:
        """What a month costs, by part; only power depends on how busy the machines are."""
        busy = min(max(busy_share, 0.0), 1.0)
        kilowatts = self.power_kilowatts * (busy + (1 - busy) * self.idle_share) * self.power_usage
        return {
            "depreciation": (self.price - self.residual) / (self.life_years * 12),
            "interest": (self.price + self.residual) / 2 * self.interest_per_year / 12,
            "power": kilowatts * HOURS_PER_MONTH * self.price_per_kilowatt_hour,
            "people": self.people_per_month,
            "colocation": self.colocation_per_month,
        }

    def per_month(self, busy_share: float) -> float:
        """All parts together."""
        return sum(self.parts_per_month(busy_share).values())


@dataclass(frozen=True, slots=True)
class RentedGpus:
    """GPUs by the hour. `hours_per_month`: paid for, busy or idle; 730 when they are never given back."""

    gpus: int
    price_per_gpu_hour: float
    hours_per_month: float = HOURS_PER_MONTH
    people_per_month: float = 0.0

    def per_month(self, busy_share: float = 0.0) -> float:
        """What a month costs. Idle hours cost as much as busy ones."""
        return self.gpus * self.price_per_gpu_hour * self.hours_per_month + self.people_per_month


@dataclass(frozen=True, slots=True)
class FixedMonthly:
    """A monthly sum that is already known."""

    amount: float

    def per_month(self, busy_share: float = 0.0) -> float:
        """The sum."""
        return self.amount


Supply = OwnHardware | RentedGpus | FixedMonthly


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From how many tokens a day a fixed monthly cost beats an API.

    Attributes:
        tokens_per_day: where both cost the same. capacity_tokens_per_day: what the plan can serve; 0 if not known.
        utilisation: share of the capacity needed at break-even; above 1 it is never reached on this hardware.
        monthly_fixed, api_per_million: the two prices compared. arithmetic: the calculation in words.
    """

    tokens_per_day: float
    capacity_tokens_per_day: float
    utilisation: float
    monthly_fixed: float
    api_per_million: float
    arithmetic: str

    @property
    def is_reachable(self) -> bool:
        """Whether the hardware can serve that many tokens."""
        return self.capacity_tokens_per_day == 0 or self.utilisation <= 1


def capacity_tokens_per_day(output_tokens_per_second: float, mix: Traffic) -> float:
    """Tokens a day, input and output, of a plan that gives this much output without a pause."""
    if mix.output_tokens_per_day <= 0:
        return 0.0
    return output_tokens_per_second * 86400 * mix.tokens_per_day / mix.output_tokens_per_day


def busy_share(output_tokens_per_second: float, traffic: Traffic) -> float:
    """Share of the plan's throughput that this traffic takes."""
    if output_tokens_per_second <= 0:
        return 1.0
    return min(traffic.output_tokens_per_day / (output_tokens_per_second * 86400), 1.0)


def cost_per_million(supply: Supply, output_tokens_per_second: float, traffic: Traffic) -> float:
    """What a million tokens of this traffic cost with the hardware idle the rest of the time.

    Raises:
        InputError: the hardware cannot serve that much.
    """
    if (
        output_tokens_per_second > 0
        and traffic.output_tokens_per_day > output_tokens_per_second * 86400 * 1.0000001
    ):
        raise InputError(
            f"{traffic.output_tokens_per_day / _MILLION:.1f} million output tokens a day are more than the "
            f"{output_tokens_per_second * 0.0864:.1f} million that {output_tokens_per_second:.0f} tokens/s can give.",
            "Plan more replicas, or state less traffic.",
        )
    monthly = supply.per_month(busy_share(output_tokens_per_second, traffic))
    return monthly / (traffic.tokens_per_day * DAYS_PER_MONTH / _MILLION)


def break_even(
    supply: Supply, api: ApiPrice, mix: Traffic, output_tokens_per_second: float = 0.0
) -> BreakEven:
    """Where the hardware and the API cost the same, for traffic of this mix.

    The hardware's cost is taken at the busy share of the break-even itself (two rounds are enough: only power moves).
    """
    price = api.per_million(mix)
    if price <= 0:
        raise InputError("An API that costs nothing is never beaten.", "State its price per million tokens.")
    monthly = supply.per_month(0.5)
    tokens = capacity = 0.0
    for _ in range(8):
        tokens = monthly / price * _MILLION / DAYS_PER_MONTH
        capacity = capacity_tokens_per_day(output_tokens_per_second, mix) if output_tokens_per_second else 0.0
        monthly = supply.per_month(tokens / capacity if capacity else 0.5)
    share = mix.input_tokens_per_day / mix.tokens_per_day
    text = (
        f"{monthly:,.2f} a month / {price:.4f} per million tokens (the mix is {share:.0%} input) = "
        f"{monthly / price:,.0f} million tokens a month = {tokens / _MILLION:,.1f} million a day over {DAYS_PER_MONTH:.1f} days"
    )
    return BreakEven(tokens, capacity, tokens / capacity if capacity else 0.0, monthly, price, text)
