"""Judge simulated candidates: ``make bench-rollout``, or ``python -m benchmarks.rollout``.

Prints a table and which marks are met, and writes JSON to benchmarks/results.
"""

import argparse
import json
import sys
from pathlib import Path

from benchmarks.report import document, slug, table
from benchmarks.rollout import simulated
from benchmarks.surroundings import surroundings

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run the simulated half. A half with real processes adds its rows and targets to the same document."""
    parser = argparse.ArgumentParser("benchmarks.rollout", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 trials per case; writes nothing")
    parser.add_argument("--processes", type=int, default=2, help="default 2")
    options = parser.parse_args()
    about = surroundings()
    rows, causes = simulated.measure(options.processes, quick=options.quick)
    lines = [*table(rows), "", *(target.line(rows) for target in simulated.TARGETS)]
    print("\n".join(["", *lines]))
    for case, found in causes.items():
        print(f"{case}: {dict(found) or 'none rolled back'}")
    if not options.quick:
        name = slug(f"rollout {about['machine']} {about['date']}")
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        path.write_text(json.dumps({**document(rows, simulated.TARGETS, about), "causes": causes}, indent=1) + "\n")
        print(f"\nwritten: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
