"""Change one token of the pure cores at a time and see whether a test notices: ``make mutants``.

A sample, drawn by a seed: ``--seed`` and ``--sample`` choose another. Each runs in a process forked from one that
has imported the libraries already, and is imported from memory: no file is written, so tests that start processes see
the sources. The quickest tests come first, since the first that fails is enough. Mutants that are equivalent to the
original are excused in ``equivalent_mutants.toml``, by name.
"""

import argparse
import importlib
import importlib.abc
import importlib.util
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType

import coverage
import pytest
from hypothesis import Phase, settings

from tests.project.tokens import Mutant, compiled, mutants_of

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
MARK = 0.95
LIBRARIES = (
    "httptools",
    "httpx",
    "kopf",
    "msgspec",
    "numpy",
    "orjson",
    "prometheus_client",
    "torch",
    "uvicorn",
    "yaml",
)
CORES = {
    "proxy/shoal_proxy/codecs": ("proxy/codecs", "proxy/test_header_cache.py"),
    "operator/shoal_operator/children": ("operator/children", "operator/reconciliation", "operator/ownership"),
    "operator/shoal_operator/status": ("operator/status", "operator/reconciliation"),
    "operator/shoal_operator/ownership": ("operator/ownership",),
    "operator/shoal_operator/policy": ("operator/policy",),
    "operator/shoal_operator/scaling": ("operator/scaling",),
    "operator/shoal_operator/zero": ("operator/zero",),
    "operator/shoal_operator/loop": ("operator/loop",),
    "operator/shoal_operator/rollout": ("operator/rollout",),
    "schema/shoal_schema": (
        "schema", "contract/test_names.py", "contract/test_settings.py", "proxy/test_settings.py",
        "runtime/test_settings.py", "operator/test_settings.py", "client/serving",
    ),
    "runtime/shoal_runtime/batches": ("runtime/batches", "runtime/codecs", "runtime/execution/test_pipeline.py"),
    "runtime/shoal_runtime/codecs": ("runtime/codecs", "runtime/execution/test_pipeline.py"),
    "proxy/shoal_proxy/batching": ("proxy/batching", "proxy/simulator"),
}  # fmt: skip
"""Folder -> what of `tests/` is to notice: those that ask it directly."""
SHELLS = ("exit_status.py", "generate.py")
"""Modules of those folders that only tests of processes cover."""


class Importer(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the mutant instead of its module."""

    def __init__(self, mutant: Mutant) -> None:
        self.name = ".".join(Path(mutant.path).with_suffix("").parts[1:])
        self.code = compiled(mutant, (ROOT / mutant.path).read_text())

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def get_code(self, _: str) -> CodeType:
        return self.code

    def get_source(self, _: str) -> None:
        pass


class FirstFailure:
    """Remembers the first test that fails; runs only the tests that pass the mutant, if those are known.

    Args:
        passing: names of tests.
        durations: how long each took in another run (s).
    """

    def __init__(self, passing: set[str], durations: dict[str, float]) -> None:
        self.passing, self.durations, self.failed = passing, durations, ""
        self.took_s: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if item.nodeid in self.passing] or items
        items.sort(key=lambda item: self.durations.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed = self.failed or (report.nodeid if report.failed else "")
        self.took_s[report.nodeid] = self.took_s.get(report.nodeid, 0.0) + report.duration

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.failed = self.failed or (f"{report.nodeid} (import)" if report.failed else "")


class Tests:
    """The tests of one core, and which of them pass which line."""

    def __init__(self, places: Sequence[str]) -> None:
        self.places = [f"tests/{each}" for each in places]
        folder = Path(tempfile.mkdtemp(prefix="shoal-mutants-"))
        self.lines = coverage.CoverageData(str(folder / "lines"))
        started = time.monotonic()
        options = ["--cov", "--cov-context=test", "--cov-report=", "--cov-fail-under=0"]

        def run() -> str:
            first = FirstFailure(set(), {})
            failed = first_failure(self.places, first, *options)
            (folder / "durations").write_text(json.dumps(first.took_s))
            return failed

        self.failed = in_a_child(run, 1800, self.lines.data_filename())
        self.limit_s = 10 + 3 * (time.monotonic() - started)
        self.lines.read()
        self.durations: dict[str, float] = json.loads((folder / "durations").read_text())

    def notice(self, mutant: Mutant) -> str:
        """Return the first test that fails for a mutant, or nothing."""
        contexts = self.lines.contexts_by_lineno(str(ROOT / mutant.path)).get(mutant.line, [])
        passing = {context.rpartition("|")[0] for context in contexts} - {""}
        # What runs at import is every test's business.
        whole = not passing or "" in contexts
        places = self.places if whole else sorted({each.partition("::")[0] for each in passing})

        def run() -> str:
            sys.meta_path.insert(0, Importer(mutant))
            return first_failure(places, FirstFailure(set() if whole else passing, self.durations))

        return in_a_child(run, self.limit_s)


def in_a_child(run: Callable[[], str], limit_s: float, data_file: str = "") -> str:
    """Return what a function returns in a process of its own, or why it returned nothing."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        os.setsid()
        silence, outcome = os.open(os.devnull, os.O_RDWR), "(the process ended)"
        for number in (0, 1, 2):
            os.dup2(silence, number)
        os.environ["COVERAGE_FILE"] = data_file
        try:
            outcome = run()
        except BaseException as error:  # whatever a mutant does, it is noticed
            outcome = f"({type(error).__name__})"
        finally:
            os.write(writing, outcome.encode()[:4096])
            os._exit(0)
    os.close(writing)
    ended = select.select([reading], [], [], limit_s)[0]
    outcome = os.read(reading, 4096).decode() if ended else "(no end)"
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reading)
    return outcome


