"""Runs of jobs, each in a process of its own, with the tests' engine unless a model is named."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

ENGINE = Path(__file__).with_name("engine.py")


@dataclass(frozen=True)
class Ended:
    """Exit status and output of a job."""

    status: int
    output: str


def environment(given: Path | str, output: Path | str, **settings: Any) -> dict[str, str]:
    own = {
        f"SHOAL_BATCH_{name.upper()}": str(value) for name, value in settings.items() if not name.startswith("engine_")
    }
    engine = {name.upper(): str(value) for name, value in settings.items() if name.startswith("engine_")}
    asked = {"SHOAL_BATCH_INPUT": str(given), "SHOAL_BATCH_OUTPUT": str(output)}
    return {**os.environ, "SHOAL_BATCH_ENGINE": f"{sys.executable} {ENGINE}", **asked, **own, **engine}


def run(given: Path | str, output: Path | str, **settings: Any) -> Ended:
    return run_in(environment(given, output, **settings))


def run_in(known: Mapping[str, str]) -> Ended:
    command = [sys.executable, "-m", "shoal_runtime", "batch"]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=60, check=False)
    return Ended(done.returncode, done.stdout + done.stderr)


def begin(given: Path | str, output: Path | str, **settings: Any) -> "subprocess.Popen[bytes]":
    return start(environment(given, output, **settings))


def start(known: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "shoal_runtime", "batch"]
    return subprocess.Popen(command, env=known, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def results(output: Path) -> list[Mapping[str, Any]]:
    parts = sorted(output.glob("*.parquet"))
    rows: list[Mapping[str, Any]] = pa.concat_tables(parquet.read_table(part) for part in parts).to_pylist()
    return rows


def records(output: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(output.glob("_shoal/*.json"))}


def write_numbers(path: Path, numbers: list[float], *, row_groups: int = 1) -> None:
    table = pa.table(
        {
            "id": pa.array(range(len(numbers)), pa.int64()),
            "x": pa.array([[each] for each in numbers], pa.list_(pa.float64())),
        }
    )
    parquet.write_table(table, path, row_group_size=-(-len(numbers) // row_groups) or 1)


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(10)
