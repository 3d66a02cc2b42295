"""Compare rules of batching with the offline optimum: ``make bench-policy``, or ``python -m benchmarks.policy``.

Every rule, Shoal's among them, runs on the same simulated device and the same traces; each figure is divided by what
an oracle that knows the trace from the start reaches. Shoal's rule is the proxy's own code. Prints a table and
the pass marks that are missed, and writes JSON to benchmarks/results and plots to docs/img.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.policies import cases
from benchmarks.policies.cells import LOADS, MODELS, SHOAL_PRESET, TRACES, Cell, cells, disciplines, measure, optimum
from benchmarks.policies.plots import draw
from benchmarks.policies.report import Result, markdown, mean_result, misses, over
from benchmarks.report import slug
from benchmarks.surroundings import surroundings

ROOT = Path(__file__).parents[1]
THINKS_S = (0.0003, 0.0007, 0.001, 0.002)


@dataclass(frozen=True, slots=True)
class Job:
    """One cell with one seed, for one process."""

    cell: Cell
    seed: int
    count: int


def run(job: Job) -> Result:
    """Measure one cell."""
    arrivals = job.cell.arrivals(job.count, job.seed)
    best = optimum(job.cell, arrivals)
    rules = disciplines(job.cell, job.count // 3)
    ratios = {name: over(measure(make, job.cell, arrivals, best.capacity), best) for name, make in rules.items()}
    return Result(job.cell.name, job.cell.trace, best, ratios)


def grid(jobs: Sequence[Job], processes: int) -> list[Result]:
    """Measure all cells, several at a time, and return the mean of each over its seeds."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        results = list(tqdm(pool.imap(run, jobs), total=len(jobs), unit="cell", disable=None))
    by_cell: dict[str, list[Result]] = {}
    for result in results:
        by_cell.setdefault(result.cell, []).append(result)
    return [mean_result(each) for each in by_cell.values()]


def beside(count: int) -> dict[str, Mapping[str, Mapping[str, float]]]:
    """Measure the cases beside the grid."""
    cell = Cell(MODELS[0], 5.0, "Poisson")
    bursts = Cell(MODELS[1], 5.0, "Poisson")
    return {
        f"latency noise of 5 %: {cell.name}": cases.noise(cell, count, 1),
        "a device that changes its speed, and a table that begins wrong": cases.drift(1),
        f"padding to powers of two, over exact sizes: {cell.name}": cases.buckets(cell, count, 1),
        f"padding to powers of two, over exact sizes: {bursts.name}": cases.buckets(bursts, count, 1),
        "closed loop": {
            f"{callers} clients, think {think_s * 1000:g} ms": cases.returning(callers, think_s, 1)
            for callers, think_s in product((64, 256), THINKS_S)
        },
    }


def main() -> int:
    """Run the benchmark."""
    options = _options()
    # Of the code that is measured, not of what the tree has become when the figures are there.
    about = surroundings()
    begun_s = time.monotonic()
    count = options.requests or (2_000 if options.quick else 10_000)
    jobs = [Job(cell, seed, count) for cell in cells() for seed in range(1, options.seeds + 1)]
    results = grid(jobs, options.processes)
    others = beside(count)
    print("\n".join(["", *markdown(results), "", *_lines(others)]))
    lost = [line for result in results for line in misses(result)]
    print("\n".join(["", f"pass marks missed: {len(lost)}", *lost]))
    preset = [line for result in results for line in misses(result, SHOAL_PRESET)]
    print("\n".join(["", f"with a preset table: {len(preset)}", *preset]))
    document = {
        **about,
        "requests": count,
        "seeds": options.seeds,
        "took_s": round(time.monotonic() - begun_s),
        "loads": LOADS,
        "cells": [asdict(result) for result in results],
        "beside": others,
        "missed": lost,
        "missed_with_a_preset_table": preset,
    }
    if not options.quick:
        _keep(document, results)
    return 0


def _lines(others: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    lines = []
    for case, rows in others.items():
        lines.append(case)
        for name, figures in rows.items():
            lines.append(f"  {name:<34}" + "  ".join(f"{what} {value:.3g}" for what, value in figures.items()))
    return lines


def _keep(document: Mapping[str, Any], results: Sequence[Result]) -> None:
    name = slug(f"policy {document['machine']} {document['date']}")
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten: {path.relative_to(ROOT)}")
    for picture in draw(results, list(TRACES), ROOT / "docs" / "img"):
        print(f"written: {picture.relative_to(ROOT)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.policy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2,000 requests a cell; writes nothing")
    parser.add_argument("--requests", type=int, help="per cell; default 10,000")
    parser.add_argument("--seeds", type=int, default=1, help="traces per cell; default 1")
    parser.add_argument("--processes", type=int, default=2, help="default 2")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
