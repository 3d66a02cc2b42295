"""Present the steps of a load test as a table, text bars or an SVG bar chart."""

from collections.abc import Sequence
from html import escape

from shoal.benching.knee import judge
from shoal.benching.steps import PARTS, LoadStep
from shoal.printing import table

LETTERS = {"queue": "q", "batch": "b", "runtime": "R", "rest": "."}
COLOURS = {"queue": "#d95f02", "batch": "#7570b3", "runtime": "#1b9e77", "rest": "#bbbbbb"}
WIDTH = 60
"""Characters of the longest bar."""
_HEADINGS = (
    "offered/s",
    "sent",
    "in time",
    "answered/s",
    "p50 ms",
    "p95 ms",
    "p99 ms",
    "queue",
    "batch",
    "runtime",
    "rest",
    "rows",
    "lost",
    "",
)


def figure(value: float) -> str:
    """Return a number with at least three significant digits: 1,570, 12.3, 0.48."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def steps_table(steps: Sequence[LoadStep], held: LoadStep | None) -> str:
    """Return the steps as a text table sorted by rate.

    ``held`` is the step to mark as the knee, the highest rate that the server sustained.
    """
    rows = []
    for step in by_rate(steps):
        parts = [figure(step.parts_ms[name]) if name in step.parts_ms else "-" for name in PARTS]
        row = (
            figure(step.offered_per_s),
            str(step.sent),
            f"{100 * step.in_time_share:.3g}%",
            figure(step.answered_per_s),
            *(figure(value) for value in (step.p50_ms, step.p95_ms, step.p99_ms)),
            *parts,
            "-" if step.batch_rows is None else figure(step.batch_rows),
            str(step.refused + step.late + step.failed),
            "held, knee" if step is held else judge(step).value,
        )
        rows.append(row)
    return table([_HEADINGS, *rows])


def legend(within_ms: float) -> str:
    """Return the legend of `steps_table`: the meaning of each column."""
    return (
        f"in time: response within {figure(within_ms)} ms of the scheduled time; answered/s: responses in time or "
        "late\n"
        "queue, batch (the proxy), runtime (the model, and the host's work around it), rest (HTTP, network, this "
        "command): mean ms per request\nrows: batch size; lost: rejected, failed or without response\nheld: 95% in "
        "time; bent: clearly fewer; too few, noisy, generator: inconclusive"
    )


def bars(steps: Sequence[LoadStep], held: LoadStep | None) -> str:
    """Return the mean latency of each step as a text bar.

    The letters of a bar stand for the parts of the latency, such as the queue. ``held`` is the step to mark as the
    knee, the highest rate that the server sustained.
    """
    longest = max((_mean_ms(step) for step in steps), default=0.0) or 1.0
    lines = [f"mean latency, {figure(longest)} ms wide: " + "  ".join(f"{LETTERS[name]} {name}" for name in PARTS)]
    for step in by_rate(steps):
        bar, upto_ms = "", 0.0
        for name, length_ms in _split(step).items():
            # Rounding is cumulative, so that the bar's length matches the whole latency.
            upto_ms += length_ms
            bar += LETTERS[name] * (round(WIDTH * upto_ms / longest) - len(bar))
        mark = "  <- knee" if step is held else ""
        lines.append(f"{figure(step.offered_per_s):>9}/s |{bar} {figure(_mean_ms(step))}{mark}")
    return "\n".join(lines)


def svg(steps: Sequence[LoadStep], held: LoadStep | None, title: str) -> str:
    """Return the mean latency of each step as an SVG bar chart.

    ``held`` is the step to mark as the knee, the highest rate that the server sustained.
    """
    ordered = by_rate(steps)
    longest = max((_mean_ms(step) for step in ordered), default=0.0) or 1.0
    # Pixels: 60 for each bar, which stands on y = 320 and is at most 240 high.
    width, height, gap = 80 + 60 * len(ordered), 360, 60
    shapes = [
        _text(10, 20, title),
        _text(10, 38, f"mean latency in ms, up to {figure(longest)}, by requests/s offered"),
    ]
    for index, name in enumerate(PARTS):
        x = 10 + 90 * index
        shapes.append(f'<rect x="{x}" y="48" width="12" height="12" fill="{COLOURS[name]}"/>')
        shapes.append(_text(x + 16, 58, name))
    for index, step in enumerate(ordered):
        x, y = gap + 60 * index, 320.0
        for name, length_ms in _split(step).items():
            tall = 240 * length_ms / longest
            y -= tall
            shapes.append(f'<rect x="{x}" y="{y:.1f}" width="40" height="{tall:.1f}" fill="{COLOURS[name]}"/>')
        shapes.append(_text(x, 336, f"{figure(step.offered_per_s)}"))
        shapes += [_text(x, 352, "knee")] if step is held else []
    size = f'width="{max(width, 420)}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n' + "\n".join(
        [*shapes, "</svg>\n"]
    )


def by_rate(steps: Sequence[LoadStep]) -> list[LoadStep]:
    """Return the steps sorted by offered rate."""
    return sorted(steps, key=lambda step: step.offered_per_s)


def _split(step: LoadStep) -> dict[str, float]:
    """Return the parts of a step's mean latency (ms).

    If the server sends no Server-Timing, the only part is `rest`, the median latency.
    """
    return dict(step.parts_ms) or {"rest": step.p50_ms}


def _mean_ms(step: LoadStep) -> float:
    return sum(_split(step).values())


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(words)}</text>'
