"""Answers through every door are the library's own: a few models of the table, drawn by a seed.

The seed is the day's number by default. A failure names it, and ``SHOAL_ORACLE_SEED`` repeats the run.
``python -m tests.oracle`` asks all models.
"""

import os
import time
from pathlib import Path

import pytest

from tests.oracle.judging import Tally
from tests.oracle.running import Plan, run, sample

SHARE = {"skops": 2, "joblib": 1, "xgboost": 2, "lightgbm": 2, "mlflow": 1, "onnx": 1}


def test_answers_are_the_librarys_own_through_every_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("SHOAL_ORACLE_SEED") or time.time_ns() // 86_400_000_000_000)
    monkeypatch.delenv("SHOAL_ORACLE_SEED", raising=False)  # the product knows no such setting
    names = sample(seed, SHARE)
    drawn = f"SHOAL_ORACLE_SEED={seed}: {', '.join(names)}"
    tally = Tally()

    run(Plan(names, seed, requests=120, jobs=1, group=len(names)), tmp_path, tally, lambda _: None)

    assert not tally.findings, "\n".join([drawn, *tally.lines()])
    assert not tally.unserved, "\n".join([drawn, *tally.lines()])
