"""Handler for scikit-learn estimators and compatible objects, independent of their file format."""

import os
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.columns import INPUT, TEXT, Column, declared_columns, inputs_of, reconciled
from shoal_runtime.formats.fitted import fitted_columns
from shoal_runtime.formats.lightgbm_columns import has_names
from shoal_runtime.formats.source import LoadedModel, ModelSource
from shoal_runtime.formats.table_trials import known_words
from shoal_runtime.formats.tabular import OUTPUT, PROBABILITIES, TableHandler, frame, imported, matrix, plain, shown
from shoal_runtime.signature.spec import ANY, TensorSpec


def limit_threads(threads: int) -> None:
    """Limit the threads of numpy, OpenMP and joblib (`n_jobs=-1`) in the current thread."""
    os.environ["LOKY_MAX_CPU_COUNT"] = str(threads)
    imported("sklearn", "sklearn")  # loads OpenMP before the limit is set
    imported("threadpoolctl", "sklearn").threadpool_limits(threads)


def serve(estimator: Any, source: ModelSource, path: Path) -> LoadedModel:
    """Return an estimator that was read from a file as a loaded model.

    Raises:
        LoadError: the estimator has no `predict`, declared inputs differ from its columns, or trial predictions fail.
    """
    if not callable(getattr(estimator, "predict", None)):
        raise LoadError(f"{path.name} holds a {type(estimator).__name__}, which has no predict. Save an estimator")
    names = feature_names(estimator)
    # scikit-learn names columns without names x0, x1...; an estimator without columns takes texts.
    counts = (getattr(each, "n_features_in_", None) for each in _with_first_step(estimator))
    count = next((count for count in counts if count), 0)
    columns: Sequence[Column] = fitted_columns(estimator, names or [f"x{place}" for place in range(count)])
    inputs: Sequence[TensorSpec] = source.inputs
    if inputs and names:
        inputs, columns = reconciled(inputs, columns)
    elif len(inputs) == 1:
        columns = []
    elif inputs:
        # Without names, declared inputs match the columns by position.
        if columns and len(inputs) != len(columns):
            raise LoadError(f"the model was trained on {len(columns)} columns; {len(inputs)} inputs are declared")
        columns = declared_columns(inputs)
    elif columns:
        inputs = inputs_of(columns, named=bool(names))
    else:
        inputs = (TensorSpec(INPUT, "BYTES", [ANY], content_type=TEXT),)
    outputs = {OUTPUT: estimator.predict}
    classes = getattr(estimator, "classes_", None)
    if isinstance(classes, np.ndarray) and hasattr(estimator, "predict_proba"):
        outputs[PROBABILITIES] = estimator.predict_proba
        # The classes describe the outputs, unless the inputs are a guess, which only a trial can confirm.
        if source.inputs or inputs[0].datatype == "BYTES":
            probabilities = TensorSpec(PROBABILITIES, "FP64", [ANY, len(classes)])
            source = replace(source, described_outputs=(shown(OUTPUT, plain(classes)), probabilities))
        else:
            source = replace(source, described_outputs=())
    if names:
        table = frame(inputs, columns)
    elif len(inputs) == 1 and len(inputs[0].shape) == 1:
        table = itemgetter(inputs[0].name)  # one input of texts
    else:
        table = matrix(inputs, columns if len(inputs) > 1 else ())
    handler = TableHandler(source, inputs, table, outputs, columns)
    labels = tuple(str(each) for each in getattr(estimator, "classes_", ()))
    if len(set(labels)) == len(labels):
        # The columns of probabilities are named after the classes, in the estimator's order.
        handler.outputs = tuple(
            replace(spec, columns=labels)
            if (spec.name, tuple(spec.shape)) == (PROBABILITIES, (ANY, len(labels)))
            and spec.datatype != "BYTES"
            and not spec.columns
            else spec
            for spec in handler.outputs
        )
    if not columns:
        handler.trial_values = known_words(estimator)
    return handler.loaded("sklearn")


def feature_names(estimator: Any) -> list[str]:
    """Return the column names that an estimator or its first step stored in training, or an empty list."""
    for each in _with_first_step(estimator):
        names = getattr(each, "feature_names_in_", None)
        # A frame may repeat names, which inputs cannot.
        if names is not None and len(set(names)) == len(names) and has_own_names(each):
            return [str(name) for name in names]
    return []


def has_own_names(estimator: Any) -> bool:
    """Return whether an estimator's column names come from training data.

    For a model trained on an array, lightgbm generates names, which do not count.
    """
    return not hasattr(estimator, "booster_") or has_names(estimator.booster_)


def _with_first_step(estimator: Any) -> list[Any]:
    """Return the estimator, followed by the first step if it is a pipeline."""
    steps = [step for _, step in getattr(estimator, "steps", ()) if step not in (None, "passthrough")]
    return [estimator, *steps[:1]]
