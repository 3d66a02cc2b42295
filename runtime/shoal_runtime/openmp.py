"""How torch's threads wait for one another."""

from collections.abc import MutableMapping
from typing import Final

SPIN_COUNT: Final = "2000"
"""A tenth of a millisecond where `pause` takes 140 cycles: longer than it takes to start the next operation."""


def wait_briefly(environ: MutableMapping[str, str]) -> None:
    """Have threads that wait for a partner sleep soon; to be called before torch is imported.

    GNU's OpenMP spins 300,000 times before it sleeps, 17 ms on some processors, at the end of every operation. It spins
    all that time for a partner whose core somebody else has: callers, preprocess, another container. Who sets one of
    these variables has chosen, and is left alone.

    Args:
        environ: of this process; OpenMP reads it when it is loaded.
    """
    if "OMP_WAIT_POLICY" not in environ:
        environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
