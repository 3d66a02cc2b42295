"""The XGBoost format: boosters in the files of `save_model`."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal_runtime.faults import exception_message
from shoal_runtime.formats.columns import Batch, rows_of
from shoal_runtime.formats.source import LoadedModel, ModelSource, UnreadableFile, check_row, unreadable_reason
from shoal_runtime.formats.table import model_file
from shoal_runtime.formats.tabular import (
    OUTPUT,
    PROBABILITIES,
    TableHandler,
    framed_if_categorical,
    imported,
    served_columns,
)
from shoal_runtime.formats.xgboost_columns import booster_columns
from shoal_runtime.formats.xgboost_trees import check
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.wire.datatypes import Array


def load(source: ModelSource) -> LoadedModel:
    """Load an XGBoost booster.

    If an estimator wrote the file, predictions equal the estimator's: it uses the best iteration, and a classifier
    returns labels and probabilities. Otherwise predictions equal those of `Booster.predict`.

    Raises:
        LoadError: the file is corrupt, or xgboost is not installed.
    """
    xgboost = imported("xgboost", "xgboost")
    path = model_file(source, Format.XGBOOST)
    try:
        # xgboost does not check its input: it may read past the end of a truncated file.
        data = path.read_bytes().rstrip()
        if data[:1] not in (b"", b"{"):
            why = unreadable_reason(path) or "it does not begin with {"
            raise UnreadableFile(path.name, "XGBoost model", why, "Check SHOAL_MODEL_FORMAT (model.format)")
        if data[-1:] != b"}":
            raise ValueError("it is truncated")
        [rows] = rows_of(check(data), "FP32")
        check_row(rows, source.max_body_bytes)
        booster = xgboost.Booster({"nthread": source.context.threads}, model_file=str(path))
        learner = json.loads(booster.save_config())["learner"]
    except (xgboost.core.XGBoostError, ValueError) as error:
        # Without the position in xgboost's sources.
        why = re.sub(r"^\[[\d:]+\] \S+: (Check failed: [^:]*: )?", "", exception_message(error).splitlines()[0])
        raise UnreadableFile(path.name, "XGBoost model", why) from None
    inputs, columns = served_columns(source, booster_columns(booster), named=bool(booster.feature_names))
    # Estimators store their type and best iteration in attributes.
    attributes = booster.attributes()
    estimator = json.loads(attributes.get("scikit_learn", "{}")).get("_estimator_type")
    rounds = (0, int(attributes["best_iteration"]) + 1) if estimator and "best_iteration" in attributes else (0, 0)
    # Only trees predict without a copy of the table.
    linear = learner["gradient_booster"]["name"] == "gblinear"
    run, wrapped = (booster.predict, xgboost.DMatrix) if linear else (booster.inplace_predict, lambda table: table)
    table = framed_if_categorical(inputs, columns)

    def predicted(batch: Batch) -> Any:
        return run(wrapped(table(batch)), iteration_range=rounds, validate_features=False)

    outputs = _classes(learner) if estimator == "classifier" else {OUTPUT: np.asarray}
    handler = TableHandler(source, inputs, predicted, outputs, columns)
    return handler.loaded("xgboost_booster")


def _classes(learner: Mapping[str, Any]) -> dict[str, Callable[[Array], Array]]:
    """Return a classifier's outputs as functions of the booster's prediction."""
    if learner["objective"]["name"] == "multi:softmax":  # predicts labels
        return {OUTPUT: lambda labels: labels.astype(np.int64)}
    if int(learner["learner_model_param"].get("num_target", "1")) > 1:  # several labels per row
        return {OUTPUT: lambda scores: (scores > 0.5).astype(np.int64), PROBABILITIES: np.asarray}
    # Scores are those of the second of two classes, or of each class.
    return {
        OUTPUT: lambda scores: (scores > 0.5 if scores.ndim == 1 else scores.argmax(axis=1)).astype(np.int64),
        PROBABILITIES: lambda scores: np.stack((1 - scores, scores), axis=1) if scores.ndim == 1 else scores,
    }
