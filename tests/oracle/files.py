"""The door of files: `shoal batch` over a table of rows that must be scored."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tests.oracle.answers import Answer
from tests.oracle.asking import Request, made, shuffled
from tests.oracle.cases import Case, Form
from tests.oracle.doors import csv_text, objects
from tests.oracle.frames import Rng
from tests.oracle.hosting import THREADS
from tests.oracle.judging import Tally, Verdict, judge

ROWS = 60
FORMS = ("csv", "parquet", "jsonl")


def score(case: Case, path: Path, directory: Path, form: str, tally: Tally, rng: Rng, *, served: bool) -> None:
    """Score a file of a model's rows, in any order of columns with one more, by the model or by its service."""
    request = _request(case, rng)
    directory.mkdir()
    source = directory / f"rows.{form}"
    _write(request, source, rng)
    target = ["--to", case.served.url, "--model", case.served.model] if served else ["--model", str(path)]
    more = [] if served else ["--set", "model.allowPickle=true", "--set", "runtime.device=CPU"]
    out = directory / "out"
    command = [sys.executable, "-m", "shoal", "batch", *target, *more, "--input", str(source), "--output", str(out)]
    options = ["--output-format", "jsonlines", "--max-error-share", "1", "--keep", "-"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=300, check=False, env=_environment()
    )
    door = f"batch {form}" + (" to a service" if served else "")
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-400:]
        tally.count(case.entry.name, door, request, Verdict.REFUSED, f"status {done.returncode}: {said}")
        return
    for verdict, why in _judged(case, request, out):
        tally.count(case.entry.name, door, request, verdict, why)


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, **THREADS}


def _request(case: Case, rng: Rng) -> Request:
    request = made(case, (), rng)
    places = rng.integers(0, len(case.rows), ROWS)
    request.rows = [dict(case.rows[place]) for place in places]
    request.truths = [case.truths[place] for place in places]
    request.table = case.table.iloc[places].reset_index(drop=True)
    if not case.entry.named:
        return request
    request.names.append("extra")
    request.table = request.table.assign(extra=1.5)
    for row in request.rows:
        row["extra"] = 1.5
    shuffled(request, rng)
    return request


def takes(case: Case) -> bool:
    """Return whether a table without options can be scored: columns by name, or the one input's."""
    return case.entry.named or case.form is Form.SINGLE


def _write(request: Request, path: Path, rng: Rng) -> None:
    if path.suffix == ".csv":
        path.write_text(csv_text(request, rng), encoding="utf-8")
    elif path.suffix == ".parquet":
        table = request.table
        for name in table.columns:  # Arrow has no categories of numbers that every reader knows
            if isinstance(table[name].dtype, pd.CategoricalDtype) and rng.random() < 0.5:
                table = table.assign(**{name: table[name].astype(table[name].cat.categories.dtype)})
        table.to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in objects(request)), encoding="utf-8")


def _judged(case: Case, request: Request, out: Path) -> Sequence[tuple[Verdict, str]]:
    lines = [json.loads(line) for file in sorted(out.glob("*.jsonl")) for line in file.read_text().splitlines()]
    if len(lines) != len(request.rows):
        return [(Verdict.WRONG, f"{len(lines)} rows of {len(request.rows)}")]
    judged = []
    for place, line in enumerate(lines):
        one = Request([request.rows[place]], request.names, None, [request.truths[place]])
        judged.append(judge(one, _answer(line), ignores_extra=True))
    return judged


def _answer(line: dict[str, Any]) -> Answer:
    error = line.pop("shoal_error")
    return Answer(400, said=error) if error is not None else Answer(200, [line])
