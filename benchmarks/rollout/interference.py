"""The stable revision's p99 at 0.8 of its capacity, while a candidate gets copies of 10 % of its batches.

With and without shadowing by turns, in pairs with equal arrivals. Client, stable proxy and its runtime share one core,
the candidate has the other one. The model sleeps, so that its device is no processor.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from benchmarks.report import Row, Target, make_row
from benchmarks.rollout.hostile import DIE, FLOOD, HANG
from benchmarks.rollout.load import Seen, open_loop, p99_s, poisson
from benchmarks.rollout.replicas import CANDIDATE, CANDIDATE_CORE, STABLE, STABLE_CORE, Cost, Replica, pinned, replica
from examples.server import free_ports
from shoal_schema.interfaces.rollout import RolloutPlan, RolloutReport

COST = Cost(base_ms=8, per_row_ms=2, max_rows=8)
LOAD, SHADOW = 0.8, 0.1
WARM_UP_S = 1.0
KILL_EVERY_S = 1.0
NOISE = "no candidate in both turns"
EQUAL, HUNG, FLOODING, DYING = "shadow 10 %", "shadow 10 %, hangs", "shadow 10 %, floods", "shadow 10 %, dies"
TARGETS = tuple(Target(case, "p99_ratio", 1.01, at_least=False) for case in (EQUAL, HUNG, FLOODING, DYING)) + tuple(
    Target(case, "failed", 0, at_least=False) for case in (EQUAL, HUNG, FLOODING, DYING)
)


@dataclass(frozen=True, slots=True)
class Turns:
    """Number and length of the turns of each case."""

    pairs: int
    seconds: float


def measure(turns: Turns) -> list[Row]:
    """Measure all cases."""
    ports = dict(zip((HANG, FLOOD, DIE), free_ports(3), strict=True))
    hostile = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    with (
        pinned(STABLE_CORE),
        replica(CANDIDATE, COST, CANDIDATE_CORE) as other,
        replica(STABLE, COST, STABLE_CORE, candidates=f"{other.address},{hostile}") as stable,
    ):
        rows = [_case(NOISE, stable, "", turns), _case(EQUAL, stable, CANDIDATE, turns)]
        for case, what in ((HUNG, HANG), (FLOODING, FLOOD), (DYING, DIE)):
            with _hostile(ports[what], what) as killing:
                rows.append(_case(case, stable, what, turns, killing if what == DIE else None))
    return rows


def _case(case: str, stable: Replica, candidate: str, turns: Turns, killing: threading.Event | None = None) -> Row:
    plans = {False: RolloutPlan(), True: RolloutPlan(candidate, shadow=SHADOW if candidate else 0.0)}
    figures = []
    for pair in range(turns.pairs):
        arrivals_s = poisson(LOAD * COST.rows_per_s, WARM_UP_S + turns.seconds, pair)
        took: dict[bool, float] = {}
        usual: dict[bool, float] = {}
        seen, report = Seen(), RolloutReport("", "")
        # The first of a pair alternates, so that a drift of the machine favors neither.
        for shadows in ((False, True), (True, False))[pair % 2]:
            stable.send(plans[False])
            if shadows and candidate:
                stable.find_candidate(plans[True])
                if killing is not None:
                    killing.set()
            begun_s, first = time.monotonic(), len(seen.samples)
            asyncio.run(open_loop(stable, arrivals_s, 1, seen))
            samples = [each for each in seen.samples[first:] if each.wanted_s >= begun_s + WARM_UP_S]
            took[shadows], usual[shadows] = p99_s(samples), median(each.took_s for each in samples)
            if shadows:
                report = stable.send(plans[True])
                if killing is not None:
                    killing.clear()
        figures.append(
            {
                "p99_ratio": took[True] / took[False],
                "p50_ratio": usual[True] / usual[False],
                "p99_ms": 1000 * took[True],
                "alone_p99_ms": 1000 * took[False],
                "requests": float(len(seen.samples)),
                "failed": float(seen.failures.total()),
                "wrong": float(len(seen.wrong)),
                "shadowed": float(report.shadowed_batches),
                "dropped": float(report.dropped_batches),
            }
        )
    return make_row(case, figures)


@contextmanager
def _hostile(port: int, what: str) -> Iterator[threading.Event]:
    """Run a hostile candidate; while the event is set, it is killed and started again and again."""
    command = [sys.executable, "-m", "benchmarks.rollout.hostile", str(port), what]

    def start() -> subprocess.Popen[bytes]:
        with pinned(CANDIDATE_CORE):
            return subprocess.Popen(command)

    processes, stopping, killing = [start()], threading.Event(), threading.Event()

    def kill() -> None:
        while not stopping.wait(KILL_EVERY_S):
            if killing.is_set():
                processes[-1].kill()
                processes[-1].wait()
                processes.append(start())

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killing
    finally:
        stopping.set()
        killer.join()
        processes[-1].kill()
        processes[-1].wait()
