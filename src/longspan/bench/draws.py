"""Random numbers as pure modules take them: handed in, with their seed. `random.Random` is one such generator."""

from collections.abc import Callable, Sequence
from typing import Protocol


class Draws(Protocol):
    """A seeded generator."""

    def expovariate(self, lambd: float) -> float:
        """Exponential, with the rate `lambd`."""

    def gammavariate(self, alpha: float, beta: float) -> float:
        """Gamma, with shape and scale."""

    def uniform(self, a: float, b: float) -> float:
        """Between two ends."""

    def gauss(self, mu: float, sigma: float) -> float:
        """Normal, with mean and standard deviation."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """The exponential of a normal."""

    def randrange(self, stop: int, /) -> int:
        """A whole number from 0 to below `stop`."""

    def choices(self, population: Sequence[str], *, k: int) -> list[str]:
        """`k` of them, each drawn from all."""


# Makes a generator from a seed: `random.Random`.
Generators = Callable[[str], Draws]
