"""Errors about functions and classes of a user's own code, which a saved estimator names but does not contain."""

import re
from collections.abc import Iterable

from shoal_runtime.errors import LoadError
from shoal_runtime.faults import describe
from shoal_runtime.packages import remedy

_SCRIPT = "__main__"
_OF_SCRIPT = re.compile(r"Can't get attribute '(.+?)' on <module '[\w.]*__main__'")
"""Pickle's message about an object of a script. The name is of the script of this process."""


class NotInModule(LoadError):
    """A saved estimator names objects that only the script that saved it has."""

    def __init__(self, file: str, names: Iterable[str]) -> None:
        super().__init__(
            f"{file} names {', '.join(names)} of the script that saved it, which a server cannot import. Define it in"
            " a module of its own, import it from there, save the model again, and install the module where the server"
            " runs, or add its directory to the server's PYTHONPATH"
        )


def script_names(kinds: Iterable[str]) -> list[str]:
    """Return the types in a skops file that no other process can import: a script's, and lambdas."""
    return [kind for kind in kinds if kind.startswith(f"{_SCRIPT}.") or "<" in kind]


def import_fault(file: str, error: BaseException) -> LoadError | None:
    """Return the error about code that cannot be imported; None if ``error`` has another cause."""
    if isinstance(error, AttributeError) and (found := _OF_SCRIPT.search(str(error))):
        return NotInModule(file, [f"{_SCRIPT}.{found[1]}"])
    if install := remedy(error):
        return LoadError(f"{file} cannot be loaded: {describe(error)}{install}, or add its directory to PYTHONPATH")
    return None
