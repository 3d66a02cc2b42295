"""Checks of tree nodes, whose indices the libraries follow in native code without checks."""

from typing import Any

import numpy as np

from shoal_schema.wire.datatypes import Array


def check_links(nodes: Array, parents: Array, children: Array) -> None:
    """Check that each node but the first is the child of an earlier node, so that there are no cycles.

    Args:
        nodes: indices of all nodes, in order.
        parents: the parent of each of `children`.
        children: of all inner nodes.

    Raises:
        ValueError: otherwise.
    """
    whole = nodes[:1].tolist() == [0] and np.array_equal(np.sort(children), nodes[1:])
    require_attributes(
        whole and np.all(children > parents), "each node but the first must be the child of an earlier node"
    )


def check_features(used: Array, features: int) -> None:
    """Check that each feature index is below `features`.

    Raises:
        ValueError: otherwise.
    """
    require_attributes(np.all((used >= 0) & (used < features)), "a tree uses a feature that does not exist")


def require_attributes(holds: Any, why: str) -> None:
    """Raise ValueError unless the condition holds."""
    if not holds:
        raise ValueError(why)
