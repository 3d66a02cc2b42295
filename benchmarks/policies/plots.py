"""Pictures of the policy benchmark."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.policies.cells import LOADS, SHOAL, SHOAL_PRESET
from benchmarks.policies.report import Result

_GREY = "#9aa5ad"
_SHOAL = "#0b6e8f"


def draw(results: Sequence[Result], traces: Sequence[str], folder: Path) -> list[Path]:
    """Write the pictures as PNG files to ``folder`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _capacity(results, traces, folder / "policy-capacity.png"),
        _goodput(results, traces, folder / "policy-goodput.png"),
    ]


def _capacity(results: Sequence[Result], traces: Sequence[str], path: Path) -> Path:
    """Bars: the mean over models and objectives; whiskers: from the worst to the best."""
    rules = [rule for rule in results[0].ratios if rule != SHOAL_PRESET]
    figure, axes = plt.subplots(1, len(traces), figsize=(12, 4), sharey=True, layout="constrained")
    for axis, trace in zip(axes, traces, strict=True):
        for place, rule in enumerate(rules):
            cells = [each.ratios[rule] for each in results if each.trace == trace]
            shares = [ratios["capacity"] for ratios in cells if "capacity" in ratios]
            axis.barh(place, sum(shares) / len(shares), color=_SHOAL if rule == SHOAL else _GREY)
            axis.plot([min(shares), max(shares)], [place, place], color="black", linewidth=1)
        axis.set(title=trace, xlim=(0, 1), yticks=range(len(rules)), yticklabels=rules)
        axis.grid(axis="x", alpha=0.3)
    figure.suptitle("Requests per second with 99 % in time, as a share of the offline optimum")
    return _save(figure, path)


def _goodput(results: Sequence[Result], traces: Sequence[str], path: Path) -> Path:
    """Lines: answered in time over what the optimum answers, against the offered load."""
    rules = [rule for rule in results[0].ratios if rule != SHOAL_PRESET]
    figure, axes = plt.subplots(1, len(traces), figsize=(12, 4), sharey=True, layout="constrained")
    for axis, trace in zip(axes, traces, strict=True):
        for rule in rules:
            _line(axis, rule, [each.ratios[rule] for each in results if each.trace == trace])
        axis.set(title=trace, ylim=(0, 1.02), xlabel="offered load, of saturation")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("in time, of the optimum")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    return _save(figure, path)


def _line(axis: Axes, rule: str, ratios: Sequence[Mapping[str, float]]) -> None:
    means = [sum(each[f"goodput at {load:g}"] for each in ratios) / len(ratios) for load in LOADS]
    if rule == SHOAL:
        axis.plot(LOADS, means, label=rule, color=_SHOAL, linewidth=3, zorder=3)
    else:
        axis.plot(LOADS, means, label=rule, linewidth=1)


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
