"""Loads that replicas have to follow: rates by the second, and the arrivals that they make."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shoal_proxy.simulator.arrivals import gamma

UNIT = 100.0
"""Rows a second of what scenarios call 1x."""
STEP_S = 0.1
"""Arrivals are counted in steps of this length."""
WARM_S = 300
"""Before each scenario its first rate lasts so long, and nothing of that counts: services have been there before."""
TRACE = Path(__file__).with_name("azure_llm_2023.json")

Rates = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``rates``: rows per second, for each second. ``cv``: of the gaps between arrivals; 1 is Poisson.

    ``step_s``: when the load jumps for the first time after its begin, if it does.
    """

    name: str
    rates: Rates
    cv: float = 1.0
    step_s: float | None = None

    @property
    def length_s(self) -> int:
        """Return how long it is, with what comes before it."""
        return WARM_S + len(self.rates)

    def times(self, seed: int) -> npt.NDArray[np.float64]:
        """Return when each row arrives."""
        rates = np.concatenate([np.full(WARM_S, self.rates[0]), self.rates])
        due = np.concatenate([[0.0], np.cumsum(rates)])
        # Arrivals at rate 1, as many as come on the whole, bent so that they come when they should.
        units = gamma(1.0, int(due[-1] + 10 * self.cv * np.sqrt(due[-1]) + 100), cv=self.cv, seed=seed)
        times: Rates = np.interp(units[units < due[-1]], due, np.arange(len(due), dtype=float))
        return times

    def counts(self, seed: int) -> Counts:
        """Return how many rows arrive in each step."""
        steps = round(self.length_s / STEP_S)
        return np.histogram(self.times(seed), bins=steps, range=(0, self.length_s))[0]


def scenarios() -> list[Scenario]:
    """Return all of them."""
    return [
        Scenario("step", _parts((1, 180), (10, 420)), step_s=180.0),
        Scenario("ramp", _ramp()),
        Scenario("on/off", _parts(*[(1, 120), (6, 60)] * 6, (1, 120)), step_s=120.0),
        Scenario("diurnal with spikes", _diurnal()),
        Scenario("Gamma CV 4", _parts((5, 1200)), cv=4.0),
        Scenario("Gamma CV 8", _parts((5, 1200)), cv=8.0),
        Scenario("Azure LLM 2023", _azure()),
        Scenario("constant", _parts((5, 1200))),
    ]


def by_name() -> Mapping[str, Scenario]:
    """Return all of them by name."""
    return {scenario.name: scenario for scenario in scenarios()}


def _parts(*parts: tuple[float, int]) -> Rates:
    return UNIT * np.concatenate([np.full(seconds, times) for times, seconds in parts])


def _ramp() -> Rates:
    return UNIT * np.concatenate([np.linspace(1, 10, 600), np.full(120, 10.0), np.linspace(10, 1, 300)])


def _diurnal() -> Rates:
    """Return a day in an hour, 1x to 8x, with six spikes of 2.5 times the rate, 40 s each, drawn by a seed."""
    random = np.random.default_rng(7)
    second = np.arange(3600)
    rates = UNIT * (1 + 7 * np.sin(np.pi * second / 3600) ** 2)
    for begins in random.integers(120, 3500, 6):
        rates[begins : begins + 40] *= 2.5
    return rates


def _azure() -> Rates:
    """Return the shape of the Azure LLM inference trace of 2023: its requests in each 10 s, as rates of a mean of 4x.

    Microsoft, CC-BY-4.0: Azure/AzurePublicDataset, AzureLLMInferenceTrace_code.csv and _conv.csv of 2023-11-16, both
    applications added up; within 10 s the rate is constant and arrivals are Poisson, since 8 requests a second say
    little of how 400 would come.
    """
    counts = np.array(json.loads(TRACE.read_text())["requests_per_10_s"], dtype=float)
    return np.repeat(4 * UNIT * counts / counts.mean(), 10)
