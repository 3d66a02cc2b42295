"""What the policy benchmark makes of its measurements: ratios, pass marks, a Markdown table. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.policies.cells import LOADS, SHOAL, SHOAL_PRESET, Figures

CAPACITY_MARK, GOODPUT_MARK, BEST_MARK = 0.92, 0.95, 0.98


@dataclass(frozen=True, slots=True)
class Result:
    """One cell: the optimum's figures, and those of each rule."""

    cell: str
    trace: str
    optimum: Figures
    rules: Mapping[str, Figures]

    def ratios(self, rule: str) -> dict[str, float]:
        """Return the rule's figures over the optimum's: ``capacity``, and ``goodput at`` each load."""
        mine = self.rules[rule]
        return {"capacity": mine.capacity / self.optimum.capacity} | {
            f"goodput at {load:g}": got / possible
            for load, got, possible in zip(LOADS, mine.goodput, self.optimum.goodput, strict=True)
        }


def mean_result(results: Sequence[Result]) -> Result:
    """Return the mean of one cell's results with several seeds; its optimum is 1 everywhere."""
    rules = {rule: [list(result.ratios(rule).values()) for result in results] for rule in results[0].rules}
    means = {rule: [sum(column) / len(column) for column in zip(*rows, strict=True)] for rule, rows in rules.items()}
    one = Figures(1.0, [1.0] * len(LOADS))
    return Result(
        results[0].cell, results[0].trace, one, {rule: Figures(each[0], each[1:]) for rule, each in means.items()}
    )


def misses(result: Result, rule: str = SHOAL) -> Iterator[str]:
    """Yield a line for each pass mark that ``rule`` misses in a cell."""
    mine = result.ratios(rule)
    others = {name: result.ratios(name) for name in result.rules if name not in (SHOAL, SHOAL_PRESET)}
    for quantity, value in mine.items():
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
    for rule in results[0].rules:
        cells = [_summary([each.ratios(rule) for each in results if each.trace == trace]) for trace in traces]
        lines.append(f"| {rule} | " + " | ".join(cells) + " |")
    return lines


def _summary(ratios: Sequence[Mapping[str, float]]) -> str:
    means = [sum(each[quantity] for each in ratios) / len(ratios) for quantity in ratios[0]]
    least = min(each["capacity"] for each in ratios)
    return f"{short(means[0])} ({short(least)}) / " + " ".join(short(mean) for mean in means[1:])


def short(value: float) -> str:
    """Write a share with two digits."""
    return f"{value:.2f}".removeprefix("0")
