"""What is wrong with a graph, and where."""

from enum import StrEnum


class Fault(StrEnum):
    """In one word: the reason of the condition ``GraphValid``."""

    INVALID = "InvalidGraph"
    """A reference, an expression or a combination that cannot be, whatever the models are."""
    CYCLE = "Cycle"
    MISMATCH = "SignatureMismatch"
    """A model takes or gives something else than the graph says."""
    MISSING = "StepMissing"
    """Nothing answers where a step's model should be."""


class GraphError(ValueError):
    """A graph that cannot work.

    Args:
        path: of the field at fault (``steps[1].inputs.x``).
        what: the rest of the sentence.
    """

    def __init__(self, path: str, what: str, fault: Fault = Fault.INVALID) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what
        self.fault = fault
