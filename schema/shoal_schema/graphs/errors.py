"""Errors of graphs."""

from enum import StrEnum


class GraphFault(StrEnum):
    """Reasons of the condition ``GraphValid``."""

    # Values are reasons of `conditions.Reason`.
    INVALID = "InvalidGraph"
    """An invalid reference, expression or combination, regardless of the models."""
    CYCLE = "Cycle"
    MISMATCH = "SignatureMismatch"
    """Inputs or outputs of a model differ from those of the graph."""
    MISSING = "StepMissing"
    """No model responds at a step's URL."""


class GraphError(ValueError):
    """Error of an invalid graph.

    Args:
        path: path of the field at fault (``steps[1].inputs.x``).
        what: the error without the path.
        fault: the reason.
    """

    def __init__(self, path: str, what: str, fault: GraphFault = GraphFault.INVALID) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what
        self.fault = fault
