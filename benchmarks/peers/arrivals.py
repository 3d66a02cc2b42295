"""When requests arrive. Pure: the seed is an argument."""

from random import Random


def poisson(rate_per_s: float, duration_s: float, seed: int) -> list[float]:
    """Return arrivals of a Poisson process in seconds from its start, exactly rate x duration of them.

    Given how many there are, such arrivals are independent and uniform; so what is offered is what
    was asked for, whatever the seed.
    """
    random = Random(seed)
    return sorted(random.uniform(0, duration_s) for _ in range(round(rate_per_s * duration_s)))
