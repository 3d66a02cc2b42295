"""scikit-learn's estimators, and what predicts like one: served from memory, however they were saved."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.columns import INPUT, TEXT, Batch, Column, declared_columns, inputs_of, reconciled
from shoal_runtime.formats.fitted import fitted_columns
from shoal_runtime.formats.lightgbm_columns import has_names
from shoal_runtime.formats.source import Loaded, Source
from shoal_runtime.formats.table_trials import known_words
from shoal_runtime.formats.tabular import OUTPUT, PROBABILITIES, TableHandler, frame, imported, matrix, plain, shown
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
        LoadError: it predicts nothing, its columns are not those declared, or what it predicts cannot be found out.
    """
    if not callable(getattr(estimator, "predict", None)):
        raise LoadError(f"{path.name} holds a {type(estimator).__name__}, which has no predict: save an estimator")
    names = feature_names(estimator)
    columns: Sequence[Column] = _columns(estimator, names)
    inputs: Sequence[TensorSpec] = source.inputs or _own_inputs(columns, named=bool(names))
    if source.inputs and names:
        inputs, columns = reconciled(source.inputs, columns)
    elif source.inputs:
        columns = _placed(source.inputs, columns)
    outputs = {OUTPUT: estimator.predict}
    classes = getattr(estimator, "classes_", None)
    if isinstance(classes, np.ndarray) and hasattr(estimator, "predict_proba"):
        outputs[PROBABILITIES] = estimator.predict_proba
        # Numbers that the model refuses are a wrong guess of its inputs: then nothing is told.
        known = source.inputs or inputs[0].datatype == "BYTES"
        source = replace(source, told_outputs=_classified(classes) if known else ())
    table = _table(inputs, columns, framed=bool(names))
    handler = TableHandler(source, inputs, table, outputs, columns)
    if not columns:
        handler.trial_values = known_words(estimator)
    return handler.loaded("sklearn")


def feature_names(estimator: Any) -> list[str]:
    """Return the names of the columns that an estimator was trained on, or that its first step was; empty: none."""
    steps = [step for _, step in getattr(estimator, "steps", ()) if step not in (None, "passthrough")]
    for each in (estimator, *steps[:1]):
        names = getattr(each, "feature_names_in_", None)
        if names is not None and len(set(names)) == len(names) and has_own_names(each):
            return [str(name) for name in names]
    return []


def has_own_names(estimator: Any) -> bool:
    """Return whether an estimator's names are those of a frame: lightgbm numbers the columns of arrays."""
    return not hasattr(estimator, "booster_") or has_names(estimator.booster_)


def _classified(classes: Array) -> tuple[TensorSpec, ...]:
    probabilities = TensorSpec(PROBABILITIES, "FP64", [ANY, len(classes)])
    return shown(OUTPUT, plain(classes)), probabilities


def _columns(estimator: Any, names: Sequence[str]) -> list[Column]:
    """Return the estimator's columns; scikit-learn calls those without names x0, x1 and so on; none: it takes texts."""
    steps = [step for _, step in getattr(estimator, "steps", ()) if step not in (None, "passthrough")]
    counts = (getattr(each, "n_features_in_", None) for each in (estimator, *steps[:1]))
    count = next((count for count in counts if count), 0)
    return fitted_columns(estimator, names or [f"x{place}" for place in range(count)])


def _own_inputs(columns: Sequence[Column], *, named: bool) -> Sequence[TensorSpec]:
    if not columns:
        return (TensorSpec(INPUT, "BYTES", [ANY], content_type=TEXT),)
    return inputs_of(columns, named=named)


def _placed(inputs: Sequence[TensorSpec], columns: Sequence[Column]) -> list[Column]:
    """Return the columns of declared inputs, in their order, for an estimator that knows no names.

    Raises:
        LoadError: they are not as many as the estimator was trained on.
    """
    if len(inputs) == 1:
        return []
    if columns and len(inputs) != len(columns):
        raise LoadError(f"{len(inputs)} inputs are declared; the model was trained on {len(columns)} columns")
    return declared_columns(inputs)


def _table(inputs: Sequence[TensorSpec], columns: Sequence[Column], *, framed: bool) -> Callable[[Batch], Any]:
    """Return what makes of a batch what the estimator was trained on: a frame, an array, or a list of texts."""
    if framed:
        return frame(inputs, columns)
    if len(inputs) == 1 and len(inputs[0].shape) == 1:
        return lambda batch: batch[inputs[0].name]
    return matrix(inputs, columns if len(inputs) > 1 else ())
