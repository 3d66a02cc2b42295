"""Import of a handler class named as `package.module:Class` or `path.py:Class`."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import HANDLER_FAULTS, describe
from shoal_runtime.packages import remedy

DEFAULT_FILE = "handler.py"
PACKAGE = "shoal_model"
"""Package of a handler's file and the files beside it; each model has its own process."""


class HandlerFailed(LoadError):
    """The handler's own code raised an exception, which is the cause."""


def import_handler(text: str, directory: Path) -> type[Any]:
    """Import a handler class.

    Args:
        text: `package.module:Class`, or `path.py:Class` with a path relative to the directory. The class may be omitted
            if the file defines exactly one class with a `forward` method.
        directory: directory of the model, from which modules can be imported.

    Raises:
        LoadError: the file, module or class does not exist.
        HandlerFailed: the import raised an exception.
    """
    where, _, name = text.partition(":")
    # Modules beside the handler's file come first, as with `python code/handler.py`.
    for folder in (directory, (directory / where).parent if where.endswith(".py") else directory):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        module = _from_file(directory / where) if where.endswith(".py") else importlib.import_module(where)
    except LoadError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise LoadError(f"handler module {where} is neither installed nor in {directory}") from None
        raise HandlerFailed(f"importing {where} failed: {error}{remedy(error)}") from error
    except HANDLER_FAULTS as error:
        raise HandlerFailed(f"importing {where} failed: {describe(error)}") from error
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, type):
            raise LoadError(f"{where} has no class {name}")
        return found
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__ and callable(getattr(value, "forward", None))
    ]
    if not classes:
        raise LoadError(
            f"{where} defines no class with a forward method, which runs a batch. Write one, or name an imported"
            f" class: {where}:CLASS"
        )
    if len(classes) > 1:
        names = ", ".join(cls.__name__ for cls in classes)
        raise LoadError(f"{where} defines several classes with a forward method ({names}). Name one: {where}:CLASS")
    return classes[0]


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LoadError(f"the handler file {path} does not exist")
    package = ModuleType(PACKAGE)
    # Makes `from .neighbour import ...` work.
    package.__path__ = [str(path.parent)]
    sys.modules[PACKAGE] = package
    name = f"{PACKAGE}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and pickle look the module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
