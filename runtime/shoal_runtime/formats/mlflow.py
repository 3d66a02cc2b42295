"""The MLflow format: model directories that only mlflow can run, if the user allows pickles."""

from functools import partial
from typing import Any

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.formats.mlmodel import FILE_NAME, FLAVOURS
from shoal_runtime.formats.source import LoadedModel, ModelSource
from shoal_runtime.formats.tabular import OUTPUT, TableHandler, frame, imported, matrix
from shoal_runtime.packages import install_package, remedy


def load(source: ModelSource) -> LoadedModel:
    """Load a model directory with mlflow, for prediction with its `python_function` flavor.

    Raises:
        LoadError: pickles are not allowed, or mlflow is not installed or fails.
    """
    if not source.allow_pickle:
        raise LoadError(
            f"{FILE_NAME} has no flavor that Shoal serves without mlflow ({', '.join(FLAVOURS)}), and "
            "python_function is"
            f" code and pickles. If you trust it, {install_package('mlflow')}, and set"
            " SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle)"
        )
    if not source.inputs:
        raise LoadError(f"{FILE_NAME} has no signature. Log the model with an input_example of two rows")
    try:
        model = imported("mlflow.pyfunc", None).load_model(str(source.directory))
    except LoadError:
        raise
    except HANDLER_FAULTS as error:
        raise LoadError(f"mlflow cannot load {source.directory.name}: {describe(error)}{remedy(error)}") from None
    # One input per column becomes a frame, a single tensor an array.
    columns = all(len(spec.shape) == 1 for spec in source.inputs)
    table = frame(source.inputs) if columns else matrix(source.inputs)
    outputs = {name: partial(_column, name) for name in (OUTPUT, *(spec.name for spec in source.outputs))}
    return TableHandler(source, source.inputs, lambda batch: model.predict(table(batch)), outputs).loaded(
        "mlflow_pyfunc"
    )


def _column(name: str, made: Any) -> Any:
    """Return an output by name from a frame or dict; an array is itself the only output."""
    return made[name] if hasattr(made, "keys") and name in made else made
