"""`shoal batch` beside loops of torch and Ray Data: ``make bench-batch``, or ``python -m benchmarks.offline``.

All score the same rows with the same class and write Parquet; they take turns, so that a machine that slows down slows
all, and each one's answers are compared with the bare loop's. Ray Data has two models of a thread each, and so has
`shoal batch --workers 2`; all others have one model of two threads. Time counts from the model's being loaded to the
last answer's being written; of `shoal batch` it holds the search for a batch size and the program's end, of the loops
neither: they are given the size that was best when it was tried. Ray Data's counts from its first actor's.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import dataset

from benchmarks.offline.live import live
from benchmarks.offline.loops import ANSWERS, CPUS, ROOT
from benchmarks.offline.plot import draw
from benchmarks.offline.rows import numbers, pictures, texts
from benchmarks.peers.environments import python_with
from benchmarks.processes import PROC, resident_bytes
from benchmarks.report import Row, Target, document, make_row, slug, table
from benchmarks.surroundings import surroundings

RESULTS = ROOT / "benchmarks" / "results"
PLOT = ROOT / "docs" / "img" / "batch.svg"
ALL = "cat,embed,memory,workers,live"
LIMIT_S = 3600.0
CLOSE = 1e-3
CHEAP_ROWS, SHARD_BYTES = 300_000, str(4 * 2**20)
WAITING = ("model.parameters.baseMicroseconds=40000",)
WAITING_ROWS, WAITING_SIZE = 5_120, 32
TARGETS = (
    *(Target(model, "shoal_to_loader", 1.0, at_least=True) for model in ANSWERS),
    *(Target(model, "two_workers_to_ray", 1.3, at_least=True) for model in ANSWERS),
    # Neither the bare loop nor the others sort by length.
    Target("embed", "shoal_to_bare", 1.3, at_least=True),
    Target("memory", "ten_times_to_once", 1.1, at_least=False),
    Target("memory", "first_row_s", 3.0, at_least=False),
    Target("workers", "share_of_linear", 0.95, at_least=True),
    Target("live", "many_beside_to_alone", 1.05, at_least=False),
)
SHOAL = {"shoal": (), "two_workers": ("--workers", str(CPUS))}
Measured = dict[str, Any]


def main() -> int:
    """Run the benchmark; return 0 when it ran and all answers were the same."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--texts", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=ALL, help="cases, separated by commas")
    parser.add_argument("--without-ray", action="store_true")
    options = parser.parse_args()
    here, asked = surroundings(), options.only.split(",")
    cases: list[Row] = []
    report: Measured = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for case in asked:
            measured = CASES[case](folder, options)
            cases.append(make_row(case, measured))
            print("\n".join(table(cases[-1:])), flush=True)
            report = document(cases, [each for each in TARGETS if each.case in asked], here)
            counts = {"pictures": options.pictures, "texts": options.texts, "rounds": options.rounds}
            part = "" if options.only == ALL else f"{options.only.replace(',', '-')}-"
            path = RESULTS / f"batch-{part}{slug(here['machine'])}-{here['date']}.json"
            path.write_text(json.dumps({"benchmark": "batch", **counts, **report}, indent=1) + "\n", encoding="utf-8")
    if {row.case for row in cases} & set(ANSWERS):
        draw(cases, f"{here['machine']}, {here['date']}; median and range of {options.rounds} rounds", PLOT)
    print("\n".join(report["targets"]))
    return 0


def compare(model: str, folder: Path, options: argparse.Namespace) -> list[Measured]:
    """Have all of them score one model's rows, in turn."""
    count = options.pictures if model == "cat" else options.texts
    source = pictures(folder / "pictures", count) if model == "cat" else texts(folder / "texts.parquet", count)
    size = loop("search", model, source, folder / "none", 1)["size"]
    kinds = ["bare", "loader", "shoal", "two_workers", *([] if options.without_ray else ["ray"])]
    rounds = []
    for number in range(options.rounds):
        measured: Measured = {"batch_size": size}
        known = None
        for kind in turned(kinds, number):
            output = folder / f"{model}-{kind}-{number}"
            if kind in SHOAL:
                found = shoal(f"examples/{model}", source, output, *SHOAL[kind])
                measured[f"{kind}_batch_size"] = found["batch_size"]
                measured[f"{kind}_first_row_s"] = found["first_s"]
            else:
                found = loop(kind, model, source, output, size)
            measured[f"{kind}_per_s"] = count / (found["ended_s"] - found["ready_s"])
            answers = answers_of(output, model)
            known = known or answers
            require_same(known, answers, count, kind)
        rounds.append(measured | ratios(measured))
        print(model, {name: round(value, 2) for name, value in rounds[-1].items()}, flush=True)
    return rounds


