"""A run: models are made, served, asked through all doors and stopped, a group at a time."""

import asyncio
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.oracle.cases import Case, case_of
from tests.oracle.driving import drive
from tests.oracle.entries import Entry
from tests.oracle.files import FORMS, score, takes
from tests.oracle.frames import Rng
from tests.oracle.hosting import Hosts, Refused, command, hosts
from tests.oracle.judging import Tally
from tests.oracle.models import table

FORMATS = ("skops", "joblib", "xgboost", "lightgbm", "mlflow", "onnx", "export")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run does.

    Args:
        names: of the models.
        seed: of everything that is drawn.
        requests: to each model.
        jobs: of `shoal batch` for each group: half of them against the service, half with the model.
        group: models in one process.
        commands: models of each group that are served by `shoal serve`, too.
    """

    names: Sequence[str]
    seed: int
    requests: int
    jobs: int
    group: int
    commands: int = 1


def sample(seed: int, share: dict[str, int]) -> list[str]:
    """Return models drawn by a seed, so many of each format."""
    rng = np.random.default_rng(seed)
    names: list[str] = []
    for form, count in share.items():
        of_form = [name for name in table() if name.startswith(f"{form}-")]
        names += rng.choice(of_form, min(count, len(of_form)), replace=False).tolist()
    return names


def run(plan: Plan, directory: Path, tally: Tally, done: Callable[[int], object]) -> None:
    """Do a run; call `done` for each request, also for those of models that are not served."""
    groups = [plan.names[start : start + plan.group] for start in range(0, len(plan.names), plan.group)]
    for number, names in enumerate(groups):
        home = directory / str(number)
        home.mkdir()
        _run_group(plan, [table()[name] for name in names], home, tally, done)


def _run_group(plan: Plan, entries: Sequence[Entry], home: Path, tally: Tally, done: Callable[[int], object]) -> None:
    rng = np.random.default_rng([plan.seed, len(tally.models), tally.requests])
    with _library_warnings(), hosts(home / "run", home / "log") as serving:
        cases = []
        for entry in entries:
            path = entry.made(home / entry.name)
            case = _served(serving, entry, path, rng, tally)
            if case is None:
                done(plan.requests)
            else:
                cases.append((case, path))
        asyncio.run(drive([case for case, _ in cases], plan.requests, tally, rng, done))
        for job in range(plan.jobs if cases else 0):
            case, path = cases[int(rng.integers(len(cases)))]
            if takes(case):
                form = FORMS[int(rng.integers(len(FORMS)))]
                score(case, path, home / f"job-{job}", form, tally, rng, served=job % 2 == 0)
        for _ in range(plan.commands if cases else 0):
            _ask_command(*cases[int(rng.integers(len(cases)))], plan, tally, rng)


def _served(serving: Hosts, entry: Entry, path: Path, rng: Rng, tally: Tally) -> Case | None:
    try:
        return case_of(entry, path, serving.serve(entry.name, path), rng)
    except Refused as error:
        tally.unserved[entry.name] = str(error)
        return None


def _ask_command(case: Case, path: Path, plan: Plan, tally: Tally, rng: Rng) -> None:
    """Ask the same model, served by the command, a tenth as often."""
    with command(path) as served:
        again = case_of(case.entry, path, served, rng)
        asyncio.run(drive([again], max(plan.requests // 10, 30), tally, rng, lambda _: None))


@contextmanager
def _library_warnings() -> Iterator[None]:
    """Let libraries warn of what they are trained on and asked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
