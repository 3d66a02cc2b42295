"""How often garbage is looked for while a model is imported and loaded. Light: it counts before torch is imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OBJECTS: Final = 10_000
"""So many new ones from one look to the next, where Python has 700: of what is imported, nearly all stays."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for garbage seldom until the block ends: a fifth of the time to import transformers goes into that.

    Not never, for a model's code may train in its load.
    """
    usual = gc.get_threshold()
    gc.set_threshold(OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
