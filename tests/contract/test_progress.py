"""The operator parses the batch process's progress."""

from shoal_operator.batch.progress import read_progress
from shoal_runtime.offline.progress import JobTally
from shoal_schema.interfaces.progress import MAX_BYTES, JobProgress, WorkDone, combined_work, share


def test_the_operator_reads_what_the_batch_program_reports() -> None:
    tally = JobTally(shards_total=40, bytes_total=400, shards_done=3, bytes_done=30, rows=12, failed=1, begun_s=1.0)
    tally.before, tally.resumed, tally.siblings = WorkDone(1, 2, 0, 9), WorkDone(2, 8, 1, 20), WorkDone(5, 5, 5, 5)
    reported = tally.encoded(3.0, "x" * 2000)

    assert len(reported) <= MAX_BYTES
    assert read_progress(reported) == JobProgress(
        shards_total=40,
        bytes_total=400,
        before=WorkDone(1, 2, 0, 9),
        own=WorkDone(5, 20, 2, 50),
        rows_per_second=6.0,
        message="x" * 2000,
    )


def test_of_several_workers_what_was_there_before_counts_once() -> None:
    before = WorkDone(shards=2, rows=20, failed_rows=1, bytes=100)
    reported = [JobProgress(40, 400, before, WorkDone(shards=n, rows=10 * n, bytes=50 * n), 1.0) for n in (1, 2)]

    assert combined_work(reported) == WorkDone(shards=5, rows=50, failed_rows=1, bytes=250)
    assert share(reported) == 250 / 400
    assert (combined_work([]), share([])) == (WorkDone(), 0.0)
