"""What the comparison makes of its measurements: cases, ratios, targets, Markdown. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers.measuring import CONNECTIONS, OFFERED_PER_S, Figures, closed_name, open_name
from benchmarks.peers.workload import MLP, SLOW, WAIT
from benchmarks.report import Row, Target, document, find, make_row, number

US, RIVAL = "shoal", "mosec"
TARGETS = (
    Target("wait, 1 connection, shoal", "p50_ms", 4.8, at_least=False),
    Target("wait, 256 connections, shoal", "requests_per_s", 0.96 * WAIT.ceiling_per_s(), at_least=True),
    Target("wait, 64 connections, shoal / mosec", "ratio", 1.15, at_least=True),
    Target("mlp, 64 connections, shoal / mosec", "ratio", 1.8, at_least=True),
    Target("slow, 440 offered/s, shoal", "in_time_per_s", 440, at_least=True),
    Target("slow, 781 offered/s, shoal", "in_time_per_s", 781, at_least=True),
    Target("slow, 1313 offered/s, shoal", "in_time_per_s", 845, at_least=True),
    Target("slow, 1757 offered/s, shoal", "in_time_per_s", 845, at_least=True),
    Target("slow, 1313 offered/s, shoal", "refusal_p99_ms", 20, at_least=False),
    Target("slow, 1757 offered/s, shoal", "refusal_p99_ms", 20, at_least=False),
)


@dataclass(slots=True)
class Results:
    """All that was measured so far.

    Args:
        figures: case to its repetitions.
        problems: case, or server and model, to why it has none.
    """

    figures: dict[str, list[Figures]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def add(self, case: str, measured: Figures | str) -> None:
        """Note one repetition, or why there is none."""
        if isinstance(measured, str):
            self.problems[case] = measured
        else:
            self.figures.setdefault(case, []).append(measured)

    def rows(self) -> list[Row]:
        """Return one row per case, and the ratios of two servers that were measured in turn."""
        measured = [make_row(case, repetitions) for case, repetitions in self.figures.items()]
        return measured + ratios(self.figures)


def case_name(workload: str, load: str, peer: str) -> str:
    """Name a case."""
    return f"{workload}, {load}, {peer}"


def ratios(figures: Mapping[str, Sequence[Figures]]) -> list[Row]:
    """Return our rate over the rival's, each repetition over the one measured right after it."""
    rows = []
    for workload in (WAIT.name, MLP.name):
        for load in map(closed_name, CONNECTIONS):
            ours = figures.get(case_name(workload, load, US), ())
            theirs = figures.get(case_name(workload, load, RIVAL), ())
            pairs = [a["requests_per_s"] / b["requests_per_s"] for a, b in zip(ours, theirs, strict=False)]
            if pairs:
                rows.append(make_row(case_name(workload, load, f"{US} / {RIVAL}"), [{"ratio": r} for r in pairs]))
    return rows


def closed_table(rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    """Return the closed loops in Markdown, a line per server."""
    columns = [
        (f"{workload}, {load}: {text}", workload, load, quantity)
        for workload in (WAIT.name, MLP.name)
        for load, text, quantity in (
            (closed_name(1), "p50 ms", "p50_ms"),
            (closed_name(64), "req/s", "requests_per_s"),
            (closed_name(256), "req/s", "requests_per_s"),
            (closed_name(64), "CPU us/request", "cpu_us_per_request"),
        )
    ]
    return markdown(rows, peers, columns)


def open_table(rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    """Return the open loops in Markdown: answers in time per second, then how fast refusals came."""
    in_time = [(f"{rate}/s: in time", SLOW.name, open_name(rate), "in_time_per_s") for rate in OFFERED_PER_S]
    worst = open_name(OFFERED_PER_S[-1])
    rest = [
        (f"{OFFERED_PER_S[-1]}/s: {text}", SLOW.name, worst, quantity)
        for text, quantity in (
            ("late", "late_per_s"),
            ("refused", "refused_per_s"),
            ("refusal p50 ms", "refusal_p50_ms"),
            ("p99 ms", "refusal_p99_ms"),
            ("timed out", "timed_out_per_s"),
            ("errors", "errors_per_s"),
        )
    ]
    return markdown(rows, peers, in_time + rest)


def markdown(rows: Sequence[Row], peers: Sequence[str], columns: Sequence[tuple[str, str, str, str]]) -> list[str]:
    """Return a table whose columns are title, model, load and quantity; a dash where nothing was measured."""
    lines = ["| server | " + " | ".join(title for title, *_ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for peer in peers:
        values = [find(rows, case_name(workload, load, peer), quantity) for _, workload, load, quantity in columns]
        lines.append(f"| {peer} | " + " | ".join("-" if v is None else number(v) for v in values) + " |")
    return lines


def results_file(results: Results, surroundings: Mapping[str, Any], servers: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written to benchmarks/results."""
    about = {**surroundings, "servers": servers, "problems": results.problems}
    return document(results.rows(), TARGETS, about)
