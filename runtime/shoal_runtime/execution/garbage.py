"""Garbage collection while a model is loaded; runs before torch is imported."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OBJECTS: Final = 10_000
"""New objects between collections; Python's default is 700. Nearly all imported objects stay alive."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Context in which garbage is collected rarely, because collections slow down imports.

    Usual collections take a fifth of the time to import transformers. Rare collections remain, because a model's code
    may train while it loads.
    """
    usual = gc.get_threshold()
    gc.set_threshold(OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
