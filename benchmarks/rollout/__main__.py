"""Judge candidates: ``make bench-rollout``, or ``python -m benchmarks.rollout [--quick] [--only PART]``.

One half is simulated: how soon wrong candidates are rolled back. The other has real proxies and runtimes as processes:
what a candidate costs clients of the stable revision, and what clients see of a whole rollout. Prints a table and which
marks are met, and writes JSON to benchmarks/results.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from benchmarks.report import Row, Target, document, slug, table
from benchmarks.rollout import canary, interference, simulated
from benchmarks.rollout.interference import Turns
from benchmarks.surroundings import surroundings
from examples.server import ServerError

ROOT = Path(__file__).parents[2]
PARTS = SIMULATED, INTERFERENCE, CANARY = "simulated", "interference", "canary"
TURNS, QUICK_TURNS = Turns(8, 6.0), Turns(2, 3.0)
STEP_ROWS, QUICK_STEP_ROWS = 1000, 200


def main() -> int:
    """Run the chosen parts; return 0 when they ran, whether or not marks are met."""
    parser = argparse.ArgumentParser("benchmarks.rollout", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few trials and short turns; writes nothing")
    parser.add_argument("--processes", type=int, default=2, help="of the simulation; default 2")
    parser.add_argument("--only", choices=PARTS, help="one part, with a file of its own")
    options = parser.parse_args()
    about = surroundings()
    rows: list[Row] = []
    targets: list[Target] = []
    causes: dict[str, Counter[str]] = {}
    try:
        if options.only in (None, INTERFERENCE):
            rows += interference.measure(QUICK_TURNS if options.quick else TURNS)
            targets += interference.TARGETS
        if options.only in (None, CANARY):
            rows += canary.measure(QUICK_STEP_ROWS if options.quick else STEP_ROWS)
            targets += canary.TARGETS
    except ServerError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    if options.only in (None, SIMULATED):
        found, causes = simulated.measure(options.processes, quick=options.quick)
        rows, targets = [*rows, *found], [*targets, *simulated.TARGETS]
    print("\n".join(["", *table(rows), "", *(target.line(rows) for target in targets)]))
    for case, counted in causes.items():
        print(f"{case}: {dict(counted) or 'none rolled back'}")
    if not options.quick:
        name = slug(f"rollout {options.only or ''} {about['machine']} {about['date']}")
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        path.write_text(json.dumps({**document(rows, targets, about), "causes": causes}, indent=1) + "\n")
        print(f"\nwritten: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
