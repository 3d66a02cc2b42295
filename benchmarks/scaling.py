"""Compare laws of scaling, and ways to balance: ``make bench-scaling``, or ``python -m benchmarks.scaling``.

Every law, the operator's own among them, scales the same simulated service on the same loads; each is tried at several
targets, so that violations are compared at equal replica-seconds. Prints tables and which marks are met, and writes
JSON to benchmarks/results and plots to docs/img.
"""

import argparse
import json
import multiprocessing
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from benchmarks.report import Row, document, slug
from benchmarks.scalers import balancing, cluster, exact, report
from benchmarks.scalers.plots import draw
from benchmarks.scalers.readings import Service
from benchmarks.scalers.scenarios import UNIT, Scenario
from benchmarks.scalers.trials import DEFAULT_SHARE, SHARES, SWEPT, Figures, Trial, figures, measure, trials
from benchmarks.surroundings import surroundings

ROOT = Path(__file__).parents[1]
QUICK_SHARES = (0.5, 0.7, 0.8, 1.0)
Work = TypeVar("Work")
Found = TypeVar("Found")


def spread_out(work: Callable[[Work], Found], given: Sequence[Work], processes: int, unit: str) -> dict[Work, Found]:
    """Do ``work`` on each of ``given``, several at a time."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        found = tqdm(pool.imap(work, given, chunksize=4), total=len(given), unit=unit, disable=None)
        return dict(zip(given, found, strict=True))


def agreement(law: str, scenario: Scenario) -> tuple[Figures, Figures]:
    """Run a law on the coarse cluster, and on one with the proxy's own code, request by request."""
    service = Service()
    counts = scenario.counts(1).tolist()
    need = cluster.needed(service, counts)
    target = DEFAULT_SHARE * service.rows
    begin = max(need[:10])
    coarse = cluster.run(SWEPT[law](service, target), service, counts, begin)
    fine = exact.run(SWEPT[law](service, target), service, scenario.times(1).tolist(), begin)
    return figures(coarse, need, scenario), figures(fine, need, scenario)


def agreeing(processes: int, *, quick: bool) -> dict[str, tuple[Figures, Figures]]:
    """Run each law on both clusters, on a step up and down again."""
    seconds = 30 if quick else 120
    rates = UNIT * np.concatenate([np.full(30, 1.0), np.full(seconds, 5.0), np.full(30, 1.0)])
    scenario = Scenario("a step to five times the load", rates, step_s=30.0)
    return spread_out(partial(agreement, scenario=scenario), list(SWEPT), processes, "law")


def operators_cores() -> list[float]:
    """Return the cores that reading and deciding for a large fleet takes, as `benchmarks.scraping` measures them.

    On a machine that others use too, fewer services are read in that time than should be; the cores are those of all.
    """
    command = [sys.executable, "-m", "benchmarks.scraping", "--services", "1000", "--pods", "2", "--seconds", "20"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    cores, read_a_second, unread = [float(number) for number in re.findall(r"[0-9.]+", printed)[:3]]
    return [cores * max(1.0, 1000 / 2 / read_a_second)] if read_a_second and not unread else []


def main() -> int:
    """Run the benchmark."""
    options = _options()
    # Of the code that is measured, not of what the tree has become when the figures are there.
    about = surroundings()
    begun_s = time.monotonic()
    seeds, count = (1, 4_000) if options.quick else (options.seeds, 20_000)
    cores = operators_cores()
    shares = spread_out(balancing.measure, balancing.jobs(count, seeds), options.processes, "fleet")
    joins = spread_out(balancing.joining, balancing.AGES_S, options.processes, "pod")
    results = spread_out(measure, trials(seeds, QUICK_SHARES if options.quick else SHARES), options.processes, "trial")
    agree = agreeing(options.processes, quick=options.quick)
    goodput = {
        report.PINNED: balancing.goodput(shares, balancing.NORMAL),
        report.SLOW: balancing.goodput(shares, balancing.ONE_SLOW),
    }
    rows = report.rows(results, goodput, cores)
    _print(shares, joins, results, agree)
    if not options.quick:
        found = {
            "requests": count,
            "seeds": seeds,
            "service": asdict(Service()),
            "took_s": round(time.monotonic() - begun_s),
            "balance": [{**asdict(job), "load": job.load.name, "in_time": share} for job, share in shares.items()],
            "joining": {str(age_s): share for age_s, share in joins.items()},
            "agreement": {law: [asdict(coarse), asdict(fine)] for law, (coarse, fine) in agree.items()},
            "trials": _table(results),
        }
        _keep({**document(rows, report.TARGETS, about), **found}, results)
    _marks(rows)
    return 0


def _print(
    shares: Mapping[balancing.Job, float],
    joins: Mapping[float, float],
    results: report.Results,
    agree: Mapping[str, tuple[Figures, Figures]],
) -> None:
    print("\n".join(["", "in time, of all requests to eight replicas, by offered load", *balancing.markdown(shares)]))
    print("\na pod joins seven: its requests a minute later, over a fair share, by the age that connections reach")
    print("  ".join(f"{age_s:g} s: {share:.2f}" for age_s, share in joins.items()))
    print("\n".join(["", f"every law at {DEFAULT_SHARE:g} of a replica's rows", *report.markdown(results)]))
    print("\nthe coarse cluster and the exact one: violations, cost")
    for law, (coarse, fine) in agree.items():
        print(f"{law:<10} {coarse.violations:.2%} {fine.violations:.2%}  {coarse.cost:.2f} {fine.cost:.2f}")


def _marks(rows: Sequence[Row]) -> None:
    print("\n".join(["", *[target.line(rows) for target in report.TARGETS], "", report.closing(rows)]))


def _keep(document: Mapping[str, Any], results: Mapping[Trial, Figures]) -> None:
    name = slug(f"scaling {document['machine']} {document['date']}")
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    print(f"\nwritten: {path.relative_to(ROOT)}")
    for picture in draw(results, ROOT / "docs" / "img"):
        print(f"written: {picture.relative_to(ROOT)}")


def _table(results: Mapping[Trial, Figures]) -> list[str]:
    """Return CSV, a line each: as JSON they would be five times as long."""
    named = [{**asdict(trial), **asdict(each)} for trial, each in results.items()]
    lines = [[f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values()] for row in named]
    return [",".join(named[0]), *[",".join(line) for line in lines]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.scaling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer targets, fewer requests; writes nothing")
    parser.add_argument("--seeds", type=int, default=3, help="traces per load; default 3")
    parser.add_argument("--processes", type=int, default=2, help="default 2")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
