"""Nodes of trees, which every library follows in native code and looks at none: held within their arrays."""

from typing import Any

import numpy as np

from shoal_schema.wire.datatypes import Array


def check_links(nodes: Array, parents: Array, children: Array) -> None:
    """Check that each node but the first is child of one before it: no way leads out, or back.

    Args:
        nodes: there are, in order.
        parents: of the children.
        children: of all nodes that have some.

    Raises:
        ValueError: it is not so.
    """
    whole = nodes[:1].tolist() == [0] and np.array_equal(np.sort(children), nodes[1:])
    require(whole and np.all(children > parents), "each node but the first must be child of one before it")


def check_features(used: Array, features: int) -> None:
    """Check that each feature is one of so many.

    Raises:
        ValueError: it is not so.
    """
    require(np.all((used >= 0) & (used < features)), "a tree asks for a feature that is not there")


def require(holds: Any, why: str) -> None:
    """Raise ValueError where it does not hold."""
    if not holds:
        raise ValueError(why)
