"""Steps as a picture: bars of the mean latency, split, for a terminal or as SVG."""

from collections.abc import Sequence
from html import escape

from shoal.benching.knee import judge
from shoal.benching.steps import PARTS, Step
from shoal.printing import table

LETTERS = {"queue": "q", "batch": "b", "runtime": "R", "rest": "."}
COLOURS = {"queue": "#d95f02", "batch": "#7570b3", "runtime": "#1b9e77", "rest": "#bbbbbb"}
WIDTH = 60
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
    """Return a measured figure as people write it: 1,570, 12.3, 0.48."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def steps_table(steps: Sequence[Step], held: Step | None) -> str:
    """Return the steps, by rate, as a table; the knee is named."""
    rows = [_cells(step, held) for step in by_rate(steps)]
    return table([_HEADINGS, *rows])


def legend(within_ms: float) -> str:
    """Return what the columns of the table mean."""
    return (
        f"in time: answered within {figure(within_ms)} ms of when the request was due; answered/s: in time or not\n"
        "queue, batch (the proxy), runtime (the model, and the host's work around it), rest (HTTP, the way, this"
        " command): mean ms of a request\n"
        "rows: of its batch; lost: refused, unanswered or failed\n"
        "held: 95% in time; bent: clearly not; too few, noisy, generator: tells nothing of the server"
    )


def bars(steps: Sequence[Step], held: Step | None) -> str:
    """Return a bar for each step: its mean latency, each part a letter."""
    longest = max((_mean_ms(step) for step in steps), default=0.0) or 1.0
    lines = [f"mean latency, {figure(longest)} ms wide: " + "  ".join(f"{LETTERS[name]} {name}" for name in PARTS)]
    for step in by_rate(steps):
        mark = "  <- knee" if step is held else ""
        lines.append(f"{figure(step.offered_per_s):>9}/s |{_bar(step, longest)} {figure(_mean_ms(step))}{mark}")
    return "\n".join(lines)


def svg(steps: Sequence[Step], held: Step | None, title: str) -> str:
    """Return the same bars, upright, as an SVG document."""
    ordered = by_rate(steps)
    longest = max((_mean_ms(step) for step in ordered), default=0.0) or 1.0
    width, height, gap = 80 + 60 * len(ordered), 360, 60
    shapes = [
        _text(10, 20, title),
        _text(10, 38, f"mean latency in ms, up to {figure(longest)}, by requests/s offered"),
    ]
    shapes += [_key(index, name) for index, name in enumerate(PARTS)]
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
    parts = [figure(step.parts_ms[name]) if name in step.parts_ms else "-" for name in PARTS]
    return (
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


def _text(x: float, y: float, words: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(words)}</text>'


def _key(index: int, name: str) -> str:
    x = 10 + 90 * index
    return f'<rect x="{x}" y="48" width="12" height="12" fill="{COLOURS[name]}"/>' + _text(x + 16, 58, name)
