"""Compare Shoal with other model servers on this machine: ``make bench-peers``, or ``python -m benchmarks.peers``.

Three models everywhere: `wait` (4 ms and 0.1 ms a row, 64 rows a batch: at most 6154 requests/s), `mlp` (a
perceptron of microseconds) and `slow` (20 ms and 0.5 ms a row, 32 rows: at most 889/s). Closed loops of 1, 64
and 256 clients on the first two; Poisson arrivals at 0.5 to 2 x saturation with an objective of 100 ms on the
third. Each server has an environment of its own below .venvs/peers, is alone while it is measured, and runs
with the settings that ``--tune`` found best. Linux only. What cannot be installed or started is left out, with
the reason.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import InstallError, python_with, version_of
from benchmarks.peers.launching import LAUNCHES
from benchmarks.peers.measuring import Effort, Figures, measure
from benchmarks.peers.running import PeerError, adopt_orphans
from benchmarks.peers.tables import (
    RIVAL,
    TARGETS,
    US,
    Results,
    case_name,
    closed_table,
    open_table,
    results_file,
)
from benchmarks.peers.tuning import TUNED, Settings, candidates, chosen
from benchmarks.peers.workload import MLP, SLOW, WAIT, WORKLOADS
from benchmarks.report import slug
from benchmarks.surroundings import surroundings
from benchmarks.wrk import WrkError, find_wrk

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/img/peers.svg"
TUNING_SEED = 7
SHOWN = (
    *("requests_per_s", "p50_ms", "p99_ms"),
    *("in_time_per_s", "late_per_s", "refused_per_s", "refusal_p99_ms", "timed_out_per_s", "errors_per_s"),
    "cpu_us_per_request",
)
BUSY = 0.5
"""Load average above which others take a share of the processor that shows."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 when it ran, whether or not targets are met."""
    options = parse(arguments)
    # What `kill` sends ends like Ctrl-C: through the with blocks, which stop the server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    adopt_orphans()
    here = surroundings()
    if here["load_average"] > BUSY:
        print(f"This machine is busy (load {here['load_average']:.1f}): expect worse figures.")
    try:
        wrk = find_wrk(ROOT / ".tools")
    except WrkError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    results = Results()
    peers = installed(options.only, results)
    if options.tune:
        tune(peers, options.models, Effort(wrk, 2, 4.0, TUNING_SEED, (64, 256), (800, 1313)))
        return 0
    effort = Effort(wrk, 2, 3.0) if options.quick else Effort(wrk)
    compare(visits(peers, options.models, 1 if options.quick else 3), effort, results)
    publish(results, peers, here, keep=not options.quick)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser("python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", type=names(LAUNCHES), default=list(LAUNCHES), help="servers, comma-separated")
    parser.add_argument("--models", type=names(WORKLOADS), default=list(WORKLOADS), help="models, comma-separated")
    parser.add_argument("--quick", action="store_true", help="shorter, once, and nothing is written")
    parser.add_argument("--tune", action="store_true", help="measure the grid of settings, and keep the best of each")
    return parser.parse_args(arguments)


