"""Ask all models of the table through every door: ``python -m tests.oracle``, a part of ``make soak``.

A table of findings: an answer of 200 that is not the library's, a refusal of what must be served, a failure. Ends with
1 when there are any.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tqdm import tqdm

from tests.oracle.judging import Tally
from tests.oracle.models import table
from tests.oracle.running import Plan, run

GROUP = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the run and print what was found."""
    parser = argparse.ArgumentParser("python -m tests.oracle", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="in all (100000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--models", default="*", help="a pattern of names, or several, comma-separated (all)")
    parser.add_argument("--jobs", type=int, default=4, help=f"of `shoal batch`, for each {GROUP} models (4)")
    parser.add_argument("--width", type=int, default=400, help="of a finding's line (400)")
    options = parser.parse_args(arguments)
    patterns = options.models.split(",")
    names = [name for name in table() if any(fnmatch(name, pattern) for pattern in patterns)]
    if not names:
        parser.error(f"no model is called {options.models}")
    each = max(1, options.requests // len(names))
    plan = Plan(names, options.seed, each, options.jobs, GROUP)
    sys.stderr.write(f"seed {options.seed}, {len(names)} models\n")
    tally = Tally()
    with tempfile.TemporaryDirectory() as home, tqdm(total=each * len(names), unit=" requests", disable=None) as bar:
        run(plan, Path(home), tally, bar.update)
    sys.stdout.write("".join(f"{line[: options.width]}\n" for line in tally.lines()))
    return 1 if tally.findings or tally.unserved else 0


if __name__ == "__main__":
    sys.exit(main())