def first_failure(places: Sequence[str], first: FirstFailure, *more: str) -> str:
    """Run tests until one fails; return its name, or nothing."""
    phases = [Phase.explicit, Phase.generate]  # a failure is enough: no smaller one is looked for
    settings.register_profile("mutants", deadline=None, database=None, phases=phases)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--hypothesis-profile=mutants"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    status = pytest.main([*options, *more, *places], plugins=[first])
    return first.failed or ("" if status == 0 else f"(pytest ended with {status})")


def sampled(seed: int, count: int) -> Iterator[tuple[str, list[Mutant]]]:
    """Return the sample, by core."""
    files = {
        str(path.relative_to(ROOT)): core
        for core in CORES
        for path in sorted((ROOT / core).rglob("[!_]*.py"))
        if path.name not in SHELLS
    }
    every = [mutant for path in sorted(files) for mutant in mutants_of(path, (ROOT / path).read_text())]
    chosen = random.Random(seed).sample(every, min(count, len(every)))
    print(f"{len(chosen)} of {len(every)} mutants, seed {seed}")
    for core in CORES:
        yield (
            core,
            sorted((each for each in chosen if files[each.path] == core), key=lambda each: (each.path, each.line)),
        )


def main() -> int:
    """Print the table and the share that was noticed; return 1 below the mark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--core", default="", help="only folders whose path holds this")
    options = parser.parse_args()
    excused = {each["mutant"]: each["reason"] for each in tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])}
    os.environ |= {"OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": tempfile.mkdtemp(prefix="shoal-mutants-")}
    for library in LIBRARIES:
        importlib.import_module(library)
    noticed = counted = 0
    for core, mutants in sampled(options.seed, options.sample):
        if options.core not in core or not mutants:
            continue
        tests = Tests(CORES[core])
        if tests.failed:
            print(f"{core}: the tests fail as they are: {tests.failed}")
            return 2
        for mutant in mutants:
            reason = excused.get(mutant.name)
            killed_by = "" if reason else tests.notice(mutant)
            noticed, counted = noticed + bool(killed_by), counted + (not reason)
            outcome = f"equivalent: {reason}" if reason else killed_by or "SURVIVED"
            print(f"{mutant.path}:{mutant.line} | {mutant.function}: {mutant.change} | {outcome}", flush=True)
    share = noticed / max(counted, 1)
    print(f"{noticed} of {counted} noticed ({share:.0%}); the mark is {MARK:.0%}")
    return 0 if share >= MARK else 1


if __name__ == "__main__":
    sys.exit(main())
