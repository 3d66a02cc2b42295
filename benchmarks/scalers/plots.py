"""Pictures of the scaling benchmark."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from benchmarks.scalers.readings import Service
from benchmarks.scalers.report import Results, curve, point
from benchmarks.scalers.scenarios import WARM_S, by_name
from benchmarks.scalers.trials import DEFAULT_SHARE, ORACLE, PRESENT, RIVALS, SHOAL, STATIC, Trial, course_of

_SHOAL = "#0b6e8f"
_SHOWN = ("step", "on/off", "diurnal with spikes", "Azure LLM 2023")


def draw(results: Results, folder: Path) -> list[Path]:
    """Write the pictures as PNG files to ``folder`` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_equal_cost(results, folder / "scaling-cost.png"), _courses(folder / "scaling-courses.png")]


def _equal_cost(results: Results, path: Path) -> Path:
    """Violations against cost, a line for each law's settings: over all scenarios, and for those that are shown."""
    figure, axes = plt.subplots(1, 1 + len(_SHOWN), figsize=(16, 4), layout="constrained")
    for axis, scenario in zip(axes, (None, *_SHOWN), strict=True):
        for law in (SHOAL, *RIVALS, STATIC):
            _curve(axis, law, [each for each in curve(results, law, scenario) if each[0] < 6])
        for law, marker in ((PRESENT, "s"), (ORACLE, "*")):
            axis.plot(*point(results, law, 1.0, scenario), marker, color="black", label=law)
        axis.set(title=scenario or "all scenarios, mean", xlabel="replica-seconds over needed", ylim=(0, 0.3))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("refused or late, share of rows")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _curve(axis: Axes, law: str, points: Sequence[tuple[float, float]]) -> None:
    (line,) = axis.plot([cost for cost, _ in points], [violations for _, violations in points], label=law, linewidth=1)
    _mark(line, law)


def _mark(line: Line2D, law: str) -> None:
    if law == SHOAL:
        line.set(color=_SHOAL, linewidth=3, zorder=3)
    if law == STATIC:
        line.set(color="grey", linestyle=":")


def _courses(path: Path) -> Path:
    """Replicas over time, beside those that were needed."""
    figure, axes = plt.subplots(len(_SHOWN), 1, figsize=(10, 11), layout="constrained")
    for axis, name in zip(axes, _SHOWN, strict=True):
        scenario = by_name()[name]
        for law in (SHOAL, *RIVALS):
            course, need = course_of(Trial(name, law, DEFAULT_SHARE, 1), scenario, Service())
            (line,) = axis.plot(course.replicas[WARM_S:], label=law, linewidth=1)
            _mark(line, law)
        axis.fill_between(
            range(len(need) - WARM_S), need[WARM_S:], color="grey", alpha=0.35, label="needed", step="post"
        )
        axis.set(title=name, ylabel="replicas")
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("seconds")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
