"""The XGBoost format: boosters in the files of `save_model`."""

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import exception_message
from shoal_runtime.formats.columns import Batch, rows_of
from shoal_runtime.formats.library_device import AUTO, CPU, LibraryDevice, cuda_index
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
from shoal_runtime.packages import replace_package
from shoal_schema.resource.model import ModelFormat as Format
from shoal_schema.wire.datatypes import Array

logger = logging.getLogger(__name__)


def load(source: ModelSource) -> LoadedModel:
    """Load an XGBoost booster.

    If an estimator wrote the file, predictions equal the estimator's: it uses the best iteration, and a classifier
    returns labels and probabilities. Otherwise predictions equal those of `Booster.predict`.

    Raises:
        LoadError: the file is corrupt, the required device is missing, or xgboost is not installed.
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
    placed = place_booster(xgboost, booster, str(source.context.device), linear=linear)
    table = framed_if_categorical(inputs, columns)
    # On a GPU, a prediction in place warns that the table is in host memory, and copies it.
    copied, threads = linear or placed.name != CPU, source.context.threads
    run = booster.predict if copied else booster.inplace_predict

    def predicted(batch: Batch) -> Any:
        rows = table(batch)
        if copied:
            rows = xgboost.DMatrix(rows, enable_categorical=True, nthread=threads)
        return run(rows, iteration_range=rounds, validate_features=False)

    outputs = _classes(learner) if estimator == "classifier" else {OUTPUT: np.asarray}
    handler = TableHandler(source, inputs, predicted, outputs, columns)
    return handler.loaded("xgboost_booster", placed)


def place_booster(xgboost: Any, booster: Any, wanted: str, *, linear: bool) -> LibraryDevice:
    """Move a booster to the device of the settings; `auto` is a GPU if xgboost can use one.

    Raises:
        LoadError: the settings require CUDA, but xgboost cannot use it.
    """
    if wanted == CPU:
        return LibraryDevice()
    if linear:
        if wanted != AUTO:
            logger.warning("event=device_ignored device=cpu message=XGBoost predicts linear models on the CPU")
        return LibraryDevice()
    reason = "the installed xgboost has no CUDA"
    if xgboost.build_info().get("USE_CUDA"):
        device = f"cuda:{cuda_index(wanted)}"
        try:
            # Without a GPU, xgboost only warns and continues on the CPU.
            with xgboost.config_context(verbosity=0):
                booster.set_param({"device": device})
                used = json.loads(booster.save_config())["learner"]["generic_param"]["device"]
            reason = f"xgboost uses {used} instead of {device}"
        except xgboost.core.XGBoostError as error:
            used, reason = CPU, exception_message(error).splitlines()[0]
        if used == device:
            logger.info("event=xgboost_device device=%s", device)
            row = np.zeros((1, booster.num_features()), np.float32)
            return LibraryDevice(device, lambda: booster.predict(xgboost.DMatrix(row), validate_features=False))
        booster.set_param({"device": CPU})
    if wanted != AUTO:
        raise LoadError(
            f"XGBoost cannot predict on {wanted}: {reason}. {replace_package('xgboost-cpu', 'xgboost-gpu')}, and check"
            " the GPU's driver; or set SHOAL_RUNTIME_DEVICE=cpu (runtime.device: CPU)"
        )
    logger.info("event=xgboost_device device=cpu reason=%s", reason)
    return LibraryDevice()


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