def turned(kinds: Sequence[str], number: int) -> list[str]:
    """Return another order for each round. Pure."""
    turn = number % len(kinds)
    return [*kinds[turn:], *kinds[:turn]]


def ratios(measured: Mapping[str, float]) -> dict[str, float]:
    """Return how many times as fast as each other one `shoal batch` is. Pure."""
    paces = {name.removesuffix("_per_s"): value for name, value in measured.items() if name.endswith("_per_s")}
    others = [name for name in paces if name not in SHOAL]
    return {f"{ours}_to_{other}": paces[ours] / paces[other] for ours in SHOAL for other in others}


def answers_of(output: Path, model: str) -> dict[str, Any]:
    """Return what was answered, by a row's name.

    Raises:
        RuntimeError: a row has two answers.
    """
    found: pa.Table = dataset.dataset(output, format="parquet", exclude_invalid_files=False).to_table()
    names = next(name for name in ("name", "id", "path") if name in found.column_names)
    column = found["answer" if "answer" in found.column_names else ANSWERS[model]].to_pylist()
    answers = {str(name).rpartition("/")[2]: row for name, row in zip(found[names].to_pylist(), column, strict=True)}
    if len(answers) != found.num_rows:
        raise RuntimeError(f"{output.name}: {found.num_rows} rows, of {len(answers)} names")
    return answers


def require_same(known: Mapping[str, Any], answers: Mapping[str, Any], rows: int, kind: str) -> None:
    """Compare two scorers' answers: the first class, or embeddings.

    Raises:
        RuntimeError: they differ, or are not as many as the rows.
    """
    if len(answers) != rows or known.keys() != answers.keys():
        raise RuntimeError(f"{kind} answered {len(answers)} of {rows} rows")
    ours, theirs = (np.array([each[name] for name in sorted(known)]) for each in (known, answers))
    same = ours[:, 0] == theirs[:, 0] if ours.dtype.kind == "i" else np.abs(ours - theirs).max(axis=1) <= CLOSE
    if not same.all():
        raise RuntimeError(f"{kind} answered {int((~same).sum())} of {rows} rows otherwise")


def loop(kind: str, model: str, source: Path, output: Path, size: int) -> Measured:
    """Run one of the others in a process of its own."""
    python, environ = sys.executable, dict(os.environ)
    if kind == "ray":
        python = str(python_with("ray-data"))
        # Torch and the models are those of this environment: all compute with the same.
        shared = [path for path in sys.path if path.endswith("site-packages")]
        ours = [ROOT, ROOT / "runtime", ROOT / "schema"]
        environ["PYTHONPATH"] = os.pathsep.join([*map(str, ours), *shared])
    command = [python, "-m", "benchmarks.offline.loops", kind, model, source, output, "--size", size]
    ran = subprocess.run(
        [*map(str, command)], env=environ, cwd=ROOT, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True, text=True
    )
    measured: Measured = json.loads(ran.stdout.strip().splitlines()[-1])
    return measured


def shoal(model: str, source: Path, output: Path, *more: str) -> Measured:
    """Run `shoal batch`; return when it was ready, wrote a row, and ended, and what memory it held."""
    rows = str(source / "*.jpg") if source.is_dir() else str(source)
    command = [sys.executable, "-m", "shoal", "batch", "--model", str(ROOT / model), "--input", rows]
    command += ["--output", str(output), "--log-level", "info", *more]
    measured: Measured = {"peak_bytes": 0, "first_s": None}
    ready: list[float] = []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        threading.Thread(target=follow, args=(process, ready), daemon=True).start()
        end_s = time.monotonic() + LIMIT_S
        while process.poll() is None and time.monotonic() < end_s:
            watch(process.pid, output, measured)
            time.sleep(0.02)
        process.terminate()
    if process.returncode:
        raise RuntimeError(f"shoal batch ended with status {process.returncode}")
    size = json.loads((output / "_shoal/plan.json").read_text())["batch_size"]
    first_s = (measured["first_s"] or time.monotonic()) - ready[0]
    return (
        measured
        | {"ready_s": ready[0], "all_s": ready[-1], "ended_s": time.monotonic(), "batch_size": size}
        | {"first_s": first_s}
    )


