"""Draw who scores how many rows a second."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.report import Row

mpl.use("svg")
# Without these, every run would write another file for the same figures.
mpl.rcParams.update({"svg.hashsalt": "shoal", "svg.fonttype": "none", "font.family": "sans-serif"})
OURS, THEIRS = "#0b7285", "#b8c4cc"
NAMES = {
    "bare": "loop of torch",
    "loader": "DataLoader, 2 workers",
    "ray": "Ray Data, 2 actors",
    "shoal": "shoal batch",
    "two_workers": "shoal batch --workers 2",
}
WHAT = {"cat": "pictures", "embed": "texts of mixed length"}


def draw(rows: Sequence[Row], subtitle: str, path: Path) -> None:
    """Write the picture as SVG: medians, and whiskers from the slowest round to the quickest."""
    compared = [row for row in rows if row.case in WHAT]
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    for axes, row in zip(figure.subplots(1, len(compared), squeeze=False)[0], compared, strict=True):
        bars(axes, row)
    figure.suptitle(subtitle, fontsize=9, color="#555555")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def bars(axes: Axes, row: Row) -> None:
    """Draw one model's rows per second, the slowest at the bottom."""
    paces = {kind: row.values[f"{kind}_per_s"] for kind in NAMES if f"{kind}_per_s" in row.values}
    order = sorted(paces, key=lambda kind: paces[kind].median)
    for index, kind in enumerate(order):
        pace, color = paces[kind], OURS if kind in ("shoal", "two_workers") else THEIRS
        whiskers = [[pace.median - pace.min], [pace.max - pace.median]]
        axes.barh(index, pace.median, 0.7, color=color, xerr=whiskers, ecolor="#555555")
    axes.set_yticks(range(len(order)), [NAMES[kind] for kind in order])
    axes.set_title(f"{row.case}: {WHAT[row.case]} per second", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
