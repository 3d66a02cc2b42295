"""Rows of clients that are run again, as a batch that belongs to no client."""

from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import Outcome, Pending, Slice
from shoal_proxy.batching.row_samples import Sample
from shoal_proxy.batching.row_suspicion import Suspicion, Trial


class Check:
    """Rows to run again, and what for."""

    __slots__ = ("model", "place", "samples", "sent_s", "suspicion", "trial")

    def __init__(
        self, samples: list[Sample], model: int, suspicion: Suspicion | None = None,
        trial: Trial = Trial.REPEATED, place: int = 0,
    ) -> None:  # fmt: skip
        self.samples = samples
        self.model = model
        """Number of the model that is served."""
        self.suspicion = suspicion
        self.trial = trial
        self.place = place
        """Of the suspicion's row in it."""
        self.sent_s = 0.0

    def batch(self, now_s: float, timeout_s: float) -> Batch:
        """Return the batch that belongs to no client."""
        self.sent_s = now_s
        slices: list[Slice] = []
        for sample in self.samples:
            pending = Pending(
                inputs=sample.inputs,
                rows=1,
                size_bytes=0,
                arrived_s=now_s,
                deadline_s=now_s + timeout_s,
                deliver=_nobody,
                key=sample.batch.group[0],
                lengths=sample.lengths,
            )
            slices.append(Slice(pending, 0, 1, sample.inputs))
        return Batch(tuple(slices), len(slices))


def _nobody(_: Outcome) -> None:
    """Stand in for a client."""
