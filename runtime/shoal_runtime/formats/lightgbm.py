"""The LightGBM format: boosters in the text files of `save_model`."""

import logging
from typing import Any

from shoal_runtime.faults import exception_message
from shoal_runtime.formats.columns import rows_of
from shoal_runtime.formats.library_device import AUTO, CPU, LibraryDevice
from shoal_runtime.formats.lightgbm_columns import booster_columns, has_names
from shoal_runtime.formats.lightgbm_trees import check
from shoal_runtime.formats.source import LoadedModel, ModelSource, UnreadableFile, check_row
from shoal_runtime.formats.table import model_file
from shoal_runtime.formats.tabular import OUTPUT, TableHandler, framed_if_categorical, imported, served_columns
from shoal_schema.resource.model import ModelFormat as Format

logger = logging.getLogger(__name__)


def load(source: ModelSource) -> LoadedModel:
    """Load a LightGBM booster.

    Raises:
        LoadError: the file is corrupt, or lightgbm is not installed.
    """
    lightgbm = imported("lightgbm", "lightgbm")
    path = model_file(source, Format.LIGHTGBM)
    threads = source.context.threads
    try:
        # lightgbm does not check its input: it reads past the end of a truncated file.
        [rows] = rows_of(check(path.read_bytes()), "FP64")
        check_row(rows, source.max_body_bytes)
        booster = lightgbm.Booster(model_file=str(path))
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        raise UnreadableFile(path.name, "LightGBM model", exception_message(error)) from None

    def predict(table: Any) -> Any:
        return booster.predict(table, num_threads=threads, validate_features=False)

    if source.context.device not in (AUTO, CPU):
        logger.warning("event=device_ignored device=cpu message=LightGBM uses a GPU only for training")
    inputs, columns = served_columns(source, booster_columns(booster), named=has_names(booster))
    table = framed_if_categorical(inputs, columns)
    return TableHandler(source, inputs, table, {OUTPUT: predict}, columns).loaded("lightgbm_booster", LibraryDevice())
