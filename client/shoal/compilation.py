"""Whether the request path of this installation is compiled."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

UNCOMPILED: Final = (
    "the proxy is not compiled, so a small request costs it 1.5 times the processor time. Install a compiled wheel, or"
    " compile it with SHOAL_COMPILE=1 pip install ."
)


def is_compiled() -> bool:
    """Return whether the proxy of this installation is compiled (compile.py).

    Nothing of the proxy is imported.
    """
    spec = find_spec("shoal_proxy")
    directories = (spec.submodule_search_locations if spec else None) or ()
    return any(path for directory in directories for path in Path(directory, "http").glob("protocol.*.so"))
