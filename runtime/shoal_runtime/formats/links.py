"""Checks of tree nodes, whose indices libraries use in native code without checks."""

from typing import Any

import numpy as np

from shoal_schema.wire.datatypes import Array


def check_links(nodes: Array, parents: Array, children: Array) -> None:
    """Check that each node except the first is the child of an earlier node, so there are no cycles.

    Args:
        nodes: indices of all nodes, in order.
        parents: parent of each node in `children`.
        children: children of all inner nodes.

    Raises:
        ValueError: a node has no parent, several parents, or a later parent.
    """
    whole = nodes[:1].tolist() == [0] and np.array_equal(np.sort(children), nodes[1:])
    require_attributes(
        whole and np.all(children > parents), "each node but the first must be the child of an earlier node"
    )


def check_features(used: Array, features: int) -> None:
    """Check that each feature index is at least 0 and below `features`.

    Raises:
        ValueError: an index is out of range.
    """
    require_attributes(np.all((used >= 0) & (used < features)), "a tree uses a feature that does not exist")


def require_attributes(holds: Any, why: str) -> None:
    """Raise ValueError with the message ``why`` if a condition is false."""
    if not holds:
        raise ValueError(why)
