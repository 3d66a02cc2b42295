"""The joblib format: pickled estimators, if the user allows pickles."""

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.formats.estimators import limit_threads, serve
from shoal_runtime.formats.own_code import import_fault
from shoal_runtime.formats.source import LoadedModel, ModelSource
from shoal_runtime.formats.table import model_file
from shoal_runtime.formats.tabular import imported
from shoal_schema.resource.model import ModelFormat as Format


def load(source: ModelSource) -> LoadedModel:
    """Unpickle an estimator.

    Raises:
        LoadError: pickles are not allowed, the file is corrupt, or a library of the estimator is not installed.
    """
    path = model_file(source, Format.JOBLIB)
    if not source.allow_pickle:
        raise LoadError(
            f"{path.name} is a pickle, which can run any code when it is loaded. Save the estimator with"
            " skops.io.dump(model, 'model.skops'), or set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you"
            " trust it"
        )
    joblib = imported("joblib", "sklearn")
    limit_threads(source.context.threads)
    try:
        estimator = joblib.load(path)
    except HANDLER_FAULTS as error:
        fault = import_fault(path.name, error)
        raise fault or LoadError(f"{path.name} cannot be unpickled: {describe(error)}") from None
    return serve(estimator, source, path)