def names(known: Any) -> Any:
    """Return a reader of comma-separated names."""

    def read(text: str) -> list[str]:
        chosen_names = text.split(",")
        if unknown := [name for name in chosen_names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return chosen_names

    return read


def installed(peers: Sequence[str], results: Results) -> list[str]:
    """Install what is missing; leave out what cannot be installed."""
    found = []
    for peer in peers:
        try:
            if peer != US:
                python_with(peer)
            found.append(peer)
        except InstallError as error:
            results.add(peer, f"not installed: {error}")
            print(f"{peer}: left out, not installed: {error}", flush=True)
    return found


def visits(peers: Sequence[str], models: Sequence[str], repetitions: int) -> Iterator[tuple[str, str]]:
    """Yield server and model in the order of measuring.

    Closed loops of the two servers whose ratio counts alternate, so that a machine that slows down
    slows both.
    """
    rivals = [peer for peer in (US, RIVAL) if peer in peers]
    others = [peer for peer in peers if peer not in rivals]
    for model in (WAIT.name, MLP.name):
        if model in models:
            yield from ((peer, model) for _ in range(repetitions) for peer in rivals)
            yield from ((peer, model) for peer in others)
    if SLOW.name in models:
        yield from ((peer, SLOW.name) for peer in peers)


def compare(planned: Iterator[tuple[str, str]], effort: Effort, results: Results) -> None:
    """Measure all; a server that fails is noted and left."""
    plan = list(planned)
    for index, (peer, model) in enumerate(plan):
        started_s = time.monotonic()
        for load, measured in attempts(peer, model, chosen(peer, model), effort):
            results.add(case_name(model, load, peer) if load else f"{model}, {peer}", measured)
            print(f"  {model}, {load or 'all'}, {peer}: {line(measured)}", flush=True)
        print(f"[{index + 1}/{len(plan)}] {peer}, {model}: {time.monotonic() - started_s:.0f} s", flush=True)


def attempts(peer: str, model: str, settings: Settings, effort: Effort) -> Iterator[tuple[str, Figures | str]]:
    """Measure, and end with a reason when the server fails."""
    try:
        yield from measure(peer, model, settings, effort)
    except PeerError as error:
        yield "", str(error)


def line(measured: Figures | str) -> str:
    """Say in short what was measured."""
    if isinstance(measured, str):
        return measured
    keys = [key for key in SHOWN if key in measured]
    return ", ".join(f"{key} {measured[key]:.4g}" for key in keys)


def tune(peers: Sequence[str], models: Sequence[str], effort: Effort) -> None:
    """Try each server's grid, and write the best settings with the figures that speak for them."""
    kept: dict[str, Any] = json.loads(TUNED.read_text()) if TUNED.exists() else {}
    for model in models:
        for peer in peers:
            grid = candidates(peer, model)
            if len(grid) == 1:
                continue
            tried = [tried_settings(peer, model, each, effort) for each in grid]
            best = max(tried, key=lambda entry: entry["score"])
            kept.setdefault(model, {})[peer] = {"settings": best["settings"], "tried": tried}
            TUNED.write_text(json.dumps(kept, indent=2) + "\n")


def tried_settings(peer: str, model: str, settings: Settings, effort: Effort) -> dict[str, Any]:
    """Measure one entry of a grid: the sum of the rates that count."""
    measured = dict(attempts(peer, model, settings, effort))
    rates = {load: rate(figures) for load, figures in measured.items()}
    failed = [figures for figures in measured.values() if isinstance(figures, str)]
    print(f"{model}, {peer}, {json.dumps(settings)}: {rates} {' '.join(failed)}", flush=True)
    return {"settings": settings, "score": sum(rates.values()), "rates": rates}


def rate(figures: Figures | str) -> float:
    """Return the rate that counts, 0 for a failure."""
    if isinstance(figures, str):
        return 0.0
    return round(figures.get("in_time_per_s", figures.get("requests_per_s", 0.0)), 1)


def publish(results: Results, peers: Sequence[str], here: dict[str, Any], *, keep: bool) -> None:
    """Print tables and targets; write the results file and the picture."""
    rows = results.rows()
    print("\n".join(["", *closed_table(rows, peers), "", *open_table(rows, peers), ""]))
    print("\n".join(target.line(rows) for target in TARGETS), end="\n\n")
    if not keep:
        return
    path = ROOT / "benchmarks/results" / f"peers-{slug(here['machine'])}-{here['date']}.json"
    path.write_text(json.dumps(results_file(results, here, about(peers)), indent=2) + "\n")
    from benchmarks.peers.plots import draw  # noqa: PLC0415, a quick run needs no matplotlib

    draw(rows, peers, f"{here['machine']}, {here['date']}; load and server on the same cores", PICTURE)
    print(f"written: {path.relative_to(ROOT)}, {PICTURE.relative_to(ROOT)}")


def about(peers: Sequence[str]) -> dict[str, Any]:
    """Return each server's version and settings."""
    return {
        peer: {
            "version": None if peer == US else version_of(peer),
            "settings": {model: chosen(peer, model) for model in WORKLOADS},
        }
        for peer in peers
    }


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("benchmark: stopped")
