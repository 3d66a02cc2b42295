"""What the policy benchmark makes of its measurements: ratios, pass marks, a Markdown table. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.policies.cells import LOADS, SHOAL, SHOAL_PRESET, Figures

CAPACITY_MARK, GOODPUT_MARK, BEST_MARK = 0.92, 0.95, 0.98


@dataclass(frozen=True, slots=True)
class Result:
    """One cell: the optimum's figures, and each rule's over them: ``capacity``, and ``goodput at`` each load.

    Where not even the optimum has 99 % in time at any rate, there is no ``capacity``.
    """

    cell: str
    trace: str
    optimum: Figures
    ratios: Mapping[str, Mapping[str, float]]


def over(figures: Figures, best: Figures) -> dict[str, float]:
    """Return figures over those of the optimum."""
    capacity = {"capacity": figures.capacity / best.capacity} if best.capacity else {}
    return capacity | {
        f"goodput at {load:g}": got / possible
        for load, got, possible in zip(LOADS, figures.goodput, best.goodput, strict=True)
    }


def mean_result(results: Sequence[Result]) -> Result:
    """Return the mean of one cell's results with several seeds; the optimum is the first one's."""
    first = results[0]
    return Result(
        first.cell,
        first.trace,
        first.optimum,
        {rule: mean([each.ratios[rule] for each in results]) for rule in first.ratios},
    )


def mean(ratios: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each quantity, over those that have it."""
    columns: dict[str, list[float]] = {}
    for each in ratios:
        for quantity, value in each.items():
            columns.setdefault(quantity, []).append(value)
    return {quantity: sum(values) / len(values) for quantity, values in columns.items()}


def misses(result: Result, rule: str = SHOAL) -> Iterator[str]:
    """Yield a line for each pass mark that ``rule`` misses in a cell."""
    others = {name: ratios for name, ratios in result.ratios.items() if name not in (SHOAL, SHOAL_PRESET)}
    for quantity, value in result.ratios[rule].items():
        mark = _mark(result.trace, quantity)
        if value < mark:
            yield f"{result.cell}: {quantity} {value:.3f} of the optimum, wanted {mark}"
        best = max(others, key=lambda name: others[name][quantity])
        if value < BEST_MARK * others[best][quantity]:
            yield f"{result.cell}: {quantity} {value:.3f}, {best} {others[best][quantity]:.3f}"


def _mark(trace: str, quantity: str) -> float:
    if quantity == "capacity":
        return CAPACITY_MARK if trace == "Poisson" else 0.0
    return 0.0 if quantity == f"goodput at {LOADS[0]:g}" else GOODPUT_MARK


def markdown(results: Sequence[Result]) -> list[str]:
    """Return a table: one line per rule, one column per trace; capacity / goodput at each load, over the optimum.

    A figure is the mean over models and objectives, the one in brackets the least of the capacities.
    """
    traces = list(dict.fromkeys(result.trace for result in results))
    lines = ["| rule | " + " | ".join(traces) + " |", "|---" * (len(traces) + 1) + "|"]
    for rule in results[0].ratios:
        cells = [_summary([each.ratios[rule] for each in results if each.trace == trace]) for trace in traces]
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return lines


def _summary(ratios: Sequence[Mapping[str, float]]) -> str:
    means = mean(ratios)
    capacity = means.pop("capacity", 0.0)
    least = min([each.get("capacity", 1.0) for each in ratios])
    return f"{short(capacity)} ({short(least)}) / " + " ".join(short(value) for value in means.values())


def short(value: float) -> str:
    """Write a share with two digits."""
    return f"{value:.2f}".removeprefix("0")