def follow(process: subprocess.Popen[str], ready: list[float]) -> None:
    """Note when the log says that a model is ready."""
    assert process.stderr is not None
    ready.extend(time.monotonic() for line in process.stderr if "event=model_ready" in line)


def watch(pid: int, output: Path, measured: Measured) -> None:
    """Look once at what the processes hold and what is written."""
    measured["peak_bytes"] = max(measured["peak_bytes"], sum(map(resident, family(pid))))
    if measured["first_s"] is None and any(path.stat().st_size > HEAD_BYTES for path in parts(output)):
        measured["first_s"] = time.monotonic()


HEAD_BYTES = 4
"""With which a file of Parquet begins before it has rows."""


def parts(output: Path) -> list[Path]:
    """Return the files of answers, also those that have not got their names yet."""
    return [path for path in output.rglob("*part-*") if path.is_file() and path.suffix != ".json"]


def family(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    try:
        children = [
            int(each)
            for task in (PROC / str(pid) / "task").iterdir()
            for each in (task / "children").read_text().split()
        ]
    except OSError:
        return [pid]
    return [pid, *(each for child in children for each in family(child))]


def resident(pid: int) -> int:
    """Return what a process holds; of one that has just ended, nothing."""
    try:
        return resident_bytes(pid)
    except (OSError, StopIteration):
        return 0


def memory(folder: Path, options: argparse.Namespace) -> list[Measured]:
    """Score rows of a cheap model, and ten times as many."""
    once, ten = (numbers(folder / f"numbers-{times}.parquet", times * CHEAP_ROWS) for times in (1, 10))
    rounds = []
    for number in range(options.rounds):
        few, many = (
            shoal("examples/adder", each, folder / f"{each.stem}-{number}", "--keep", "-", "--shard-bytes", SHARD_BYTES)
            for each in (once, ten)
        )
        rounds.append(
            {
                "once_mb": few["peak_bytes"] / 1e6,
                "ten_times_mb": many["peak_bytes"] / 1e6,
                "ten_times_to_once": many["peak_bytes"] / few["peak_bytes"],
                "rows_per_s": 10 * CHEAP_ROWS / (many["ended_s"] - many["ready_s"]),
                "first_row_s": median((few["first_s"], many["first_s"])),
            }
        )
        for each in (once, ten):
            shutil.rmtree(folder / f"{each.stem}-{number}")
    return rounds


def workers(folder: Path, options: argparse.Namespace) -> list[Measured]:
    """Let one and four models wait for as long as an accelerator would, with as many rows for each of them.

    Four models have four times the rows, so linear is: the same time. They are not all loaded at once, which is no part
    of how they scale: what is compared is how much longer a run with more rows takes than one with fewer, both of which
    go on for long after the last model is there.
    """
    rounds = []
    for number in range(options.rounds):
        seconds = {}
        for models in (1, 4):
            spans = []
            for times in (1, 2):
                rows = (times + 3 * (models > 1)) * models * WAITING_ROWS // 2
                source = numbers(folder / f"waiting-{models}-{times}-{number}.parquet", rows)
                given = ["--workers", str(models), "--batch-size", str(WAITING_SIZE), "--keep", "-", "--set", *WAITING]
                ran = shoal("examples/adder", source, folder / f"out-{models}-{times}-{number}", *given)
                spans.append(ran["ended_s"] - ran["ready_s"])
            seconds[models] = spans[1] - spans[0]
        rounds.append({"one_s": seconds[1], "four_s": seconds[4], "share_of_linear": seconds[1] / seconds[4]})
    return rounds


CASES: Mapping[str, Callable[[Path, argparse.Namespace], list[Measured]]] = {
    "cat": lambda folder, options: compare("cat", folder, options),
    "embed": lambda folder, options: compare("embed", folder, options),
    "memory": memory,
    "workers": workers,
    "live": lambda folder, options: live(folder, options.rounds),
}


if __name__ == "__main__":
    sys.exit(main())
