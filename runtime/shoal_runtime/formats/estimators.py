"""scikit-learn's estimators, and what predicts like one: served from memory, however they were saved."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.source import Loaded, Source
from shoal_runtime.formats.tabular import (
    INPUT,
    OUTPUT,
    PROBABILITIES,
    TEXT,
    Batch,
    TableHandler,
    frame,
    imported,
    matrix,
    plain,
    rows_of,
    shown,
)
from shoal_runtime.handlers.spec import ANY, TensorSpec
from shoal_schema.wire.datatypes import Array


def limit_threads(threads: int) -> None:
    """Bound what estimators take: in numpy's and OpenMP's loops of this thread, and in joblib's (`n_jobs=-1`)."""
    os.environ["LOKY_MAX_CPU_COUNT"] = str(threads)
    imported("sklearn", "sklearn")  # brings OpenMP, which the limit must find
    imported("threadpoolctl", "sklearn").threadpool_limits(threads)


def serve(estimator: Any, source: Source, path: Path) -> Loaded:
    """Serve an estimator that was read from a file.

    Raises:
        LoadError: it predicts nothing, or what it gives cannot be found out.
    """
    if not callable(getattr(estimator, "predict", None)):
        raise LoadError(f"{path.name} holds a {type(estimator).__name__}, which has no predict: save an estimator")
    inputs = source.inputs or _own_inputs(estimator)
    outputs = {OUTPUT: estimator.predict}
    classes = getattr(estimator, "classes_", None)
    if isinstance(classes, np.ndarray) and hasattr(estimator, "predict_proba"):
        outputs[PROBABILITIES] = estimator.predict_proba
        # Numbers that the model refuses are a wrong guess of its inputs: then nothing is told.
        known = source.inputs or inputs[0].datatype == "BYTES"
        source = replace(source, told_outputs=_classified(classes) if known else ())
    return TableHandler(source, inputs, _table(estimator, inputs), outputs).loaded("sklearn")


def _classified(classes: Array) -> tuple[TensorSpec, ...]:
    probabilities = TensorSpec(PROBABILITIES, "FP64", [ANY, len(classes)])
    return shown(OUTPUT, plain(classes)), probabilities


def _own_inputs(estimator: Any) -> Sequence[TensorSpec]:
    """Return rows of numbers; texts where no features are counted, as in what begins with a vectorizer."""
    features = getattr(estimator, "n_features_in_", None)
    return rows_of(int(features), "FP64") if features else (TensorSpec(INPUT, "BYTES", [ANY], content_type=TEXT),)


def _table(estimator: Any, inputs: Sequence[TensorSpec]) -> Callable[[Batch], Any]:
    """Return what makes of a batch what the estimator was trained on: a frame, an array, or a list of texts."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        return frame(inputs, list(names))
    if len(inputs) == 1 and not hasattr(estimator, "n_features_in_"):
        return lambda batch: batch[inputs[0].name]
    return matrix(inputs)
