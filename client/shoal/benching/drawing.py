"""Steps as a picture: bars of the mean latency, split, for a terminal or as SVG."""

from collections.abc import Sequence
from html import escape

from shoal.benching.steps import PARTS, Step
from shoal.printing import table

LETTERS = {"queue": "q", "batch": "b", "runtime": "R", "rest": "."}
COLOURS = {"queue": "#d95f02", "batch": "#7570b3", "runtime": "#1b9e77", "rest": "#bbbbbb"}
WIDTH = 60
_HEADINGS = (
    "offered/s",
    "good/s",
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


def steps_table(steps: Sequence[Step], held: Step | None) -> str:
    """Return the steps, by rate, as a table; the knee is named."""
    rows = [_cells(step, held) for step in by_rate(steps)]
    return table([_HEADINGS, *rows])


def bars(steps: Sequence[Step], held: Step | None) -> str:
    """Return a bar for each step: its mean latency, each part a letter."""
    longest = max((_mean_ms(step) for step in steps), default=0.0) or 1.0
    lines = [f"mean latency, {longest:.3g} ms wide: " + "  ".join(f"{LETTERS[name]} {name}" for name in PARTS)]
    for step in by_rate(steps):
        mark = "  <- knee" if step is held else ""
        lines.append(f"{step.offered_per_s:>9.4g}/s |{_bar(step, longest)} {_mean_ms(step):.3g}{mark}")
    return "\n".join(lines)


def svg(steps: Sequence[Step], held: Step | None, title: str) -> str:
    """Return the same bars, upright, as an SVG document."""
    ordered = by_rate(steps)
    longest = max((_mean_ms(step) for step in ordered), default=0.0) or 1.0
    width, height, gap = 80 + 60 * len(ordered), 360, 60
    shapes = [_text(10, 20, title), _text(10, 38, f"mean latency in ms, up to {longest:.3g}, by requests/s offered")]
    shapes += [_key(index, name) for index, name in enumerate(PARTS)]
    for index, step in enumerate(ordered):
        x, y = gap + 60 * index, 320.0
        for name, length_ms in _split(step).items():
            tall = 240 * length_ms / longest
            y -= tall
            shapes.append(f'<rect x="{x}" y="{y:.1f}" width="40" height="{tall:.1f}" fill="{COLOURS[name]}"/>')
        shapes.append(_text(x, 336, f"{step.offered_per_s:.3g}"))
        shapes += [_text(x, 352, "knee")] if step is held else []
    size = f'width="{max(width, 420)}" height="{height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n' + "\n".join(
        [*shapes, "</svg>\n"]
    )


def by_rate(steps: Sequence[Step]) -> list[Step]:
    """Return the steps by the rate that was offered."""
    return sorted(steps, key=lambda step: step.offered_per_s)


def _split(step: Step) -> dict[str, float]:
    """Return the parts of the mean; all of it is the rest where the server does not say."""
    return dict(step.parts_ms) or {"rest": step.p50_ms}


def _mean_ms(step: Step) -> float:
    return sum(_split(step).values())


def _bar(step: Step, longest_ms: float) -> str:
    """Return letters in proportion; what is rounded away of one part is left to the next."""
    bar, upto_ms = "", 0.0
    for name, length_ms in _split(step).items():
        upto_ms += length_ms
        bar += LETTERS[name] * (round(WIDTH * upto_ms / longest_ms) - len(bar))
    return bar


def _cells(step: Step, held: Step | None) -> tuple[str, ...]:
    parts = [f"{step.parts_ms[name]:.3g}" if name in step.parts_ms else "-" for name in PARTS]
    return (
        f"{step.offered_per_s:.4g}",
        f"{step.goodput_per_s:.4g}",
        *(f"{value:.3g}" for value in (step.p50_ms, step.p95_ms, step.p99_ms)),
        *parts,
        "-" if step.batch_rows is None else f"{step.batch_rows:.3g}",
        str(step.refused + step.late + step.failed),
        "knee" if step is held else "generator" if step.generator_bound else "",
    )


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(words)}</text>'


def _key(index: int, name: str) -> str:
    x = 10 + 90 * index
    return f'<rect x="{x}" y="48" width="12" height="12" fill="{COLOURS[name]}"/>' + _text(x + 16, 58, name)
