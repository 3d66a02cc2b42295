"""The exchange of ``/v1/rollout`` on a proxy's admin port: the operator's plan, and the proxy's report.

While a service has a candidate, the operator sends ``PUT /v1/rollout`` with a `RolloutPlan` to each pod every two
seconds. The response, as that of ``GET``, is a `RolloutReport`. A proxy keeps the last plan until the next one. The
plan contains no address: proxies find the candidate's pods by the DNS name in ``SHOAL_PROXY_CANDIDATES``, so that a
client of the admin port cannot redirect requests.

All counts are of one candidate revision and grow from 0 at the first plan that names it.

Rows of a batch or of a request often fail together. So each count of failed or disagreeing rows has a sum of squares:
over batches (shadowed or repeated rows) or requests (others), the square of the number of such rows. One batch with 32
failed rows adds 32 to the count and 1024 to the squares; 32 batches with one each add 32 to both.
"""

from math import log
from typing import Annotated, Final

from msgspec import Meta, Struct

PATH: Final = "/v1/rollout"
MAX_BYTES: Final = 262_144
"""Limit of a plan and of a report."""
MAX_OUTPUTS: Final = 256
LEAST_SPREAD: Final = 1e-6
"""`BatchTimes.log_rows_variance_sum` below which all batches have the same number of rows."""
_LEAST_TIME_S: Final = 1e-9
_MOST_OFF: Final = log(1.5)
_MOST_OFF_AT_FIRST: Final = log(3)
_CERTAIN_BATCHES: Final = 10

Count = Annotated[int, Meta(ge=0, le=2**53)]
Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0)]
Revision = Annotated[str, Meta(max_length=63, pattern=r"^[0-9a-z-]*\Z")]


class OutputTolerance(Struct, frozen=True, omit_defaults=True):
    """Tolerated difference of one output: see `resource.comparison.OutputToleranceSpec`."""

    max_abs_error: Amount = 0.001
    max_rel_error: Amount = 0.01
    top_k: Annotated[int, Meta(ge=1, le=1000)] | None = None


class RolloutPlan(Struct, frozen=True, omit_defaults=True):
    """What a proxy does for a rollout. The default ends it: no batch and no request goes to a candidate."""

    candidate: Revision = ""
    """Revision of the candidate. Another one than before resets the counts."""
    shadow: Share = 0.0
    """Share of batches that the candidate runs again."""
    weight: Share = 0.0
    """Share of requests that the candidate serves."""
    sticky_header: Annotated[str, Meta(max_length=128)] = ""
    tolerances: dict[str, OutputTolerance] = {}
    """By output; others have the default tolerance."""
    allow_signature_change: bool = False


class OutputCounts(Struct, frozen=True):
    """Compared rows of one output."""

    rows: Count = 0
    """Compared rows: both revisions have a result of this output, and neither differs in kind."""
    row_squares: Count = 0
    """Sum over batches of the squared number of these rows."""
    disagreements: Count = 0
    """Rows beyond the tolerance."""
    disagreement_squares: Count = 0
    """Sum over batches of the squared number of disagreeing rows."""
    max_abs_error: Amount = 0.0
    """Largest difference of two finite numbers."""
    repeated_rows: Count = 0
    """Rows that the stable revision ran a second time."""
    repeated_row_squares: Count = 0
    """Sum over repeated batches of the squared number of rows."""
    repeated_disagreements: Count = 0
    """Repeated rows in which the stable revision disagrees with itself."""
    repeated_disagreement_squares: Count = 0
    """Sum over repeated batches of the squared number of such rows."""
    change: Annotated[str, Meta(max_length=256)] = ""
    """Difference of datatype, shape or kind. Rows with it are not compared."""


class BatchTimes(Struct, frozen=True):
    """Execution times of batches with an equal number of rows, rounded up to a power of two: see `add_batch`."""

    rows: Annotated[int, Meta(ge=1, le=2**31)]
    """Upper bound of rows: 1, 2, 4, 8, ..."""
    batches: Count = 0
    log_mean: float = 0.0
    """Mean of the natural logarithm of the time at the runtime (s)."""
    log_variance_sum: Amount = 0.0
    """Sum of squared differences from `log_mean`."""
    # Batches of a bucket have up to twice as many rows as others. These sums of x, the logarithm of the rows, and of
    # y, the logarithm of the time, make their times comparable.
    log_rows_mean: float = 0.0
    """Mean of x."""
    log_rows_variance_sum: Amount = 0.0
    """Sum of squared differences of x from its mean."""
    covariance_sum: float = 0.0
    """Sum of the products of both differences: (x - mean of x) (y - mean of y)."""

    def slope(self) -> float:
        """Return by how much the logarithm of the time grows with that of the rows: 0 to 1; 0 if unknown."""
        if self.log_rows_variance_sum < LEAST_SPREAD:
            return 0.0
        return min(1.0, max(0.0, self.covariance_sum / self.log_rows_variance_sum))


