"""The Handler format: a Python class of the user with a `forward` method."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.formats.source import LoadedModel, ModelSource
from shoal_runtime.importing import HandlerFailed
from shoal_runtime.packages import remedy


def load(source: ModelSource) -> LoadedModel:
    """Create the user's handler and call its `load` method.

    Raises:
        LoadError: there is no class, or it has no `forward` method.
        HandlerFailed: the handler raised an error.
    """
    if source.handler is None:
        raise LoadError(
            "the Handler format requires a class. Set SHOAL_MODEL_HANDLER (model.handler), `handler` in model.toml,"
            " or put a handler.py into the model directory"
        )
    name = source.handler.__name__
    with loading(name):
        handler = source.handler()
        if hasattr(handler, "load"):
            handler.load(source.context)
    if not callable(getattr(handler, "forward", None)):
        raise LoadError(f"{name} has no forward method")
    # model.toml takes precedence over the class.
    inputs = source.inputs or tuple(getattr(handler, "inputs", ()))
    outputs = source.outputs or tuple(getattr(handler, "outputs", ()))
    return LoadedModel(handler, inputs, outputs, "shoal_handler", graphs=bool(getattr(handler, "cuda_graphs", False)))


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Context for loading a handler, which converts the handler's errors.

    Raises:
        HandlerFailed: the handler raised an error other than LoadError.
    """
    try:
        yield
    except LoadError:
        raise
    # torch.load raises this error for pickles that it does not load by default.
    except pickle.UnpicklingError as error:
        raise HandlerFailed(
            f"{name} failed to load a pickle, which can run any code. Set"
            " SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it"
        ) from error
    except HANDLER_FAULTS as error:
        raise HandlerFailed(f"{name} failed to load: {describe(error)}{remedy(error)}") from error
