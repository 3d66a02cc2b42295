"""Sampled rows of clients to run again, as a batch without clients."""

from shoal_proxy.batching.batch import Batch
from shoal_proxy.batching.pending import PendingRequest, RequestSlice, discard
from shoal_proxy.batching.row_samples import SampledRow
from shoal_proxy.batching.row_suspicion import RerunKind, Suspicion


class RowCheck:
    """Sampled rows to run again, and the suspicion they test, if any."""

    __slots__ = ("model", "place", "samples", "sent_s", "suspicion", "trial")

    def __init__(
        self, samples: list[SampledRow], model: int, suspicion: Suspicion | None = None,
        trial: RerunKind = RerunKind.REPEATED, place: int = 0,
    ) -> None:  # fmt: skip
        self.samples = samples
        self.model = model
        """Number of the served model, to recognize results of an earlier one."""
        self.suspicion = suspicion
        self.trial = trial
        self.place = place
        """Position of the suspected row in ``samples``."""
        self.sent_s = 0.0

    def batch(self, now_s: float, timeout_s: float) -> Batch:
        """Return the rows as a batch without clients, to be sent at ``now_s``."""
        self.sent_s = now_s
        slices: list[RequestSlice] = []
        for sample in self.samples:
            pending = PendingRequest(
                inputs=sample.inputs,
                rows=1,
                size_bytes=0,
                arrived_s=now_s,
                deadline_s=now_s + timeout_s,
                deliver=discard,
                key=sample.batch.group[0],
                lengths=sample.lengths,
            )
            slices.append(RequestSlice(pending, 0, 1, sample.inputs))
        return Batch(tuple(slices), len(slices))