class RolloutReport(Struct, frozen=True):
    """Counts of one proxy since the first plan that named this candidate."""

    revision: Revision
    """Revision of the proxy's own pod."""
    candidate: Revision
    """Candidate of the last plan; empty if there is none."""
    # Requests that clients sent to this proxy, by the revision that served them.
    served_rows: Count = 0
    """Rows that ran on this pod, those that failed included."""
    failed_rows: Count = 0
    """Rows without a result, also those that the model rejects as invalid."""
    failed_squares: Count = 0
    """Sum over requests of the squared number of failed rows."""
    candidate_requests: Count = 0
    """Requests that the candidate served."""
    candidate_rows: Count = 0
    """Rows of requests that the candidate served or that failed on it."""
    candidate_failed_rows: Count = 0
    """Rows of requests that failed on the candidate, whether or not this pod served them then."""
    candidate_failed_squares: Count = 0
    """Sum over requests of the squared number of these rows."""
    returned_requests: Count = 0
    """Requests that this pod served because no candidate accepted them."""
    # Batches that the candidate runs again.
    shadowed_batches: Count = 0
    shadowed_rows: Count = 0
    """Rows of batches that the candidate accepted or rejected as invalid, those that failed included."""
    shadow_failed_rows: Count = 0
    """Rows of these batches without a result of the candidate."""
    shadow_failed_squares: Count = 0
    """Sum over batches of the squared number of these rows."""
    dropped_batches: Count = 0
    """Batches that were selected but not sent: the limits of shadowing were reached, or no candidate was ready."""
    outputs: Annotated[dict[str, OutputCounts], Meta(max_length=MAX_OUTPUTS)] = {}
    # Times of this pod's own batches, except repeated rows.
    times: Annotated[tuple[BatchTimes, ...], Meta(max_length=32)] = ()
    # Memory of this pod's runtimes; 0 if they do not report it.
    memory_bytes: Count = 0
    """Largest memory that their processes have used."""
    device_memory_bytes: Count = 0
    """Memory of devices that their processes use."""
    ready_candidates: Count = 0
    """Pods of the candidate that respond."""
    input_change: Annotated[str, Meta(max_length=1024)] = ""
    """Difference of the candidate's inputs; empty if they are the same or unknown."""
    output_change: Annotated[str, Meta(max_length=1024)] = ""
    """Difference of the candidate's outputs; empty if they are the same or unknown."""


def rows_bucket(rows: int) -> int:
    """Return the upper bound of the `BatchTimes` for a number of rows: the next power of two."""
    return 1 << (rows - 1).bit_length()


def add_batch(times: BatchTimes, rows: int, time_s: float) -> BatchTimes:
    """Return the times with another batch.

    A time that differs from the usual one for these rows by more than a factor of 1.5 counts as differing by that
    factor: few batches that wait for the machine would otherwise hide a difference of 10 %. Of the first ten batches,
    whose usual time is uncertain, the factor is 3. Source of the update: Welford 1962, "Note on a method for
    calculating corrected sums of squares and products".

    Args:
        times: the batches of its bucket so far.
        rows: rows of the batch.
        time_s: its execution time.
    """
    batches = times.batches + 1
    off = log(max(time_s, _LEAST_TIME_S)) - times.log_mean
    rows_off = log(rows) - times.log_rows_mean
    if times.batches:
        certain = times.batches >= _CERTAIN_BATCHES
        usual, most_off = (times.slope() * rows_off, _MOST_OFF) if certain else (0.0, _MOST_OFF_AT_FIRST)
        off = min(usual + most_off, max(usual - most_off, off))
    # The difference from the new mean is smaller.
    kept = times.batches / batches
    return BatchTimes(
        rows=times.rows,
        batches=batches,
        log_mean=times.log_mean + off / batches,
        log_variance_sum=times.log_variance_sum + off * off * kept,
        log_rows_mean=times.log_rows_mean + rows_off / batches,
        log_rows_variance_sum=times.log_rows_variance_sum + rows_off * rows_off * kept,
        covariance_sum=times.covariance_sum + off * rows_off * kept,
    )
