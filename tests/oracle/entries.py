"""What a model of the table is: how it is trained and saved, and what its own library predicts with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.oracle.frames import Column, frame, scores

Predict = Callable[[Any], Mapping[str, Any]]
TRAINING_ROWS = 240


@dataclass(frozen=True, slots=True)
class Entry:
    """A model.

    Args:
        name: `format-kind-columns`, by which a finding is found again.
        columns: of the frame that it is trained on and asked.
        save: trains it on a frame and saves it in a directory; returns what is served.
        load: loads what was saved with the library itself; returns its prediction of a frame, by output.
        named: whether it knows its columns' names.
        positional: whether it takes rows as lists: all columns are the numbers of one tensor, or there is one column.
        seed: of its training.
    """

    name: str
    columns: tuple[Column, ...]
    save: Callable[[Any, Path], Path]
    load: Callable[[Path], Predict]
    named: bool = True
    positional: bool = False
    seed: int = 0

    def made(self, directory: Path) -> Path:
        """Train and save the model."""
        rng = np.random.default_rng(self.seed)
        directory.mkdir(parents=True)
        return self.save(frame(self.columns, TRAINING_ROWS, rng), directory)


NUMBERS = frozenset({"int", "float", "nan", "nanint"})


def is_numbers(columns: tuple[Column, ...]) -> bool:
    """Return whether all columns hold numbers."""
    return all(column.kind in NUMBERS for column in columns)


def target(kind: str, table: Any) -> Any:
    """Return what a model learns to predict: a number, a class, several of them, a rank."""
    value = scores(table)
    middle, high = np.quantile(value, 0.5), np.quantile(value, 0.75)
    several = (value > middle).astype(int) + (value > high)
    made: dict[str, Callable[[], Any]] = {
        "number": lambda: value,
        "numbers": lambda: np.column_stack([value, -2 * value]),
        "class": lambda: (value > middle).astype(int),
        "classes": lambda: several,
        "names": lambda: np.array(["low", "middle", "high"], dtype=object)[several],
        "flags": lambda: value > middle,
        "labels": lambda: np.column_stack([value > middle, value > high]).astype(int),
        "rank": lambda: several,
    }
    return made[kind]()


def predictions(model: Any, *, proba: bool) -> Predict:
    """Return the outputs of an estimator as the product names them."""

    def predict(given: Any) -> Mapping[str, Any]:
        found = {"output-0": np.asarray(model.predict(given))}
        if proba:
            found["probabilities"] = np.asarray(model.predict_proba(given))
        return found

    return predict
