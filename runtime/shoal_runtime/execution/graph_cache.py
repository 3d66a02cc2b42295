"""Captured graphs of a forward, by the form of the batch."""

from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


class CapturedGraph(Protocol):
    """CUDA graph of a forward."""

    def replay(self, tensors: list[Tensor]) -> Any:
        """Run the graph on tensors of the captured shapes and types."""


class GraphCache:
    """Cache of CUDA graphs of a forward, by structure and shapes of the batch.

    Args:
        capture: function that captures a forward for a batch as a graph. It returns None if capturing fails.
    """

    def __init__(self, capture: Callable[[Callable[[Any], Any], Any], CapturedGraph | None]) -> None:
        self._capture = capture
        self._graphs: dict[Hashable, CapturedGraph] = {}
        self._allowed = True

    def add(self, function: Callable[[Any], Any], batch: Any) -> None:
        """Capture a CUDA graph of the forward for the form of a batch.

        The form is the structure, shapes and types. After the first failed capture, no further graphs are captured.
        """
        form = batch_form(batch)
        if not self._allowed or form is None or form in self._graphs:
            return
        graph = self._capture(function, batch)
        if graph is not None:
            self._graphs[form] = graph
        else:
            # One failed capture means that the model synchronizes or branches: do not try again.
            self._allowed = False
            self._graphs.clear()

    def run(self, function: Callable[[Any], Any], batch: Any) -> Any:
        """Run the forward on a batch, through its captured graph if there is one.

        A graph is used if it was captured for the structure, shapes and types of the batch.
        """
        form = batch_form(batch) if self._graphs else None
        graph = self._graphs.get(form) if form is not None else None
        if graph is None:
            return function(batch)
        return graph.replay(pytree.tree_leaves(batch))


def batch_form(batch: Any) -> Hashable | None:
    """Return a key made of a batch's structure, shapes and types.

    Returns:
        The key. None if the batch is empty or holds a value that is not a tensor.
    """
    leaves, structure = pytree.tree_flatten(batch)
    if not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    return str(structure), tuple((leaf.dtype, tuple(leaf.shape)) for leaf in leaves)
