"""Totals of executed batches by size, for the statistics API. Pure."""


class ExecutionTimes:
    """A number of executions, and the total time (s) of each of their phases."""

    __slots__ = ("count", "infer_s", "input_s", "output_s")

    def __init__(self) -> None:
        self.count = 0
        self.input_s = 0.0
        self.infer_s = 0.0
        self.output_s = 0.0

    def add(self, count: int, input_s: float, infer_s: float, output_s: float) -> None:
        """Add ``count`` executions, each with the given times (s)."""
        self.count += count
        self.input_s += count * input_s
        self.infer_s += count * infer_s
        self.output_s += count * output_s


class Executions:
    """Totals of all completed batches since the process started."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.requests = ExecutionTimes()
        """Each request counts with the times of the batch that completed it."""
        self.by_rows: dict[int, ExecutionTimes] = {}
        """By batch size: at most as many entries as a batch may have rows."""
        self.last_s: float | None = None
        """Monotonic time (s) of the last response; None before the first."""

    def record(
        self, rows: int, requests: int, *, input_s: float, infer_s: float, output_s: float, now_s: float
    ) -> None:
        """Add a completed batch to the totals.

        Args:
            rows: rows of the batch.
            requests: number of requests that the batch completed.
            input_s: time from forming to sending the batch.
            infer_s: time at the runtime.
            output_s: time from receiving to splitting the result.
            now_s: monotonic time at which the result was split.
        """
        self.rows += rows
        self.batches += 1
        self.last_s = now_s
        self.requests.add(requests, input_s, infer_s, output_s)
        times = self.by_rows.get(rows)
        if times is None:
            times = self.by_rows[rows] = ExecutionTimes()
        times.add(1, input_s, infer_s, output_s)
